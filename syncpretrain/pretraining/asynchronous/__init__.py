"""Runs by asynchronous gradient descent: replicas of a layer and a parameter server."""
