"""Replicas of a model and their parameter server, in turns or in threads."""
