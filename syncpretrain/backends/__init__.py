"""Backends: memory for arrays, random numbers, and kernels for one kind of device."""
