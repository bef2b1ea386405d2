"""Pieces of a layer's work, to be timed: steps, input, validation, bare products, handing over.

Parameters are handed over to a server, and minibatches to the layer above, which counts where steps
are tiny.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Backend, Stream
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.precision import Precision
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.learners.base import Learner
from syncpretrain.learners.steps import Step
from syncpretrain.models.layer import Layer
from syncpretrain.observers.history import History
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import LocalSteps, Task
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.planning.peaks import drawn
from syncpretrain.planning.timings import Exchange, LayerTimings, no_faster_than_linear
from syncpretrain.pretraining.build import build_learners, step_for
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.settings import PretrainSettings, settings_from
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.shapes import LayerShape
from syncpretrain.workers.activations import CHUNK_ROWS, Split, transform

MOST_NUMBERS = 4_000_000  # of a layer's rows: more than caches hold, and soon drawn
MOST_SECONDS = 18.0  # of measuring a stack
PROBES, PROBES_OF_SIZE = 24, 6  # timings of a layer in a round, and more for a number of workers
USUAL_SPEED = 1e10  # operations a second that a core makes, so that most steps need no trial
UPDATE_OPERATIONS = 100  # that a core makes while an update moves a parameter; 83 measured
SLOW_START = 1.0  # seconds of a step on one row, which is not repeated
MOST_TRIED = 30.0  # seconds that one row may take at the usual speed


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows to time steps on.

    Attributes
    ----------
    rows, batch_size : int
    slope : float
        Seconds of one row more, as a share of the seconds of a step on these rows.
    seconds : float or None
        Seconds of the trial step on these rows; None if no trial was needed.
    is_tried : bool
        False if one row would take too long; its seconds are then computed from its operations.
    """

    rows: int
    batch_size: int
    slope: float = 0.0
    seconds: float | None = None
    is_tried: bool = True

    @property
    def is_part(self) -> bool:
        """Whether these are not all rows of a minibatch."""
        return self.rows < self.batch_size

    @property
    def scale(self) -> float:
        """Seconds of a whole minibatch, relative to a step on these rows."""
        return self.scale_to(self.batch_size)

    def scale_to(self, rows: int) -> float:
        """Return the seconds of a step on more rows, relative to a step on these rows."""
        return 1 + (rows - self.rows) * self.slope


def sampled(
    step: Callable[[int], float],
    *,
    batch_size: int,
    operations: float,
    parameters: int,
    seconds: float,
) -> Sample:
    """Return the rows of a minibatch on which a step takes no more than about some seconds.

    Parameters
    ----------
    step : callable
        Makes a step on a number of rows, and returns its seconds.
    batch_size : int
    operations : float
        Operations of the products of a step on one row.
    parameters : int
        Parameters that a step updates.
    seconds : float

    Notes
    -----
    The rows are doubled as long as a step takes less than half of the seconds. What of a step grows
    with its rows follows from the numbers of operations and of parameters: two timings, each as
    disturbed as any, would not show it.
    """
    if operations * batch_size <= seconds * USUAL_SPEED:
        return Sample(batch_size, batch_size)
    if operations > MOST_TRIED * USUAL_SPEED:
        slope = _growing(operations, 1, parameters)
        return Sample(1, batch_size, slope, operations / USUAL_SPEED, is_tried=False)
    rows, longest = 1, step(1)
    if longest < SLOW_START:
        longest = step(1)  # the first one touched the memory
    while rows < batch_size and longest < seconds / 2:
        rows = min(2 * rows, batch_size)
        longest = step(rows)
    return Sample(rows, batch_size, _growing(operations, rows, parameters), max(longest, 1e-9))


def _growing(operations: float, rows: int, parameters: int) -> float:
    """Return the share of a step on some rows that one row more adds."""
    return operations / (operations * rows + UPDATE_OPERATIONS * parameters)


