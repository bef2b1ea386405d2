"""Candidate schedules for a stack on a number of workers, each with its predicted duration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from syncpretrain.backends.choice import backend_for
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.planning.simulate import EpochCost, Simulated, StreamCost, play_stream, simulate
from syncpretrain.planning.timings import GPU, PIECES, LayerTimings, Timings, sizes
from syncpretrain.pretraining.build import build_schedule, threads_of, threads_of_layers
from syncpretrain.pretraining.memory import pretraining_bytes, stream_size
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.settings import PretrainSettings
from syncpretrain.settings.checks import ALWAYS
from syncpretrain.settings.fields import ASYNC_DEFAULTS, HANDOFF_DEFAULTS
from syncpretrain.workers.worker import PROBE_ROWS

WORTH_IT = 0.995  # a layer takes more workers if the run then takes at most this share of its time
DENSE_SPLITS = ("examples", "units")
SEARCHED_EPOCHS = 12  # of a layer, while replicas are looked for: enough to separate them
KINDS = {name: kind for name, kind in SCHEDULES.items() if kind.candidate is not None}


@dataclass(frozen=True, slots=True)
class Task:
    """A stack to train: its settings, and the numbers of training and held-out rows."""

    settings: PretrainSettings
    examples: int
    held_out: int

    @property
    def rows(self) -> int:
        """How many examples' activations each version has."""
        return self.examples + min(self.held_out, PROBE_ROWS)

    def floor_seconds(self, timings: Timings) -> float:
        """Return the time of nothing but the matrix products, spread evenly over all workers.

        Those of the stipulated epochs' training steps, as one core takes for them alone.
        """
        rows = zip(timings.layers, self.settings.epochs, strict=True)
        steps = self.examples / self.settings.batch_size
        return sum(layer.products * epochs * steps for layer, epochs in rows) / timings.workers


class Candidate(NamedTuple):
    """One way to train a stack, with its predicted time.

    Attributes
    ----------
    name : str
    options : dict
        The settings that make it, as ``pretrain`` takes them.
    seconds : float
        Expected seconds of pretraining.
    bytes : int
        Bytes of memory besides the data, about.
    epochs : tuple of int
        Epochs that each layer trains, refreshes included.
    """

    name: str
    options: Mapping[str, Any]
    seconds: float
    bytes: int
    epochs: tuple[int, ...]

    @property
    def is_plain_greedy(self) -> bool:
        """Whether it trains one layer after the other, each on whole minibatches."""
        return self.options["schedule"] == "greedy" and "split" not in self.options


def candidates(task: Task, timings: Timings) -> list[Candidate]:
    """Return all candidates that the settings permit, the simplest first.

    ``timings.workers`` is how many workers there may be. The settings' own schedule, workers,
    replicas, split and shards do not count.
    """
    found, seen = [], set()
    for name, options in _named_candidates(task, timings):
        try:
            settings = settings_with(task.settings, options)
        except SettingsError:
            continue  # they do not permit it
        if "split" in options:
            settings = _with_replicas(task, settings, timings)
            if max(settings.replicas) == 1:
                continue  # it does not pay anywhere
            cuts = _cuts(settings)
            if cuts in seen:
                continue  # a hybrid of one kind of cut
            seen.add(cuts)
            options = {**options, "replicas": settings.replicas, "shards": settings.replicas}
        run = simulated(task, settings, timings)
        found.append(Candidate(name, options, run.seconds, _bytes(task, settings, run), run.epochs))
    return found


