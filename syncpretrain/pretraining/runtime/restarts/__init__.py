"""Restarts of processes that died, from the states that they kept."""
