"""What is kept of a run whose events are known: events.jsonl, its trace, and its history."""

import json
import math
import re

import psutil
import pytest

from syncpretrain.errors import ModelFileError
from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    FinetuneEpochFinished,
    FinetuneStarted,
    LayerFinished,
    Notice,
    Progress,
    RunFinished,
    RunStarted,
)
from syncpretrain.observers.event_log import EventLog, read_reads, write_trace
from syncpretrain.observers.history import History

STARTED = RunStarted(10.0, (4, 3, 2), (2, 1), "synchronized", "free", "threads", 2, 100)
EVENTS = [
    Notice(9.0, "Zürich"),
    STARTED,
    EpochStarted(10.0, 1, 1, 0),
    Progress(11.0, 1, 1, 0.5),
    EpochFinished(12.0, 1, 1, 0, 10.0, 0.0, 5.0, 5.5),
    EpochStarted(12.0, 1, 2, 0),
    EpochFinished(14.0, 1, 2, 0, 12.0, 0.0, 4.0, None),
    LayerFinished(14.0, 1),
    EpochStarted(14.0, 2, 1, 2),
    EpochFinished(15.0, 2, 1, 2, 14.0, 0.25, 3.0, 3.5),
    EpochStarted(15.0, 2, 2, 2),
    RunFinished(16.0, 6.0, (4.0, 1.0)),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for event in EVENTS:
            log(event)
    return path


def test_a_line_an_event_with_times_from_the_first(path):
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"event": "Notice", "time": 0.0, "message": "Zürich"}
    assert lines[1]["layers"] == [4, 3, 2]
    epoch = {"layer": 1, "epoch": 1, "reads": 0, "started": 1.0, "transform_seconds": 0.0}
    epoch |= {"train_error": 5.0, "validation_error": 5.5, "drift": None}
    assert lines[3] == {"event": "EpochFinished", "time": 3.0, **epoch}
    seconds = {"time": 7.0, "seconds": 6.0, "busy_seconds": [4.0, 1.0]}
    assert lines[-1] == {"event": "RunFinished", **seconds}
    assert "Progress" not in [line["event"] for line in lines]
    assert len(lines) == len(EVENTS) - 1


def test_each_line_is_on_disk_at_once(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(str(path)) as log:
        for count, event in enumerate(EVENTS[:3], start=1):
            log(event)
            assert path.read_bytes().count(b"\n") == count


def test_numbers_that_are_not_finite_are_null(tmp_path):
    with EventLog(tmp_path / "log") as log:
        log(EpochFinished(1.0, 1, 1, 0, 0.0, 0.0, math.nan, math.inf))
    line = json.loads((tmp_path / "log").read_text())
    assert line["train_error"] is line["validation_error"] is None


def test_closed_after_the_block_also_by_an_error(tmp_path):
    path = tmp_path / "events.jsonl"
    with pytest.raises(ZeroDivisionError), EventLog(path) as log:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="outside its with block"):
        log(STARTED)
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


def test_reads_of_the_finished_epochs(path):
    assert read_reads(path) == ((0, 0), (2,))
    assert read_reads(str(path)) == ((0, 0), (2,))


def test_a_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match="cannot read these events"):
        read_reads(tmp_path / "none.jsonl")