def _named_candidates(task: Task, timings: Timings) -> Iterator[tuple[str, dict[str, Any]]]:
    P, B = timings.workers, timings.blas_threads
    is_streamed = task.settings.handoff == "minibatch"
    if timings.unit == GPU:
        yield from _candidates_on_devices(task.settings, len(timings.layers), P)
        return
    delay = task.settings.delay if is_streamed else HANDOFF_DEFAULTS["minibatch"]["delay"]
    streamed = {"handoff": "minibatch", "delay": delay}
    deep = len(timings.layers) > 1
    has_filters = bool(task.settings.architecture)
    splits: Sequence[str] = ("examples", "filters", "hybrid") if has_filters else DENSE_SPLITS
    in_pieces = any(cut == PIECES for layer in timings.layers for cut, _ in layer.sharded)
    splits = () if in_pieces else splits  # every free worker takes pieces of any layer's step
    for name, kind in KINDS.items():
        blas = {"blas_threads": 1} if kind.one_at_a_time else {}
        yield f"{kind.candidate}, one core", {"schedule": name, "workers": 1, **blas}
        if kind.can_stream:
            yield "streamed, one core", {"schedule": name, **streamed, "workers": 1}
    for name, kind in KINDS.items():
        if kind.one_at_a_time and (B > 1 or in_pieces):
            options = {"schedule": name, "workers": P, "blas_threads": B}
            yield f"{kind.candidate}, {P if in_pieces else f'BLAS on {B}'} cores", options
    if P == 1 or task.settings.runtime == "serial":
        return
    for name, kind in KINDS.items():
        if deep and not kind.one_at_a_time:
            yield str(kind.candidate), {"schedule": name, "workers": P}
    for name, kind in KINDS.items():
        for split in splits if deep or kind.one_at_a_time else ():
            options = {"schedule": name, "workers": P, "split": split}
            yield f"{kind.shared_candidate}, {split} split", options
    for name, kind in KINDS.items():
        if deep and kind.can_stream:
            yield "streamed", {"schedule": name, **streamed, "workers": P}
            for split in splits:
                options = {"schedule": name, **streamed, "workers": P, "split": split}
                yield f"streamed, {split} split", options


def granted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a candidate's options take for granted, the same for all layers."""
    plain = {"replicas": 1, "shards": 0, "split": "examples", "handoff": "epoch"}
    plain |= HANDOFF_DEFAULTS[options.get("handoff", "epoch")]
    if options.get("handoff") == "minibatch" or not SCHEDULES[options["schedule"]].has_refreshes:
        plain["refresh_when"] = ALWAYS
    return {name: value for name, value in plain.items() if name not in options}


def settings_with(settings: PretrainSettings, options: Mapping[str, Any]) -> PretrainSettings:
    """Return settings with the options of a candidate on top.

    Raises
    ------
    SettingsError
        If the settings do not permit it.
    """
    depth = len(settings.layers) - 1
    plain = {
        name: (value,) * depth if isinstance(getattr(settings, name), tuple) else value
        for name, value in granted(options).items()
    }
    return replace(settings, **{"group_size": None, **ASYNC_DEFAULTS, **plain, **options})


def _cuts(settings: PretrainSettings) -> tuple[object, ...]:
    """Return what two candidates share that train every layer in the same way."""
    own = [
        (n, settings.split_of(layer)) if n > 1 else (1, "")
        for layer, n in enumerate(settings.replicas, start=1)
    ]
    return (settings.schedule, settings.handoff, *own)


def _with_replicas(task: Task, settings: PretrainSettings, timings: Timings) -> PretrainSettings:
    """Give each layer the workers that it can use, one layer after the other.

    The costliest layer comes first. One that is taken before the others were given theirs is
    looked at once more.
    """
    short = replace(settings, epochs=tuple(min(n, SEARCHED_EPOCHS) for n in settings.epochs))
    best = simulated(task, short, timings).seconds
    order = sorted(range(len(timings.layers)), key=lambda i: -timings.layers[i].step)
    for i in order * 2:
        for size in (1, *sizes(timings.workers)):
            is_measured = (short.split_of(i + 1), size) in timings.layers[i].sharded
            if size == short.replicas[i] or not (size == 1 or is_measured):
                continue
            replicas = (*short.replicas[:i], size, *short.replicas[i + 1 :])
            tried = replace(short, replicas=replicas, shards=replicas)
            seconds = simulated(task, tried, timings).seconds
            if seconds < best * (WORTH_IT if size > short.replicas[i] else 1):
                short, best = tried, seconds
    return replace(short, epochs=settings.epochs)


def simulated(task: Task, settings: PretrainSettings, timings: Timings) -> Simulated:
    """Return what the settings of a schedule are predicted to take, by the timings of a task."""
    workers = settings.workers or 1
    if settings.handoff == "minibatch":
        return _simulated_stream(task, settings, timings)
    costs = [_cost(task, settings, i, layer) for i, layer in enumerate(timings.layers)]
    # As if every version woke its reader: by how much versions will differ is not known.
    waking = replace(settings, refresh_when=(ALWAYS,) * len(costs))
    schedule = build_schedule(waking, slots=min(workers, len(costs)))
    return simulate(schedule, costs, workers=workers, replicas=threads_of_layers(settings))


