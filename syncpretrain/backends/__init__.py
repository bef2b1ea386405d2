"""Where arrays and random numbers come from."""
