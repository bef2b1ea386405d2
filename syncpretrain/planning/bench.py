"""Benchmark of each schedule against the machine's limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from syncpretrain.backends.choice import backend_for
from syncpretrain.errors import RunInterrupted
from syncpretrain.events import Event, FinetuneEpochFinished
from syncpretrain.finetuning import finetune
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import History
from syncpretrain.planning.candidates import Candidate, Task, settings_with
from syncpretrain.planning.choice import Plan, limited, plan_for
from syncpretrain.planning.measure import is_on_gpus
from syncpretrain.planning.peaks import core_peaks, device_peak
from syncpretrain.planning.timings import CORE
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.settings import PretrainSettings
from syncpretrain.workers.activations import Split

SIDE = 1536  # of the matrices of the peaks: 7 GFLOP
MINIBATCH = 100  # of fine-tuning
MOST_EPOCHS = 20  # of fine-tuning, until the target


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurements of a bench.

    Attributes
    ----------
    plan : Plan
        The plan, with the bound and the expected seconds of each schedule.
    peak : dict of int to dict of str to float
        Operations a second, by the number of cores and by what multiplies, as
        :func:`syncpretrain.planning.peaks.core_peaks` has them; of one GPU ``blas`` alone.
    seconds : dict of str to list of float
        Seconds of each schedule's runs, by the schedule's name.
    """

    plan: Plan
    peak: dict[int, dict[str, float]]
    seconds: dict[str, list[float]]

    def rows(self) -> list[dict[str, Any]]:
        """Return the results of each schedule, with its speed relative to greedy training."""
        medians = {name: median(runs) for name, runs in self.seconds.items()}
        greedy = [x.name for x in self.plan.candidates if x.is_plain_greedy]
        one_core, all_cores = greedy[0], greedy[-1]
        return [
            {
                "name": candidate.name,
                "seconds": medians[candidate.name],
                "predicted_seconds": candidate.seconds,
                "floor_share": self.plan.floor_seconds / medians[candidate.name],
                "speedup_over_one_core": medians[one_core] / medians[candidate.name],
                "speedup_over_all_cores": medians[all_cores] / medians[candidate.name],
            }
            for candidate in self.plan.candidates
        ]


@dataclass(frozen=True, slots=True)
class Reached:
    """Seconds to a validation error, None if it was not reached; the epochs and the error then."""

    seconds: float | None
    epochs: int
    error: float


def bench(
    task: Task,
    data: Split,
    *,
    rounds: int = 1,
    handoff: str | None = None,
    measure_seconds: float = 7.0,
    report: Callable[[str], object] = lambda message: None,
) -> Bench:
    """Measure the machine, plan, and run each schedule in turn, ``rounds`` times.

    Parameters
    ----------
    task : Task
        As large as the data.
    data : Split of arrays of shape (n_examples, layers[0])
    rounds : int
    handoff : str, optional
        Hand-over of the schedules to run, by default any. Plain greedy training is run in any case,
        for comparison.
    measure_seconds : float
        Argument of :func:`syncpretrain.planning.plan`.
    report : callable
        Called with a line about each step.
    """
    if handoff == "minibatch" and is_on_gpus(task):  # the cores' plan has streams in any case
        task = replace(task, settings=settings_with(task.settings, {"handoff": handoff}))
    report("measuring the layers")
    plan = plan_for(task, measure_seconds=measure_seconds)
    if handoff is not None:
        plan = limited(plan, handoff)
    if plan.timings.unit == CORE:
        peak = {count: core_peaks(count, SIDE) for count in sorted({1, plan.timings.blas_threads})}
    else:
        peak = {1: {"blas": device_peak(backend_for(task.settings.backend))}}
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in plan.candidates}
    for _ in range(rounds):
        for candidate in plan.candidates:
            seconds[candidate.name].append(run_candidate(candidate, task.settings, data)[0])
            report(f"{candidate.name}: {seconds[candidate.name][-1]:.2f} s")
    return Bench(plan, peak, seconds)


def run_candidate(
    candidate: Candidate, settings: PretrainSettings, data: Split
) -> tuple[float, Stack]:
    """Pretrain a stack by one of the candidates; return the seconds of training, and the stack."""
    settings, history = settings_with(settings, candidate.options), History()
    stack = driver_for(settings, data.train, data.validation, observers=[history]).run()
    return history.pretrain_seconds, stack


def random_rows(rows: int, width: int) -> Array:
    """Return examples in [0, 1) that nothing can be learned from."""
    return np.random.default_rng(0).random((rows, width), dtype=np.float32)


def seconds_to(target: float, plan: Plan, data: Split) -> Reached:
    """Pretrain by the choice, then fine-tune until the error on validation rows is low enough.

    ``target`` is the squared error of the whole unrolled stack, summed over the units of an
    example, on 1,000 validation rows. Fine-tuning is Adam's, at its defaults.
    """
    errors: list[float] = []

    def record(event: Event) -> None:
        if isinstance(event, FinetuneEpochFinished) and event.validation_error is not None:
            errors.append(event.validation_error)

    def reached() -> bool:
        return bool(errors) and errors[-1] <= target

    started = perf_counter()
    _, stack = run_candidate(plan.choice, plan.task.settings, data)
    try:
        finetune(
            stack,
            data.train,
            validation=data.validation,
            observers=[record],
            stop=reached,
            epochs=MOST_EPOCHS,
            batch_size=min(MINIBATCH, len(data.train)),
            seed=plan.task.settings.seed,
            backend=plan.task.settings.backend,
        )
    except RunInterrupted:
        if not reached():
            raise
    seconds = perf_counter() - started
    return Reached(seconds if reached() else None, len(errors), errors[-1])
