"""Pretraining: the schedule decides, the runtime executes, the driver connects them."""
