"""Settings as options: an option for each field, and the settings that given options make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import click
import msgspec

from syncpretrain.cli.shared import DATA, epoch_counts, floats, integers, momentums, words
from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC, schedule_kind
from syncpretrain.settings import Settings, fields, read_settings, settings_from
from syncpretrain.settings.architecture import MAX_UNITS, architecture_of
from syncpretrain.settings.by_data import Given
from syncpretrain.settings.checks import check_blas_threads
from syncpretrain.settings.sections import names_in, preset_path

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.planning.choice import Plan

F = TypeVar("F", bound=Callable[..., Any])
AUTO = "auto"  # a schedule and visible units, replaced before settings are made
FINETUNE = "finetune_"
STRUCTS: dict[str, type[msgspec.Struct]] = {
    section.name: section.type for section in msgspec.structs.fields(Settings)
}
RENAMED = {("data", "name"): "data", ("finetune", "objective"): "finetune"}
COLUMNS = "columns"  # an option without a field, which changes the layers
NO_LAYERS = (
    "layers: got nothing, expected the units of the input and of each layer, such as"
    " --layers 784,1000,500,250,30"
)
ALSO_OFFERED = {"schedule": (AUTO,)}
PARSERS = {"layers": str, "epochs": epoch_counts, "momentum": momentums}
PLANNED = ("group_size", "replicas", "split", "shards")


class Option(NamedTuple):
    """Place of an option's value, a section of the settings and a field in it, and its help."""

    section: str
    field: str
    setting: fields.Setting


def _options() -> Iterator[tuple[str, Option]]:
    for section, struct in STRUCTS.items():
        for field, setting in fields.settings_of(struct).items():
            usual = FINETUNE + field if section == "finetune" else field
            if section == "finetune" and field in fields.ASYNC_DEFAULTS:  # the help has little room
                text = f"As --{field.replace('_', '-')}." if setting.default else ""
                setting = setting(section=fields.ASYNCHRONOUS.section, text=text)
            yield RENAMED.get((section, field), usual), Option(section, field, setting)
            if field == "layers":
                text = "Columns of convolutions, joined in the middle."
                yield COLUMNS, Option(section, COLUMNS, setting(text=text, metavar="N", kind=int))


OPTIONS = dict(_options())
# Replicas are a layer's workers, or have minibatches of their own: a number for one schedule says
# nothing about the other.
OF_OTHER_WORKERS = {*PLANNED, "workers", "exchange", *fields.OF_SCHEDULES} - {"schedule", "handoff"}
# Those that the other one lacks.
OF_HANDOFF = fields.OF_SCHEDULES - {"schedule", "group_size", "handoff"}
HEADINGS = ("Comparison", *fields.SECTIONS)  # of the help
HEADING_OF = {name: option.setting.section for name, option in OPTIONS.items()}
HEADING_OF |= dict.fromkeys(("starts", "seeds"), HEADINGS[0])
HEADING_OF |= dict.fromkeys(("hidden", "preset", "config", "print_config", "dry_run"), HEADINGS[1])
FIRST_COLUMN = 26  # longer options have a line of their own


class SectionedCommand(click.Command):
    """A command with its options in sections of its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of this command, section by section."""
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                rows[HEADING_OF.get(param.name or "", HEADINGS[-1])].append(row)
        for heading, records in rows.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=FIRST_COLUMN)


def setting_options(
    *, only: Collection[str] = tuple(STRUCTS), without: Collection[str] = ()
) -> Callable[[F], F]:
    """Return a decorator that adds the options of settings, in the order of the help.

    Parameters
    ----------
    only, without : collection of str
        Names of options, or of sections of the settings.
    """

    def among(name: str, listed: Collection[str]) -> bool:
        return name in listed or OPTIONS[name].section in listed

    names = [name for name in OPTIONS if among(name, only) and not among(name, without)]
    return lambda command: reduce(lambda done, name: _option(name)(done), names[::-1], command)


def source_options(command: F) -> F:
    """Add ``--preset`` and ``--config``."""
    preset = click.option(
        "--preset",
        metavar="NAME",
        help="Take the settings of a preset, listed by 'syncpretrain presets'; options given here"
        " win.",
    )
    config = click.option(
        "--config",
        metavar="FILE.toml",
        type=click.Path(path_type=Path),
        help="Take the settings of a run folder's config.toml; options given here win.",
    )
    return preset(config(command))


hidden_option = click.option(
    "--hidden",
    metavar="N[,N...]",
    help="In place of --layers: the units of each layer, above the values that the data have.",
)


