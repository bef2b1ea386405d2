"""Scaling: predict a run on any number of devices of a cluster."""
