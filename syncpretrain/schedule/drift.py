"""Drift between versions, by which a layer sleeps on, and the decisions that follow from it.

Pure: the numbers are reported by the workers, which have the arrays. Drift accumulates: a version
is compared with the one that its reader last trained on, not with the version before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from syncpretrain.errors import ScheduleError
from syncpretrain.schedule.reads import LayerPlan

__all__ = ["Drifts", "Judgement", "Measured"]

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
        return tuple(
            tuple((*pair, drift) for pair, drift in sorted(drifts.items()))
            for drifts in self._drifts
        )

    def resume(self, measured: Measured) -> None:
        """Continue with these drifts; there are none in a past from before there were any."""
        for drifts, rows in zip(self._drifts, measured, strict=False):
            drifts.update({(since, version): drift for since, version, drift in rows})
