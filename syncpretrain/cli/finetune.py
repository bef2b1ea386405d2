"""``syncpretrain finetune``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.options import RUN, json_option, log_option, out_option, quiet_option
from syncpretrain.cli.output import print_run
from syncpretrain.cli.program import command_line
from syncpretrain.cli.ranks import check_runtime_of
from syncpretrain.cli.setting_options import (
    OPTIONS,
    SectionedCommand,
    setting_options,
    settings_from_options,
)
from syncpretrain.data import check_whole
from syncpretrain.errors import SettingsError
from syncpretrain.observers import observing
from syncpretrain.runs.folder import CONFIG_NAME, check_folder, not_a_run
from syncpretrain.settings import PretrainSettings, Settings, off_ranks, read_settings, replaced
from syncpretrain.settings.by_data import Given

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.models.stack import Stack


@click.command("finetune", cls=SectionedCommand, context_settings={"max_content_width": 100})
@click.argument("run", type=RUN)
@setting_options(only=("data", "finetune", "seed", "blas_threads", "backend"))
@out_option("DIR", "The run folder, new or empty. Default a new one in runs/.")
@setting_options(only=("run",))
@log_option
@json_option
@quiet_option
def command(
    run: Path,
    out: Path | None,
    loggers: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Fine-tune the stack of an earlier run, in a run folder of its own.

    With labels the stack learns to predict classes, or with --task regression numbers; without
    labels, or with --finetune reconstruction, it learns to reconstruct. The columns of a table are
    found by their names, as in the earlier run. Options that are not given are as in that run, or
    follow from the data; --target, --drop, --test, --labels and --examples belong to the data of
    that run, and are not taken over for another --data.

    \b
    Examples:
      syncpretrain finetune runs/NAME --data labelled.npz
      syncpretrain finetune runs/NAME --data labelled.csv --target class --finetune-epochs 20
    """
    from syncpretrain.models.stack import load
    from syncpretrain.runs.run import train_run

    check_folder(out)
    stack = load(run)
    settings, data = _settings_and_data(run, stack, options)
    check_runtime_of(settings)
    given = Given(
        frozenset(PretrainSettings.__struct_fields__),
        frozenset(OPTIONS[name].field for name in options if options[name] is not None),
    )
    with observing(not quiet, live=not as_json) as observers:
        report = train_run(
            settings,
            out=out,
            observers=observers,
            data=data,
            given=given,
            start=stack.for_prepared_rows(),
            loggers=loggers,
            command=command_line(),
        )
    if as_json:
        click.echo(json.dumps(report))
    elif not quiet:
        print_run(report)


def _settings_and_data(
    run: Path, stack: Stack, options: dict[str, Any]
) -> tuple[Settings, Dataset]:
    """Return the settings of the new run and its data; the labels decide the objective."""
    from syncpretrain.data.columns import columns_in
    from syncpretrain.runs.prepare import load_data

    config = (run if run.is_dir() else run.parent) / CONFIG_NAME
    if not config.is_file():
        raise SettingsError(not_a_run("run", run, CONFIG_NAME))
    before = read_settings(config)
    wanted = options["finetune"]
    if wanted == "none":
        raise SettingsError("finetune: got none, expected something to fine-tune for")
    unset = {"model": None, "layers": None, "schedule": "none", "finetune": None}
    settings = settings_from_options(None, config, {**options, **unset}, of_run=True)
    check_whole(options["data"])
    if options["data"] is not None:
        own = {
            name: options[name] for name in type(settings.data).__struct_fields__ if name != "name"
        }
        settings = replaced(settings, data={"name": options["data"], **own})
    untuned = replaced(settings, finetune=replaced(settings.finetune, objective="none", loss=None))
    data = load_data(untuned, columns=columns_in(stack.info), meaning=stack.meaning)
    objective = wanted or _objective(data)
    old = before.finetune
    kept = {} if old.objective == objective else {"loss": options.get("finetune_loss")}
    tuning = replaced(settings.finetune, objective=objective, **kept)
    if options["finetune_runtime"] is None:  # this run need not have the ranks of the earlier one
        tuning = off_ranks(tuning)
    is_on_ranks = settings.pretrain.runtime == "mpi"
    pretrain = replaced(settings.pretrain, runtime="threads") if is_on_ranks else settings.pretrain
    return replaced(settings, pretrain=pretrain, finetune=tuning), data


def _objective(data: Dataset) -> str:
    """Return the objective that suits the labels."""
    if data.train_labels is None:
        return "reconstruction"
    return "regression" if data.train_labels.dtype.kind == "f" else "classification"
