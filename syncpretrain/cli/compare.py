"""``syncpretrain compare``: the command, and its results as JSON, as a table and as a curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli import shared
from syncpretrain.cli.output import add_numbers, number, plain_table, printing
from syncpretrain.cli.program import as_options
from syncpretrain.cli.setting_options import (
    SectionedCommand,
    complete_by_data,
    given_by,
    hidden_option,
    setting_options,
    settings_from_options,
    source_options,
)
from syncpretrain.data import check_whole
from syncpretrain.errors import SettingsError
from syncpretrain.runs.folder import CONFIG_NAME, check_folder, make_folder, unwritten
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.settings import Settings, replaced, write_settings
from syncpretrain.settings.by_data import Given
from syncpretrain.storage import write_atomically

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.runs.compare import Outcome


DEFAULT_PRESET, FEW_PRESET = "label-budget", "few-labels"
MOST_FEW = 1000  # labels, of which the preset for few says what it reaches
CURVE_NAME = "label-budget.png"
TABLE_NAME = "compare.json"


label_counts = shared.listed(
    lambda part: None if part == "all" else int(part), "whole numbers or all,"
)


def start_names(text: str) -> tuple[str, ...]:
    """Parse the names of starts, separated by commas."""
    from syncpretrain.runs.compare import START_FORMS, is_start

    parts = tuple(text.split(","))
    for part in parts:
        if not is_start(part):
            raise click.BadParameter(f"got {part!r}, expected {START_FORMS}")
    return parts


@click.command("compare", cls=SectionedCommand, context_settings={"max_content_width": 100})
@setting_options(without=("labels", "run"))
@hidden_option
@source_options
@click.option(
    "--starts",
    type=start_names,
    metavar="START[,START...]",
    help=f"Starts to compare: {', '.join(SCHEDULES)} or random; a schedule also as"
    " NAME:always or NAME:drift:X. Default greedy,synchronized,random.",
)
@click.option(
    "--baselines",
    type=click.UNPROCESSED,
    callback=lambda context, option, text: () if text is None else tuple(text.split(",")),
    metavar="NAME[,NAME...]",
    help="Classifiers of scikit-learn to measure too: svc, extra-trees, spreading. Default none.",
)
@shared.number_option("--seeds", 3, "Runs of each start.", metavar="S")
@click.option(
    "--labels",
    type=label_counts,
    metavar="N[,N...]",
    help="Labelled examples to classify with, such as 100,1000,all. Default all.",
)
@shared.out_option(
    "DIR", "The folder of the table and the curve, new or empty. Default a new one in runs/."
)
@shared.json_option
@shared.quiet_option
def command(
    preset: str | None,
    config: Path | None,
    hidden: str | None,
    starts: tuple[str, ...] | None,
    baselines: tuple[str, ...],
    seeds: int,
    labels: tuple[int | None, ...] | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Compare starts, pretrained or not, with the same fine-tuning.

    Each start is pretrained on all training examples (random weights are not), then fine-tuned in
    the same way, with the same examples, and measured on the test examples. Without --layers,
    --preset or --config the preset label-budget is taken, or with at most 1,000 labels few-labels,
    which takes 13 minutes a start and seed on two cores. --labels draws a curve of the error
    against the number of labelled examples. If the comparison is stopped, the table of the results
    so far is kept.

    \b
    Examples:
      syncpretrain compare --labels 100,1000,10000,all
      syncpretrain compare --layers 784,500,30 --finetune reconstruction --seeds 2
      syncpretrain compare --layers 64,100,50 --data digits --labels 50,200 --epochs 20
      syncpretrain compare --data table.csv --target class --test 0.2 --hidden 100 --labels 50,all
      syncpretrain compare --layers 64,50 --data digits --labels 50,200 --baselines svc,extra-trees
    """
    from syncpretrain.plot.canvas import check_drawing
    from syncpretrain.runs.compare import USUAL_STARTS
    from syncpretrain.runs.prepare import completed, with_absolute_path

    check_folder(out)
    asked = preset
    if hidden is not None and preset is None and config is None:
        preset = DEFAULT_PRESET  # gives way to settings that suit the data
    make = partial(settings_from_options, preset, config)
    data = complete_by_data(make, given_by(asked, config, options), hidden, options)
    settings, given, labels = _settings(preset, config, labels, starts, options)
    check_whole(options["data"])
    if hidden is not None:  # the default preset then gives way to settings that suit the data
        given = given_by(asked, config, options)
    if settings.finetune.objective == "classification":
        check_drawing()
    settings, data, notice = completed(settings, given, data)
    first = settings.pretrain.seed
    compared = {
        "starts": starts or USUAL_STARTS,
        "seeds": range(first, first + seeds),
        "labels": labels,
        "baselines": baselines,
    }
    told = () if quiet else (*data.notices, *filter(None, [notice]))
    notices = tuple(as_options(text, click.get_current_context()) for text in told)
    folder, outcomes = _outcomes(settings, data, out, quiet=quiet, notices=notices, **compared)
    report = _report(settings, data, outcomes, folder)
    try:
        _write_comparison(with_absolute_path(settings), report, folder)
    finally:
        if as_json:
            click.echo(json.dumps(report))
        elif not quiet:
            _print_comparison(report)


