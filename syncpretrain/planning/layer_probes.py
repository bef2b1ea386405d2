"""The pieces of a layer that are timed, and the timings that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from syncpretrain.planning.probes import Probe
from syncpretrain.planning.samples import Sample
from syncpretrain.planning.timings import LayerTimings, no_faster_than_linear

__all__ = ["PASSES", "LayerProbes", "notes_on"]

PASSES = 5  # as long as a step: what stands in for a pass that there was no time to measure


@dataclass(slots=True)
class LayerProbes:
    """What is timed of one layer.

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

        ``crowd`` is the contention with all workers over that with the layers measured beside,
        ``threads`` the number of those of BLAS.
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
        both = {1: alone, threads: scale * self.blas[name].seconds}
        return no_faster_than_linear(both)[threads]

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
