"""What an epoch costs beside its training does not grow with the layers: counted, not timed."""

import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest

import syncpretrain
from syncpretrain import pretrain
from syncpretrain.observers.event_log import EventLog
from syncpretrain.observers.history import History
from syncpretrain.pretraining.build import build_schedule
from syncpretrain.schedule.schedule import Train
from syncpretrain.settings import settings_from

ROOT = Path(syncpretrain.__file__).parent
FEW, MANY = 12, 72  # layers
BESIDE = ("schedule", "observers", "pretraining/driver.py", "pretraining/training.py")
BESIDE += ("workers/versions.py", "workers/training.py", "workers/threads.py")
SCHEDULES = {
    "lockstep": {"refresh_epochs": 0},
    "lockstep with refreshes": {"refresh_epochs": 1},
    "greedy": {"schedule": "greedy"},
    "rounds": {"schedule": "rounds"},
    "free": {"pace": "free"},
    "free, to the end of layer 1": {"pace": "free", "finish": "first-layer"},
}


def count_steps(call, *places):
    """Return how many bytecode instructions of some files or folders of the library a call took."""
    prefixes = tuple(str(ROOT / place) for place in places)
    steps = 0

    def local(frame, event, argument):
        nonlocal steps
        steps += event == "opcode"
        return local

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(prefixes):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return local

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks for it as tracing begins
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def play(depth, *, stops, **given):
    """Play a schedule of two layers at a time; return its steps an epoch."""
    settings = settings_from([4] * (depth + 1), epochs=4, **given).pretrain
    schedule = build_schedule(settings, slots=2)
    epochs = 0

    def to_the_end():
        nonlocal epochs
        running = deque(schedule.begin())
        while not schedule.is_finished:
            command = running.popleft()
            if isinstance(command, Train):
                epochs += 1
                enough = stops and command.epoch == 3 and command.layer % 10 == 0
                running.extend(schedule.finished(command.layer, stops=enough))

    return count_steps(to_the_end, "schedule") / epochs


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_deep_schedule_takes_no_more_steps_an_epoch(name, stops):
    few, many = (play(depth, stops=stops, **SCHEDULES[name]) for depth in (FEW, MANY))
    assert many < 1.5 * few


@pytest.mark.parametrize("name", ["lockstep", "greedy", "free"])
def test_a_deep_run_takes_no_more_steps_an_epoch_beside_the_training(name, tmp_path):
    X = np.eye(8, 4, dtype=np.float32)

    def run(depth):
        layers, history = [4] * (depth + 1), History()
        with EventLog(tmp_path / "events.jsonl") as log:
            own = {"layers": layers, "observers": [history, log], **SCHEDULES[name], **common}
            steps = count_steps(lambda: pretrain(X, **own), *BESIDE)
        return steps / sum(history.epochs)

    common = {"epochs": 3, "batch_size": 8, "workers": 2, "runtime": "serial"}
    assert run(MANY) < 1.5 * run(FEW)
