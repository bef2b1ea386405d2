"""``syncpretrain bench``."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli import shared
from syncpretrain.cli.output import add_numbers, counted, plain_table, printing, title_of
from syncpretrain.errors import SettingsError

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.planning.bench import Bench, Reached
    from syncpretrain.settings import PretrainSettings
    from syncpretrain.workers.activations import Split

USUAL = "784,1000,500,250,30"
EPOCHS, EXAMPLES = 5, 5000  # enough to fill a pipeline, and under a minute for these layers
SPEEDUPS = ("speedup_over_one_core", "speedup_over_all_cores")
TRAIN_PER_VALIDATION = 50  # rows: MNIST's 50,000, and 1,000 to validate with


@click.command("bench")
@click.option(
    "--layers", default=USUAL, metavar="N,N[,N...]", help=f"As in train. Default {USUAL}."
)
@shared.data_option("Default random numbers: the times do not depend on the values.")
@click.option(
    "--epochs",
    type=shared.integers,
    default=str(EPOCHS),
    metavar="N[,N...]",
    help="Default 5. With one epoch the layers of a pipeline would train one after another.",
)
@click.option(
    "--examples",
    type=shared.at_least(1),
    metavar="N",
    help="Training examples. Default 5000, or fewer.",
)
@click.option("--batch-size", type=int, metavar="B", help="Examples in a minibatch. Default 100.")
@click.option(
    "--handoff",
    type=click.Choice(("epoch", "minibatch")),
    help="Time greedy training and schedules with this hand-over only. Default both.",
)
@click.option("--workers", type=int, metavar="P", help="Default the usable cores.")
@click.option(
    "--precision",
    type=click.Choice(("float32", "bfloat16", "auto")),
    help="Precision of matrix products. Default float32.",
)
@click.option("--products", type=click.Choice(("auto", "blas", "own")), help="As in train.")
@click.option(
    "--backend",
    default="numpy",
    metavar="numpy|cupy[:N]",
    help="What is timed: the cores (default), all GPUs, or GPU N.",
)
@shared.number_option("--rounds", 1, "Runs of each schedule.")
@click.option(
    "--target",
    type=float,
    metavar="X",
    help="Also report the seconds until the reconstruction error of validation examples is X, with"
    " all examples of --data, the chosen schedule, and fine-tuning.",
)
@shared.json_option
def command(
    layers: str,
    data: str | None,
    examples: int | None,
    handoff: str | None,
    rounds: int,
    target: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how near to this machine's limit each schedule runs, in about a minute.

    The limit is the time of the steps' matrix products alone, spread over all cores. Each schedule
    is run, and reported relative to greedy training on one core and on all cores, or with
    '--backend cupy' on GPUs.

    \b
    Examples:
      syncpretrain bench
      syncpretrain bench --layers 784,2000,2000 --rounds 3 --json
      syncpretrain bench --handoff minibatch --epochs 2
      syncpretrain bench --data mnist --epochs 2 --target 8.19
    """
    from syncpretrain.planning.bench import bench, seconds_to
    from syncpretrain.planning.candidates import Task
    from syncpretrain.settings import settings_from

    if target is not None and data is None:
        raise SettingsError("target: got a value without data, expected --data mnist or a file")
    settings = settings_from(layers, **options).pretrain
    width = settings.layers[0]
    dataset = _loaded(data, settings)
    rows = _rows(dataset, width, examples)
    task = Task(settings, len(rows.train), len(rows.validation))
    found = bench(task, rows, rounds=rounds, handoff=handoff, report=partial(click.echo, err=True))
    reached = None
    if dataset is not None and target is not None:
        reached = seconds_to(target, found.plan, _rows(dataset, width, len(dataset.train)))
    if as_json:
        click.echo(json.dumps(_report(found, rounds, target, reached)))
    else:
        _print(found, target, reached)


def _loaded(data: str | None, settings: PretrainSettings) -> Dataset | None:
    from syncpretrain.data import load_dataset
    from syncpretrain.settings.architecture import check_width

    if data is None:
        return None
    dataset = load_dataset(data, drop=None, images=settings.shapes[0].images)
    check_width(settings.shapes, dataset.width)
    return dataset


def _rows(dataset: Dataset | None, width: int, examples: int | None) -> Split:
    from syncpretrain.planning.bench import random_rows
    from syncpretrain.workers.activations import Split

    wanted = examples or EXAMPLES
    if dataset is None:
        rows = random_rows(wanted + wanted // TRAIN_PER_VALIDATION, width)
        return Split(rows[:wanted], rows[wanted:])
    train = dataset.train[:wanted]
    whole = len(train) == len(dataset.train)
    return Split(train, dataset.validation[: None if whole else len(train) // TRAIN_PER_VALIDATION])


def _report(
    bench: Bench, rounds: int, target: float | None, reached: Reached | None
) -> dict[str, Any]:
    plan = bench.plan.report()
    shared = ("layers", "workers", "unit", "blas_threads", "examples", "epochs", "batch_size")
    found = {
        **{name: plan[name] for name in shared},
        "rounds": rounds,
        "peak_gflops": _gflops(bench, "blas"),
        "own_gflops": _gflops(bench, "own"),
        "register_gflops": _gflops(bench, "registers"),
        "floor_seconds": plan["floor_seconds"],
        "choice": plan["choice"],
        "schedules": bench.rows(),
        "target": None,
    }
    if reached is not None:
        found["target"] = {
            "error": target,
            "seconds": reached.seconds,
            "finetune_epochs": reached.epochs,
            "reached": reached.error,
        }
    return found


def _gflops(bench: Bench, what: str) -> dict[str, float]:
    """Return what multiplies so fast, by the number of cores, or of GPUs."""
    return {str(count): peak[what] / 1e9 for count, peak in bench.peak.items() if what in peak}


def _print(bench: Bench, target: float | None, reached: Reached | None) -> None:
    from syncpretrain.planning.peaks import in_words
    from syncpretrain.planning.timings import CORE

    console, say = printing()
    plan, task = bench.plan, bench.plan.task
    unit = plan.timings.unit
    title = title_of(task.settings, task.examples)
    say(f"{title}, {counted(plan.timings.workers, 'worker' if unit == CORE else unit)}")
    for count, peak in bench.peak.items():
        say(f"large products, {counted(count, unit)}: {in_words(peak)}")
    table = plain_table("\nschedule")
    greedy = ["times greedy\none core", "times greedy\nall cores"]
    if unit != CORE:
        greedy = ["times\ngreedy"]
    add_numbers(table, "\nseconds", "\nexpected", "of the\nlimit", *greedy)
    for row in bench.rows():
        table.add_row(
            row["name"] + (" *" if row["name"] == plan.choice.name else ""),
            f"{row['seconds']:.2f}",
            f"{row['predicted_seconds']:.2f}",
            f"{100 * row['floor_share']:.0f} %",
            *(f"{row[name]:.2f}" for name in SPEEDUPS[: len(greedy)]),
        )
    console.print(table)
    say(
        f"the limit is {plan.floor_seconds:.2f} s: the steps' matrix products alone, as one {unit}"
        f" takes for them, over all {unit}s; * is the choice"
    )
    if reached is not None:
        seconds = "not reached" if reached.seconds is None else f"{reached.seconds:.1f} s"
        say(
            f"to an error of {target:g}: {seconds}; {reached.error:.2f} after"
            f" {counted(reached.epochs, 'epoch')} of fine-tuning"
        )
