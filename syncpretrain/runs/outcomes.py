"""Results of a comparison of starts, and what those of several seeds have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from syncpretrain.schedule.kinds import SCHEDULES

__all__ = ["RANDOM", "STARTS", "START_FORMS", "Outcome", "Summary", "is_start", "summarized"]

RANDOM = "random"  # the start without pretraining
STARTS = (*SCHEDULES, RANDOM)
START_FORMS = f"{' or '.join(STARTS)}, or a schedule with :always or :drift:X"


def is_start(text: str) -> bool:
    """Return whether a text names what pretraining may be compared with."""
    name, colon, _ = text.partition(":")
    return name in SCHEDULES or (name == RANDOM and not colon)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fine-tuned stack.

    ``labels`` is the number of labelled examples, None where none were used. ``test`` is the
    share of wrong classes, or the reconstruction error, on the test examples, ``validation`` that
    on the validation examples. ``epochs`` are those that each layer was pretrained for, ``passes``
    the same in passes of the whole stack: each epoch counts by its layer's weights.
    """

    start: str
    seed: int
    labels: int | None
    validation: float | None
    test: float | None
    pretrain_seconds: float
    finetune_seconds: float
    epochs: tuple[int, ...] = ()
    passes: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What the seeds of one start and one number of labels have in common.

    ``spread`` is the sample standard deviation of ``test``, None for a single seed; ``gain`` how
    much less than the random start's the mean is, None for itself or without one. ``passes`` is the
    work of pretraining.
    """

    start: str
    labels: int | None
    seeds: int
    test: float
    spread: float | None
    gain: float | None
    pretrain_seconds: float
    finetune_seconds: float
    passes: float


def summarized(outcomes: Iterable[Outcome]) -> list[Summary]:
    """Return one row for each number of labels and start, fewest labels first."""
    groups: dict[tuple[int | None, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.labels or 0):
        groups.setdefault((outcome.labels, outcome.start), []).append(outcome)
    means = {key: float(np.mean([_test(x) for x in group])) for key, group in groups.items()}
    return [
        Summary(
            start,
            labels,
            len(group),
            means[labels, start],
            float(np.std([_test(x) for x in group], ddof=1)) if len(group) > 1 else None,
            _gain(means, labels, start),
            float(np.mean([x.pretrain_seconds for x in group])),
            float(np.mean([x.finetune_seconds for x in group])),
            float(np.mean([x.passes for x in group])),
        )
        for (labels, start), group in groups.items()
    ]


def _gain(
    means: dict[tuple[int | None, str], float], labels: int | None, start: str
) -> float | None:
    if start == RANDOM or (labels, RANDOM) not in means:
        return None
    return means[labels, RANDOM] - means[labels, start]


def _test(outcome: Outcome) -> float:
    return math.nan if outcome.test is None else outcome.test
