"""The settings that the options of a command make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from syncpretrain.cli.train_options import AUTO, FINETUNE, OPTIONS
from syncpretrain.errors import SettingsError
from syncpretrain.pretraining.schedule.kinds import schedule_kind
from syncpretrain.pretraining.schedule.names import ASYNC

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.planning.choice import Plan
    from syncpretrain.settings import Settings
    from syncpretrain.settings.by_data import Given

__all__ = ["given_by", "planned", "settings_from_options"]

PLANNED = ("group_size", "replicas", "split", "shards")
# Replicas are a layer's workers, or have minibatches of their own: one schedule's say nothing of
# the other's.
OF_OTHER_WORKERS = (*PLANNED, "workers", "finish", "refresh_epochs", "delay", "shuffle", "exchange")


def settings_from_options(
    preset: str | None, config: Path | None, options: dict[str, Any], *, of_run: bool = False
) -> Settings:
    """Return the settings of a preset or a file, with the options on top.

    Those of the schedule ``auto`` are for :func:`planned` to complete. With ``of_run``, what is to
    be fine-tuned for is not settled yet.

    Raises
    ------
    SettingsError
        If they are wrong, or do not fit each other.
    """
    import msgspec

    from syncpretrain.settings import preset_path, read_settings, settings_from

    if preset is not None:
        if config is not None:
            raise SettingsError("preset: got one beside --config, expected one of the two")
        config = preset_path(preset)

    base: dict[str, Any] = {"data": {}, "pretrain": {}, "finetune": {}, "run": {}}
    if config is not None:
        base = msgspec.to_builtins(read_settings(config))
        _drop(base["pretrain"], base["finetune"], options)
    for name, value in options.items():
        if value is None:
            continue
        section, field = OPTIONS[name]
        base[section][field] = value
    pretrain = base["pretrain"]
    if options.get("schedule") == AUTO:
        _leave_open(pretrain, options)
    if "layers" not in pretrain:
        raise SettingsError(
            "layers: got nothing, expected the units of the input and of each layer, such as"
            " --layers 784,1000,500,250,30"
        )
    settings = settings_from(
        pretrain.pop("layers"),
        data=base["data"],
        finetune=base["finetune"],
        run=base["run"],
        **pretrain,
    )
    if not of_run:
        _check_finetuning(settings, options)
    return settings


def given_by(preset: str | None, config: Path | None, options: dict[str, Any]) -> Given | None:
    """Return the settings that options and a file name; None if nothing is left to the data.

    A preset is complete: what it does not name is meant to be as usual.
    """
    from syncpretrain.settings import names_in
    from syncpretrain.settings.by_data import Given

    if preset is not None:
        return None
    named = {} if config is None else names_in(config)
    sections: dict[str, set[str]] = {
        section: set(named.get(section, ())) for section in ("pretrain", "finetune")
    }
    for name, value in options.items():
        if value is not None and OPTIONS[name].section in sections:
            sections[OPTIONS[name].section].add(OPTIONS[name].field)
    return Given(frozenset(sections["pretrain"]), frozenset(sections["finetune"]))


def planned(
    settings: Settings, data: Dataset, *, measure_seconds: float = 7.0
) -> tuple[Settings, Plan]:
    """Return settings with the schedule that is fastest here for the data, and the plan.

    Raises
    ------
    SettingsError, DataError
        If the run would be refused, or the stack cannot be planned for.
    """
    import msgspec

    from syncpretrain.planning.candidates import Task
    from syncpretrain.planning.choice import plan_for
    from syncpretrain.pretraining.build_data import with_facts_of
    from syncpretrain.pretraining.start import driver_for
    from syncpretrain.runs.prepare import check_finetuning

    # Before the seconds that measuring takes, and the memory.
    check_finetuning(settings, data)
    driver_for(settings.pretrain, data.train, data.validation)
    known = with_facts_of(settings.pretrain, data.train, data.validation)
    task = Task(known, len(data.train), len(data.validation))
    found = plan_for(task, measure_seconds=measure_seconds)
    return msgspec.structs.replace(settings, pretrain=found.apply(settings.pretrain)), found


def _leave_open(pretrain: dict[str, Any], options: dict[str, Any]) -> None:
    """Drop what the plan will decide; refuse it as an option."""
    for name in PLANNED:
        if options.get(name) is not None:
            raise SettingsError(
                f"{name}: cannot be combined with --schedule auto, which chooses it"
            )
        pretrain.pop(name, None)
    if not str(pretrain.get("backend")).startswith("cupy"):
        pretrain["backend"] = "numpy"  # whose cores are timed
    pretrain.pop("schedule")


def _check_finetuning(settings: Settings, options: dict[str, Any]) -> None:
    """Refuse options of a fine-tuning that will not be."""
    from syncpretrain.settings.checks import check_blas_threads

    tuning = settings.finetune
    if tuning.objective == "none" or (tuning.schedule == ASYNC and tuning.replicas):
        check_blas_threads(settings.pretrain.schedule, options.get("blas_threads"))
    if tuning.objective != "none":
        return
    for name, value in options.items():
        if value is not None and name.startswith(FINETUNE):
            raise SettingsError(
                f"{name}: got {value} without fine-tuning; add --finetune reconstruction or"
                " classification"
            )


def _drop(pretrain: dict[str, Any], finetune: dict[str, Any], options: dict[str, Any]) -> None:
    """Drop what a file says of its own layers, model and schedules where options name others."""
    _drop_costs(pretrain)
    if options["model"] not in (None, pretrain["model"]):
        _drop_model(pretrain)
    if options["layers"] is not None:
        _drop_layers(pretrain, options["layers"])
    if options.get("epochs") and options.get("settle") is None:
        pretrain.pop("settle")  # it went with the file's epochs
    if options.get("schedule") not in (None, AUTO):
        _drop_schedule(pretrain, options["schedule"])
    elif options.get("schedule") == AUTO and pretrain["schedule"] == ASYNC:
        _drop_schedule(pretrain, "synchronized")  # auto chooses among such
    if options.get("handoff") not in (None, pretrain.get("handoff")):
        _drop_handoff(pretrain)
    if options.get("finetune_schedule") not in (None, finetune.get("schedule")):
        _drop_tuning_schedule(finetune)


def _drop_costs(pretrain: dict[str, Any]) -> None:
    """Drop the sparsity costs of a file if they are the usual ones of its own layers."""
    from syncpretrain.settings.defaults import usual_costs

    architecture, depth = pretrain.get("architecture"), len(pretrain["layers"]) - 1
    if list(pretrain["sparsity_cost"]) == usual_costs(
        architecture, pretrain["hidden_units"], depth
    ):
        pretrain.pop("sparsity_cost")


def _drop_schedule(pretrain: dict[str, Any], name: str) -> None:
    """Drop what a file says of its own schedule and another one does not have."""
    from syncpretrain.settings.asynchronous import ASYNC_DEFAULTS

    kind = schedule_kind(name)
    if ASYNC in (name, pretrain["schedule"]) and name != pretrain["schedule"]:
        for other in (*OF_OTHER_WORKERS, *ASYNC_DEFAULTS):
            pretrain.pop(other, None)
    if not kind.has_groups:
        pretrain.pop("group_size", None)
    if kind.free is None:
        pretrain.pop("pace", None)
    if not kind.has_refreshes:
        pretrain.pop("refresh_when", None)
    if not kind.can_stream and pretrain["handoff"] == "minibatch":
        pretrain.pop("handoff")
        _drop_handoff(pretrain)


def _drop_tuning_schedule(finetune: dict[str, Any]) -> None:
    """Drop what a file says of its own schedule of fine-tuning."""
    from syncpretrain.settings.asynchronous import ASYNC_DEFAULTS

    for name in ("runtime", "replicas", "split", "shards", *ASYNC_DEFAULTS):
        finetune.pop(name, None)


def _drop_handoff(pretrain: dict[str, Any]) -> None:
    """Drop what a file says of its own hand-over, and which the other one does not have."""
    for name in ("delay", "shuffle", "refresh_epochs", "refresh_when", "settle", "pace", "finish"):
        pretrain.pop(name, None)


def _drop_layers(pretrain: dict[str, Any], layers: str) -> None:
    """Drop what a file says of its own layers.

    For another number of layers one value is made of each list of equal ones.
    """
    from syncpretrain.settings.architecture import architecture_of
    from syncpretrain.settings.defaults import PER_LAYER

    pretrain.pop("architecture", None)
    if len(architecture_of(layers)[0]) == len(pretrain["layers"]):
        return
    for name in PER_LAYER.keys() & pretrain.keys():
        if len(set(pretrain[name])) == 1:
            pretrain[name] = pretrain[name][0]


def _drop_model(pretrain: dict[str, Any]) -> None:
    """Drop what the model had no use for, so that another model takes its own default."""
    from syncpretrain.settings.defaults import MODEL_DEFAULTS, PER_LAYER

    for name in {name for defaults in MODEL_DEFAULTS.values() for name in defaults}:
        if all(value == PER_LAYER[name] for value in pretrain[name]):
            del pretrain[name]
