"""Progress while a command works, and its result as tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from syncpretrain.events import Observer
from syncpretrain.observers.progress import progress_observer

__all__ = ["announce", "print_errors", "print_run"]


@contextmanager
def announce(*, live: bool, quiet: bool) -> Iterator[list[Observer]]:
    """Yield the observers that show progress on stderr: live on a terminal, else in lines."""
    if quiet:
        yield []
        return
    live = live and sys.stdout.isatty() and sys.stderr.isatty()
    with progress_observer(Console(stderr=True), live=live) as observer:
        yield [observer]


def print_run(report: dict[str, Any], file: IO[str]) -> None:
    """Print what a run of ``train`` came to."""
    console = Console(file=file, highlight=False)
    table = _errors_table(report)
    for name in ("epochs", "busy s", "asleep s"):
        table.add_column(name, justify="right")
    for row in report["layers"]:
        times = (f"{row['busy_seconds']:.1f}", f"{row['idle_seconds']:.1f}")
        table.add_row(*_errors_cells(row), str(row["epochs"]), *times)
    console.print(table)
    _print_stack(console, report)
    seconds = report["seconds"]
    parts = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("data", "pretrain", "finetune"))
    console.print(f"seconds: {parts}, total {seconds['total']:.1f}", soft_wrap=True)
    out = shlex.quote(report["out"])
    console.print(f"model: {report['out']}/model.safetensors", soft_wrap=True)
    console.print(f"next: syncpretrain reconstruct {out}", soft_wrap=True)


def print_errors(report: dict[str, Any], file: IO[str]) -> None:
    """Print what ``evaluate`` measured."""
    console = Console(file=file, highlight=False)
    table = _errors_table(report)
    for row in report["layers"]:
        table.add_row(*_errors_cells(row))
    console.print(table)
    _print_stack(console, report)


def _errors_table(report: dict[str, Any]) -> Table:
    data = report["data"]
    sizes = ", ".join(f"{data[part]:,} {part}" for part in ("train", "validation", "test"))
    table = Table(title=f"{data['name']}: {data['source']}\n{sizes}", title_justify="left")
    table.add_column("layer", justify="right")
    table.add_column("units")
    table.add_column("train error", justify="right")
    table.add_column("validation error", justify="right")
    return table


def _errors_cells(row: dict[str, Any]) -> tuple[str, ...]:
    errors = row["reconstruction_error"]
    units = f"{row['visible']}-{row['hidden']}"
    return (str(row["layer"]), units, _number(errors["train"]), _number(errors["validation"]))


def _print_stack(console: Console, report: dict[str, Any]) -> None:
    errors = report["reconstruction_error"]
    parts = ", ".join(f"{part} {_number(error)}" for part, error in errors.items())
    console.print(f"whole stack: {parts} (squared error an example)", soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
