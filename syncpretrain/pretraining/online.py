"""Training of a stack on rows that come in parts: each minibatch goes up through all layers.

A layer trains on a minibatch and hands its activations to the layer above, as in a streamed run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from syncpretrain.data.facts import look_at
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.visible import check_columns, has_missing
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.base import Learner
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.precision_choice import resolve_precision
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.settled import settled
from syncpretrain.settings.visible_units import check_missing

__all__ = ["OnlineStack"]


class OnlineStack:
    """A stack in training, without learners between two parts, so that it can be pickled.

    Parameters
    ----------
    X : ndarray of shape (n_examples, input units), float32
        The first part, from which the settings follow that are not given.
    stack : Stack or None
        To go on with; None begins anew, with the scaling of the first part.
    layers : sequence of int
        Units of the input and of each layer.
    **settings
        As of :func:`syncpretrain.pretrain`.

    Raises
    ------
    SettingsError, DataError
        If a setting is wrong, or X holds no numbers in a column.
    """

    def __init__(self, X: Array, stack: Stack | None, *, layers: Any, **settings: Any) -> None:
        if stack is None and has_missing(X):
            check_columns(X, "X")
        if stack is not None:
            settings["visible_units"] = stack.units[0]
        wanted, _ = settled(layers, look_at(X), settings)
        precision = resolve_precision(wanted.precision, "numpy")
        self.settings = msgspec.structs.replace(wanted, precision=precision)
        self.stack = stack
        self.parts = 0
        self._states: list[dict[str, Array]] = []

    def train(self, X: Array) -> Stack:
        """Train once on each row of a part; return the stack.

        Parameters
        ----------
        X : ndarray of shape (n_examples, input units), float32
            NaN stands for a missing value.

        Raises
        ------
        SettingsError, DataError
            If a value is outside [0, 1] where the visible units are binary, or missing where the
            settings do not permit it.
        """
        missing = has_missing(X)
        if missing:
            check_missing(self.settings)
        learners = build_learners(msgspec.structs.replace(self.settings, missing=missing))
        first = self.stack is None
        if self.stack is None:
            self.stack = _stack_of(learners, Scaling.for_units(X, self.settings.visible_units))
        else:
            for learner, layer in zip(learners, self.stack.layers, strict=True):
                learner.restore(layer)
        for learner, state in zip(learners, self._states, strict=False):
            _restore(learner, state)
        seen, size = self.stack.prepared(X, missing=True), self.settings.batch_size
        self.parts += 1
        for step, start in enumerate(range(0, len(seen), size)):
            below = seen[start : start + size]
            for learner in learners:
                if first and step == 0:
                    learner.start(below)
                learner.gradient(below, np.arange(len(below)), epoch=self.parts, step=step)
                learner.update(epoch=self.parts)
                below = learner.current().up(below)
        self._states = [{n: a.copy() for n, a in learner.state().items()} for learner in learners]
        self.stack = _stack_of(learners, self.stack.scaling)
        return self.stack


def _stack_of(learners: list[Learner], scaling: Scaling | None) -> Stack:
    return Stack(tuple(learner.snapshot() for learner in learners), {}, scaling)


def _restore(learner: Learner, state: Mapping[str, Any]) -> None:
    for name, array in learner.state().items():
        np.copyto(array, state[name])
