"""A problem of three classes, and fine-tuning on it in a few epochs."""

from functools import partial

import numpy as np
import pytest
from randomstacks import normal_stack

from syncpretrain.events import FinetuneEpochFinished
from syncpretrain.finetuning import finetune

CLASSES = np.array([3, 7, 11])
make_stack = partial(normal_stack, (8, 6, 4), scale=0.5)


def toy(rows=60, seed=1):
    """Return noisy copies of three patterns, and which of the classes each is."""
    draw = np.random.default_rng(seed)
    patterns = np.array(
        [[1, 1, 1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 1, 0, 1, 0], [1, 0, 0, 0, 1, 1, 0, 0]]
    )
    which = np.arange(rows) % 3
    X = 0.8 * patterns[which] + 0.2 * draw.random((rows, 8))
    return X.astype(np.float32), CLASSES[which]


def numbers(X):
    return X @ np.linspace(-1, 1, 16).reshape(8, 2).astype(np.float32) + 0.5


def tuned(stack=None, X=None, y=None, **settings):
    given = {"epochs": 3, "batch_size": 10, "blas_threads": 1, **settings}
    return finetune(stack or make_stack(), toy()[0] if X is None else X, y, **given)


def epochs_of(events):
    return [event for event in events if isinstance(event, FinetuneEpochFinished)]


def refused(kind, match, stack=None, X=None, y=None, **settings):
    with pytest.raises(kind, match=match) as caught:
        tuned(stack, X, y, **settings)
    assert type(caught.value) is kind
