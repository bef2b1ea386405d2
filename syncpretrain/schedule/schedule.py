"""The schedule: which layer trains when, on which version, and when a version is released.

Pure: no threads, clocks or arrays. The driver calls :meth:`Schedule.begin` once and
:meth:`Schedule.finished` after every epoch; both return commands for a runtime to execute.
Layers are numbered from 1 outside, as in the papers; everything private starts at index 0.

A version n of layer l is its parameters after n epochs together with their activations, computed
from the version of layer l-1 it was last trained on by the first reader, in layer l+1. So a version
that no layer reads costs nothing. A version is therefore *held* as long as

1. the layer above trains on it, or may do so once more;
2. the layer above has not begun it yet but will;
3. the layer above published a version that was trained on it, and the layer two above has still
   to compute the activations of that version.

At most 3 versions of a layer have activations at a time.

Free slots go to the ready layer with the longest way to go, which is the lowest one: every chain of
epochs from a higher layer to the end is the last part of one from a lower layer.

An event costs the same at any depth, since a layer depends on its neighbours only:

* whether it may begin an epoch depends on itself, the layers next to it, and the end of the round
  below;
* whether it has ended depends on itself and the end of the layer below;
* which versions are held depends on the two layers above them.

:class:`Layers` marks the layers that an event may have changed, and no other is examined. One thing
depends on all layers, whether any of them still keeps the run going; it changes once in a run.

Drift between versions may let a layer sleep on. The numbers are reported by the workers, which have
the arrays. Drift accumulates: a version is compared with the one that its reader last trained on,
not with the version before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from syncpretrain.errors import ScheduleError
from syncpretrain.schedule.kinds import LayerPlan, Pace, Reads

Measured = tuple[tuple[tuple[int, int, float], ...], ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Decision about a sleeping layer, counted from 1, and a new ``version`` of the layer below.

    It wakes if the version differs from version ``since``, which it last trained on, by a ``drift``
    above ``least``.
    """

    layer: int
    version: int
    since: int
    drift: float
    least: float

    @property
    def wakes(self) -> bool:
        """Whether the layer trains again."""
        return self.drift > self.least


class Drifts:
    """Drifts of a run as far as they are still needed, and all decisions; layers from index 0.

    Parameters
    ----------
    plans : sequence of LayerPlan
        Plans; each says what drift of the layer below wakes its layer.

    Attributes
    ----------
    is_used : bool
        True if drift wakes any layer.
    judgements : list of Judgement
        In the order in which they were made.
    """

    def __init__(self, plans: Sequence[LayerPlan]) -> None:
        self._least = [plan.least_drift if plan.refresh_epochs else None for plan in plans[1:]]
        self.is_used = any(least is not None for least in self._least)
        self._drifts: list[dict[tuple[int, int], float]] = [{} for _ in plans]  # of each layer
        self.judgements: list[Judgement] = []
        self._newest: dict[int, Judgement] = {}  # of each layer

    def wake(self, i: int) -> bool:
        """Return whether drift wakes a layer."""
        return 0 < i <= len(self._least) and self._least[i - 1] is not None

    def record(self, i: int, version: int, drifts: Mapping[int, float]) -> None:
        """Record the drift of a new version of a layer from older versions, at least one.

        Drifts from still older versions are dropped: the layer above has left these behind.
        """
        if self.wake(i + 1):
            oldest = min(drifts)
            kept = {pair: x for pair, x in self._drifts[i].items() if pair[0] >= oldest}
            self._drifts[i] = kept | {(since, version): x for since, x in drifts.items()}

    def wakes(self, i: int, since: int, version: int) -> bool:
        """Decide whether a version wakes a layer that last trained on version ``since``.

        Raises
        ------
        ScheduleError
            If no drift between the two was reported.
        """
        found, least = self._drifts[i - 1], self._least[i - 1]
        if least is None:
            return True
        if (since, version) not in found:
            raise ScheduleError(
                f"layer {i}: no drift between its versions {since} and {version} was reported"
            )
        judgement = Judgement(i + 1, version, since, found[since, version], least)
        if self._newest.get(i) != judgement:
            self._newest[i] = judgement
            self.judgements.append(judgement)
        self._drifts[i - 1] = {(a, b): x for (a, b), x in found.items() if b >= version}
        return judgement.wakes

    @property
    def measured(self) -> Measured:
        """For each layer, older version, newer version and drift of all that may be needed."""
        rows = (sorted(drifts.items()) for drifts in self._drifts)
        return tuple(tuple((*pair, drift) for pair, drift in row) for row in rows)

    def resume(self, measured: Measured) -> None:
        """Continue with these drifts; there are none in a past from before there were any."""
        for drifts, rows in zip(self._drifts, measured, strict=False):
            drifts.update({(since, version): drift for since, version, drift in rows})