Work = Callable[[int], float]  # does something a number of times; returns the seconds
BLOCK_SECONDS = 0.02  # of one timing: long beside a thread's waking, short beside a drift
SLOW_SECONDS = 0.25  # after which a core is warm
MOST_AT_ONCE = 100
MOST_ROUNDS = 25
LOWERED_AT_ONCE = 1 << 18  # numbers, 1 MB: what a core's cache holds
BLAS_SPIN_SECONDS = 0.05  # how long the threads of BLAS may spin for more work before they sleep


def repeated(once: Callable[[], object], stream: Stream | None = None) -> Work:
    """Return as work what a call does, on the host or on the stream of a device."""
    queue = stream or Stream()

    def work(times: int) -> float:
        with queue:
            started = perf_counter()
            for _ in range(times):
                once()
            queue.synchronize()
            return perf_counter() - started

    return work


class Probe:
    """Work to be timed repeatedly, on a number of cores and of BLAS threads."""

    def __init__(self, work: Work, *, cores: int = 1, blas_threads: int = 1) -> None:
        self.cores, self.blas_threads = cores, blas_threads
        self._work, self._times = work, 1
        self._seconds: list[float] = []
        self._is_slow = self._is_warm = False

    def warm_up(self) -> None:
        """Touch all memory, and find how often is enough for a timing; what is slow is timed."""
        first, self._is_warm = self._work(1), True
        if first >= SLOW_SECONDS:
            self._is_slow = True
            self._seconds.append(first)
            return
        once = max(self._work(1), 1e-7)
        self._times = max(1, min(MOST_AT_ONCE, round(BLOCK_SECONDS / once)))

    def lead_in(self) -> None:
        """Work for a moment without timing: a core that rested is slow at first."""
        if self._is_warm and not self._is_slow:
            self._work(self._times)

    def time(self, index: int) -> None:
        """Take the timing of a round, unless the warm-up was it or there was none."""
        if self._is_warm and not (self._is_slow and index == 0):
            self._seconds.append(self._work(self._times) / self._times)

    @property
    def is_measured(self) -> bool:
        """Whether there was time for a timing."""
        return bool(self._seconds)

    @property
    def seconds(self) -> float:
        """The median of the timings."""
        return median(self._seconds)

    def relative_to(self, other: Probe) -> float:
        """Return how many times as long as another's it takes, timing by timing of a round."""
        pairs = zip(self._seconds, other._seconds, strict=False)  # the last round may end early
        return median(own / others for own, others in pairs)


def measured(probes: Sequence[Probe], *, seconds: float, most: float = math.inf) -> None:
    """Time all probes, round after round, so that a drift of the machine hits all alike.

    It ends after the round in which ``seconds`` are over; after ``most`` seconds no probe begins,
    and the last ones may not be measured. In a round the probes that keep the same number of cores
    busy come together; probes of one core and one BLAS thread come first.
    """
    groups: dict[tuple[int, bool], list[Probe]] = {}
    for probe in probes:
        groups.setdefault((probe.blas_threads, probe.cores > 1), []).append(probe)
    deadline, end = perf_counter() + seconds, perf_counter() + most
    for index in range(MOST_ROUNDS):
        for (threads, _), group in sorted(groups.items(), key=lambda item: item[0]):
            with blas_limit(threads), np.errstate(all="ignore"):
                # The first time a core may sleep, and memory may not be there yet.
                for probe in () if index else group:
                    if perf_counter() < end:
                        probe.warm_up()
                if perf_counter() < end:
                    group[0].lead_in()
                for probe in group:
                    if perf_counter() < end:
                        probe.time(index)
            # Threads of BLAS spin on their cores, and would slow down the probes of the next group.
            if threads > 1:
                sleep(BLAS_SPIN_SECONDS)
        if perf_counter() >= min(deadline, end):
            return


