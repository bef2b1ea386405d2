"""Build settings from plain values; errors name the value given and the value expected."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.settings.fields import names_of

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)

TYPE_WORDS = {"int": "a whole number", "float": "a number", "str": "text"}
TYPE_WORDS |= {"array": "a list", "object": "a table"}
UNNAMED = ("pretrain", "data", "run")  # messages leave out the names of these sections
USUAL_ELSEWHERE = {  # names that other libraries have for a setting
    "lr": "learning_rate",
    "max_iter": "epochs",
    "n_iter": "epochs",
    "n_jobs": "workers",
    "random_state": "seed",
}
# msgspec 0.22 finds out what a class is made of at its first use, and crashes where two threads do
# so at once.
_building = threading.Lock()
BOUNDS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}


def checked(values: dict[str, Any], kind: type[SettingsT]) -> SettingsT:
    """Build settings of a kind from plain values, or from NumPy's numbers and arrays.

    Raises
    ------
    SettingsError
        Naming the setting, the value given and the value expected.
    """
    values = plain(values)
    try:
        with _building:
            return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SettingsError):
            raise error.__cause__ from None
        raise SettingsError(explained(str(error), values, kind)) from None


def plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as lists, dictionaries and numbers of Python."""
    return each(value, lambda item: item.tolist() if hasattr(item, "tolist") else item)


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return JSON values with each that is no dict and no list changed."""
    if isinstance(value, dict):
        return {name: each(item, change) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [each(item, change) for item in value]
    return change(value)


def explained(message: str, values: dict[str, Any], kind: type[msgspec.Struct]) -> str:
    """Reword a message such as ``Expected `int` >= 1 - at `$.pretrain.layers[1]```.

    Parameters
    ----------
    message : str
        Message of a ``msgspec.ValidationError``.
    values : dict
        Values that could not become settings of this ``kind``.
    """
    found = re.fullmatch(r"(.*?)(?: - at `\$((?:\.\w+)+)(?:\[(\d+|\.\.\.)\])?`)?", message)
    if found is None:
        return message
    problem, path, index = found.groups()
    names = path[1:].split(".") if path else []
    got: Any = values
    expected: Any = kind
    for name in names:
        got = got[name]
        expected = get_type_hints(expected)[name]
    setting = "_".join(name for name in names if name not in UNNAMED) or "settings"
    if problem.startswith("Object "):
        return _about_fields(problem, names, expected)
    if index is not None and index.isdigit():
        got = got[int(index)]
    if index is not None:
        expected = get_args(expected)[0]  # type of a list's entries
    return f"{setting}: got {got!r}, expected {_expected(problem, expected)}"


def _about_fields(problem: str, names: list[str], kind: type[msgspec.Struct]) -> str:
    field = problem.rpartition(" ")[2].strip("`")
    if "missing" in problem:
        return f"{field}: got nothing, expected a value"
    where = f" in [{names[-1]}]" if names else ""
    return f"{field}: there is no such setting{where}{nearest(field, names_of(kind))}"


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an unknown keyword.

    Raises
    ------
    SettingsError
        Naming the nearest known keyword.
    """
    for name in names:
        if name not in known:
            raise SettingsError(f"{name}: there is no such setting{nearest(name, known)}")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return advice on a wrong name: the most similar known name, or a list of all."""
    from difflib import get_close_matches  # for a wrong name alone

    usual = [USUAL_ELSEWHERE[name]] if USUAL_ELSEWHERE.get(name) in known else []
    like = usual or get_close_matches(name, known, n=1)
    return f"; did you mean {like[0]}?" if like else f", expected one of {', '.join(known)}"


def _expected(problem: str, kind: Any) -> str:
    if problem.startswith("Invalid enum value"):
        values = [get_args(choice) or choice for choice in get_args(kind)]  # nested if optional
        names = values if isinstance(values[0], str) else values[0]
        return " or ".join(map(str, names))
    found = re.match(r"Expected `(\w+)[^`]*`(?: ([<>]=?) ([\d.]+))?", problem)
    if found is None:
        return problem
    name, bound, limit = found.groups()
    words = TYPE_WORDS.get(name, name)
    return words if bound is None else f"{words} {BOUNDS[bound]} {limit.removesuffix('.0')}"
