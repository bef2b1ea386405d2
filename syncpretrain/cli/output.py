"""Progress while a command works, and its result as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table

from syncpretrain.events import Observer
from syncpretrain.models.diagnosis import share_text
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
    """Print the result of a run of ``train``."""
    console = Console(file=file, highlight=False)
    table = _print_data(console, report)
    for name in ("\nepochs", "busy\nseconds", "asleep\nseconds"):
        table.add_column(name, justify="right")
    for row in report["layers"]:
        times = (f"{row['busy_seconds']:.1f}", f"{row['idle_seconds']:.1f}")
        table.add_row(*_errors_cells(row), str(row["epochs"]), *times)
    console.print(table)
    _print_stack(console, report)
    for sentence in report["verdict"]:
        _print(console, f"verdict: {sentence}")
    seconds = report["seconds"]
    parts = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("data", "pretrain", "finetune"))
    _print(console, f"seconds: {parts}, total {seconds['total']:.1f}")
    out = Path(report["out"])
    _print(console, f"model: {out / 'model.safetensors'}")
    _print(console, f"next: syncpretrain report {quote(str(out))}")


def print_errors(report: dict[str, Any], file: IO[str], *, finetuned: bool) -> None:
    """Print what ``evaluate`` measured."""
    console = Console(file=file, highlight=False)
    table = _print_data(console, report)
    for row in report["layers"]:
        table.add_row(*_errors_cells(row))
    console.print(table)
    if finetuned:
        _print(console, "The layers' own errors are those after fine-tuning, which cares only for")
        _print(console, "the whole stack's.")
    _print_stack(console, report)
    console.print()
    console.print(_diagnosis_table(report["layers"]))


def _diagnosis_table(layers: list[dict[str, Any]]) -> Table:
    """Return the table of what is known of the layers beside their errors."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    names = (
        "\nlayer",
        "free-energy\ngap",
        "pseudo-\nlikelihood",
        "dead\nunits",
        "saturated\nunits",
    )
    estimated = any(row["log_z"] for row in layers)
    for name in (*names, *(("\nlog Z", "log-\nlikelihood") if estimated else ())):
        table.add_column(name, justify="right")
    for row in layers:
        cells = [str(row["layer"]), _number(row["free_energy_gap"])]
        cells += [_number(row["pseudo_likelihood"])]
        cells += [_count(row[name]) for name in ("dead_units", "saturated_units")]
        if estimated:
            cells += [_interval(row["log_z"]), _number(row["log_likelihood"])]
        table.add_row(*cells)
    return table


def _interval(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return "-"
    low, value, high = estimate["low"], estimate["value"], estimate["high"]
    if low == high:
        return f"{value:.1f}"
    below = "inf" if low is None else f"{value - low:.1f}"
    above = "inf" if high is None else f"{high - value:.1f}"
    return f"{value:.1f} -{below} +{above}"


def _print_data(console: Console, report: dict[str, Any]) -> Table:
    """Print what heads the table; return the table with the columns of the errors."""
    data, parts = report["data"], report["reconstruction_error"]
    _print(console, f"{data['name']}: {data['source']}")
    _print(console, ", ".join(f"{data[part]:,} {part}" for part in parts))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("\nlayer", justify="right")
    dense = all(" " not in row["shape"] for row in report["layers"])
    table.add_column("\nunits", no_wrap=dense)
    for part in report["layers"][0]["reconstruction_error"]:
        table.add_column(f"{part}\nerror", justify="right")
    table.add_column("of the\nmean's", justify="right")
    return table


def _errors_cells(row: dict[str, Any]) -> tuple[str, ...]:
    errors = map(_number, row["reconstruction_error"].values())
    shape, _, handed_up = row["shape"].partition(" -> ")
    units = shape.partition(" ")[2] if handed_up else shape  # the images are those of the last row
    return (str(row["layer"]), units, *errors, _share_of_mean(row))


def _share_of_mean(row: dict[str, Any]) -> str:
    """Return the last error's share of that of predicting the mean."""
    means = row["mean_error"]
    found = [(e, means[part]) for part, e in row["reconstruction_error"].items() if e is not None]
    return share_text(*found[-1]) if found else "-"


def _print_stack(console: Console, report: dict[str, Any]) -> None:
    whole = "whole stack"
    if report["accuracy"] is not None:
        for words, name in (("classifier", "accuracy"), ("most frequent class", "majority")):
            shares = _present(report[name])
            wrong = (f"{part} {100 * (1 - x):.2f} %" for part, x in shares.items())
            if shares:
                _print(console, f"{words}, wrong: {', '.join(wrong)}")
        whole = "whole stack, pretrained"
    if apart := report.get("regression_error"):
        texts = (f"{part} {_rmse(**x)}" for part, x in apart.items() if x)
        _print(console, f"regression, root mean squared error: {', '.join(texts)}")
        whole = "whole stack, pretrained"
    errors, means = _present(report["reconstruction_error"]), report["mean_error"]
    if errors:
        parts = ", ".join(f"{part} {_number(error)}" for part, error in errors.items())
        _print(console, f"{whole}: {parts} (squared error)")
        of_mean = (f"{part} {share_text(error, means[part])}" for part, error in errors.items())
        _print(console, f"of the mean's error: {', '.join(of_mean)}")


def _rmse(rmse: float, r2: float | None) -> str:
    return _number(rmse) if r2 is None else f"{_number(rmse)} (R2 {r2:.3f})"


def _present(figures: dict[str, float | None]) -> dict[str, float]:
    return {part: figure for part, figure in figures.items() if figure is not None}


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, emoji=False, soft_wrap=True)


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
