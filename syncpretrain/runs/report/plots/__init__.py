"""Plots of a stack and of a run, drawn by Matplotlib."""
