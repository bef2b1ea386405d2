"""``plan``: measure a stack on this machine, predict each schedule, and choose one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.parallel.precision_choice import resolved
from syncpretrain.planning.asynchronous import AsyncPlan, predict_async
from syncpretrain.planning.candidates import Candidate, Task, candidates, settings_with
from syncpretrain.planning.measure import is_on_gpus, timings_of
from syncpretrain.planning.probes import exchanges, handover_seconds
from syncpretrain.planning.timings import CORE, GPU, Timings, place_of_timings, remembered
from syncpretrain.settings import PretrainSettings, settings_from
from syncpretrain.settings.fields import MAX_WORKERS

NEARLY_FASTEST = 1.01  # times the shortest prediction; the simplest plan up to that is taken
LEARNS = (
    "greedy, synchronized and streamed pretraining are all valid, and learn different weights: the"
    " layers of a pipeline or of a stream begin on unfinished ones below"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Candidates for training a stack, and the one to take.

    Attributes
    ----------
    task : Task
    candidates : tuple of Candidate
        The simplest first.
    choice : Candidate
        The fastest as predicted, or the simplest one near it.
    floor_seconds : float
        The bound: the time of the steps' matrix products alone, spread over all workers.
    timings : Timings
        The measurements.
    """

    task: Task
    candidates: tuple[Candidate, ...]
    choice: Candidate
    floor_seconds: float
    timings: Timings

    @property
    def reason(self) -> str:
        """Why the choice was taken, in a sentence."""
        able = eligible(self.task, self.candidates)
        fastest = min(able, key=lambda candidate: candidate.seconds)
        if self.choice.options["workers"] == 1 and self.timings.unit == GPU:
            return "one layer after another is fastest"
        if self.choice.options["workers"] == 1:
            if all(candidate.options["workers"] == 1 for candidate in able):
                return "staying on one core is all there is"
            return "staying on one core is fastest"
        if self.choice is fastest:
            return f"the fastest as predicted, {self.speedup(self.choice):.2f} times {self.alone}"
        slower = 100 * (self.choice.seconds / fastest.seconds - 1)
        return f"simpler than {fastest.name}, and only {slower:.1f} % slower"

    @property
    def alone(self) -> str:
        """Reference of the candidates' speed, in words."""
        return "one core" if self.timings.unit == CORE else "one layer at a time"

    @property
    def asynchronous(self) -> AsyncPlan | None:
        """Asynchronous runs, which are no choice: their result depends on timing. None on GPUs."""
        return None if self.timings.unit == GPU else predict_async(self.task, self.timings)

    @property
    def settings(self) -> dict[str, Any]:
        """The choice as keyword arguments of :func:`syncpretrain.pretrain`."""
        return dict(self.choice.options)

    @property
    def command(self) -> str:
        """The choice as a command line, for a stack that :func:`plan` was given."""
        task = self.task.settings
        stack: dict[str, Any] = {"layers": task.architecture or task.layers, "epochs": task.epochs}
        usual = {"batch_size": 100, "model": "rbm", "precision": "float32", "products": "auto"}
        given = {name: getattr(task, name) for name in usual}
        stack |= {name: value for name, value in given.items() if value != usual[name]}
        if any(task.settle):
            stack["settle"] = task.settle
        return f"syncpretrain train {option_text(stack)} {option_text(self.settings)}"

    def speedup(self, candidate: Candidate) -> float:
        """Return how many times faster a candidate is than greedy training on one core."""
        one_core = next(x for x in self.candidates if x.options["workers"] == 1)
        return one_core.seconds / candidate.seconds

    def share(self, candidate: Candidate) -> float:
        """Return the share of a candidate's time that no candidate can do without: the bound."""
        return self.floor_seconds / candidate.seconds

    def apply(self, settings: PretrainSettings) -> PretrainSettings:
        """Return settings with the options of the choice on top."""
        return settings_with(settings, self.choice.options)

    def report(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        task = self.task
        return {
            "layers": list(task.settings.layers),
            "architecture": task.settings.architecture or None,
            "workers": self.timings.workers,
            "blas_threads": self.timings.blas_threads,
            "examples": task.examples,
            "held_out": task.held_out,
            "epochs": list(task.settings.epochs),
            "batch_size": task.settings.batch_size,
            "precision": task.settings.precision,
            "products": task.settings.products,
            "floor_seconds": self.floor_seconds,
            "choice": self.choice.name,
            "reason": self.reason,
            "settings": msgspec.to_builtins(self.settings),
            "command": self.command,
            "unit": self.timings.unit,
            "asynchronous": None if self.asynchronous is None else self.asynchronous.report(),
            "candidates": [self._row(candidate) for candidate in self.candidates],
            "measured": [layer.milliseconds() for layer in self.timings.layers],
            "measuring_seconds": self.timings.seconds,
            "notes": list(self.timings.notes),
        }

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        return {
            "name": candidate.name,
            "seconds": candidate.seconds,
            "speedup": self.speedup(candidate),
            "floor_share": self.share(candidate),
            "bytes": candidate.bytes,
            "epochs": list(candidate.epochs),
            "settings": msgspec.to_builtins(dict(candidate.options)),
        }


def plan(
    layers: str | Sequence[Any],
    *,
    workers: int | None = None,
    examples: int = 50_000,
    held_out: int = 10_000,
    measure_seconds: float = 7.0,
    **settings: Any,
) -> Plan:
    """Measure a stack on this machine, and predict each way to pretrain it.

    Parameters
    ----------
    layers : sequence of int, or str
        Values of an example, then the units of each layer; as of :func:`syncpretrain.pretrain`.
    workers : int, optional
        The most there may be; default the usable cores.
    examples, held_out : int
        Rows to train on, and to measure the layers on.
    measure_seconds : float
        About how long to measure.
    **settings
        Fields of :class:`syncpretrain.settings.PretrainSettings`, such as ``epochs``. The
        schedule, replicas, split and shards are what is looked for, and do not count.

    Returns
    -------
    Plan

    Raises
    ------
    SettingsError
        For a wrong setting.
    """
    check_workers(workers)
    task = Task(settings_from(layers, **settings).pretrain, examples, held_out)
    return plan_for(task, workers=workers, measure_seconds=measure_seconds)


def check_workers(workers: int | None) -> None:
    """Refuse a number of workers that no machine has.

    Raises
    ------
    SettingsError
    """
    if workers is not None and workers not in range(1, MAX_WORKERS + 1):
        raise SettingsError(
            f"workers: got {workers!r}, expected a whole number from 1 to {MAX_WORKERS}"
        )


def plan_for(
    task: Task,
    *,
    workers: int | None = None,
    timings: Timings | None = None,
    measure_seconds: float = 7.0,
    remembers: bool = False,
) -> Plan:
    """Return the plan of a task, measured now or with timings that were.

    ``workers`` is the largest number of workers; by default the settings' number, or the usable
    cores. With ``remembers`` the timings of an earlier run serve, or are kept for a later one.
    With handoff minibatch only streamed candidates can be the choice.

    Raises
    ------
    SettingsError
        If a minibatch has more examples than there are.
    """
    backend = task.settings.backend if is_on_gpus(task) else "numpy"  # the cores
    given, sparse = task.settings.products, task.settings.sparse
    task = replace(task, settings=resolved(task.settings, backend, sparse=sparse))
    kept = task.settings, task.examples, task.held_out, workers
    place = place_of_timings(*kept) if remembers else None

    def measured() -> Timings:
        found = timings_of(task, workers=workers, seconds=measure_seconds)
        if found.unit != CORE:
            return found
        return replace(found, exchanges=exchanges(task.settings), handover=handover_seconds())

    timings = timings or remembered(place, measured)
    found = candidates(task, timings)
    choice = simplest(eligible(task, found))
    task = replace(task, settings=msgspec.structs.replace(task.settings, products=given))
    return Plan(task, tuple(found), choice, task.floor_seconds(timings), timings)


def eligible(task: Task, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that may be the choice: with handoff minibatch, streamed ones alone."""
    if task.settings.handoff == "epoch":
        return list(candidates)
    return [x for x in candidates if x.options.get("handoff") == task.settings.handoff]


def simplest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the first of the candidates that are nearly as fast as the fastest."""
    nearest = NEARLY_FASTEST * min(candidate.seconds for candidate in candidates)
    return next(candidate for candidate in candidates if candidate.seconds <= nearest)


def limited(plan: Plan, handoff: str) -> Plan:
    """Return a plan with candidates of one hand-over alone, and plain greedy training."""
    able = [x for x in plan.candidates if x.options.get("handoff", "epoch") == handoff]
    kept = tuple(x for x in plan.candidates if x in able or x.is_plain_greedy)
    return replace(plan, candidates=kept, choice=simplest(able))


def option_text(settings: Mapping[str, Any]) -> str:
    """Return settings as options of ``train``."""
    words = []
    for name, value in settings.items():
        if isinstance(value, tuple):
            same = name != "layers" and len(set(value)) == 1
            value = ",".join(map(str, value[:1] if same else value))
        words.append(f"--{name.replace('_', '-')} {quote(str(value))}")
    return " ".join(words)
