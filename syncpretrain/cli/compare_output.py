"""Results of ``compare``, as JSON, as a table and as a curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from syncpretrain.data.dataset import Dataset
from syncpretrain.plot.curves import save_label_curve
from syncpretrain.runs.compare import Outcome, summarized
from syncpretrain.runs.folder import CONFIG_NAME
from syncpretrain.settings import Settings, write_settings
from syncpretrain.storage import write_atomically

__all__ = ["as_report", "keep_unfinished", "print_comparison", "print_outcome", "write_comparison"]

CURVE_NAME = "label-budget.png"
TABLE_NAME = "compare.json"


def print_outcome(outcome: Outcome) -> None:
    """Print one fine-tuned stack's result on stderr."""
    labels = "" if outcome.labels is None else f"  {outcome.labels:,} labels"
    test = _figure(outcome.test, outcome.labels)
    seconds = (
        f"pretrain {outcome.pretrain_seconds:.1f} s, finetune {outcome.finetune_seconds:.1f} s"
    )
    with suppress(OSError):  # a log on a full disk
        click.echo(
            f"seed {outcome.seed}  {outcome.start}{labels}  test {test}  {seconds}", err=True
        )


def as_report(
    settings: Settings, data: Dataset, outcomes: Sequence[Outcome], out: Path
) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "layers": list(settings.pretrain.layers),
        "architecture": settings.pretrain.architecture,
        "objective": settings.finetune.objective,
        "data": {"name": data.name, "source": data.source, "train": len(data.train)},
        "table": [asdict(row) for row in summarized(outcomes)],
        "runs": [asdict(outcome) for outcome in outcomes],
        "out": str(out),
    }


def print_comparison(report: dict[str, Any], file: IO[str]) -> None:
    """Print a row for each start and number of labels: mean, spread, and what it gains."""
    console = Console(file=file, highlight=False)
    layers = report["architecture"] or "-".join(map(str, report["layers"]))
    data = report["data"]
    classes = report["objective"] == "classification"
    head = f"{layers} on {data['source']}, {report['objective']}, on the test examples:"
    console.print(head, markup=False, emoji=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    wrong = "wrong,\n%" if classes else "\nerror"
    plain = ("\nspread", "\ngain", "\npasses", "pretrain\ns", "finetune\ns")
    table.add_column("\nlabels", justify="right")
    table.add_column("\nstart", no_wrap=True)
    for name in (wrong, *plain):
        table.add_column(name, justify="right")
    previous = None
    for row in report["table"]:
        if previous not in (None, row["labels"]):
            table.add_section()
        previous = row["labels"]
        table.add_row(
            "-" if row["labels"] is None else f"{row['labels']:,}",
            row["start"],
            *(_number(row[name], classes) for name in ("test", "spread", "gain")),
            f"{row['passes']:.1f}",
            f"{row['pretrain_seconds']:.1f}",
            f"{row['finetune_seconds']:.1f}",
        )
    console.print(table)
    seeds = report["table"][0]["seeds"]
    console.print(f"means of {seeds} seeds; the gain is over random weights", markup=False)
    console.print("passes: epochs of pretraining, each by its layer's share of the weights")
    where = f"table and curve: {report['out']}"
    console.print(where, markup=False, emoji=False, soft_wrap=True)


def write_comparison(
    settings: Settings, report: dict[str, Any], outcomes: Sequence[Outcome], out: Path
) -> None:
    """Write the settings, the table as JSON, and the curve over numbers of labels if any."""
    write_settings(settings, out / CONFIG_NAME)
    write_atomically(out / TABLE_NAME, json.dumps(report, indent=2).encode())
    curves: dict[str, list[tuple[int, float, float | None]]] = {}
    for row in summarized(outcomes):
        if row.labels is not None:
            curves.setdefault(row.start, []).append((row.labels, row.test, row.spread))
    if curves:
        save_label_curve(curves, out / CURVE_NAME)


def keep_unfinished(
    settings: Settings, data: Dataset, outcomes: Sequence[Outcome], out: Path
) -> None:
    """Write what a comparison that fails or is stopped came to by then, and print where."""
    try:
        write_comparison(settings, as_report(settings, data, outcomes, out), outcomes, out)
        text = f"{len(outcomes)} results so far are in {out / TABLE_NAME}"
    except OSError as error:
        text = f"warning: {out} could not be written: {error.strerror or error}"
    with suppress(OSError):
        click.echo(text, err=True)


def _figure(value: float | None, labels: int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if labels is None else f"{100 * value:.2f} % wrong"


def _number(value: float | None, classes: bool) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2f}" if classes else f"{value:.4g}"
