"""Layers that train on each other's minibatches: rings, and where the layers are."""
