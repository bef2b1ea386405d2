"""Output of ``syncpretrain simulate``: tables, one JSON object, a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from syncpretrain.cli.counts import counted

if TYPE_CHECKING:
    from rich.table import Table

    from syncpretrain.planning.scaling.costs import LayerCosts
    from syncpretrain.planning.scaling.curves import Curve, Options
    from syncpretrain.settings import PretrainSettings

__all__ = ["draw", "print_curves", "report"]

NOT_SIMULATED = (
    "what is learned is not simulated: a stale gradient counts as much as a fresh one, an epoch on"
    " an unfinished layer as much as one on a finished layer"
)
HEAD = ("devices", "at work", "seconds", "times", "idle", "moved GB", "memory GB", "a layer")


def report(
    curves: Sequence[Curve], options: Options, costs: Sequence[LayerCosts], *, batch_size: int
) -> dict[str, Any]:
    """Return all of it as plain values; ``--costs`` reads it again."""
    import msgspec

    network = options.network
    return {
        "layers": options.layers,
        "batch_size": batch_size,
        "examples": options.examples,
        "split": options.split,
        "bandwidth": network.bandwidth if math.isfinite(network.bandwidth) else None,
        "latency": network.latency,
        "all_reduce": network.all_reduce,
        "costs": msgspec.to_builtins(list(costs)),
        "curves": [curve.report() for curve in curves],
        "not_simulated": NOT_SIMULATED,
    }


def draw(curves: Sequence[Curve], stack: PretrainSettings, path: Path) -> None:
    """Draw the speed-ups as a PNG."""
    from syncpretrain.plot.curves import save_speedup_curves

    points = {
        curve.name: [(run.devices, curve.speedup(run)) for run in curve.runs] for curve in curves
    }
    save_speedup_curves(points, path, title=f"{_shape(stack)}, simulated")


def print_curves(
    curves: Sequence[Curve], options: Options, stack: PretrainSettings, file: IO[str]
) -> None:
    """Print a table of one way to train, or the speed-ups of several."""
    from rich.console import Console

    console = Console(file=file, highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, emoji=False, soft_wrap=True)

    epochs = ",".join(map(str, sorted(set(stack.epochs))))
    base = curves[0].base
    say(
        f"{_shape(stack)}, {counted(epochs, 'epoch')} of {options.examples:,} examples,"
        f" minibatches of {stack.batch_size}: greedy on one device takes {base:.4g} s"
    )
    console.print(_table(curves[0]) if len(curves) == 1 else _speedups(curves))
    if len(curves) > 1:
        say(
            "times greedy training on one device; idle shares, bytes and memory: --schedule, --json"
        )
    stale = [(run, run.staleness) for run in curves[-1].runs if run.staleness is not None]
    if stale:
        late = ", ".join(f"{x:.3g}" for _, x in stale)
        useful = ", ".join(f"{curves[-1].speedup(run) / max(1, x):.2f}" for run, x in stale)
        say(f"mean staleness of the asynchronous updates: {late}")
        say(f"times greedy training, where each is divided by its staleness: {useful}")
    say(f"{NOT_SIMULATED[0].upper()}{NOT_SIMULATED[1:]}.")


def _shape(stack: PretrainSettings) -> str:
    return stack.architecture or "-".join(map(str, stack.layers))


def _plain_table(names: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _table(curve: Curve) -> Table:
    """Return all figures of one way to train."""
    table = _plain_table(HEAD)
    table.columns[-1].overflow = "fold"  # of many layers
    for run in curve.runs:
        table.add_row(
            f"{run.devices:,}",
            f"{run.used:,}",
            f"{run.seconds:.4g}",
            f"{curve.speedup(run):.2f}",
            f"{100 * run.idle:.0f} %",
            f"{run.bytes_moved / 1e9:.3g}",
            f"{run.memory / 1e9:.2g}",
            ",".join(map(str, run.replicas)),
        )
    return table


def _speedups(curves: Sequence[Curve]) -> Table:
    table = _plain_table(["devices", *(curve.name for curve in curves)])
    for runs in zip(*(curve.runs for curve in curves), strict=True):
        times = [f"{c.speedup(run):.2f}" for c, run in zip(curves, runs, strict=True)]
        table.add_row(f"{runs[0].devices:,}", *times)
    return table
