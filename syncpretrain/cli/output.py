"""Output of commands: progress, the results of a run as tables, and counts in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.program import as_options
from syncpretrain.events import Event, Notice, Observer
from syncpretrain.observers import observing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from syncpretrain.settings import PretrainSettings


def run_shown(work: Callable[..., dict[str, Any]], *, quiet: bool, as_json: bool) -> None:
    """Call what trains with ``observers`` that show its progress, and print its result."""
    with observing(not quiet, live=not as_json) as observers:
        report = work(observers=[_in_options(observer) for observer in observers])
    if as_json:
        click.echo(json.dumps(report))
    elif not quiet:
        print_run(report)


def _in_options(observer: Observer) -> Observer:
    """Return an observer of events with settings in notices written as options."""
    context = click.get_current_context()

    def observe(event: Event) -> None:
        if isinstance(event, Notice):
            event = replace(event, message=as_options(event.message, context))
        observer(event)

    return observe


def print_run(report: dict[str, Any]) -> None:
    """Print the result of a run of ``train``."""
    console, say = printing()
    table = _print_data(say, report)
    add_numbers(table, "\nepochs", "busy\nseconds", "asleep\nseconds")
    for row in report["layers"]:
        times = (f"{row['busy_seconds']:.1f}", f"{row['idle_seconds']:.1f}")
        table.add_row(*_errors_cells(row), str(row["epochs"]), *times)
    console.print(table)
    _print_stack(say, report)
    for sentence in report["verdict"]:
        say(f"verdict: {sentence}")
    seconds = report["seconds"]
    parts = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("data", "pretrain", "finetune"))
    say(f"seconds: {parts}, total {seconds['total']:.1f}")
    out = Path(report["out"])
    say(f"model: {out / 'model.safetensors'}")
    say(f"next: syncpretrain report {quote(str(out))}")


def print_errors(report: dict[str, Any], *, finetuned: bool) -> None:
    """Print the measurements of ``evaluate`` as tables."""
    console, say = printing()
    table = _print_data(say, report)
    for row in report["layers"]:
        table.add_row(*_errors_cells(row))
    console.print(table)
    if finetuned:
        say("The layers' own errors are those after fine-tuning, which cares only for")
        say("the whole stack's.")
    _print_stack(say, report)
    console.print()
    console.print(_diagnosis_table(report["layers"]))


def counted(count: int | str, what: str) -> str:
    """Return a count, or several as text, with its noun in the singular or plural.

    Examples
    --------
    >>> counted(1, "epoch"), counted(20, "epoch"), counted("1,2", "epoch")
    ('1 epoch', '20 epochs', '1,2 epochs')
    """
    return f"{count} {what}{'' if str(count) == '1' else 's'}"


def number(value: float | None, percent: str | None = None) -> str:
    """Return a figure as text; a share in hundredths, where there is a text to stand behind it."""
    if value is None:
        return "-"
    return f"{value:.4g}" if percent is None else f"{100 * value:.2f}{percent}"


def title_of(settings: PretrainSettings, examples: int) -> str:
    """Return a stack, its epochs and its number of examples as text."""
    epochs = ",".join(map(str, sorted(set(settings.epochs))))
    return f"{settings.stack_text}, {counted(epochs, 'epoch')} of {examples:,} examples"


def printing(width: int | None = None) -> tuple[Console, Callable[[str], None]]:
    """Return a console on standard output, and what prints text there as it is.

    Such text has no markup, and lines of any width: names and paths hold any letters.
    """
    from rich.console import Console

    console = Console(highlight=False, width=width)
    return console, partial(console.print, markup=False, emoji=False, soft_wrap=True)


def plain_table(*texts: str) -> Table:
    """Return an empty table without a frame, with columns of texts."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in texts:
        table.add_column(name, no_wrap=True)
    return table


def add_numbers(table: Table, *names: str) -> None:
    """Add columns of numbers to a table."""
    for name in names:
        table.add_column(name, justify="right")


def _diagnosis_table(layers: list[dict[str, Any]]) -> Table:
    """Return the table of each layer's diagnosis: energy gap, likelihoods, idle units."""
    table, estimated = plain_table(), any(row["log_z"] for row in layers)
    add_numbers(table, "\nlayer", "free-energy\ngap", "pseudo-\nlikelihood")
    add_numbers(table, "dead\nunits", "saturated\nunits")
    if estimated:
        add_numbers(table, "\nlog Z", "log-\nlikelihood")
    for row in layers:
        cells = [str(row["layer"])]
        cells += [number(row[name]) for name in ("free_energy_gap", "pseudo_likelihood")]
        cells += ["-" if row[x] is None else str(row[x]) for x in ("dead_units", "saturated_units")]
        if estimated:
            cells += [_interval(row["log_z"]), number(row["log_likelihood"])]
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


def _print_data(say: Callable[[str], None], report: dict[str, Any]) -> Table:
    """Print the name and sizes of the data; return a table with the columns of the errors."""
    data, parts = report["data"], report["reconstruction_error"]
    say(f"{data['name']}: {data['source']}")
    say(", ".join(f"{data[part]:,} {part}" for part in parts))
    table = plain_table()
    add_numbers(table, "\nlayer")
    dense = all(" " not in row["shape"] for row in report["layers"])
    table.add_column("\nunits", no_wrap=dense)
    parts = report["layers"][0]["reconstruction_error"]
    add_numbers(table, *(f"{part}\nerror" for part in parts), "of the\nmean's")
    return table


def _errors_cells(row: dict[str, Any]) -> tuple[str, ...]:
    errors = map(number, row["reconstruction_error"].values())
    shape, _, handed_up = row["shape"].partition(" -> ")
    units = shape.partition(" ")[2] if handed_up else shape  # the row above has the images
    return (str(row["layer"]), units, *errors, _share_of_mean(row))


def _share_of_mean(row: dict[str, Any]) -> str:
    """Return the last part's error as a share of the error of predicting the mean."""
    from syncpretrain.models.diagnosis import share_text

    means = row["mean_error"]
    found = [(e, means[part]) for part, e in row["reconstruction_error"].items() if e is not None]
    return share_text(*found[-1]) if found else "-"


def _print_stack(say: Callable[[str], None], report: dict[str, Any]) -> None:
    from syncpretrain.models.diagnosis import share_text

    whole = "whole stack"
    if report["accuracy"] is not None:
        for words, name in (("classifier", "accuracy"), ("most frequent class", "majority")):
            shares = _present(report[name])
            wrong = (f"{part} {100 * (1 - x):.2f} %" for part, x in shares.items())
            if shares:
                say(f"{words}, wrong: {', '.join(wrong)}")
        whole = "whole stack, pretrained"
    if apart := report.get("regression_error"):
        texts = (f"{part} {_rmse(**x)}" for part, x in apart.items() if x)
        say(f"regression, root mean squared error: {', '.join(texts)}")
        whole = "whole stack, pretrained"
    errors, means = _present(report["reconstruction_error"]), report["mean_error"]
    if errors:
        parts = ", ".join(f"{part} {number(error)}" for part, error in errors.items())
        say(f"{whole}: {parts} (squared error)")
        of_mean = (f"{part} {share_text(error, means[part])}" for part, error in errors.items())
        say(f"of the mean's error: {', '.join(of_mean)}")


def _rmse(rmse: float, r2: float | None) -> str:
    return number(rmse) if r2 is None else f"{number(rmse)} (R2 {r2:.3f})"


def _present(figures: dict[str, float | None]) -> dict[str, float]:
    return {part: figure for part, figure in figures.items() if figure is not None}
