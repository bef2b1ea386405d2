"""Epochs of single learners, what their parameters are, and probabilities of binary units."""

from __future__ import annotations

import numpy as np
from convolutionbydefinition import channel_of, matrix_of

from syncpretrain.learners.base import Learner
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.steps import WholeStep

__all__ = ["assert_close", "assert_same_bits", "train_whole", "unrolled"]


def train_whole(learner: Learner, X: np.ndarray, epochs: range) -> list[float]:
    """Train in whole steps; return the error of each epoch."""
    return [
        train_epoch(
            *(learner, WholeStep(learner), X),
            epoch=epoch,
            stop=lambda: False,
            progress=lambda _: None,
        )
        for epoch in epochs
    ]


def assert_close(found, wanted, *, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Compare arrays, or the parameters of two learners."""
    for have, want in pairs_of(found, wanted):
        np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


def assert_same_bits(found, wanted) -> None:
    for have, want in pairs_of(found, wanted):
        np.testing.assert_array_equal(have, want)


def unrolled(rbm: Learner) -> tuple[np.ndarray, ...]:
    """Return weights and biases, in float64, of the dense RBM that a convolutional one is."""
    shape, (W, a, b) = rbm.current().shape, map(np.float64, rbm.parameters)
    return matrix_of(shape, W), a[channel_of(shape)], np.tile(b, shape.positions)


def pairs_of(*both):
    return zip(*(x.parameters if isinstance(x, Learner) else x for x in both), strict=True)
