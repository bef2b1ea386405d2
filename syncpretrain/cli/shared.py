"""Options that several commands share, the types of their values, and the check of ``--out``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from syncpretrain.errors import SettingsError
from syncpretrain.observers.loggers import LOGGERS
from syncpretrain.runs.folder import is_run_file
from syncpretrain.storage import expanded

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
TRAIN_PER_HELD_OUT = 5  # training examples a held-out one, as in MNIST


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers that are at least ``least``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise click.BadParameter(f"got {text}, expected a whole number of at least {least}")
        return value

    return parse


def listed(part: Callable[[str], T], expected: str) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of a list with commas, of one value for all layers, or one a layer."""

    def parse(text: str) -> tuple[T, ...]:
        try:
            return tuple(map(part, text.split(",")))
        except ValueError:
            raise click.BadParameter(
                f"got {text!r}, expected {expected} separated by commas"
            ) from None

    return parse


def _epochs(text: str) -> int | str:
    return text if text.startswith("auto") else int(text)


integers = listed(int, "whole numbers")
floats = listed(float, "numbers")
epoch_counts = listed(_epochs, "whole numbers, auto or auto:N,")


def momentums(text: str) -> tuple[str, ...]:
    """Check momentum schedules, one for all layers or one a layer, so that the option is named."""
    from syncpretrain.settings import MomentumSchedule

    schedules = tuple(text.split(";"))
    for schedule in schedules:
        try:
            MomentumSchedule(schedule)
        except SettingsError as error:
            raise click.BadParameter(str(error).removeprefix("momentum: ")) from None
    return schedules


def words(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of words separated by commas; if any are known, others are refused."""

    def parse(text: str) -> tuple[str, ...]:
        parts = tuple(text.split(","))
        for part in parts:
            if known and part not in known:
                raise click.BadParameter(f"got {part!r}, expected {' or '.join(known)}")
        return parts

    return parse


RUN = click.Path(path_type=Path)
DATA = (
    "mnist, digits, a name of 'syncpretrain data list', a .npy, .npz, IDX, .csv, .parquet or"
    " .fasta file, or a folder of images."
)


part_option = click.option(
    "--part",
    type=click.Choice(["train", "validation", "test"]),
    help="Part of the data; default test, and all rows of a file in their order.",
)


def data_option(default: str) -> Callable[[F], F]:
    """Return ``--data``; ``default`` says which data the command takes without the option."""
    return click.option("--data", metavar="NAME|FILE", help=f"{DATA} {default}")


shape_option = click.option(
    "--shape",
    metavar="[3x]HxW",
    help="Height and width of an example; default the images of convolutions, or a square.",
)


def out_option(metavar: str, text: str, *, required: bool = False) -> Callable[[F], F]:
    """Return ``--out``, a path that the command writes."""
    path = click.Path(path_type=Path)
    return click.option("--out", type=path, metavar=metavar, help=text, required=required)


def number_option(
    flag: str, default: int, text: str = "", *, least: int = 1, metavar: str = "N"
) -> Callable[[F], F]:
    """Return an option for a whole number of at least ``least``; its help names the default."""
    return click.option(
        flag,
        type=at_least(least),
        default=default,
        metavar=metavar,
        help=f"{text} Default {default}.".lstrip(),
    )


def measuring_options(command: F) -> F:
    """Add ``--examples`` and ``--seconds`` to a command that predicts from measurements."""
    seconds = number_option("--seconds", 7, "About how long to measure.", least=0, metavar="S")
    examples = click.option(
        "--examples",
        type=at_least(1),
        default=50_000,
        metavar="N",
        help="Training examples. Default 50000, as in MNIST.",
    )
    return examples(seconds(command))


log_option = click.option(
    "--log",
    "loggers",
    type=click.Choice(list(LOGGERS)),
    multiple=True,
    help="Log the run there too; may be repeated.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors and --json.")
# One object on stdout, and nothing else there.
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def check_target(
    path: Path, *read: Path | str | None, option: str = "out", ending: str | None = None
) -> None:
    """Refuse a file that cannot be written, or that replaces a file of a run or one that is read.

    Parameters
    ----------
    path : Path
    *read : Path, str or None
        Files and runs that the command reads; a run's data are read too. Names of data sets and
        None are ignored.
    option : str
        Option that names the file.
    ending : str, optional
        Ending of the names of such files, such as ``.png``; other names are refused.

    Raises
    ------
    SettingsError
    """
    import os

    if path.is_dir():
        raise SettingsError(f"{option}: {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise SettingsError(f"{option}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"{option}: cannot write to the folder {path.parent}")
    if path.exists():
        _check_spare(path, read, option)
    if ending is not None and path.suffix.lower() != ending:
        raise SettingsError(f"{option}: got {path}, expected a name that ends with {ending}")


def _check_spare(path: Path, read: Sequence[Path | str | None], option: str) -> None:
    """Refuse to replace a file of a run, or one that is read."""
    from syncpretrain.cli.run_data import data_files

    if is_run_file(path):
        here = f"a file of the run in {path.parent}"
        raise SettingsError(f"{option}: {path} is {here}; name another file")
    own = [name for x in read for name in (x, *data_files(x))]
    for other in (expanded(name) for name in own if name is not None):
        if other.is_file() and other.samefile(path):
            raise SettingsError(f"{option}: {path} is a file that is read; name another one")
