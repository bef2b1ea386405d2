"""Observers turn events into progress, history and files."""
