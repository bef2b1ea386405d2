"""Data and settings for compare, of two prototypes."""

from dataclasses import replace

import numpy as np

from syncpretrain.data.dataset import Dataset
from syncpretrain.settings import settings_from

WIDTH = 16


def make_data(scale=1.0, **changes):
    """Return 60, 10 and 20 noisy copies of two prototypes."""
    rng = np.random.default_rng(0)
    prototypes = rng.random((2, WIDTH)) < 0.5
    y = np.arange(90) % 2
    X = np.float32(scale) * (prototypes[y] ^ (rng.random((90, WIDTH)) < 0.1)).astype(np.float32)
    cuts = (60, 70)
    parts, labels = np.split(X, cuts), np.split(y, cuts)
    return replace(Dataset("toy", "two prototypes", *parts, *labels), **changes)


def make_settings(objective="classification", finetune=None, **options):
    tuning = {"objective": objective, "epochs": 2, "batch_size": 10, **(finetune or {})}
    options = {"epochs": 1, "batch_size": 10, **options}
    return settings_from((WIDTH, 8, 4), finetune=tuning, **options)
