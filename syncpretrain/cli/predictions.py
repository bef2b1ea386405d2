"""Commands that predict the time of training: ``plan`` here, ``simulate`` on other machines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli import shared
from syncpretrain.cli.output import add_numbers, counted, plain_table, printing, title_of
from syncpretrain.cli.setting_options import (
    FINETUNE,
    NO_LAYERS,
    OPTIONS,
    setting_options,
    settings_from_options,
    source_options,
)
from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings import PretrainSettings, Settings
from syncpretrain.settings.fields import values_of

if TYPE_CHECKING:
    from rich.table import Table

    from syncpretrain.planning.choice import Plan
    from syncpretrain.planning.scaling.curves import Curve, Options, Way
    from syncpretrain.planning.scaling.work import LayerCosts, Network
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
SCHEDULE_WORDS = ("synchronized", "greedy", "rounds", "async")
ALL_REDUCE_WORDS = ("auto", "ring", "tree", "star")
SCHEDULE_OPTIONS = ("group_size", "pace", "delay", "refresh_epochs", "finish")
STACK_OPTIONS = ("model", "epochs", "batch_size", *SCHEDULE_OPTIONS)
DEVICES, BANDWIDTH, LATENCY = (1, 2, 4, 8), "10Gb/s", "20us"
NOT_SIMULATED = (
    "what is learned is not simulated: a stale gradient counts as much as a fresh one, an epoch on"
    " an unfinished layer as much as one on a finished layer"
)
HEAD = ("devices", "at work", "seconds", "times", "idle", "moved GB", "memory GB", "a layer")


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
@shared.measuring_options
@shared.json_option
def plan(
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
    task = Task(settings.pretrain, examples, examples // shared.TRAIN_PER_HELD_OUT)
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
    pretrain, finetune = settings.pretrain, settings.finetune
    if finetune.objective == "none":
        return None
    if pretrain.backend.startswith("cupy"):
        raise SettingsError(
            f"finetune: got {finetune.objective} with backend {pretrain.backend}, expected none:"
            " fine-tuning is predicted on the CPU alone; train --dry-run times some minibatches of"
            " it"
        )
    from syncpretrain.parallel.blas import usable_cores
    from syncpretrain.planning.measure import check_measuring
    from syncpretrain.planning.tuning import plan_tuning

    workers = workers or pretrain.workers or usable_cores()
    check_measuring(pretrain, workers=workers)
    return plan_tuning(pretrain, finetune, workers=workers, examples=examples, seconds=seconds / 2)


def _train_command(
    found: Plan, tuned: TuningPlan | None, source: dict[str, Any], own: dict[str, Any]
) -> str:
    """Return the command that trains as planned."""
    from syncpretrain.planning.candidates import granted
    from syncpretrain.planning.choice import option_text

    pretrain = found.task.settings
    more = {} if tuned is None else tuned.settings
    given = {name: value for name, value in source.items() if value is not None} | own
    if pretrain.schedule == ASYNC and found.asynchronous is not None:
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
    console.print(_candidates(plan))
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


def _candidates(plan: Plan) -> Table:
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


@click.command("simulate")
@setting_options(only=("layers", "model", "epochs", "batch_size"))
@click.option(
    "--devices",
    metavar="N[,N...]",
    help="Numbers of devices; 1,2,4,...,1024 goes on by the same factor. Default 1,2,4,8.",
)
@click.option(
    "--cores",
    is_flag=True,
    help="The devices are cores of this machine: steps are measured with cores that share them too,"
    " and messages take no time.",
)
@click.option(
    "--schedule",
    type=click.Choice(SCHEDULE_WORDS),
    help="Default five ways: pipelines by whole versions and by minibatches, data parallel, hybrid,"
    " asynchronous.",
)
@click.option(
    "--handoff",
    type=click.Choice(("epoch", "minibatch")),
    help="Hand-over of --schedule. Default epoch.",
)
@click.option(
    "--group-size",
    type=shared.at_least(1),
    metavar="G",
    help="Layers that rounds train at a time. Default as many as there are devices.",
)
@setting_options(only=SCHEDULE_OPTIONS, without=("group_size",))
@click.option(
    "--replicas",
    metavar="auto|all|R[,R...]",
    help="Devices of a layer: as many as make it faster (default), all, or a number.",
)
@click.option(
    "--split",
    type=click.Choice(("examples", "units")),
    default="examples",
    help="How the devices of a layer share a minibatch. Default examples.",
)
@click.option(
    "--bandwidth",
    metavar="X",
    help="Bandwidth of a device's link in each direction: bits, as 10Gb/s (default), bytes, as"
    " 1.2GB/s, or inf.",
)
@click.option("--latency", metavar="T", help="Latency of a message, such as 20us (default) or 1ms.")
@click.option(
    "--all-reduce",
    type=click.Choice(ALL_REDUCE_WORDS),
    default="auto",
    help="How gradients are summed; star is through one shared link. Default ring or tree,"
    " whichever is faster.",
)
@shared.number_option("--servers", 1, "Servers of async.")
@shared.number_option(
    "--push-every", 1, "Minibatches between two exchanges of async with the server.", metavar="H"
)
@click.option(
    "--costs",
    metavar="FILE|S[,S...]",
    help="Seconds of a minibatch of each layer, or a JSON file of costs. Default measured here.",
)
@shared.measuring_options
@shared.out_option("FILE.png", "Also draw the speed-ups, as a PNG.")
@shared.json_option
def simulate(out: Path | None, as_json: bool, **options: Any) -> None:
    """Predict the time of a run on any number of devices of a cluster.

    Every schedule is simulated on a clock of its own, with the times of a few steps of each layer
    on one core of this machine, or with --costs, and with messages over a network. Learning is not
    simulated: a stale gradient counts like a fresh one.

    \b
    Examples:
      syncpretrain simulate --layers 784,1000,500,250,30 --devices 1,2,4,...,1024 --out curves.png
      syncpretrain simulate --layers 784,1000,500 --schedule synchronized --handoff minibatch
      syncpretrain simulate --layers 784,1000,500 --schedule greedy --replicas all --bandwidth 1Gb/s
      syncpretrain simulate --layers 784,1000,500 --schedule async --costs 0.008,0.005 --json
      syncpretrain simulate --layers 784,1000,500 --cores
    """
    from syncpretrain.planning.scaling.curves import GREEDY, check_way, curve
    from syncpretrain.plot.canvas import check_drawing

    if out is not None:
        shared.check_target(out, ending=".png")
        check_drawing()
    devices = _devices(options)
    ways, common = _ways_and_options(options)
    for way in ways.values():
        check_way(way, common, devices)
    stack = common.plain().settings(GREEDY)
    costs = _costs(options, stack, common)
    curves = [curve(name, way, common, costs, devices) for name, way in ways.items()]
    if out is not None:
        _draw(curves, stack, out)
    if as_json:
        click.echo(json.dumps(_report(curves, common, costs, batch_size=stack.batch_size)))
    else:
        _print_curves(curves, common, stack)


def _devices(options: dict[str, Any]) -> Sequence[int]:
    """Return the numbers of devices; with ``--cores`` at most the usable cores."""
    from syncpretrain.parallel.blas import usable_cores
    from syncpretrain.planning.scaling.job import devices_from
    from syncpretrain.planning.timings import sizes

    text, cores = options["devices"], usable_cores()
    if text is None:
        return (1, *sizes(cores)) if options["cores"] else DEVICES
    devices = devices_from(text)
    if options["cores"] and max(devices) > cores:
        raise SettingsError(
            f"devices: got {text} with --cores, expected at most {cores}, the cores that this"
            " process may use"
        )
    return devices


def _costs(options: dict[str, Any], stack: PretrainSettings, common: Options) -> list[LayerCosts]:
    """Return the costs that the options name, or measure them."""
    from syncpretrain.parallel.blas import usable_cores
    from syncpretrain.planning.candidates import Task
    from syncpretrain.planning.scaling import work

    if options["costs"] is not None:
        own = {"layers": common.layers, "batch_size": stack.batch_size}
        costs = work.costs_from(options["costs"], **own)
        work.works_of(stack, costs)  # refuses another number of layers
        return costs
    task = Task(stack, common.examples, common.held_out)
    if options["cores"]:
        return work.machine_costs(task, workers=usable_cores(), seconds=options["seconds"])
    return work.measured_costs(task, seconds=options["seconds"])


def _network(options: dict[str, Any]) -> Network:
    """Return the network that the options ask for; between cores messages take no time."""
    from syncpretrain.planning.scaling.job import bandwidth_from, latency_from
    from syncpretrain.planning.scaling.work import Network

    if options["cores"]:
        for name in ("bandwidth", "latency"):
            if options[name] is not None:
                raise SettingsError(
                    f"{name}: got {options[name]} with --cores, whose messages take no time; leave"
                    " one of them out"
                )
        return Network()
    bandwidth = BANDWIDTH if options["bandwidth"] is None else options["bandwidth"]
    latency = LATENCY if options["latency"] is None else options["latency"]
    return Network(bandwidth_from(bandwidth), latency_from(latency), options["all_reduce"])


def _ways_and_options(options: dict[str, Any]) -> tuple[Mapping[str, Way], Options]:
    """Return the ways to train that the options name, and the options that all ways share."""
    from syncpretrain.planning.scaling.curves import WAYS, Options, Way
    from syncpretrain.planning.scaling.job import replicas_from

    if options["layers"] is None:
        raise SettingsError(NO_LAYERS)
    stack = {name: options[name] for name in STACK_OPTIONS if options[name] is not None}
    own = {name: options[name] for name in ("layers", "examples", "split", "servers", "push_every")}
    held_out = options["examples"] // shared.TRAIN_PER_HELD_OUT
    common = Options(**own, stack=stack, network=_network(options), held_out=held_out)
    schedule, handoff, replicas = (options[name] for name in ("schedule", "handoff", "replicas"))
    for name in ("servers", "push_every"):
        if options[name] > 1 and schedule not in (None, ASYNC):
            raise SettingsError(
                f"{name}: got {options[name]} with schedule {schedule}, which has no parameter"
                " server; take schedule async"
            )
    if schedule is not None:
        counts = "auto" if replicas is None else replicas_from(replicas)
        return {schedule: Way(schedule, handoff or "epoch", counts)}, common
    for name in ("handoff", "replicas", *SCHEDULE_OPTIONS):
        if options[name] is not None:
            raise SettingsError(
                f"{name}: got {options[name]} without --schedule, expected one beside it: the five"
                " ways have their own"
            )
    if common.split == "examples":
        return WAYS, common
    return {name: way for name, way in WAYS.items() if way.schedule != ASYNC}, common


def _report(
    curves: Sequence[Curve], options: Options, costs: Sequence[LayerCosts], *, batch_size: int
) -> dict[str, Any]:
    """Return the simulation as plain values; ``--costs`` reads them again."""
    import msgspec

    network = options.network
    return {
        "layers": options.layers,
        "batch_size": batch_size,
        "examples": options.examples,
        "split": options.split,
        "bandwidth": network.bandwidth if math.isfinite(network.bandwidth) else None,
        "latency": network.latency,
        "all_reduce": network.all_reduce,
        "costs": msgspec.to_builtins(list(costs)),
        "curves": [curve.report() for curve in curves],
        "not_simulated": NOT_SIMULATED,
    }


def _draw(curves: Sequence[Curve], stack: PretrainSettings, path: Path) -> None:
    """Draw the speed-ups as a PNG."""
    from syncpretrain.plot.canvas import save_speedup_curves

    points = {own.name: [(run.devices, own.speedup(run)) for run in own.runs] for own in curves}
    save_speedup_curves(points, path, title=f"{stack.stack_text}, simulated")


def _print_curves(curves: Sequence[Curve], options: Options, stack: PretrainSettings) -> None:
    """Print a table of one way to train, or the speed-ups of several."""
    console, say = printing()
    say(
        f"{title_of(stack, options.examples)}, minibatches of {stack.batch_size}: greedy on one"
        f" device takes {curves[0].base:.4g} s"
    )
    console.print(_figures(curves[0]) if len(curves) == 1 else _speedups(curves))
    if len(curves) > 1:
        say(
            "times greedy training on one device; idle shares, bytes and memory: --schedule, --json"
        )
    stale = [(run, run.staleness) for run in curves[-1].runs if run.staleness is not None]
    if stale:
        late = ", ".join(f"{x:.3g}" for _, x in stale)
        useful = ", ".join(f"{curves[-1].speedup(run) / max(1, x):.2f}" for run, x in stale)
        say(f"mean staleness of the asynchronous updates: {late}")
        say(f"times greedy training, where each is divided by its staleness: {useful}")
    say(f"{NOT_SIMULATED[0].upper()}{NOT_SIMULATED[1:]}.")


def _figures(curve: Curve) -> Table:
    """Return the table of all figures of one way to train."""
    table = plain_table()
    add_numbers(table, *HEAD)
    table.columns[-1].overflow = "fold"  # many layers need several lines
    for run in curve.runs:
        table.add_row(
            f"{run.devices:,}",
            f"{run.used:,}",
            f"{run.seconds:.4g}",
            f"{curve.speedup(run):.2f}",
            f"{100 * run.idle:.0f} %",
            f"{run.bytes_moved / 1e9:.3g}",
            f"{run.memory / 1e9:.2g}",
            ",".join(map(str, run.replicas)),
        )
    return table


def _speedups(curves: Sequence[Curve]) -> Table:
    table = plain_table()
    add_numbers(table, "devices", *(curve.name for curve in curves))
    for runs in zip(*(curve.runs for curve in curves), strict=True):
        times = [f"{c.speedup(run):.2f}" for c, run in zip(curves, runs, strict=True)]
        table.add_row(f"{runs[0].devices:,}", *times)
    return table