class Layers:
    """The layers of a run, from index 0, the lowest.

    Parameters
    ----------
    pace : Pace
        Says which version each epoch reads.
    reads : list of list of int
        For each layer, the upstream version of every epoch begun so far.
    done : list of int
        Number of epochs that each layer has finished, which is also its newest version.

    Attributes
    ----------
    training : set of int
    ended : list of bool
        Whether a layer will never train again.
    order_ended : list of int
        The layers that have ended, in that order.
    changed : set of int
        The layers that events have changed since it was last emptied.
    """

    def __init__(self, pace: Pace, reads: list[list[int]], done: list[int]) -> None:
        self._pace = pace
        self._depth = len(reads)
        self.reads, self.done = reads, done
        self.training = {i for i in range(self._depth) if len(reads[i]) > done[i]}
        self.ended = [False] * self._depth
        self.order_ended: list[int] = []
        self.changed: set[int] = set()
        self._unsatisfied: set[int] = set()  # without any, no epoch starts
        self._woken: list[int] = []  # a heap of those that may have become ready
        self._is_woken = [False] * self._depth
        for i in range(self._depth):
            self.record(i)

    def begin(self, i: int, version: int) -> None:
        """Let a layer begin an epoch on a version of the layer below."""
        self.reads[i].append(version)
        self.training.add(i)
        self.record(i)

    def finish(self, i: int) -> None:
        """Let a layer finish its epoch."""
        self.training.remove(i)
        self.done[i] += 1
        self.record(i)

    def record(self, i: int) -> None:
        """Record that a layer's past or what it is yet to read has changed."""
        self.changed.add(i)
        for j in range(max(0, i - 1), min(i + 2, self._depth)):
            self._wake(j)
        if not self._pace.is_satisfied(i, len(self.reads[i]), self.done[i]):
            self._unsatisfied.add(i)
        elif i in self._unsatisfied:
            self._unsatisfied.remove(i)
            if not self._unsatisfied:
                self.changed.update(range(self._depth))

    def record_from(self, i: int) -> None:
        """Record that a layer and those above it may have other epochs to come than before.

        It ends at a layer that has not begun: no layer above has anything to begin on.
        """
        for j in range(i, self._depth):
            self.record(j)
            if not self.reads[j]:
                return

    def record_ends(self) -> None:
        """Record the layers that have ended, which may end those above them."""
        for lowest in sorted(self.changed):
            i = lowest
            while i < self._depth and not self.ended[i] and self._ends(i):
                self.ended[i] = True
                self.order_ended.append(i)
                self.changed.add(i)
                i += 1
                if i < self._depth:
                    self._wake(i)  # as the first of its round it waited for this

    def next_ready(self) -> tuple[int, int] | None:
        """Return the lowest layer that may begin an epoch, and the version to read."""
        while self._woken:
            i = self._woken[0]
            version = self._readable(i)
            if version is not None:
                return i, version
            self._is_woken[heappop(self._woken)] = False
        return None

    def newer(self, i: int) -> int | None:
        """Return the version of a layer's next epoch if it is there, and newer than its last."""
        version = self._next_read(i)
        if version is None or version > self._published(i) or self.reads[i][-1:] == [version]:
            return None
        return version

    def unread(self, i: int) -> list[int]:
        """Return the published versions of a layer that the one above will still begin."""
        if i + 1 == self._depth or not self._unsatisfied:
            return []
        return self._pace.unread(i + 1, self.reads[i + 1], self.done[i])

    def _wake(self, i: int) -> None:
        if not self._is_woken[i]:
            self._is_woken[i] = True
            heappush(self._woken, i)

    def _published(self, i: int) -> int:
        """Return the newest version that a layer can read; the data is version 0."""
        return self.done[i - 1] if i else 0

    def _next_read(self, i: int) -> int | None:
        """Return the version that a layer's next epoch reads, published or not yet."""
        if not self._unsatisfied:
            return None
        return self._pace.next_read(i, self.reads[i], self._published(i))

    def _readable(self, i: int) -> int | None:
        """Return the version on which a layer may begin an epoch now."""
        version = None if i in self.training else self._next_read(i)
        if version is None or version > self._published(i):
            return None
        first = self._pace.first_of_round(i)
        if first and not self.ended[first - 1]:
            return None
        limit = self._pace.max_unread
        return version if limit is None or len(self.unread(i)) < limit else None

    def _ends(self, i: int) -> bool:
        if i in self.training or self._next_read(i) is not None:
            return False
        return i == 0 or not self._unsatisfied or self.ended[i - 1]