BEGIN = b'{"event":"RunStarted","layers":[4,3,2]}\n'
EPOCH = b'{"event":"EpochFinished","layer":%d,"epoch":%d,"reads":%d}\n'


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", 1, "ends before a run has started"),
        (b'{"event":"Notice"}\n', 2, "ends before a run has started"),
        (BEGIN + b'{"event":"EpochFin', 2, "truncated"),
        (BEGIN + b"\n" + EPOCH % (1, 1, 0), 2, "truncated"),
        (b"\xff\xfe\x00", 1, "malformed"),
        (BEGIN + b'{"event":"\xff"}\n', 2, "utf-8"),
        (b"[1]\n", 1, "Expected `object`"),
        (b'{"event":7}\n', 1, "Expected `str`"),
        (b'{"event":"Notice","message":' + b"[" * 100_000 + b"\n", 1, "recursion"),
        (b'{"event":"RunStarted"}\n', 1, "without layers"),
        (b'{"event":"RunStarted","layers":[4,0]}\n', 1, "layers"),
        (BEGIN + b'{"event":"RunStarted","layers":[4,3]}\n', 2, "a run of other layers"),
        (EPOCH % (1, 1, 0), 1, "layer 1 of 0"),
        (BEGIN + EPOCH % (3, 1, 0), 2, "layer 3 of 2"),
        (BEGIN + EPOCH % (0, 1, 0), 2, "layer 0 of 2"),
        (BEGIN + EPOCH % (1, 2, 0), 2, "got epoch 2, expected 1"),
        (BEGIN + EPOCH % (1, 1, 0) * 2, 3, "got epoch 1, expected 2"),
        (BEGIN + EPOCH % (1, 1, 1), 2, "layer 1 reads version 1"),
        (BEGIN + EPOCH % (1, 1, 0) + EPOCH % (2, 1, 2), 3, "layer 2 reads version 2"),
        (BEGIN + EPOCH % (1, 1, 0) + EPOCH % (2, 1, 0), 3, "layer 2 reads version 0"),
        (BEGIN + b'{"event":"EpochFinished","layer":1,"epoch":1}\n', 2, "version -1"),
        (BEGIN + b'{"event":"EpochFinished","layer":1,"epoch":true}\n', 2, "Expected `int`"),
    ],
)
def test_a_damaged_file_names_the_line(tmp_path, content, line, reason):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=f"line {line}: .*(?i:{re.escape(reason)})") as caught:
        read_reads(path)
    assert "\n" not in str(caught.value)


def test_a_resumed_run_does_again_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "events.jsonl"
    first = EPOCH % (1, 1, 0) + EPOCH % (1, 2, 0) + EPOCH % (2, 1, 1)
    again = EPOCH % (1, 2, 0) + EPOCH % (2, 1, 2) + EPOCH % (2, 2, 2)
    path.write_bytes(BEGIN + first + BEGIN + again)
    assert read_reads(path) == ((0, 0), (2, 2))


TRACED = [
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
    write_trace(TRACED, path)
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
    write_trace(TRACED[-2:], str(path))
    entries = json.loads(path.read_text())["traceEvents"]
    assert slices(entries) == [(1, "epoch 1", 500_000, 1_500_000)]
    write_trace([], path)
    assert json.loads(path.read_text())["traceEvents"] == []


NOTHING, OVER = ((), ()), [RunFinished(20.0, 8.0, (4.5, 8.5)), Notice(30.0, "of fine-tuning")]


@pytest.mark.parametrize(
    ("events", "epochs", "reads", "seconds", "busy", "idle"),
    [
        (EVENTS[:1], (), (), 0.0, (), ()),
        (EVENTS[:2], (0, 0), NOTHING, 0.0, (0.0, 0.0), (0.0, 0.0)),
        (EVENTS[:-1], (2, 1), ((0, 0), (2,)), 5.0, (4.0, 1.0), (1.0, 4.0)),
        ([*EVENTS[:-1], Progress(16.0, 2, 2, 0.5)], (2, 1), ((0, 0), (2,)), 6.0, (4, 1), (2, 5)),
        ([*EVENTS[:-1], *OVER], (2, 1), ((0, 0), (2,)), 8.0, (4.5, 8.5), (3.5, 0.0)),
    ],
    ids=["before the run", "begun", "an epoch under way", "in it", "with the driver's figures"],
)
def test_the_history_of_a_run(events, epochs, reads, seconds, busy, idle):
    history = History()
    for event in events:
        history(event)
    assert (history.epochs, history.reads) == (epochs, reads)
    assert history.pretrain_seconds == seconds
    assert (history.busy_seconds, history.idle_seconds) == (busy, idle)
    assert history.events == [event for event in events if not isinstance(event, Progress)]
