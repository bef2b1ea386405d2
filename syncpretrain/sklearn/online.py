"""Training of a stack on rows that come in parts: each minibatch goes up through all layers.

A layer trains on a minibatch and hands its activations to the layer above, as in a streamed run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from syncpretrain import Stack
from syncpretrain.data.scaling import Scaling
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.base import Learner
from syncpretrain.pretraining.build import build_learners
from syncpretrain.settings import PretrainSettings
from syncpretrain.units.kinds import kind_of

__all__ = ["OnlineStack"]


class OnlineStack:
    """A stack in training, without learners between two parts, so that it can be pickled.

    Parameters
    ----------
    settings : PretrainSettings
    stack : Stack, optional
        To go on with; None begins anew, with the scaling of the first part.
    """

    def __init__(self, settings: PretrainSettings, stack: Stack | None = None) -> None:
        self.settings, self.stack = settings, stack
        self.parts = 0
        self._states: list[dict[str, Array]] = []

    def train(self, X: Array) -> Stack:
        """Train once on each row of a part; return the stack.

        Parameters
        ----------
        X : ndarray of shape (n_examples, input units), float32

        Raises
        ------
        DataError
            If a value is outside [0, 1] where the visible units are binary.
        """
        learners = build_learners(self.settings)
        if self.stack is None:
            unscaled = kind_of(self.settings.visible_units).is_unit_interval
            self.stack = _stack_of(learners, None if unscaled else Scaling.of(X))
            first = True
        else:
            first = False
            for learner, layer in zip(learners, self.stack.layers, strict=True):
                learner.restore(layer)
        for learner, state in zip(learners, self._states, strict=False):
            _restore(learner, state)
        seen, size = self.stack.prepared(X), self.settings.batch_size
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
