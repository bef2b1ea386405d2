"""Pictures of a bar, which lies or stands, and stacks that learn which."""

import numpy as np

from syncpretrain.finetuning import finetune
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.settings import settings_from

SIDE = 8
TEXT = "1x8x8,conv:4x3:same,pool:2,conv:6x3,pool:2,8"


def bars(count=120, seed=1):
    """Return noisy pictures of a bar of 6 x 2 or 2 x 6, and which of the two it is."""
    draw = np.random.default_rng(seed)
    X, y = 0.3 * draw.random((count, SIDE, SIDE)), np.arange(count) % 2
    for picture, stands in zip(X, y, strict=True):
        rows, columns = (6, 2) if stands else (2, 6)
        top, left = draw.integers(SIDE - rows + 1), draw.integers(SIDE - columns + 1)
        picture[top : top + rows, left : left + columns] += 0.7
    return X.reshape(count, -1).astype(np.float32), y


def untrained(text=TEXT, units="relu", visible="bernoulli", seed=0):
    shapes = settings_from(text, model="denoising").pretrain.shapes
    return untrained_stack(shapes, (units,) * len(shapes), visible, seed=seed)


def tuned(stack, X, y=None, **settings):
    return finetune(stack, X, y, **{"epochs": 2, "batch_size": 12, "blas_threads": 1, **settings})
