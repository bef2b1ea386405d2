"""The event log, its JSON Schema and docs/events.rst say the same."""

import json
import re
from dataclasses import fields

import numpy as np
import pytest
from docblocks import ROOT
from eventschema import LOGGED, event_schema

from syncpretrain.runs.run import train_run
from syncpretrain.settings import settings_from

SCHEMA = ROOT / "docs" / "_static" / "events.schema.json"
PAGE = (ROOT / "docs" / "events.rst").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^(\w+)\n~+\n(.*?)(?=^\w+\n~+\n|\Z)", PAGE, re.MULTILINE | re.DOTALL))
INTEGERS = {"type": "array", "items": {"type": "integer"}}
WORDS = {
    "text": {"type": "string"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number or null": {"type": ["number", "null"]},
    "list of integers": INTEGERS,
    "list of numbers": {"type": "array", "items": {"type": ["number", "null"]}},
    "list of lists of integers": {"type": "array", "items": INTEGERS},
}
TYPES = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list}


def fits(value, form):
    """Return whether a JSON value has a form of the schema."""
    if "const" in form:
        return value == form["const"]
    names = form["type"] if isinstance(form["type"], list) else [form["type"]]
    if value is None:
        return "null" in names
    if isinstance(value, bool) and "boolean" not in names:
        return False
    if not any(isinstance(value, TYPES[name]) for name in names if name != "null"):
        return False
    return all(fits(x, form["items"]) for x in value) if "items" in form else True


def test_the_schema_in_the_documentation_is_that_of_the_code():
    text = json.dumps(event_schema(), indent=2) + "\n"
    assert SCHEMA.read_text(encoding="utf-8") == text, (
        "write json.dumps(event_schema(), indent=2) and a line end into it"
    )


def test_the_page_has_a_section_for_each_event_and_no_other():
    assert SECTIONS.keys() == LOGGED.keys()


@pytest.mark.parametrize("name", LOGGED)
def test_each_section_has_the_fields_and_their_types(name):
    rows = re.findall(r"^``(\w+)`` +(\S+(?: \S+)*)(?:  |$)", SECTIONS[name], re.MULTILINE)
    properties = event_schema()["$defs"][name]["properties"]
    assert [field for field, _ in rows] == [
        field.name for field in fields(LOGGED[name]) if field.name != "time"
    ]
    for field, words in rows:
        assert WORDS[words] == properties[field]


def test_the_log_of_a_run_has_these_forms(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", X=rng.random((40, 6), dtype=np.float32), y=np.arange(40) % 2)
    tuned = {"objective": "classification", "epochs": 1, "batch_size": 10}
    data = {"name": str(tmp_path / "x.npz")}
    settings = settings_from(
        (6, 4, 3), data=data, finetune=tuned, epochs=(1, 2), batch_size=10, refresh_when="drift:0.1"
    )
    train_run(settings, out=tmp_path / "run")
    seen = set()
    for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        form = event_schema()["$defs"][event["event"]]
        assert event.keys() == form["properties"].keys()
        for field, value in event.items():
            assert fits(value, form["properties"][field]), (field, value)
        seen.add(event["event"])
    assert seen >= LOGGED.keys() - {"RunStopped", "DriftJudged"}


def test_a_wrong_form_is_noticed():
    """The check above can fail."""
    forms = event_schema()["$defs"]["DriftJudged"]["properties"]
    assert not fits("x", forms["layer"])
    assert not fits(True, forms["layer"])
    assert not fits(1, forms["wakes"])
    assert fits(None, forms["drift"])
