"""Ranks of a job, on one machine or many: how they start, what they send, how they end."""
