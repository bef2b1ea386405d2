"""Ranks of a job, on one machine or many: their start, their messages, their end."""