def _cost(task: Task, settings: PretrainSettings, i: int, layer: LayerTimings) -> EpochCost:
    """Return what an epoch of a layer takes under the settings of a candidate."""
    step, transform, validation = {1: layer.step}, dict(layer.transform), layer.validation
    on_blas = SCHEDULES[settings.schedule].one_at_a_time and (settings.blas_threads or 1) > 1
    if settings.replicas[i] > 1:
        step = dict(layer.sharded[settings.split_of(i + 1), settings.replicas[i]])
    elif own := layer.sharded.get((PIECES, threads_of(settings, i + 1))):
        step = dict(own)
    elif on_blas and max(settings.replicas) == 1 and layer.blas_step is not None:
        step, validation = {1: layer.blas_step}, layer.blas_validation or layer.validation
        transform = {1: layer.blas_transform or 0.0}
    steps, rows = task.examples / settings.batch_size, task.rows
    return EpochCost(
        train={workers: seconds * steps for workers, seconds in step.items()},
        transform={workers: seconds * rows for workers, seconds in transform.items()} or {1: 0.0},
        validation=validation,
        contention=layer.contention,
    )


def _simulated_stream(task: Task, settings: PretrainSettings, timings: Timings) -> Simulated:
    steps = -(-task.examples // settings.batch_size)
    costs = []
    for i, layer in enumerate(timings.layers):
        cost = _cost(task, settings, i, layer)
        rows = timings.layers[i + 1].transform[1] if i + 1 < len(timings.layers) else 0.0
        train = {workers: seconds / steps for workers, seconds in cost.train.items()}
        end = cost.validation + rows * min(task.held_out, PROBE_ROWS)
        forward = rows * settings.batch_size
        if settings.passes_up_again(i + 1):
            train = {workers: seconds + forward for workers, seconds in train.items()}
        costs.append(StreamCost(train, forward, end, cost.contention, timings.handover))
    where = settings.backend if timings.unit == GPU else "numpy"
    ring, block, _ = stream_size(settings, backend_for(where), steps)
    run = play_stream(
        settings.stream.plans(steps),
        costs,
        steps=steps,
        ring=ring,
        block=block,
        workers=settings.workers or 1,
        replicas=threads_of_layers(settings),
    )
    return run._replace(epochs=settings.epochs, buffers=(0,) * len(costs))


def _bytes(task: Task, settings: PretrainSettings, run: Simulated) -> int:
    """Return the memory of a run: parameters and minibatches, activations, shards' gradients."""
    activations = sum(n * width for n, width in zip(run.buffers, settings.layers[1:], strict=True))
    weights = [shape.weights + sum(shape.biases) for shape in settings.shapes]
    own = [
        n if n > 1 and settings.split_of(layer) == "examples" else 0
        for layer, n in enumerate(settings.replicas, start=1)
    ]
    gradients = sum(n * size for n, size in zip(own, weights, strict=True))
    fixed = pretraining_bytes(settings.shapes, examples=0, batch_size=settings.batch_size)
    return fixed + FLOAT_BYTES * (task.rows * activations + gradients)


def _candidates_on_devices(
    settings: PretrainSettings, depth: int, gpus: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and settings, the simplest first: layers in turn, at a time, and in shards.

    With handoff minibatch there are streams too; a stream has no shards.
    """
    workers = {name: 1 if kind.one_at_a_time else depth for name, kind in KINDS.items()}
    own = {
        name: {"schedule": name, "backend": settings.backend, "workers": workers[name]}
        for name, kind in KINDS.items()
        if kind.one_at_a_time or depth > 1
    }
    for name, options in own.items():
        yield str(KINDS[name].candidate), options
    for name, options in own.items() if gpus > 1 else ():
        yield f"{KINDS[name].shared_candidate}, examples split", {**options, "split": "examples"}
    for name, kind in KINDS.items():
        if kind.can_stream and settings.handoff == "minibatch":
            streamed = {"handoff": "minibatch", "delay": settings.delay, "workers": depth}
            yield "streamed", {"schedule": name, "backend": settings.backend, **streamed}