@dataclass(frozen=True, slots=True)
class Train:
    """Train one epoch of a layer on version ``reads`` of the layer below, then publish it.

    ``below_reads`` is the version of the layer two below that ``reads`` was trained on: the
    activations of ``reads`` are computed from its activations. It is 0 if ``reads`` is the data.
    ``against`` are older versions of this layer; the drift of the new version from each is asked
    for, because the layer above may have trained on any of them when the drift is judged.
    """

    layer: int
    epoch: int
    reads: int
    below_reads: int
    against: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Release a version of a layer; no layer will read it again."""

    layer: int
    version: int


Command = Train | Release


@dataclass(frozen=True, slots=True)
class Past:
    """Decisions and results of a schedule so far: all it needs to continue.

    For each layer the upstream version of every epoch begun, how many of these are finished, which
    versions are held, and the epochs stipulated, fewer than planned if it stopped early. Where
    drift wakes layers, the upstream versions that did not, and the drifts still to be judged.
    """

    reads: Reads
    done: tuple[int, ...]
    held: Reads
    epochs: tuple[int, ...]
    skipped: Reads = ()
    drifts: Measured = ()


class Schedule:
    """The state machine of one run.

    Parameters
    ----------
    plans : sequence of LayerPlan
        From the lowest layer up.
    pace : Pace
        Says which version each epoch reads.
    slots : int
        Largest number of layers that train at a time.
    """

    def __init__(self, plans: Sequence[LayerPlan], pace: Pace, *, slots: int) -> None:
        if slots < 1:
            raise ScheduleError(f"slots: got {slots}, expected 1 or more")
        self._pace = pace
        self._slots = slots
        self._depth = len(plans)
        self._epochs = [plan.epochs for plan in plans]
        self._refreshes = [plan.refresh_epochs for plan in plans]
        self._drifts = Drifts(plans)
        self._skipped: list[list[int]] = [[] for _ in plans]
        self._held: list[set[int]] = [set() for _ in plans]
        self._layers = Layers(pace, [[] for _ in plans], [0] * len(plans))

    @property
    def reads(self) -> Reads:
        """For each layer, the upstream version of every epoch begun so far."""
        return tuple(tuple(layer) for layer in self._layers.reads)

    @property
    def done(self) -> tuple[int, ...]:
        """Epochs finished by each layer."""
        return tuple(self._layers.done)

    @property
    def training(self) -> tuple[int, ...]:
        """Layers that are training now, numbered from 1."""
        return tuple(i + 1 for i in sorted(self._layers.training))

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended: no layer trains and none can be woken."""
        return not self._layers.training and self._layers.next_ready() is None

    def ended(self, layer: int) -> bool:
        """Return whether a layer will never train again."""
        return self._layers.ended[layer - 1]

    def ended_since(self, count: int) -> list[int]:
        """Return the layers that have ended after the first ``count`` that did, lowest first."""
        return sorted(i + 1 for i in self._layers.order_ended[count:])

    def judged_since(self, count: int) -> list[Judgement]:
        """Return the decisions by drift after the first ``count``."""
        return self._drifts.judgements[count:]

    @property
    def past(self) -> Past:
        """Decisions and results so far; :meth:`resume` continues from it."""
        held = tuple(tuple(sorted(versions)) for versions in self._held)
        own = Past(self.reads, self.done, held, tuple(self._epochs))
        if not self._drifts.is_used:
            return own
        return replace(own, skipped=tuple(map(tuple, self._skipped)), drifts=self._drifts.measured)

    def begin(self) -> list[Command]:
        """Return the first commands."""
        return self._assign()

    def resume(self, past: Past) -> list[Command]:
        """Continue from a past; return the first commands: the epochs that were begun, then others.

        All epochs that were begun train, even if they are more than there are slots now; others
        wait until slots are free.

        Raises
        ------
        ScheduleError
            If it is the past of other layers.
        """
        if {len(past.reads), len(past.done), len(past.held)} != {self._depth}:
            raise ScheduleError(f"resume: the past is of {len(past.reads)} layers")
        for i, epochs in enumerate(past.epochs):
            if epochs < self._epochs[i]:
                self._pace.shorten(i, epochs)
                self._epochs[i] = epochs
        for i, versions in enumerate(past.skipped):
            for version in versions:
                self._skip(i, version)
        self._drifts.resume(past.drifts)
        self._held = [set(versions) for versions in past.held]
        self._layers = Layers(self._pace, [list(reads) for reads in past.reads], list(past.done))
        again: list[Command] = [self._train(i) for i in sorted(self._layers.training)]
        return [*again, *self._assign()]

    def finished(
        self, layer: int, *, stops: bool = False, drifts: Mapping[int, float] | None = None
    ) -> list[Command]:
        """Record that a layer finished its epoch and published it; return the commands that follow.

        ``stops`` says that the layer has learned enough: its stipulated epochs end here. Newer
        versions below still wake it for refreshes. ``drifts`` are the drifts of its version from
        older versions, at least from the versions that its command named.

        Raises
        ------
        ScheduleError
            If the layer was not training, if every layer sleeps before the run's end, or if a
            drift is missing.
        """
        i, layers = layer - 1, self._layers
        if i not in layers.training:
            raise ScheduleError(f"layer {layer} finished without training; {self._summary()}")
        layers.finish(i)
        version = layers.done[i]
        self._held[i].add(version)
        if drifts:
            self._drifts.record(i, version, drifts)
        if stops and version < self._epochs[i]:
            self._epochs[i] = version
            self._pace.shorten(i, version)
            layers.record_from(i)
        commands = self._assign()
        if not layers.training and not all(layers.ended):
            raise ScheduleError(f"every layer sleeps before the end; {self._summary()}")
        return commands

    def workers_per_layer(self, workers: int, most: Sequence[int]) -> dict[int, int]:
        """Return the number of workers of each training layer.

        Each has one. The others go to the layers with the longest way to go, up to the ``most``
        that each layer takes.
        """
        counts = dict.fromkeys(self.training, 1)
        free = workers - len(counts)
        for layer in counts:
            more = max(0, min(free, most[layer - 1] - 1))
            counts[layer] += more
            free -= more
        return counts

    def _assign(self) -> list[Command]:
        """Give free slots to the ready layers with the longest way to go; release versions."""
        trains: list[Command] = []
        layers = self._layers
        layers.record_ends()
        self._judge()
        while len(layers.training) < self._slots and (ready := layers.next_ready()):
            i, version = ready
            layers.begin(i, version)
            trains.append(self._train(i))
            self._judge()
        layers.record_ends()
        return [*self._release(), *trains]

    def _judge(self) -> None:
        """Skip the versions that were to wake a layer, and differ too little from what it knows.

        A layer is judged once its stipulated epochs and the refresh before have begun: then the
        version that it last trained on is certain, whatever the timing.
        """
        layers, drifts = self._layers, self._drifts
        if not drifts.is_used:
            return
        for i in sorted({j for k in layers.changed for j in (k, k + 1) if drifts.wake(j)}):
            while self._is_asleep(i) and (version := layers.newer(i)) is not None:
                if drifts.wakes(i, layers.reads[i][-1], version):
                    break
                self._skip(i, version)
                layers.record_from(i)
        layers.record_ends()

    def _is_asleep(self, i: int) -> bool:
        """Return whether the next epoch of a layer, if there is one, begins a refresh."""
        refreshed = len(self._layers.reads[i]) - self._epochs[i]
        return refreshed >= 0 and refreshed % self._refreshes[i] == 0

    def _skip(self, i: int, version: int) -> None:
        self._pace.skip(i, version)
        self._skipped[i].append(version)

    def _train(self, i: int) -> Train:
        """Return the command of the epoch that a layer has begun."""
        reads = self._layers.reads
        version = reads[i][-1]
        below_reads = reads[i - 1][version - 1] if i else 0
        against: set[int] = set()
        if self._drifts.wake(i + 1):
            against.update(reads[i + 1][-1:], self._layers.unread(i))
        return Train(i + 1, len(reads[i]), version, below_reads, tuple(sorted(against)))

    def _release(self) -> list[Command]:
        """Release versions that no layer will read again, of layers that the event concerned."""
        freed: list[Command] = []
        changed = self._layers.changed
        touched = {j for i in changed for j in range(max(0, i - 2), i + 1)}
        for i in sorted(touched):
            dropped = self._held[i] - self._referenced(i)
            self._held[i] -= dropped
            freed += [Release(i + 1, version) for version in sorted(dropped)]
        changed.clear()
        return freed

    def _referenced(self, i: int) -> set[int]:
        """Return the versions of a layer that another may still read (module docstring)."""
        if i + 1 == self._depth:
            return set()
        layers = self._layers
        referenced = set(layers.unread(i))  # 2
        above = layers.reads[i + 1]
        if above and not layers.ended[i + 1]:
            referenced.add(above[-1])  # 1
        if i + 2 < self._depth:
            pending = set(layers.unread(i + 1))
            if i + 2 in layers.training:
                pending.add(layers.reads[i + 2][-1])
            referenced |= {above[version - 1] for version in pending}  # 3
        return referenced

    def _summary(self) -> str:
        rows = zip(self._layers.done, self._layers.reads, strict=True)
        return "so far " + "; ".join(
            f"layer {i}: {done} epochs done, read versions {reads[-8:]}"
            for i, (done, reads) in enumerate(rows, start=1)
        )
