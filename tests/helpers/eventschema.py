"""The JSON Schema of a line of ``events.jsonl``, made of the fields of the events."""

from dataclasses import fields
from typing import Any, get_type_hints

from syncpretrain import events
from syncpretrain.events import Event, Progress

# Every event that has a line in the log, by its name.
LOGGED: dict[str, type[Event]] = {
    name: kind
    for name in events.__all__
    if isinstance(kind := getattr(events, name), type)
    and issubclass(kind, Event)
    and kind not in (Event, Progress)
}
INTEGERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
# A number that is not finite is null.
SCHEMA_FORMS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    float | None: {"type": ["number", "null"]},
    tuple[int, ...]: INTEGERS,
    tuple[float, ...]: {"type": "array", "items": {"type": ["number", "null"]}},
    tuple[tuple[int, ...], ...]: {"type": "array", "items": INTEGERS},
}


def event_schema() -> dict[str, Any]:
    """Return the schema of one line of ``events.jsonl``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of events.jsonl, the event log of a syncpretrain run",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in LOGGED],
        "$defs": {name: _schema_of(name, kind) for name, kind in LOGGED.items()},
    }


def _schema_of(name: str, kind: type[Event]) -> dict[str, Any]:
    types = get_type_hints(kind)
    own = {field.name: SCHEMA_FORMS[types[field.name]] for field in fields(kind)}
    return {
        "type": "object",
        "properties": {"event": {"const": name}, **own},
        "required": ["event", *own],
        "additionalProperties": False,
    }
