"""``syncpretrain data``: list the published data sets, and fetch them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli.shared import json_option
from syncpretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from syncpretrain.data.catalogue import NamedData, RemoteFile

MEGABYTE = 1e6


@click.group("data")
def command() -> None:
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


@command.command("list")
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


@command.command("fetch")
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
            name = f"{named.name}: {file.name}"
            tasks[file.name] = bars.add_task(name, total=file.bytes)
        bars.update(tasks[file.name], completed=done)

    with bars:
        yield report