class Steps:
    """Training steps of one layer on rows of X, each on other rows than the last.

    Parameters
    ----------
    learner : Learner
    X : ndarray of shape (n_rows, visible), float32
    """

    def __init__(self, learner: Learner, X: Array) -> None:
        self.learner, self.X = learner, X
        self._whole = step_for(learner, 1, "examples")
        learner.learning_rate = 1e-9  # the weights stay where they are, however often it is timed
        order = np.random.default_rng(0).permutation(len(X))
        self._order = np.resize(order, max(len(X), learner.batch_size))  # again, if rows are few
        self._step = 0

    def work(
        self, sharded: Step | None = None, run: PhaseRunner = in_turn, rows: int | None = None
    ) -> Work:
        """Return the steps as work, in shards if they have any, on minibatches or on fewer rows."""
        train_step = (sharded or self._whole).train_step
        count = self.learner.batch_size if rows is None else rows
        return repeated(
            lambda: train_step(self.X, self._rows(count), epoch=1, step=self._step, run=run)
        )

    def _rows(self, count: int) -> NDArray[np.intp]:
        batch = self.learner.batch_size
        start = self._step * batch % max(1, len(self._order) - batch + 1)
        self._step += 1
        return self._order[start : start + count]


def beside(own: Work, others: Sequence[Work], pool: WorkerPool) -> Probe | None:
    """Return work while other workers are busy with theirs; its own seconds count.

    Return None if there are no others.
    """
    workers = len(others) + 1

    def work(times: int) -> float:
        seconds = [0.0]  # until it is done

        def phase(shard: int) -> None:
            if shard == 0:
                try:
                    seconds[0] = own(times)
                finally:
                    seconds[0] = seconds[0] or 1e-9
            while not seconds[0]:
                others[shard - 1](1)

        pool.run([phase], workers, workers)
        return seconds[0]

    return Probe(work, cores=workers) if others else None


def transforming(
    layer: Layer,
    X: Any,
    run: PhaseRunner = in_turn,
    *,
    reader: Backend | None = None,
    rows: int = CHUNK_ROWS,
) -> Work:
    """Return the making of a layer's activations of X, on the device of their ``reader`` if given.

    ``rows`` is the number of rows of a chunk.
    """
    backend = reader or Backend()
    stream, width = backend.stream(), layer.shape.hidden
    with stream:
        target = Split(backend.empty((len(X), width)), backend.empty((0, width)))
    own = [layer], Split(X, X[:0]), target, lambda: False, run
    return repeated(lambda: transform(*own, reader=reader, rows=rows), stream)


def validating(learner: Learner, held_out: Any) -> Work:
    """Return what a worker does at the end of an epoch, on the host or on a device."""

    def validate() -> None:
        learner.largest_weight()
        learner.snapshot()
        if len(held_out):
            learner.validation_error(held_out)

    return repeated(validate, learner.stream)


class BareProducts:
    """The matrix products of a step of contrastive divergence: 2 k + 3 passes over the weights.

    An autoencoder's step has as many products as k = 1.

    Parameters
    ----------
    backend : Backend
        The backend of the factors. These are random, for zeros would be faster.
    precision : Precision
    shape : LayerShape
        Shape of the layer; the rows of a convolution's products are the positions.
    rows, cd_steps : int
    """

    def __init__(
        self, backend: Backend, precision: Precision, shape: LayerShape, rows: int, cd_steps: int
    ) -> None:
        visible, hidden, new = shape.fan_in, shape.biases[1], partial(drawn, backend)
        self._multiply, self._cd_steps, self._rows = precision.multiply, cd_steps, rows
        self._v, self._h = new((2 * rows, visible)), new((2 * rows, hidden))
        self._states, self._weights = new((rows, hidden)), new((visible, hidden))
        self._gradient = new((visible, hidden))
        self._error = backend.zeros((), np.float64)

    def train_step(self, X: Any, rows: Any, *, epoch: int, step: int) -> Any:
        """Work the products; the rows do not count."""
        n, multiply = self._rows, self._multiply
        multiply(self._v[:n], self._weights, out=self._h[:n])
        for _ in range(self._cd_steps):
            multiply(self._states, self._weights.T, out=self._v[n:])
            multiply(self._v[n:], self._weights, out=self._h[n:])
        multiply(self._v.T, self._h, out=self._gradient)
        return self._error


