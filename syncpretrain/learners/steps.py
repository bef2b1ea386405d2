"""The protocol of a training step, steps of a whole minibatch, and the steps of an RBM by units.

A whole step is the gradient and then the update; on a device that has a fused form of contrastive
divergence it is four launches.

*By units*, contrastive divergence is a program, with the units of an RBM dealt out to shards. It is
model parallelism inside a layer, as the columns of Yadan et al. 2013, in shared memory: a shard
computes its hidden units of all examples, then its visible ones, and moves the weights of its
visible units itself. No gradient is exchanged, which serves small minibatches: for these, averaging
costs most compared with the products. With one shard it is the whole step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import gcd
from typing import Any, Protocol

import numpy as np

from syncpretrain.backends.base import FusedArrays, Pace
from syncpretrain.kernels.arrays import Array, Rows, slices_of
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.learners.rbm import RBM
from syncpretrain.models.layer import Layer
from syncpretrain.rng import BLOCK, Purpose
from syncpretrain.units.kinds import kind_of


class Step(Protocol):
    """A step of one learner on a minibatch."""

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error.

        ``run`` executes the phases of a step that is cut into shards.
        """

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed.

        They are the means of the positive phase. With dropout, or with noise on the input, these
        are not the means for the plain input: then nothing is copied.
        """

    def state(self) -> dict[str, Array]:
        """Return the next step's inputs except the parameters, by name; live arrays."""

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""


class LearnerStep:
    """Base of the steps that have no state besides their learner's.

    Parameters
    ----------
    learner : Learner
        Its parameters are trained.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed."""
        return self.learner.hand_up(out)

    def state(self) -> dict[str, Array]:
        """Return the state of the learner."""
        return self.learner.state()

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""
        self.learner.restart()


class WholeStep(LearnerStep):
    """The gradient of a whole minibatch, then the update."""

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        error = self.learner.gradient(X, rows, epoch=epoch, step=step)
        self.learner.update(epoch=epoch)
        return error


@cache
def spaced(count: int, total: int) -> frozenset[int]:
    """Return up to ``count`` whole numbers from 1 to ``total``, spaced by their logarithm."""
    steps = max(count - 1, 1)
    return frozenset(round(total ** (i / steps)) for i in range(count))


class MarkedStep:
    """A step that keeps the layer as it is after some updates, for whoever studies the learning.

    Parameters
    ----------
    step : Step
    learner : Learner
    epochs, count : int
        Epochs of the layer, and how many of its updates are marked.

    Attributes
    ----------
    steps : int
        Minibatches of an epoch; set before the first of them.
    marks : dict of int to Layer
        The layer by the number of updates, as long as nobody has taken it.
    """

    def __init__(self, step: Step, learner: Learner, *, epochs: int, count: int) -> None:
        self._step, self._learner, self._epochs, self._count = step, learner, epochs, count
        self.steps, self.marks = 0, dict[int, Layer]()
        self.hand_up, self.restart, self.state = step.hand_up, step.restart, step.state

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        error = self._step.train_step(X, rows, epoch=epoch, step=step, run=run)
        update = (epoch - 1) * self.steps + step + 1
        if update in spaced(self._count, self._epochs * self.steps):
            self.marks[update] = self.snapshot()
        return error

    def snapshot(self) -> Layer:
        """Return a copy of the layer, with the chains of all ranks."""
        if self._learner.settings.chains:
            self._step.state()
        return self._learner.snapshot()


def load_state(learner: Learner, step: Step, snapshot: Layer, state: Mapping[str, Array]) -> None:
    """Go back to a snapshot and to what ``step.state()`` held then; the result is bit-identical.

    Raises
    ------
    ValueError, KeyError
        If they belong to another learner, or to another step.
    """
    learner.restore(snapshot)
    learner.load_arrays(step.state(), state)


