"""``syncpretrain runs``: the shelf of runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from syncpretrain.cli.output import counted, number, plain_table, print_run, printing
from syncpretrain.cli.shared import json_option
from syncpretrain.errors import SettingsError
from syncpretrain.runs.folder import CONFIG_NAME, METRICS_NAME

if TYPE_CHECKING:
    from syncpretrain.runs.shelf import ShelvedRun

FOLDER = "runs"
SORTED_BY = ("when", "name", "layers", "schedule", "validation", "test", "seconds", "state")
WIDE, ENOUGH_WIDTH = 300, 140  # characters a line
WIDE_COLUMNS = ("when", "run", "layers", "schedule", "data", "state", "valid.", "test", "seconds")
NARROW_COLUMNS = ("run", "state", "valid.", "test", "seconds")  # most names contain time and layers
STATE_NAMES = ("finished", "running", "stopped", "failed", "damaged")


@click.group("runs", invoke_without_command=True)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(FOLDER),
    metavar="DIR",
    help="The folder of the runs. Default runs/.",
)
@click.option(
    "--sort", type=click.Choice(SORTED_BY), default="when", help="Default when, the newest first."
)
@click.option("--reverse", is_flag=True, help="In the other order.")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATE_NAMES),
    multiple=True,
    help="Only runs in this state; may be repeated.",
)
@click.option("--schedule", metavar="TEXT", help="Only runs whose schedule has this in its name.")
@click.option("--data", metavar="TEXT", help="Only runs whose data have this in their name.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    folder: Path,
    sort: str,
    reverse: bool,
    states: tuple[str, ...],
    schedule: str | None,
    data: str | None,
    as_json: bool,
) -> None:
    """List the runs in a folder: when, layers, schedule, errors, seconds and state.

    The errors measure the whole stack: the share of wrong classes, the root mean squared error of
    a regression, or the reconstruction error. A run is finished, running, stopped (resume it),
    failed, or damaged.

    \b
    Examples:
      syncpretrain runs
      syncpretrain runs --state finished --sort test
      syncpretrain runs show NAME
      syncpretrain runs rm NAME --yes
    """
    if ctx.invoked_subcommand is not None:
        return
    import msgspec

    from syncpretrain.runs.shelf import runs_in

    is_first = folder == Path(FOLDER) and not folder.exists()  # no run has been there yet
    runs = [] if is_first else runs_in(folder)
    found = [run for run in runs if _is_wanted(run, states, schedule, data)]
    if sort != "when":
        found.sort(key=lambda run: run.key(sort))
    if reverse:
        found.reverse()
    if as_json:
        click.echo(json.dumps({"runs": msgspec.to_builtins(found)}))
    else:
        _print_table(found, folder)


@command.command("show")
@click.argument("run", metavar="RUN")
@json_option
@click.pass_context
def show_command(ctx: click.Context, run: str, as_json: bool) -> None:
    """Show one run: its state, its figures and its files.

    RUN is a folder, or its name in --folder.
    """
    import msgspec

    from syncpretrain.runs.shelf import check_run

    folder = _folder_of(ctx, run)
    found = check_run(folder)
    report = None
    if found.state == "finished":
        report = json.loads((folder / METRICS_NAME).read_text(encoding="utf-8"))
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(found), "metrics": report, "files": files}))
        return
    click.echo(f"{found.folder}: {_state_text(found)}")
    click.echo(
        f"began {found.when}, {found.layers or '-'}, {found.schedule or '-'}, {found.data or '-'}"
    )
    if report is not None:
        try:  # a run of another version may lack figures
            print_run(report | {"out": str(folder)})
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            click.echo(f"its figures cannot be shown: {METRICS_NAME} lacks {error}; see --json")
    elif found.state in ("stopped", "failed"):
        _print_next(folder, failed=found.state == "failed")
    click.echo(f"files: {', '.join(f'{name} ({_size(n)})' for name, n in files.items())}")


@command.command("rm")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def rm_command(ctx: click.Context, runs: tuple[str, ...], yes: bool) -> None:
    """Remove runs, after a question. RUN is a folder, or its name in --folder.

    A folder that is not a run, or that a process works on, is refused before any is removed.
    """
    from syncpretrain.runs.shelf import check_run, remove_run

    named = [_folder_of(ctx, run) for run in runs]
    folders = list({folder.resolve(): folder for folder in named}.values())  # each once
    for folder in folders:
        found = check_run(folder)
        if found.state == "running":
            raise SettingsError(
                f"run: {folder} is at work in {found.reason}; wait for it, or stop it first"
            )
        size = _size(sum(path.lstat().st_size for path in folder.rglob("*")))
        click.echo(f"{folder}: {_state_text(found)}, {found.layers or '-'}, {size}")
    if not yes:
        click.confirm(f"remove {counted(len(folders), 'run')} and all files in them?", abort=True)
    for folder in folders:
        remove_run(folder)
        click.echo(f"removed {folder}")


def _print_next(folder: Path, *, failed: bool) -> None:
    """Print how to go on after a run that did not finish."""
    from shlex import quote

    if failed:  # resumed, it may fail again in the same way
        config = quote(str(folder / CONFIG_NAME))
        click.echo(f"begin another with other settings: syncpretrain train --config {config} ...")
    start = "or, if they were not the cause, resume it" if failed else "resume it"
    click.echo(f"{start}: syncpretrain train --resume {quote(str(folder))}")


def _folder_of(ctx: click.Context, run: str) -> Path:
    """Return the folder of a run, given by its path or its name."""
    path = Path(run)
    own: Path = ctx.parent.params["folder"] if ctx.parent is not None else Path(FOLDER)
    return path if path.exists() or not (own / run).exists() else own / run


def _is_wanted(
    run: ShelvedRun, states: tuple[str, ...], schedule: str | None, data: str | None
) -> bool:
    is_named_so = (schedule or "") in run.schedule and (data or "") in run.data
    return is_named_so and (not states or run.state in states)


def _print_table(runs: list[ShelvedRun], folder: Path) -> None:
    from rich.text import Text

    if not runs:
        click.echo(f"no runs in {folder} that are asked for")
        return
    is_wide = not sys.stdout.isatty()  # a file or another program takes long lines
    console, say = printing(WIDE if is_wide else None)
    names = WIDE_COLUMNS if console.width >= ENOUGH_WIDTH else NARROW_COLUMNS
    table = plain_table()
    for name in names:
        is_number = name in ("valid.", "test", "seconds")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for run in runs:
        cells = _cells(run)
        table.add_row(*(Text(cells[name]) for name in names))  # no markup in a name
    console.print(table)
    for run in runs:
        if run.state in ("damaged", "failed"):
            say(f"{_in_one_line(run.name)}: {_state_text(run)}")


def _cells(run: ShelvedRun) -> dict[str, str]:
    """Return the cells of a run by the names of their columns."""
    percent = " %" if run.objective == "classification" else None
    return {
        "when": run.when.replace("T", " ")[: len("2026-01-02 03:04")],
        "run": _in_one_line(run.name),
        "layers": run.layers,
        "schedule": run.schedule,
        "data": _in_one_line(Path(run.data).name),
        "state": run.state,
        "valid.": number(run.validation, percent),
        "test": number(run.test, percent),
        "seconds": "-" if run.seconds is None else f"{run.seconds:.0f}",
    }


def _in_one_line(name: str) -> str:
    """Return a name with escaped control characters, which do nothing to a terminal."""
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in name)


def _state_text(run: ShelvedRun) -> str:
    if not run.reason:
        return run.state
    return f"{run.state} ({run.reason})" if run.state == "running" else f"{run.state}: {run.reason}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
