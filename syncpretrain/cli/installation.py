"""Commands about the installation and its data sets: doctor, presets, completion, data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.shared import json_option
from syncpretrain.errors import DataError, SettingsError

if TYPE_CHECKING:
    from syncpretrain.data.catalogue import NamedData, RemoteFile

MEGABYTE = 1e6
MARKS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


@click.command("doctor")
@json_option
def doctor(as_json: bool) -> None:
    """Check this machine, in a few seconds; status 1 if training would go wrong.

    \b
    Examples:
      syncpretrain doctor
      syncpretrain doctor --json
    """
    from dataclasses import asdict

    from syncpretrain.planning.doctor import diagnose

    findings = diagnose()
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    for finding in () if as_json else findings:
        click.echo(f"{MARKS[finding.status]}  {finding.topic}: {finding.found}")
        if finding.advice:
            click.echo(f"         {finding.advice}")
    if any(finding.status == "problem" for finding in findings):
        raise click.exceptions.Exit(1)


@click.command("presets")
@click.argument("name", required=False)
def presets(name: str | None) -> None:
    """List the presets of train, or print one: settings with the papers they come from.

    \b
    Examples:
      syncpretrain presets
      syncpretrain presets hinton2006
      syncpretrain train --preset hinton2006
    """
    from syncpretrain.settings import preset_names, preset_path

    if name is not None:
        click.echo(preset_path(name).read_text(encoding="utf-8"), nl=False)
        return
    for known in preset_names():
        first = preset_path(known).read_text(encoding="utf-8").splitlines()[0]
        click.echo(f"{known:18} {first.removeprefix('# ').rstrip(',')}")


PROGRAM = "syncpretrain"
ASKING_VARIABLE = "_SYNCPRETRAIN_COMPLETE"  # a shell sets it to ask click for completions
SHELLS = ("bash", "zsh", "fish")
START_FILES = {"bash": ".bashrc", "zsh": ".zshrc"}  # read by each new shell


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Install the script for new shells of this user.")
def completion(shell: str, install: bool) -> None:
    """Print the script that completes commands and options in a shell, or install it.

    --install writes the script into the user's folder for data (bash, zsh) or settings (fish), and
    for bash and zsh adds a line to .bashrc or .zshrc that reads it.

    \b
    Examples:
      syncpretrain completion bash --install
      syncpretrain completion zsh --install
      syncpretrain completion fish
    """
    script = _script(shell)
    if not install:
        click.echo(script)
        return
    try:
        path = _place(shell)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
        click.echo(f"written: {path}")
        if shell in START_FILES:
            _add_line(shell, path)
    except OSError as error:
        raise SettingsError(
            f"install: cannot write {error.filename or path}: {error.strerror}; without --install"
            " the script is printed"
        ) from None
    except RuntimeError:
        raise SettingsError(
            "install: no home folder is known to install it in; set HOME, or leave --install out,"
            " which prints the script"
        ) from None
    click.echo(f"open a new {shell} to use it")


def _script(shell: str) -> str:
    """Return click's script for a shell."""
    from click.shell_completion import ShellComplete, get_completion_class

    from syncpretrain.cli.program import main

    kind = get_completion_class(shell)
    assert kind is not None  # click knows all SHELLS
    # Not the method of ``kind``: for bash it starts a shell, to see its version.
    return ShellComplete.source(kind(main, {}, PROGRAM, ASKING_VARIABLE))


def _place(shell: str) -> Path:
    if shell == "fish":
        own = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(own) / "fish" / "completions" / f"{PROGRAM}.fish"
    own = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(own) / PROGRAM / f"completion.{shell}"


def _add_line(shell: str, path: Path) -> None:
    """Let each new shell read the script, once."""
    from shlex import quote

    home = os.environ.get("ZDOTDIR") if shell == "zsh" else None
    started = Path(home or Path.home()) / START_FILES[shell]
    line = f". {quote(str(path))}  # completion of {PROGRAM}"
    # Bytes of another encoding are no obstacle.
    before = started.read_text(encoding="utf-8", errors="replace") if started.exists() else ""
    if line in before.splitlines():
        click.echo(f"already in {started}: {line}")
        return
    gap = "" if before.endswith("\n") or not before else "\n"
    with started.open("a", encoding="utf-8") as file:
        file.write(f"{gap}{line}\n")
    click.echo(f"added to {started}: {line}")


@click.group("data")
def data() -> None:
    """List the published data sets that --data knows by name, and fetch them.

    They are fetched into the folder that SYNCPRETRAIN_DATA names, or into the user's cache, and
    checked against the published SHA-256 sums. 'train' fetches mnist only, and never replaces a
    named data set by another.

    \b
    Examples:
      syncpretrain data list
      syncpretrain data fetch fashion-mnist
      syncpretrain data fetch kmnist cifar10 --mirror https://example.org/data
    """


@data.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the data sets: size, where they are, source and licence."""
    from syncpretrain.data.catalogue import CATALOGUE

    rows = [_row(named) for named in CATALOGUE.values()]
    if as_json:
        click.echo(json.dumps({"data": rows}))
        return
    for row in rows:
        state = f"in {row['folder']}" if row["here"] else "not fetched"
        click.echo(f"{row['name']:14} {row['title']} ({row['bytes'] / MEGABYTE:.0f} MB; {state})")
        click.echo(f"{'':14} source: {row['source']}; licence: {row['licence']}")


@data.command("fetch")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--mirror", metavar="URL", help="A folder on the network with the same files.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def fetch_command(names: tuple[str, ...], mirror: str | None, quiet: bool) -> None:
    """Fetch data sets; files that are there already are checked, and not fetched again.

    With --mirror URL the files come from that folder alone, and are checked against the same sums.
    """
    from syncpretrain.data.fetch import check_mirror, fetch, folder_of, named_data

    wanted = [named_data(name) for name in names]
    check_mirror(mirror)
    for named in wanted:
        with _progress(named, quiet=quiet) as report:
            new = fetch(named, mirror=mirror, report=report)
        if not quiet:
            number = "nothing was" if not new else f"{len(new)} of {len(named.files)} files"
            click.echo(f"{named.name}: {number} fetched; all are right, in {folder_of(named)}")
            click.echo(f"{named.name}: source: {named.source}; licence: {named.licence}")


def _row(named: NamedData) -> dict[str, Any]:
    from syncpretrain.data.fetch import folder_of, is_here

    folder = None
    with suppress(DataError):  # without a home there is no folder
        folder = folder_of(named)
    return {
        "name": named.name,
        "title": named.title,
        "bytes": named.bytes,
        "files": [file.name for file in named.files],
        "folder": None if folder is None else str(folder),
        "here": folder is not None and is_here(named, folder),
        "source": named.source,
        "licence": named.licence,
    }


@contextmanager
def _progress(named: NamedData, *, quiet: bool) -> Iterator[Callable[[RemoteFile, int], object]]:
    """Show how much of each file has come on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    tasks: dict[str, Any] = {}

    def report(file: RemoteFile, done: int) -> None:
        if file.name not in tasks:
            tasks[file.name] = bars.add_task(f"{named.name}: {file.name}", total=file.bytes)
        bars.update(tasks[file.name], completed=done)

    with bars:
        yield report
