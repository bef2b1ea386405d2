"""Plain messages for the errors that msgspec finds in settings: value given, value expected."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec

__all__ = ["explained"]

TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "array": "a list",
    "object": "a table",
}
UNNAMED = ("pretrain", "data", "run")  # sections whose settings are called by their own names
BOUNDS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}


def explained(message: str, values: dict[str, Any], kind: type[msgspec.Struct]) -> str:
    """Reword a message such as ``Expected `int` >= 1 - at `$.pretrain.layers[1]```.

    Parameters
    ----------
    message : str
        Of a ``msgspec.ValidationError``.
    values : dict
        What was to become settings of this ``kind``.
    """
    found = re.fullmatch(r"(.*?)(?: - at `\$((?:\.\w+)+)(?:\[(\d+|\.\.\.)\])?`)?", message)
    if found is None:
        return message
    complaint, path, index = found.groups()
    names = path[1:].split(".") if path else []
    got: Any = values
    expected: Any = kind
    for name in names:
        got = got[name]
        expected = _field_type(expected, name)
    setting = "_".join(name for name in names if name not in UNNAMED) or "settings"
    if complaint.startswith("Object "):
        return _about_fields(complaint, names, expected)
    if index is not None and index.isdigit():
        got = got[int(index)]
    if index is not None:
        expected = get_args(expected)[0]  # of a list, what an entry may be
    return f"{setting}: got {got!r}, expected {_expected(complaint, expected)}"


def _about_fields(complaint: str, names: list[str], kind: type[msgspec.Struct]) -> str:
    field = complaint.rpartition(" ")[2].strip("`")
    if "missing" in complaint:
        return f"{field}: got nothing, expected a value"
    where = f" in [{names[-1]}]" if names else ""
    known = ", ".join(kind.__struct_fields__)
    return f"{field}: there is no such setting{where}, expected one of {known}"


def _expected(complaint: str, kind: Any) -> str:
    if complaint.startswith("Invalid enum value"):
        values = [get_args(choice) or choice for choice in get_args(kind)]  # of an optional one
        names = values if isinstance(values[0], str) else values[0]
        return " or ".join(map(str, names))
    found = re.match(r"Expected `(\w+)[^`]*`(?: ([<>]=?) ([\d.]+))?", complaint)
    if found is None:
        return complaint
    name, bound, limit = found.groups()
    words = TYPE_WORDS.get(name, name)
    return words if bound is None else f"{words} {BOUNDS[bound]} {limit.removesuffix('.0')}"


def _field_type(kind: Any, name: str) -> Any:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return fields[name]