class FusedDivergence(LearnerStep):
    """The steps of an RBM by CD-k, each made as a whole by its device.

    Parameters
    ----------
    rbm : RBM
        An RBM without persistent chains, sparsity or dropout.
    fused : CudaFused
        The device's step for its arrays.
    """

    learner: RBM

    def __init__(self, rbm: RBM, fused: Any) -> None:
        super().__init__(rbm)
        self._fused = fused

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        rbm, numbers = self.learner, range(self.learner.settings.cd_steps)
        addresses = [rbm.address(Purpose.HIDDEN, epoch, step, k) for k in numbers]
        draws = [(*address.key, *address.counter) for address in addresses]
        own: tuple[Any, Any] = X, rows
        if not self._fused.takes(X, rows):
            own = rbm.backend.gather(X, rows, out=rbm.buffers[0][: len(rows)]), None
        error: float = self._fused(*own, draws, Pace(**rbm.rates(epoch)))
        return error


def fused_step_of(rbm: RBM) -> FusedDivergence | None:
    """Return the fused steps of an RBM; None where its backend has none for it."""
    v, h, states, _, _ = rbm.buffers
    arrays = FusedArrays(
        tuple(rbm.parameters),
        tuple(rbm.velocities().values()),
        *(v, h, states, rbm.settings.visible_units, rbm.settings.hidden_units),
        rbm.settings.precision,
    )
    fused = rbm.backend.fused_step(arrays)
    return None if fused is None else FusedDivergence(rbm, fused)


class ByUnits(LearnerStep):
    """The steps of an RBM by CD-k.

    Parameters
    ----------
    rbm : RBM
        An RBM without persistent chains, sparsity or dropout.
    shards : int

    Attributes
    ----------
    own : list of tuple of slice
        The visible and the hidden units of each shard.
    """

    learner: RBM

    def __init__(self, rbm: RBM, shards: int) -> None:
        super().__init__(rbm)
        self._v, self._h, self._states, noise, self._difference = rbm.buffers
        self._noise = noise.reshape(-1)
        visible, hidden = rbm.weight.shape
        self._scratch = np.empty(hidden, dtype=np.float32)
        self.own = list(zip(slices_of(visible, shards), slices_of(hidden, shards), strict=True))
        self._programs: dict[int, Program] = {}  # by the size of a minibatch

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        n = len(rows)
        if n not in self._programs:
            self._programs[n] = Program(self.operations(n), len(self.own))
        program = self._programs[n]
        self.take(X, rows)
        self.prepare(program, epoch=epoch, step=step)
        run(program, program.shards)
        return float(program.results.sum())

    def take(self, X: Array, rows: Rows) -> None:
        """Take a minibatch."""
        np.take(X, rows, axis=0, out=self._v[: len(rows)], mode="clip")  # "raise" would buffer

    def prepare(self, program: Program, *, epoch: int, step: int) -> None:
        """Set what differs from step to step."""
        rbm = self.learner
        program.prepare(
            rate=rbm.learning_rate,
            momentum=rbm.settings.momentum.at(epoch),
            address=rbm.address(Purpose.HIDDEN, epoch, step),
        )

    def operations(self, n: int) -> list[list[list[Operation]]]:
        """Return the phases of a step on minibatches of n examples, by shard."""
        shards = range(len(self.own))
        phases = []
        for k in range(self.learner.settings.cd_steps):
            feed = [[*self._feed(n, k, s), *self._draw(n, k, s)] for s in shards]
            phases += [feed, [[*self._down(n, s), self._error(n, s)] for s in shards]]
        phases += [[self._up(n, s) for s in shards], [self._move(n, s) for s in shards]]
        return phases

    def _feed(self, n: int, k: int, shard: int) -> list[Operation]:
        """Find the inputs of a part of the hidden units, from v0 or v1."""
        rbm, (_, own) = self.learner, self.own[shard]
        half = slice(n, 2 * n) if k else slice(n)
        return [(rbm.precision.operation, self._v[half], rbm.weight[:, own], self._h[half, own])]

    def _draw(self, n: int, k: int, shard: int) -> list[Operation]:
        """Draw a part of the hidden states for the k-th reconstruction."""
        rbm, (_, own) = self.learner, self.own[shard]
        half = slice(n, 2 * n) if k else slice(n)
        inputs, states, units = self._h[half, own], self._states[:n, own], rbm.settings.hidden_units
        # The noise of each shard is a piece of one flat buffer, in one piece as NumPy's generators
        # fill it. Shards before this one have ``own.start`` units, with room for ``rows`` numbers
        # each in the largest minibatch, so pieces never overlap. With one shard the piece is the
        # whole buffer, filled row by row as for the whole step.
        rows = len(self._states)
        noise = self._noise[rows * own.start :][: inputs.size].reshape(inputs.shape)
        bias = rbm.hidden_bias[own]
        # A draw's address has the shard in its low 32 bits, and above them the number k of the
        # reconstruction, so that no two draws of a step share one. A draw is a function of its
        # address: bits depend on the number of shards, never on who works them; and with one shard
        # (0 | k << 32) the addresses and the bits are the ones of ``RBM.gradient``.
        is_fixed = rbm.precision.name == "own" and kind_of(units).noise == "normal"
        draw = "sample_fixed" if is_fixed else "sample_states"
        return [(draw, inputs, bias, noise, states, units, shard | k << 32, 0)]

    def _down(self, n: int, shard: int) -> list[Operation]:
        """Reconstruct a part of the visible units."""
        rbm, (own, _) = self.learner, self.own[shard]
        v1 = self._v[n : 2 * n, own]
        return [
            (rbm.precision.operation, self._states[:n], rbm.weight[own].T, v1),
            ("means", v1, rbm.visible_bias[own], rbm.settings.visible_units),
        ]

    def _error(self, n: int, shard: int, own: slice | None = None) -> Operation:
        """Find the error of a part of the visible units, of a shard's if ``own`` is None."""
        own = self.own[shard][0] if own is None else own
        v0, v1 = self._v[:n, own], self._v[n : 2 * n, own]
        return ("squared_error", v0, v1, self._difference[:n, own], shard)

    def _up(self, n: int, shard: int) -> list[Operation]:
        """Find a part of the hidden means of the reconstruction."""
        rbm, (_, own) = self.learner, self.own[shard]
        h1 = self._h[n : 2 * n, own]
        return [
            (rbm.precision.operation, self._v[n : 2 * n], rbm.weight[:, own], h1),
            ("means", h1, rbm.hidden_bias[own], rbm.settings.hidden_units),
        ]

    def _move(self, n: int, shard: int) -> list[Operation]:
        """Move the weights of a part of the visible units, and both parts' biases."""
        rbm, (visible, hidden) = self.learner, self.own[shard]
        v, h, (dW, da, db) = self._v[: 2 * n, visible], self._h[: 2 * n], rbm.gradients
        own_h, scratch = h[:, hidden], self._scratch[hidden]
        return [
            ("phase_differences", v, own_h, da[visible], db[hidden], scratch, n),
            (rbm.precision.operation, v.T, h, dW[visible]),
            *(rbm.update_operation(i, own) for i, own in enumerate((visible, visible, hidden))),
        ]