def settings_from_options(
    preset: str | None, config: Path | None, options: dict[str, Any], *, of_run: bool = False
) -> Settings:
    """Return the settings of a preset or a file, with the options on top.

    :func:`planned` completes settings with the schedule ``auto``. With ``of_run`` the data of a run
    will decide whether and for what it is fine-tuned.

    Raises
    ------
    SettingsError
        If settings are wrong, or do not fit each other.
    """
    if preset is not None:
        if config is not None:
            raise SettingsError("preset: got one beside --config, expected one of the two")
        config = preset_path(preset)

    base: dict[str, Any] = {section: {} for section in STRUCTS}
    if config is not None:
        base = msgspec.to_builtins(read_settings(config))
        _drop_replaced(base["pretrain"], base["finetune"], options)
    for name, value in options.items():
        if value is None:
            continue
        section, field, _ = OPTIONS[name]
        base[section][field] = value
    pretrain = base["pretrain"]
    if options.get("schedule") == AUTO:
        _drop_planned(pretrain, options)
    if "layers" not in pretrain:
        raise SettingsError(NO_LAYERS)
    others = {section: values for section, values in base.items() if section != "pretrain"}
    settings = settings_from(pretrain.pop("layers"), **others, **pretrain)
    if not of_run:
        _check_finetuning(settings, options)
    return settings


def given_by(preset: str | None, config: Path | None, options: dict[str, Any]) -> Given | None:
    """Return the settings that options and a file name; None if nothing is left to the data.

    A preset leaves nothing to the data: settings that it does not name have their defaults.
    """
    if preset is not None:
        return None
    named = {} if config is None else names_in(config)
    sections = {name: set(named.get(name, ())) for name in ("pretrain", "finetune")}
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
    from syncpretrain.planning.candidates import Task
    from syncpretrain.planning.choice import plan_for
    from syncpretrain.pretraining.build_data import with_facts_of
    from syncpretrain.pretraining.driver import driver_for
    from syncpretrain.runs.prepare import check_finetuning

    # Before the seconds that measuring takes, and the memory.
    check_finetuning(settings, data)
    driver_for(settings.pretrain, data.train, data.validation, weights=data.train_weights)
    known = with_facts_of(settings.pretrain, data.train, data.validation)
    task = Task(known, len(data.train), len(data.validation))
    found = plan_for(task, measure_seconds=measure_seconds, remembers=True)
    return msgspec.structs.replace(settings, pretrain=found.apply(settings.pretrain)), found


def complete_by_data(
    make: Callable[[dict[str, Any]], Settings],
    given: Given | None,
    hidden: str | None,
    options: dict[str, Any],
) -> Dataset | None:
    """Complete options by the data, and return the data; None if the options leave nothing open.

    Parameters
    ----------
    make : callable
        Makes settings of options.
    given : Given or None
        The settings that were given.
    hidden : str, optional
        The units of each layer.
    options : dict
        Completed in place.

    Raises
    ------
    SettingsError, DataError
        If an option is wrong, or the data cannot be trained on.
    """
    is_auto = options["visible_units"] == AUTO
    if not is_auto and hidden is None:
        return None
    from syncpretrain.data.facts import units_of_array
    from syncpretrain.runs.prepare import load_data

    if hidden is not None and options["layers"] is not None:
        raise SettingsError("hidden: got it beside --layers, expected one of the two")
    if hidden is not None and not all(x.strip().isdecimal() and int(x) for x in hidden.split(",")):
        raise SettingsError(
            f"hidden: got {hidden!r}, expected the units of each dense layer, such as 100,50;"
            " convolutions stand in --layers, behind the shape of the images"
        )
    before = dict(options)
    if is_auto:  # Gaussian units suit any values; what needs other ones is checked with these
        before |= {"visible_units": "gaussian", "loss": None, "early_stopping": "none"}
    if hidden is not None:
        before["layers"] = f"{_width_of(before['visible_units'])},{hidden}"
    data = load_data(make(before), given=given, encode=is_auto)
    if is_auto:
        options["visible_units"] = units_of_array(data.train, data.columns)
    if hidden is not None:
        options["layers"] = f"{data.width},{hidden}"
    return data


def _option(name: str) -> Callable[[F], F]:
    """Return the option of a setting."""
    setting = OPTIONS[name].setting
    flag, text = "--" + name.replace("_", "-"), DATA if name == "data" else setting.text
    if setting.kind is bool:
        opposite = setting.opposite or "--no-" + flag.removeprefix("--")
        return click.option(f"{flag}/{opposite}", default=None, help=text)
    parser, metavar = _parser_and_metavar(name, setting)
    return click.option(flag, type=parser, metavar=metavar, help=_with_default(text, setting))


