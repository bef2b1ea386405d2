"""Training of a stack on rows that come in parts: each minibatch goes up through all layers.

A layer trains on a minibatch and hands its activations to the layer above, as in a streamed run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from syncpretrain.data.blocks import blocks_of
from syncpretrain.data.examples import check_columns, evenly_spaced, has_missing
from syncpretrain.data.facts import look_at
from syncpretrain.data.meaning import Meaning, origin_of
from syncpretrain.data.scaling import Scaling
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.base import Learner
from syncpretrain.learners.epoch import diverged
from syncpretrain.learners.steps import WholeStep, load_state
from syncpretrain.models.diagnosis import baselines, on_layers
from syncpretrain.models.inputs import in_columns
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import ErrorCurve
from syncpretrain.parallel.precision_choice import resolved
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.build_data import settled
from syncpretrain.settings.checks import check_missing
from syncpretrain.units.kinds import kind_of

FAR = 10.0  # deviations of the first part from its mean: how far no row of it lies on average
NEAR = 0.01  # of such a deviation: a column that varies less is as good as constant to a layer
ROWS_TO_COMPARE = 1000  # of later parts, before a column of theirs is said to vary less
ROWS_TO_JUDGE = 100  # of a part: fewer may be alike
JUDGED_ROWS = 1000  # of a part, at most
UPDATES_TO_JUDGE = 500  # before a layer is said to have learned nothing


class OnlineStack:
    """A stack in training, without learners between two parts, so that it can be pickled.

    Parameters
    ----------
    X : ndarray of shape (n_examples, input units), float32
        The first part, from which the settings follow that are not given.
    stack : Stack or None
        To go on with; None begins anew, with the scaling of the first part. A column that never
        varied has no scale, and gets one by the part in which it first varies.
    layers : sequence of int
        Units of the input and of each layer.
    **settings
        As of :func:`syncpretrain.pretrain`.

    Raises
    ------
    SettingsError, DataError
        If a setting is wrong, or X holds no numbers in a column.

    Attributes
    ----------
    verdict : list of str
        Sentences about the part that was trained on last, and what the layers make of it.
    """

    def __init__(self, X: Array, stack: Stack | None, *, layers: Any, **settings: Any) -> None:
        if stack is None and has_missing(X):
            check_columns(X)
        if stack is not None:
            settings["visible_units"] = stack.units[0]
        wanted, _ = settled(layers, look_at(X), settings)
        self.settings = resolved(wanted, "numpy")
        gaussian = not kind_of(self.settings.visible_units).is_unit_interval
        own = Meaning("numbers", origin_of(X) if gaussian and isinstance(X, np.ndarray) else ())
        self._meaning = own if stack is None else stack.meaning or own
        self.stack = stack
        self.parts = self.updates = 0
        self.verdict: list[str] = []
        self._states: list[dict[str, Array]] = []
        self._later = _LaterRows(self.settings.visible_units, X.shape[1])

    def train(self, X: Array, names: Sequence[str] = ()) -> Stack:
        """Train once on each row of a part; return the stack.

        Parameters
        ----------
        X : ndarray of shape (n_examples, input units)
            NaN stands for a missing value.
        names : sequence of str
            Names of the columns; empty if they have none.

        Raises
        ------
        SettingsError, DataError
            If a value is outside [0, 1] where the visible units are binary, or missing where the
            settings do not permit it.
        DivergedError
            If a layer leaves the finite numbers; the stack of the part before stays.
        """
        X = self._meaning.prepare(X)
        missing = has_missing(X)
        if missing:
            check_missing(self.settings)
        learners = build_learners(msgspec.structs.replace(self.settings, missing=missing))
        steps, first = list(map(WholeStep, learners)), self.stack is None
        if self.stack is None:
            self.stack = _stack_of(learners, Scaling.for_units(X, self.settings.visible_units))
        else:
            self.stack = self._let_vary(self.stack.for_prepared_rows(), X)
            for learner, layer in zip(learners, self.stack.layers, strict=True):
                learner.restore(layer)
        for own, layer, state in zip(steps, self.stack.layers, self._states, strict=False):
            load_state(own.learner, own, layer, state)
        seen, size = self.stack.prepared(X, missing=True), self.settings.batch_size
        on_columns = [] if first else self._later.compared(seen, names)
        self.parts += 1
        with np.errstate(all="ignore"):  # what overflows is found by the check below
            for step, start in enumerate(range(0, len(seen), size)):
                below = seen[start : start + size]
                self.updates += 1
                for own in steps:
                    if first and step == 0:
                        own.learner.start(below)
                    own.train_step(below, np.arange(len(below)), epoch=self.parts, step=step)
                    below = own.learner.current().up(below)
        for learner in learners:
            _check_finite(learner, self.parts, on_columns)
        self._states = [{n: a.copy() for n, a in learner.state().items()} for learner in learners]
        self.stack = _stack_of(learners, self.stack.scaling)
        # What is odd about columns is a cause of what is odd about layers.
        self.verdict = on_columns or self._on_layers(self.stack, X)
        info = {"meaning": msgspec.to_builtins(self._meaning)}
        info |= {"verdict": self.verdict} if self.verdict else {}
        self.stack = replace(self.stack, info=info)
        return self.stack

    def _let_vary(self, stack: Stack, X: Array) -> Stack:
        """Return the stack with a scale for columns that never varied before this part."""
        before = stack.scaling
        if before is None:
            return stack
        scaling = before.varied_by(X)
        self._later.forget(before.constant & ~scaling.constant)
        return replace(stack, scaling=scaling)

    def _on_layers(self, stack: Stack, X: Array) -> list[str]:
        """Return sentences about the layers, by what they make of a part that is large enough."""
        scaling = stack.scaling
        if scaling is not None and scaling.constant.all() and len(X) > 1:
            return [f"all {X.shape[1]:,} columns are constant so far; give parts with other rows"]
        if len(X) < ROWS_TO_JUDGE:
            return []
        found = baselines(stack, evenly_spaced(X, JUDGED_ROWS))
        begun = self.updates < UPDATES_TO_JUDGE
        return on_layers(found, [ErrorCurve()] * len(found), more="more rows", begun=begun)


class _LaterRows:
    """How the Gaussian columns of later parts lie in the scaling of the first one."""

    def __init__(self, units: str, width: int) -> None:
        self._normal = kind_of(units).normal_columns(np, width)
        self._count, self._sums, self._squares = np.zeros((3, width))
        self._far, self._hardly = np.zeros((2, width), dtype=bool)

    def forget(self, columns: Any) -> None:
        """Begin anew with columns that have another scaling from now on."""
        for sums in (self._count, self._sums, self._squares):
            sums[columns] = 0
        self._hardly[columns] = False

    def compared(self, rows: Any, names: Sequence[str]) -> list[str]:
        """Return sentences about columns of these rows, or of earlier ones, that lie otherwise."""
        squares = np.zeros(len(self._normal))
        for block in blocks_of(rows):
            squares += np.square(block, dtype=np.float64).sum(axis=0)
            self._sums += block.sum(axis=0, dtype=np.float64)
        self._squares += squares
        self._count += len(rows)
        means = self._sums / self._count
        variance = np.maximum(self._squares / self._count - means**2, 0)
        hardly = (variance > 0) & (variance < NEAR**2) & (self._count >= ROWS_TO_COMPARE)
        self._hardly |= self._normal & hardly
        self._far |= self._normal & (squares > FAR**2 * len(rows))
        found = {
            f"lie more than {FAR:g} deviations from the mean": np.flatnonzero(self._far),
            f"vary by less than {NEAR:g} deviations": np.flatnonzero(self._hardly),
        }
        return [
            f"columns of later parts {how} of the first part"
            f" ({in_columns(places.tolist(), names)}), by which they are standardized; begin anew"
            " with a first part that has rows of all kinds, such as shuffled ones"
            for how, places in found.items()
            if len(places)
        ]


def _stack_of(learners: list[Learner], scaling: Scaling | None) -> Stack:
    return Stack(tuple(learner.snapshot() for learner in learners), {}, scaling)


def _check_finite(learner: Learner, part: int, causes: Sequence[str]) -> None:
    """Refuse weights that are no numbers any more, naming what the columns have to do with it."""
    largest = learner.largest_weight()
    if not np.isfinite(largest):
        error = diverged(learner, part, f"a weight has grown to {largest:.3g}")
        error.args = ("; ".join([*error.args, *causes]),)
        raise error
