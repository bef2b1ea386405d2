"""Runtimes execute the schedule's commands; only they start and wait for workers."""
