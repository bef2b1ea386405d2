"""Usual settings and epochs of single learners, and what their parameters are."""

import numpy as np
from convolutionbydefinition import channel_of, matrix_of
from onelayer import layer_settings

from syncpretrain.learners.base import Learner
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.steps import WholeStep
from syncpretrain.settings import MomentumSchedule
from syncpretrain.settings.fields import LayerSettings


def usual(**changed) -> LayerSettings:
    given = {"batch_size": 10, "learning_rate": 0.1, "momentum": MomentumSchedule("0.5"), "seed": 3}
    return layer_settings(**(given | changed))


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


def slopes_of(loss, parameters) -> list[np.ndarray]:
    """Return the central differences of a loss by each of its parameters, float64 arrays."""
    slopes = [np.zeros_like(p) for p in parameters]
    for parameter, slope in zip(parameters, slopes, strict=True):
        for index in np.ndindex(parameter.shape):
            middle, values = parameter[index], []
            for parameter[index] in (middle + 1e-5, middle - 1e-5):
                values.append(loss(parameters))
            parameter[index] = middle
            slope[index] = (values[0] - values[1]) / 2e-5
    return slopes


def pairs_of(*both):
    return zip(*(x.parameters if isinstance(x, Learner) else x for x in both), strict=True)
