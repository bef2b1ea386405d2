"""Checks of a GPU, and times of training on it: see ``gpu_check.py`` beside this folder."""

from __future__ import annotations
