"""trace.json: the slices of a run whose times are known."""

from __future__ import annotations

import json
import math

import pytest

from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    FinetuneEpochFinished,
    FinetuneStarted,
    Notice,
    RunStarted,
)
from syncpretrain.observers.event_log import write_trace

EVENTS = [
    Notice(9.0, "data"),
    RunStarted(10.0, (784, 1000, 500), (2, 1), "synchronized", "free", "threads", 2, 100),
    EpochStarted(10.0, 1, 1, 0),
    EpochFinished(12.0, 1, 1, 0, 10.5, 0.0, 5.0, None),
    EpochFinished(14.0, 2, 3, 7, 13.0, 0.25, math.nan, 3.5),
    FinetuneStarted(15.0, "reconstruction", "adam", 3),
    FinetuneEpochFinished(17.0, 1, 3, 1.5, 8.0, 8.5),
]


@pytest.fixture
def entries(tmp_path):
    path = tmp_path / "trace.json"
    write_trace(EVENTS, path)
    return json.loads(path.read_text())["traceEvents"]


def slices(entries):
    return [(x["tid"], x["name"], x["ts"], x["dur"]) for x in entries if x["ph"] == "X"]


def test_slices_in_microseconds_from_the_first_event(entries):
    assert slices(entries) == [
        (1, "epoch 1 (version 0)", 1_500_000, 1_500_000),
        (2, "epoch 3 (version 7)", 4_000_000, 1_000_000),
        (2, "transform", 4_000_000, 250_000),
        (3, "epoch 1", 6_500_000, 1_500_000),
    ]


def test_a_named_row_a_layer_and_one_for_finetuning(entries):
    names = {x["tid"]: x["args"]["name"] for x in entries if x["name"] == "thread_name"}
    assert names == {1: "layer 1 784-1000", 2: "layer 2 1000-500", 3: "fine-tuning"}
    assert {x["pid"] for x in entries} == {1}


def test_errors_ride_along_and_a_nan_is_null(entries):
    args = [x["args"] for x in entries if x["ph"] == "X"]
    assert args[0] == {"train_error": 5.0, "validation_error": None}
    assert args[1] == {"train_error": None, "validation_error": 3.5}


def test_finetuning_alone_and_nothing_at_all(tmp_path):
    path = tmp_path / "trace.json"
    write_trace(EVENTS[-2:], str(path))
    assert slices(json.loads(path.read_text())["traceEvents"]) == [
        (1, "epoch 1", 500_000, 1_500_000)
    ]
    write_trace([], path)
    assert json.loads(path.read_text())["traceEvents"] == []
