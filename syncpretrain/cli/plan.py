"""``syncpretrain plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.output import add_numbers, counted, plain_table, printing, title_of
from syncpretrain.cli.setting_options import (
    FINETUNE,
    OPTIONS,
    setting_options,
    settings_from_options,
    source_options,
)
from syncpretrain.cli.shared import TRAIN_PER_HELD_OUT, json_option, measuring_options
from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings import Settings
from syncpretrain.settings.fields import values_of

if TYPE_CHECKING:
    from rich.table import Table

    from syncpretrain.planning.choice import Plan
    from syncpretrain.planning.tuning import TuningPlan

ASYNC_OPTIONS = ("push_every", "fetch_every", "async_rate")
PLAN_OPTIONS = (
    *("layers", "model", "epochs", "batch_size", "workers", "handoff", "delay", "precision"),
    *("products", "backend"),
)
TUNING_FIELDS = (
    *("epochs", "batch_size", "optimizer", "precision", "products", "replicas", "schedule"),
    *ASYNC_OPTIONS,
)
OTHER_TUNING_OPTIONS = [
    name
    for name in OPTIONS
    if name.startswith(FINETUNE) and name.removeprefix(FINETUNE) not in TUNING_FIELDS
]


@click.command("plan")
@setting_options(only=PLAN_OPTIONS)
@click.option(
    "--schedule",
    type=click.Choice((ASYNC,)),
    help="Choose among asynchronous runs, by their replicas.",
)
@setting_options(only=ASYNC_OPTIONS)
@setting_options(only=("finetune",), without=OTHER_TUNING_OPTIONS)
@source_options
@measuring_options
@json_option
def command(
    preset: str | None,
    config: Path | None,
    examples: int,
    seconds: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure a stack on this machine, predict each schedule's time, and choose one.

    It times a few steps of each layer, on random numbers, with each number of workers, split by
    examples and by units, and with BLAS on all cores, and simulates each schedule. With
    '--backend cupy' it times the GPUs instead. 'train --schedule auto' does the same and goes on
    with the choice.

    \b
    Examples:
      syncpretrain plan --layers 784,1000,500,250,30
      syncpretrain plan --layers 784,2000,2000,2000 --batch-size 1000 --workers 4
      syncpretrain plan --preset hinton2006 --json
      syncpretrain plan --layers 784,500,250 --schedule async --finetune reconstruction
    """
    from syncpretrain.planning.candidates import Task
    from syncpretrain.planning.choice import check_workers, plan_for

    workers = options.pop("workers")  # asynchronous settings have none
    check_workers(workers)
    settings = settings_from_options(preset, config, options)
    task = Task(settings.pretrain, examples, examples // TRAIN_PER_HELD_OUT)
    tuned = _tuned(settings, workers, examples, seconds)
    found = plan_for(task, workers=workers, measure_seconds=seconds)
    own = {name: value for name, value in options.items() if value is not None}
    line = _train_command(found, tuned, {"preset": preset, "config": config}, own)
    if as_json:
        report = found.report() | {"finetune": tuned and tuned.report(), "command": line}
        click.echo(json.dumps(report))
    else:
        print_plan(found, tuned, line)


def _tuned(
    settings: Settings, workers: int | None, examples: int, seconds: float
) -> TuningPlan | None:
    """Return the prediction of a fine-tuning, if the settings ask for any.

    Raises
    ------
    SettingsError
        If fine-tuning is to run on a GPU, where it is not predicted.
    """
    if settings.finetune.objective == "none":
        return None
    if settings.pretrain.backend.startswith("cupy"):
        raise SettingsError(
            f"finetune: got {settings.finetune.objective} with backend"
            f" {settings.pretrain.backend}, expected none: fine-tuning is predicted on the CPU"
            " alone; train --dry-run times some minibatches of it"
        )
    from syncpretrain.parallel.blas import usable_cores
    from syncpretrain.planning.measure import check_measuring
    from syncpretrain.planning.tuning import plan_tuning

    workers = workers or settings.pretrain.workers or usable_cores()
    check_measuring(settings.pretrain, workers=workers)
    return plan_tuning(
        settings.pretrain,
        settings.finetune,
        workers=workers,
        examples=examples,
        seconds=seconds / 2,
    )


def _train_command(
    found: Plan, tuned: TuningPlan | None, source: dict[str, Any], own: dict[str, Any]
) -> str:
    """Return the command that trains as planned."""
    from syncpretrain.planning.candidates import granted
    from syncpretrain.planning.choice import option_text

    pretrain = found.task.settings
    is_async = pretrain.schedule == ASYNC
    more = {} if tuned is None else tuned.settings
    given = {name: value for name, value in source.items() if value is not None} | own
    if is_async and found.asynchronous is not None:
        return f"syncpretrain train {option_text(given | found.asynchronous.settings | more)}"
    if given == own:
        more = {name: own[name] for name in own if name.startswith(FINETUNE[:-1])} | more
        return f"{found.command} {option_text(more)}".rstrip()
    # What all candidates take for granted, where the settings have something else.
    plain = granted(found.settings).items()
    given |= {n: usual for n, usual in plain if any(x != usual for x in values_of(pretrain, n))}
    return f"syncpretrain train {option_text(given | found.settings | more)}"


def print_plan(plan: Plan, tuned: TuningPlan | None, line: str) -> None:
    """Print the candidates for training a stack, the bound, the choice and its command."""
    from syncpretrain.planning.choice import LEARNS
    from syncpretrain.planning.timings import CORE

    console, say = printing()
    task, workers, unit = plan.task.settings, plan.timings.workers, plan.timings.unit
    title = title_of(task, plan.task.examples)
    say(f"{title}, {counted(workers, 'worker' if unit == CORE else unit)}")
    console.print(_table(plan))
    say(
        f"the bound is {plan.floor_seconds:.1f} s: the steps' matrix products alone, as one {unit}"
        f" takes for them, over {counted(workers, unit)}"
    )
    if any(task.settle) or any(text != "always" for text in task.refresh_when):
        say("the times are upper bounds: drift, which cannot be predicted, may save epochs")
    tuning = () if tuned is None else tuned.sentences
    beside = () if plan.asynchronous is None else (plan.asynchronous.sentence,)
    for sentence in (*plan.timings.notes, *beside, *tuning):
        say(sentence)
    if task.schedule == ASYNC and plan.asynchronous is not None:
        paying = plan.asynchronous.paying.replicas
        say(f"choice: asynchronous, {paying} replicas; the settings ask for schedule {ASYNC}")
    else:
        say(f"choice: {plan.choice.name}; {plan.reason}")
    say(f"{LEARNS[0].upper()}{LEARNS[1:]}.")
    say(f"train it: {line}")


def _table(plan: Plan) -> Table:
    """Return the candidates as a table, the choice marked."""
    from syncpretrain.planning.timings import CORE

    table = plain_table("\n", "\nschedule")
    alone = "times\none core" if plan.timings.unit == CORE else "times\nin turn"
    add_numbers(table, "\nseconds", alone, "of the\nbound", "memory\nGB")
    for candidate in plan.candidates:
        table.add_row(
            "*" if candidate is plan.choice else "",
            candidate.name,
            f"{candidate.seconds:.1f}",
            f"{plan.speedup(candidate):.2f}",
            f"{100 * plan.share(candidate):.0f} %",
            f"{candidate.bytes / 1e9:.2f}",
        )
    return table