def _parser_and_metavar(name: str, setting: fields.Setting) -> tuple[Any, str | None]:
    """Return the type and the metavar of an option."""
    is_list, kind, metavar = setting.each is not None, setting.kind, setting.metavar
    if name in PARSERS:
        return PARSERS[name], metavar
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if is_list:
            return words(choices), metavar or "KIND[,KIND...]"
        return click.Choice([*choices, *ALSO_OFFERED.get(name, ())]), metavar or None
    metavar = metavar or ("X" if kind is float else "N")
    if not is_list:
        return kind, metavar
    if kind is str:
        return words(()), metavar
    return floats if kind is float else integers, f"{metavar}[,{metavar}...]"


def _with_default(text: str, setting: fields.Setting) -> str:
    """Append the default to a text that names none."""
    default = setting.default
    if default in (None, msgspec.NODEFAULT) or "default" in text.lower():
        return text
    value = f"{default:g}" if isinstance(default, float) else default
    return f"{text} Default {value}.".lstrip()


def _drop_planned(pretrain: dict[str, Any], options: dict[str, Any]) -> None:
    """Drop settings that the plan will choose; refuse them as options."""
    for name in PLANNED:
        if options.get(name) is not None:
            raise SettingsError(
                f"{name}: cannot be combined with --schedule auto, which chooses it"
            )
    _drop(pretrain, (*PLANNED, "schedule"))
    if not str(pretrain.get("backend")).startswith("cupy"):
        pretrain["backend"] = "numpy"  # the plan times its cores


def _check_finetuning(settings: Settings, options: dict[str, Any]) -> None:
    """Refuse options of fine-tuning where there is none."""
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


def _drop_replaced(
    pretrain: dict[str, Any], finetune: dict[str, Any], options: dict[str, Any]
) -> None:
    """Drop settings of a file's layers, model and schedules where options name others."""
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
        _drop(pretrain, OF_HANDOFF)
    if options.get("finetune_schedule") not in (None, finetune.get("schedule")):
        _drop(finetune, ("runtime", "replicas", "split", "shards", *fields.ASYNC_DEFAULTS))


def _drop_costs(pretrain: dict[str, Any]) -> None:
    """Drop the sparsity costs of a file if they are the defaults for its layers."""
    depth = len(pretrain["layers"]) - 1
    usual = fields.usual_costs(pretrain.get("architecture"), pretrain["hidden_units"], depth)
    if list(pretrain["sparsity_cost"]) == usual:
        pretrain.pop("sparsity_cost")


def _drop_schedule(pretrain: dict[str, Any], name: str) -> None:
    """Drop settings of a file that another schedule does not have."""
    kind = schedule_kind(name)
    if ASYNC in (name, pretrain["schedule"]) and name != pretrain["schedule"]:
        _drop(pretrain, (*OF_OTHER_WORKERS, *fields.ASYNC_DEFAULTS))
    has = {"group_size": kind.has_groups, "pace": kind.free, "refresh_when": kind.has_refreshes}
    _drop(pretrain, [own for own in has if not has[own]])
    if not kind.can_stream and pretrain["handoff"] == "minibatch":
        _drop(pretrain, ("handoff", *OF_HANDOFF))


def _drop(settings: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        settings.pop(name, None)


def _drop_layers(pretrain: dict[str, Any], layers: str) -> None:
    """Drop settings of a file's layers.

    For another number of layers each list of equal values becomes one value.
    """
    pretrain.pop("architecture", None)
    if len(architecture_of(layers)[0]) == len(pretrain["layers"]):
        return
    for name in fields.PER_LAYER.keys() & pretrain.keys():
        if len(set(pretrain[name])) == 1:
            pretrain[name] = pretrain[name][0]


def _drop_model(pretrain: dict[str, Any]) -> None:
    """Drop settings that the file's model ignores, so that another model takes its own defaults."""
    for name in {name for defaults in fields.MODEL_DEFAULTS.values() for name in defaults}:
        if all(value == fields.PER_LAYER[name] for value in pretrain[name]):
            del pretrain[name]


def _width_of(units: str | None) -> int:
    """Return the width of blocks that all have a number of units, else one that any data fit."""
    from syncpretrain.units.kinds import read_blocks

    try:
        return read_blocks(units or "")[-1].stop
    except ValueError:
        return MAX_UNITS
