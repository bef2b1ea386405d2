"""Pieces of a layer's work on a GPU, to be timed: blocks of steps, input, validation, products.

Each work is queued on a learner's stream and waits for it at the end. So it takes the seconds of
the GPU, or of the interpreter if that is slower. It has never run on a GPU.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Backend, TrainStep
from syncpretrain.data.order import shuffled
from syncpretrain.learners.base import Learner
from syncpretrain.models.layer import Layer
from syncpretrain.planning.gpu import drawn
from syncpretrain.planning.probes import Work
from syncpretrain.shapes import LayerShape
from syncpretrain.workers.activations import transform
from syncpretrain.workers.split import Split

__all__ = ["BareProducts", "steps_on_device", "transforming_on_device", "validating_on_device"]


def steps_on_device(learner: Learner, train_step: TrainStep, X: Any) -> Work:
    """Return steps on rows of X as work, done in whole blocks of steps.

    The first block is launched step by step, the second is recorded.
    """
    backend, batch = learner.backend, learner.batch_size
    learner.learning_rate = 1e-9  # the weights stay where they are, however often it is timed
    with learner.stream:
        order = shuffled(len(X), seed=0, layer=learner.layer, epoch=1)
        rows = backend.asarray(np.resize(order, batch * backend.steps_at_once))
        learner.stream.synchronize()
    done = [0]  # steps

    def work(times: int) -> float:
        with learner.stream:
            blocks = -(-times // backend.steps_at_once)
            started = perf_counter()
            for _ in range(blocks):
                learner.recorder.train(
                    *(train_step, X, rows),
                    batch_size=batch,
                    epoch=1,
                    step=done[0],
                    constants=learner.constants(1),
                )
                done[0] += backend.steps_at_once
            learner.stream.synchronize()
            return (perf_counter() - started) / (blocks * backend.steps_at_once) * times

    return work


class BareProducts:
    """The matrix products of a step of contrastive divergence: 2 k + 3 passes over the weights.

    Parameters
    ----------
    learner : Learner
        On a GPU.
    shape : LayerShape
        Shape of the layer; the rows of a convolution's products are the positions.
    cd_steps : int
    """

    def __init__(self, learner: Learner, shape: LayerShape, cd_steps: int) -> None:
        rows, visible, hidden = (
            learner.batch_size * shape.positions,
            shape.fan_in,
            shape.biases[1],
        )
        new = partial(drawn, learner.backend)
        self._multiply, self._cd_steps, self._rows = learner.precision.multiply, cd_steps, rows
        with learner.stream:
            self._v, self._h = new((2 * rows, visible)), new((2 * rows, hidden))
            self._states, self._weights = new((rows, hidden)), new((visible, hidden))
            self._gradient = new((visible, hidden))
            self._error = learner.backend.zeros((), np.float64)
            learner.stream.synchronize()

    def train_step(self, X: Any, rows: NDArray[np.intp], *, epoch: int, step: int) -> Any:
        """Queue the products; the rows do not count."""
        n, multiply = self._rows, self._multiply
        multiply(self._v[:n], self._weights, out=self._h[:n])
        for _ in range(self._cd_steps):
            multiply(self._states, self._weights.T, out=self._v[n:])
            multiply(self._v[n:], self._weights, out=self._h[n:])
        multiply(self._v.T, self._h, out=self._gradient)
        return self._error


def transforming_on_device(
    below: Learner, layer: Layer, X: Any, reader: Backend, rows: int
) -> Work:
    """Return, as work, the making of a layer's activations of X on their reader's device.

    ``rows`` is the number of rows of a chunk.
    """
    stream, width = reader.stream(), layer.shape.hidden
    with stream:
        target = Split(reader.empty((len(X), width)), reader.empty((0, width)))
    with below.stream:
        source = Split(X, below.backend.empty((0, X.shape[1])))
        below.stream.synchronize()

    def work(times: int) -> float:
        with stream:
            started = perf_counter()
            for _ in range(times):
                transform([layer], source, target, lambda: False, reader=reader, rows=rows)
            stream.synchronize()
            return perf_counter() - started

    return work


def validating_on_device(learner: Learner, held_out: Any) -> Work:
    """Return what a worker does at the end of an epoch."""

    def work(times: int) -> float:
        with learner.stream:
            started = perf_counter()
            for _ in range(times):
                learner.largest_weight()
                learner.snapshot()
                if len(held_out):
                    learner.validation_error(held_out)
            learner.stream.synchronize()
            return perf_counter() - started

    return work