def products(shape: LayerShape, *, batch_size: int, cd_steps: int, precision: Precision) -> Work:
    """Return the bare products of a minibatch on the host; of a convolution some rows at a time."""
    whole = rows = batch_size * shape.positions
    if shape.positions > 1:
        rows = min(rows, max(1, LOWERED_AT_ONCE // shape.fan_in))
    bare = BareProducts(Backend(), precision, shape, rows, cd_steps)
    work = repeated(lambda: bare.train_step(None, None, epoch=1, step=0))
    return lambda times: whole / rows * work(times)


PASSES = 5  # as long as a step: what stands in for a pass that there was no time to measure


@dataclass(slots=True)
class LayerProbes:
    """The probes that time one layer.

    ``sample`` has the rows of its steps, ``rows`` is how many a transform makes, and ``held_out``
    the share of the validation rows that is timed.
    """

    sample: Sample
    step: Probe
    products: Probe
    validation: Probe
    busy: Probe | None
    held_out: float = 1.0
    rows: int = 0
    sharded: dict[tuple[str, int], dict[int, Probe]] = field(default_factory=dict)
    transform: dict[int, Probe] = field(default_factory=dict)
    blas: dict[str, Probe] = field(default_factory=dict)
    parts: dict[int, Probe] = field(default_factory=dict)

    def needed(self) -> list[Probe]:
        """Return what no prediction can do without."""
        return [self.step, *(self.transform[n] for n in self.transform if n == 1), self.validation]

    def others(self) -> list[Probe]:
        """Return the rest."""
        cut = [probe for sizes in self.sharded.values() for probe in sizes.values()]
        busy = [self.busy] if self.busy is not None else []
        more = [probe for n, probe in self.transform.items() if n > 1]
        return [*busy, self.products, *self.parts.values(), *more, *cut, *self.blas.values()]

    def timings(self, crowd: float, threads: int) -> LayerTimings:
        """Return the layer's timings, of whole minibatches; what was not measured is left out.

        ``crowd`` is the contention with all workers, relative to the contention with the layers
        that were measured at the same time; ``threads`` is the number of BLAS threads.
        """
        scale = self.sample.scale
        own = self.step.seconds if self.step.is_measured else self.sample.seconds or 0.0
        step = scale * own
        transform = self._transform(own)
        validation = self.validation.seconds if self.validation.is_measured else own
        slower = 0.0
        if self.busy is not None and self.busy.is_measured and self.step.is_measured:
            slower = self.busy.relative_to(self.step) - 1
        measured = {
            cut: {n: scale * probe.seconds for n, probe in by_size.items()}
            for cut, by_size in self.sharded.items()
            if all(probe.is_measured for probe in by_size.values())
        }
        validation /= self.held_out
        return LayerTimings(
            step=step,
            products=scale * self.products.seconds if self.products.is_measured else step,
            sharded={cut: no_faster_than_linear(by_size) for cut, by_size in measured.items()},
            transform=transform,
            validation=validation,
            contention=1 + max(0.0, slower) * crowd,
            blas_step=self._on_blas("step", step, threads, scale),
            blas_transform=self._on_blas(
                "transform", transform.get(1, 0.0), threads, 1 / max(1, self.rows)
            ),
            blas_validation=self._on_blas("validation", validation, threads, 1 / self.held_out),
            parts={n: self._part(n, own) for n in self.parts},
        )

    def is_whole(self) -> bool:
        """Return whether all of it was measured."""
        return all(probe.is_measured for probe in (*self.needed(), *self.others()))

    def _transform(self, step: float) -> dict[int, float]:
        found = {n: p.seconds / self.rows for n, p in self.transform.items() if p.is_measured}
        if self.transform and 1 not in found:
            found = {1: step / PASSES / self.sample.rows}
        return no_faster_than_linear(found)

    def _on_blas(self, name: str, alone: float, threads: int, scale: float) -> float | None:
        if name not in self.blas or not self.blas[name].is_measured:
            return None
        return no_faster_than_linear({1: alone, threads: scale * self.blas[name].seconds})[threads]

    def _part(self, rows: int, own: float) -> float:
        """Return a step on fewer rows than a minibatch has."""
        probe, sample = self.parts[rows], self.sample
        if rows > sample.rows:
            return own * sample.scale_to(rows)
        is_measured = probe.is_measured and self.step.is_measured
        return own * (probe.relative_to(self.step) if is_measured else rows / sample.rows)


def notes_on(kinds: Sequence[LayerProbes], most: float) -> tuple[str, ...]:
    """Return what was timed in part only, in sentences; ``most`` seconds were for all of it."""
    untried = [own.sample.seconds or 0.0 for own in kinds if not own.sample.is_tried]
    if untried:
        return (
            f"a step on one example takes about {max(untried):.0f} s, too long to be timed: nothing"
            " was measured, and the times are those of the operations at the usual speed of a core",
        )
    samples = [own.sample for own in kinds if own.sample.is_part]
    rows = sorted({sample.rows for sample in samples})
    notes = []
    if rows:
        counts = f"{rows[0]} to {rows[-1]}" if len(rows) > 1 else f"{rows[0]}"
        notes.append(
            f"a step takes long: timed on {counts} of the {samples[0].batch_size} examples of a"
            " minibatch, and scaled up"
        )
    if not all(own.is_whole() for own in kinds):
        notes.append(
            f"not all was timed in {most:.0f} s: what is missing is left out, or taken from the"
            " steps"
        )
    return tuple(notes)


WIDTHS = (8, 8, 8)  # so little work that what is around it shows
# Many beside the start and the end of a run, and soon over.
MINIBATCHES = 400
TIMES = 3  # the median of three: one may be disturbed


def handover_seconds() -> float:
    """Return the seconds of a minibatch of one layer in a stream, without its step.

    Most of them are spent in Python's interpreter, which runs one thread at a time.
    """
    settings = settings_from(
        WIDTHS, handoff="minibatch", delay=0.0, epochs=1, batch_size=1, workers=1, backend="numpy"
    ).pretrain
    X = np.random.default_rng(0).random((MINIBATCHES, WIDTHS[0]), dtype=np.float32)
    steps = [Steps(learner, X).work() for learner in build_learners(settings)]
    streamed, bare = [], []
    for _ in range(TIMES):
        StreamedPretraining(settings, X, observers=[history := History()]).run()
        streamed.append(history.pretrain_seconds)
        with blas_limit(1):
            bare.append(sum(work(MINIBATCHES) for work in steps))
    return max(0.0, median(streamed) - median(bare)) / (MINIBATCHES * len(steps))


EXCHANGE_ROUNDS, EXCHANGE_SECONDS = 5, 0.3  # of each piece, at most


def exchanges(settings: PretrainSettings) -> tuple[Exchange, ...]:
    """Measure the exchanges of each layer of a stack, by its server's rules."""
    counts = [shape.weights + sum(shape.biases) for shape in settings.shapes]
    found = {size: exchange_of(size, settings) for size in dict.fromkeys(counts)}
    return tuple(found[size] for size in counts)


def exchange_of(size: int, settings: AsyncFields) -> Exchange:
    """Measure the exchange of a number of parameters, by the rules of some settings."""
    server = ParameterServer(np.zeros(size, np.float32), settings, settings.servers)
    fetched, change = (np.zeros(size, np.float32) for _ in range(2))
    # A replica that learns nothing, so that what is around its steps shows.
    still: Any = SimpleNamespace(parameters=[np.zeros(size, np.float32)], train=lambda *at: (0.0,))
    steps = LocalSteps(still, fetched, change)
    task = Task(1, 0, 1)
    server.start()
    try:
        return Exchange(
            fetch=_seconds(lambda: server.fetch(fetched)),
            push=_seconds(lambda: server.push(change, server.clock, fetched)),
            local=_seconds(lambda: steps.work(task, fetches=True)),
        )
    finally:
        server.end()


def _seconds(work: Callable[[], object]) -> float:
    """Return the median of the seconds of some calls; the first one touches the memory."""
    timed = repeated(work)
    first, times = timed(1), list[float]()
    while len(times) < EXCHANGE_ROUNDS and first + sum(times) < EXCHANGE_SECONDS:
        times.append(timed(1))
    return median(times or [first])
