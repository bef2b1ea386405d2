"""Data parallelism: the shards of a step are parts of its minibatch, on the host or on devices.

On devices the shards are dealt to several of them. Each device has a copy of the parameters, and
computes the gradients of its shards. Then each moves its part of the parameters, along the sum of
all shards' gradients that it reads from the others, and copies the other parts. The gradients are
added in the tree of :class:`ByExamples`, so the bits depend on the number of shards, and not on the
number of devices.

A step on devices begins and ends on the stream of the learner; between, events order the streams of
the devices, and the host waits for none of them. Between two blocks of steps all that a checkpoint
needs is in arrays of the learner's device, which others copy at the beginning of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from syncpretrain.backends.base import Backend, Event, Recorder, StepBlock
from syncpretrain.backends.rows import HostRows
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, Rows, blocks_in, ordered_sum, slices_of
from syncpretrain.kernels.averaging import add_tree, sum_in_order, tree_steps
from syncpretrain.kernels.program import Phase, PhaseRunner, in_turn
from syncpretrain.learners.base import FlatParameters, Learner, copy_hidden


class ByExamples:
    """Data parallelism: each shard has a part of every minibatch.

    Each computes its part's gradient in arrays of its own. These are added up in a fixed tree, a
    slice of the parameters a shard, which then moves that slice along its gradient: nothing is
    copied back.

    Parameters
    ----------
    learner : Learner
        Its parameters are trained.
    shards : int

    Attributes
    ----------
    parameters, gradients : sequence of ndarray, and a sequence of them a shard
        The learner's parameters, and the gradients of each shard.
    parts : list of Learner
        The learner of each shard, which computes its gradient.
    errors : list of float
        Squared error of each shard in the last minibatch.
    added : range
        The shards with gradients that are added up: all, with zeros for a shard without rows.
    """

    def __init__(self, learner: Learner, shards: int) -> None:
        self.learner = learner
        self.parts = [learner.part(shard, shards) for shard in range(shards)]
        self.parameters, self.gradients = learner.parameters, [p.gradients for p in self.parts]
        self.errors, self.added = [0.0] * shards, range(shards)
        self._phases: tuple[Phase, ...] = (self.gradient, self._move)

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        self.begin(X, rows, epoch=epoch, step=step)
        run(self._phases, len(self.parts))
        return ordered_sum(self.errors, 0.0)

    def begin(self, X: Array, rows: Rows, *, epoch: int, step: int) -> None:
        """Take a minibatch; :meth:`gradient` is then to be called for every shard."""
        self._X, self._rows, self._epoch, self._step = X, rows, epoch, step
        for part in self.parts:
            part.take_mean_weight(rows)
        self._own_rows = slices_of(len(rows), len(self.parts))

    def gradient(self, shard: int) -> None:
        """Fill the gradient of a shard: its contribution to the gradient of the minibatch."""
        part, rows = self.parts[shard], self._rows[self._own_rows[shard]]
        self.errors[shard] = 0.0
        if len(rows):
            self.errors[shard] = part.gradient(
                self._X, rows, epoch=self._epoch, step=self._step, examples=len(self._rows)
            )
        else:  # the last minibatch may be smaller than the shards are many
            part.gradient_without_rows(self._X, self._rows, epoch=self._epoch, step=self._step)

    def move(self, i: int, block: slice, total: Array) -> None:
        """Move a block of the i-th parameter along the sum of the shards' gradients."""
        self.learner.update_slice(i, block, total, epoch=self._epoch)

    def hidden_means(self, shard: int) -> Array | None:
        """Return the hidden means of a shard, a view; see :meth:`Learner.hidden_means`."""
        own = self._own_rows[shard]
        return self.parts[shard].hidden_means(own.stop - own.start)

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed."""
        parts = ((own, self.hidden_means(shard)) for shard, own in enumerate(self._own_rows))
        return copy_hidden(parts, out)

    def state(self) -> dict[str, Array]:
        """Return the learner's velocities, and what each shard's gradient depends on."""
        return self.learner.velocities() | {
            f"shard{shard}.{name}": array
            for shard, part in enumerate(self.parts)
            for name, array in part.own_state().items()
        }

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""
        for part in (self.learner, *self.parts):
            part.restart()

    def _move(self, shard: int) -> None:
        """Add up the gradients of a slice of the parameters, and move it, block by block."""
        for i, parameter in enumerate(self.learner.parameters):
            own = slices_of(parameter.size, len(self.parts))[shard]
            parts = [part.gradients[i].reshape(-1) for part in self.parts]
            for block in blocks_in(own, LONG_BLOCK):
                self.move(i, block, add_tree([gradient[block] for gradient in parts]))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Place:
    """One device: its copy of the layer, and its part of each step."""

    learner: Learner
    parts: dict[int, Learner]  # by the number of the shard
    own: slice  # of the flat parameters
    errors: Any  # one a shard; only its own shards' are filled
    kept: dict[str, Array]  # the state of its parts, for a checkpoint
    computed: Event  # the gradients and errors of its shards are complete
    moved: Event  # its part of the parameters is moved
    done: Event  # all its work of a step or a block is done

    @property
    def flat(self) -> FlatParameters:
        """The parameters here."""
        assert self.learner.flat is not None, "of a device"
        return self.learner.flat

    @property
    def shards(self) -> slice:
        """The numbers of its shards."""
        return slice(min(self.parts), max(self.parts) + 1)


class ByExamplesOnDevices(Recorder):
    """The step of a learner on devices, with minibatches that are cut into shards.

    It is the learner's recorder too: between two blocks of steps the state is on the learner's
    device, and the recorder of that device works each block.

    Parameters
    ----------
    learner : Learner
        On the first of the devices.
    shards : int
    workers : int
        The number of devices, if there are as many; no more than shards.
    """

    def __init__(self, learner: Learner, shards: int, workers: int = 1) -> None:
        self.learner, self._count = learner, shards
        backends = learner.backend.for_replicas(min(workers, shards))
        size = 0 if learner.flat is None else len(learner.flat.parameters)
        cuts = (slices_of(n, len(backends)) for n in (shards, size))
        self._places = [self._place(*own) for own in zip(backends, *cuts, strict=True)]
        self._lead, *self._others = self._places
        parts = [part for place in self._places for part in place.parts.values()]
        vectors = [part.flat.gradients for part in parts if part.flat is not None]
        self._gradients = []
        for place in self._places:
            with place.learner.stream:
                self._gradients.append(place.learner.backend.peers(vectors))
                place.learner.stream.synchronize()
        self._begun = learner.backend.event()
        self._staged: tuple[Any, Any] | None = None
        self._recorder, learner.recorder = learner.recorder, self

    def _place(self, backend: Backend, shards: slice, own: slice) -> _Place:
        lead = self.learner
        is_lead = backend.name == lead.backend.name
        learner = lead if is_lead else lead.copy_on(backend)
        with learner.stream:
            parts = {s: learner.part(s, self._count) for s in range(shards.start, shards.stop)}
            errors = backend.zeros(self._count, np.float64)
            learner.stream.synchronize()
        events = {name: backend.event() for name in ("computed", "moved", "done")}
        place = _Place(learner=learner, parts=parts, own=own, errors=errors, kept={}, **events)
        with lead.stream:
            for name, array in _own_state(place):
                place.kept[name] = array if is_lead else lead.backend.asarray(array)
            lead.stream.synchronize()
        return place

    def train_step(
        self, X: Array, rows: Rows, *, epoch: int, step: int, run: PhaseRunner = in_turn
    ) -> Any:
        """Queue a step on some rows of X; return its error, not synchronized."""
        if isinstance(X, HostRows):
            X, rows = self._gathered(X, rows)
        # Two events a device order a step, and they also keep the next step from overtaking it:
        # ``moved`` comes after a device has read all gradients, so a device that has waited for it
        # may overwrite its own; ``computed`` of the next step comes after a device has copied the
        # parts of the others, so that these may then be moved again. An event may be recorded anew
        # in each step: a wait is for the newest record when the host queued the wait.
        with self._forked():
            for place in self._places:
                with place.learner.stream:
                    self._compute(place, X, rows, epoch=epoch, step=step)
                    place.computed.record()
            for place, gradients in zip(self._places, self._gradients, strict=True):
                with place.learner.stream:
                    self._wait_for_others(place, "computed")
                    flat, rates = place.flat, self.learner.rates(epoch)
                    rates |= {"part": place.own, "weights": flat.weights}
                    tree_steps(flat.parameters, gradients, flat.velocities, **rates)
                    place.moved.record()
            # This stream has waited for ``computed`` of the others, so their errors are complete;
            # they stay until the next fork, which waits for this stream.
            error = self._error()
            for place in self._places:
                with place.learner.stream:
                    self._wait_for_others(place, "moved")
                    for other in self._others_of(place):
                        moved = other.flat.parameters[other.own]
                        np.copyto(place.flat.parameters[other.own], moved)
        return error

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed."""
        rows = slices_of(len(out), self._count)
        shards = (pair for place in self._places for pair in place.parts.items())
        parts = ((rows[i], part.hidden_means(rows[i].stop - rows[i].start)) for i, part in shards)
        return copy_hidden(parts, out)

    def state(self) -> dict[str, Array]:
        """Return the learner's velocities, and the state of each shard."""
        state = self.learner.velocities()
        for place in self._places:
            state |= place.kept
        return state

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""
        self.learner.restart()
        with self._forked():
            for place in self._places:
                with place.learner.stream:
                    for part in place.parts.values():
                        part.restart()
        self._keep()

    def begin_block(self) -> None:
        """Copy parameters, velocities and states from the learner's device to the others."""
        with self._forked():
            for place in self._others:
                with place.learner.stream:
                    flat, own = place.flat, place.own
                    np.copyto(flat.parameters, self._lead.flat.parameters)
                    np.copyto(flat.velocities[own], self._lead.flat.velocities[own])
                    for name, array in _own_state(place):
                        np.copyto(array, place.kept[name])

    def take_notice(self) -> str | None:
        """Return what the recorder of the learner's device has to say."""
        return self._recorder.take_notice()

    def train(self, block: StepBlock) -> Any:
        """Work the steps of a block; return the sum of their errors."""
        self.begin_block()
        error = self._recorder.train(block)
        for place in self._others:  # each step has copied the parameters already
            np.copyto(self._lead.flat.velocities[place.own], place.flat.velocities[place.own])
        self._keep()
        return error

    def _keep(self) -> None:
        for place in self._others:
            for name, array in _own_state(place):
                np.copyto(place.kept[name], array)

    @contextmanager
    def _forked(self) -> Iterator[None]:
        """Begin the work of the other devices after the learner's, which then waits for theirs."""
        self._begun.record()
        for place in self._others:
            with place.learner.stream:
                self._begun.wait()
        try:
            yield
        finally:
            for place in self._others:
                with place.learner.stream:
                    place.done.record()
                place.done.wait()

    def _others_of(self, place: _Place) -> list[_Place]:
        return [other for other in self._places if other is not place]

    def _wait_for_others(self, place: _Place, what: str) -> None:
        for other in self._others_of(place):
            getattr(other, what).wait()

    def _compute(self, place: _Place, X: Any, rows: Any, *, epoch: int, step: int) -> None:
        """Fill the gradients and errors of a device's shards."""
        cut = slices_of(len(rows), self._count)
        for shard, part in place.parts.items():
            own, error = rows[cut[shard]], place.errors[shard : shard + 1]
            if len(own):
                error[...] = part.gradient(X, own, epoch=epoch, step=step, examples=len(rows))
            elif part.flat is not None:
                # The last minibatch may have fewer rows than there are shards.
                part.flat.gradients.fill(0)
                error[...] = 0.0

    def _error(self) -> Any:
        """Return the sum of the errors of all shards, on the learner's stream."""
        errors = self._lead.errors
        for place in self._others:
            np.copyto(errors[place.shards], place.errors[place.shards])
        return sum_in_order(errors)

    def _gathered(self, X: HostRows, rows: Any) -> tuple[Any, Any]:
        """Return rows of the host in an array of the learner's device, and their numbers there."""
        backend, most = self.learner.backend, self.learner.batch_size
        if self._staged is None:
            numbers = backend.asarray(np.arange(most, dtype=np.int64))
            self._staged = backend.empty((most, X.shape[1])), numbers
        array, numbers = (each[: len(rows)] for each in self._staged)
        return backend.gather(X, rows, out=array), numbers


def _own_state(place: _Place) -> Iterator[tuple[str, Array]]:
    """Yield the state of a device's shards by name, in the arrays of that device."""
    for shard, part in place.parts.items():
        for name, array in part.own_state().items():
            yield f"shard{shard}.{name}", array