class InPieces(ByUnits):
    """The steps of an RBM by CD-k, in pieces for threads: any number of them makes the same bits.

    With own products a sum has one order, whatever units beside its own are computed. The pieces of
    a step have no draws of their own: each draws the states of some rows, from where these rows
    begin in the draws of the whole step. The error is summed as a whole.
    """

    def operations(self, n: int) -> list[list[list[Operation]]]:
        """Return the phases of a step on minibatches of n examples, by piece."""
        pieces = range(len(self.own))
        phases = []
        for k in range(self.learner.settings.cd_steps):
            phases += [[self._feed(n, k, s) for s in pieces], [self._draw(n, k, s) for s in pieces]]
            phases += [[self._down(n, s) for s in pieces]]
        ups = [self._up(n, s) for s in pieces]
        ups[0].append(self._error(n, 0, slice(None)))
        return [*phases, ups, [self._move(n, s) for s in pieces]]

    def _draw(self, n: int, k: int, shard: int) -> list[Operation]:
        """Draw the hidden states of some rows for the k-th reconstruction."""
        rbm, hidden = self.learner, self.learner.weight.shape[1]
        together = BLOCK // gcd(BLOCK, hidden)  # rows: a piece begins with a block of draws
        own = slices_of(-(-n // together), len(self.own))[shard]
        first, last = own.start * together, min(n, own.stop * together)
        if first >= last:
            return []
        inputs = self._h[n + first : n + last] if k else self._h[first:last]
        noise = self._noise[first * hidden : last * hidden].reshape(inputs.shape)
        draws = inputs, rbm.hidden_bias, noise, self._states[first:last], rbm.settings.hidden_units
        return [("sample_states", *draws, k << 32, first * hidden // BLOCK)]