def _outcomes(
    settings: Settings,
    data: Dataset,
    out: Path | None,
    *,
    quiet: bool,
    notices: tuple[str, ...],
    **compared: Any,
) -> tuple[Path, list[Outcome]]:
    """Run the comparison; return its new folder and its results."""
    from syncpretrain.runs.compare import compare
    from syncpretrain.runs.prepare import with_absolute_path

    made: list[Path] = []
    outcomes: list[Outcome] = []

    def begin() -> None:
        made.append(make_folder(out, settings.pretrain.layers))
        for notice in notices:
            _tell(notice)

    def record(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if not quiet:
            _print_outcome(outcome)

    try:
        compare(settings, data, begin=begin, report=record, **compared)
    except BaseException:  # the results so far may be hours of work
        if outcomes:
            _write_unfinished(with_absolute_path(settings), data, outcomes, made[0])
        raise
    return made[0], outcomes


def _settings(
    preset: str | None,
    config: Path | None,
    labels: tuple[int | None, ...] | None,
    starts: tuple[str, ...] | None,
    options: dict[str, Any],
) -> tuple[Settings, Given | None, tuple[int | None, ...]]:
    """Return the settings, the names of the settings that were given, and numbers of labels."""
    if options["schedule"] is not None:
        raise SettingsError("schedule: got one, expected none; --starts says what is compared")
    if options["layers"] is None and preset is None and config is None:
        is_few = labels is not None and all(n is not None and n <= MOST_FEW for n in labels)
        preset = FEW_PRESET if is_few and options["finetune"] is None else DEFAULT_PRESET
    if labels is not None and options["finetune"] is None:
        options["finetune"] = "classification"
    if options["group_size"] is not None:
        grouped = [name for name, kind in SCHEDULES.items() if kind.has_groups]
        names = [start.partition(":")[0] for start in starts or ()]
        options["schedule"] = next((name for name in names if name in grouped), None)
        if options["schedule"] is None:
            raise SettingsError(
                f"group_size: got {options['group_size']}, but no start trains groups of layers;"
                f" add {' or '.join(grouped)} to --starts"
            )
    settings = settings_from_options(preset, config, options)
    # The labels of a preset or a run are numbers to compare by, not all that the data have.
    labels = labels or (settings.data.labels,)
    settings = replaced(settings, data=replaced(settings.data, labels=None))
    return settings, given_by(preset, config, options), labels


def _print_outcome(outcome: Outcome) -> None:
    """Print one fine-tuned stack's result on stderr."""
    labels = "" if outcome.labels is None else f"  {outcome.labels:,} labels"
    test = number(outcome.test, None if outcome.labels is None else " % wrong")
    pretrain, finetune = outcome.pretrain_seconds, outcome.finetune_seconds
    seconds = f"pretrain {pretrain:.1f} s, finetune {finetune:.1f} s"
    _tell(f"seed {outcome.seed}  {outcome.start}{labels}  test {test}  {seconds}")


def _tell(text: str) -> None:
    with suppress(OSError):  # a log on a full disk
        click.echo(text, err=True)


def _report(
    settings: Settings, data: Dataset, outcomes: Sequence[Outcome], out: Path
) -> dict[str, Any]:
    """Return the report that ``--json`` prints."""
    from syncpretrain.runs.compare import summarized

    return {
        "layers": list(settings.pretrain.layers),
        "architecture": settings.pretrain.architecture,
        "objective": settings.finetune.objective,
        "data": {"name": data.name, "source": data.source, "train": len(data.train)},
        "table": [asdict(row) for row in summarized(outcomes)],
        "runs": [asdict(outcome) for outcome in outcomes],
        "out": str(out),
    }


def _print_comparison(report: dict[str, Any]) -> None:
    """Print a row for each start and number of labels: mean, spread and gain."""
    console, say = printing()
    layers = report["architecture"] or "-".join(map(str, report["layers"]))
    data = report["data"]
    percent = "" if report["objective"] == "classification" else None
    say(f"{layers} on {data['source']}, {report['objective']}, on the test examples:")
    wrong = "\nerror" if percent is None else "wrong,\n%"
    table = plain_table()
    add_numbers(table, "\nlabels")
    table.add_column("\nstart", no_wrap=True)
    add_numbers(table, wrong, "\nspread", "\ngain", "\npasses", "pretrain\ns", "finetune\ns")
    previous = None
    for row in report["table"]:
        if previous not in (None, row["labels"]):
            table.add_section()
        previous = row["labels"]
        table.add_row(
            "-" if row["labels"] is None else f"{row['labels']:,}",
            row["start"],
            *(number(row[name], percent) for name in ("test", "spread", "gain")),
            f"{row['passes']:.1f}",
            f"{row['pretrain_seconds']:.1f}",
            f"{row['finetune_seconds']:.1f}",
        )
    console.print(table)
    seeds = report["table"][0]["seeds"]
    means = "one seed" if seeds == 1 else f"means of {seeds} seeds"
    console.print(f"{means}; the gain is over random weights", markup=False)
    console.print("passes: epochs of pretraining, each by its layer's share of the weights")
    say(f"table and curve: {report['out']}")


def _write_comparison(settings: Settings, report: dict[str, Any], out: Path) -> None:
    """Write the settings, the table as JSON, and the curve over numbers of labels if any."""
    from syncpretrain.plot.canvas import save_label_curve

    write_settings(settings, out / CONFIG_NAME)
    write_atomically(out / TABLE_NAME, json.dumps(report, indent=2).encode())
    curves: dict[str, list[tuple[int, float, float | None]]] = {}
    for row in report["table"]:
        if row["labels"] is not None:
            curves.setdefault(row["start"], []).append((row["labels"], row["test"], row["spread"]))
    if curves:
        save_label_curve(curves, out / CURVE_NAME)


def _write_unfinished(
    settings: Settings, data: Dataset, outcomes: Sequence[Outcome], out: Path
) -> None:
    """Write the results so far of a comparison that fails or is stopped, and print where."""
    try:
        _write_comparison(settings, _report(settings, data, outcomes, out), out)
        text = f"{len(outcomes)} results so far are in {out / TABLE_NAME}"
    except OSError as error:
        text = f"warning: {unwritten(out, error)}"
    _tell(text)
