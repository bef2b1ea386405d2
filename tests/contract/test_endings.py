"""However a run ends, every runtime tells the same, keeps the same, and can go on from it."""

import signal
import threading
import time
import traceback
from functools import partial

import numpy as np
import pytest
import sabotage
from contractruns import SERIAL, STATES, STREAM, driver, ended, of_one_layer, runs_of
from layerprocesses import workers
from moments import At
from stackcomparisons import sound
from trialruns import DieAt

from syncpretrain.errors import CheckpointError, DivergedError, RunInterrupted, WorkerError
from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    LayerFinished,
    Progress,
    RunFinished,
    RunStarted,
)
from syncpretrain.pretraining import build
from syncpretrain.pretraining import streamed as streaming
from syncpretrain.workers import processes
from syncpretrain.workers.restarts import Restarts

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)
LONG = {"epochs": (20, 16, 18), "batch_size": 100}  # still under way as a signal arrives
DEATH_SECONDS = 8.0  # below what the end waits for processes that still run


@runs_of(serial=True, shared=False)
def test_events_come_in_order(bits, runtime, handoff):
    events = []
    places = set()
    observers = [events.append, lambda event: places.add(threading.current_thread())]
    options = {"epochs": (5, 3, 4)} | ({"pace": "free"} if handoff == "epoch" else {})
    with runtime.around():
        stack = driver(bits, runtime, handoff, observers=observers, **options).run()
    assert places == {threading.main_thread()}
    assert isinstance(events[0], RunStarted)
    assert events[0].layers == LAYERS
    assert isinstance(events[-1], RunFinished)
    running = {}
    done, ended, busy = [0, 0, 0], [], [0.0, 0.0, 0.0]
    for event in events[1:-1]:
        assert events[0].time <= event.time <= events[-1].time
        match event:
            case EpochStarted(layer=layer):
                assert layer not in running
                assert layer not in ended
                assert event.epoch == done[layer - 1] + 1
                assert event.reads <= (done[layer - 2] if layer > 1 else 0)
                running[layer] = event
                assert len(running) <= 3
            case EpochFinished(layer=layer):
                begun = running.pop(layer)
                assert (event.epoch, event.reads) == (begun.epoch, begun.reads)
                assert event.started <= event.time
                assert handoff != "epoch" or begun.time <= event.started
                assert 0 <= event.transform_seconds <= event.time - event.started
                assert np.isfinite([event.train_error, event.validation_error]).all()
                done[layer - 1] = event.epoch
                busy[layer - 1] += event.time - event.started
            case LayerFinished(layer=layer):
                assert layer not in running
                ended.append(layer)
            case Progress(layer=layer):
                # In a stream the driver may have the end of the epoch before still to take.
                assert handoff == "minibatch" or event.epoch == running[layer].epoch
                assert 0 <= event.fraction <= 1
            case _:
                assert "GPU" in event.message, event
    assert not running
    assert sorted(ended) == [1, 2, 3]
    assert done == stack.info["epochs"]
    assert handoff != "epoch" or events[-1].busy_seconds == pytest.approx(busy)
    assert all(seconds <= events[-1].seconds for seconds in events[-1].busy_seconds)


@pytest.mark.parametrize("learner", ["rbm", "convolutional", "convolutional denoising"])
@runs_of(*STREAM, shared=False)
def test_a_layer_that_diverges_goes_back_with_half_its_rate(bits, alone, runtime, handoff, learner):
    options = {"visible_units": "gaussian", "learning_rate": (3.0, 0.01, 0.01), "epochs": 3}
    options |= {"layers": "1x4x4,conv:4x2,10,5"} if learner != "rbm" else {}
    options |= {"model": "denoising"} if learner == "convolutional denoising" else {}
    found = ended(bits, runtime, handoff, **options)
    assert found == alone(runtime, handoff, **options)
    assert found.warnings
    for told in found.warnings:
        assert told.startswith("warning: layer 1 diverged in epoch ")
        assert "Back to the end of epoch" in told


@runs_of(serial=True)
def test_a_layer_that_diverges_for_good_is_named(bits, runtime, handoff):
    place = runtime.place.strip() if handoff in STREAM else ""
    told = rf"^layer 2 diverged in epoch \d.*{place}"
    with runtime.around(), pytest.raises(DivergedError, match=told) as caught:
        driver(bits, runtime, handoff, learning_rate=(0.1, 1e6, 0.1), epochs=8).run()
    sound(caught.value.stack, LAYERS)


@runs_of(serial=True)
def test_a_signal_keeps_what_was_learned_and_any_runtime_goes_on_to_the_same_bits(
    bits, alone, tmp_path, runtime, handoff
):
    """A terminal sends it to all processes; the caller's alone says what to do."""
    signum = signal.SIGTERM if runtime.options else signal.SIGINT
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def act():
        for child in workers().values():
            child.send_signal(signum)
        signal.raise_signal(signum)

    states, events = [], []
    with runtime.around():
        observers = [At(EpochFinished, act, layer=1, epoch=3), events.append]
        run = driver(bits, runtime, handoff, observers=observers, **LONG)
        run.save = lambda state, *, done, final: states.append(state()) if final else None
        with pytest.raises(RunInterrupted, match="epochs finished: layer 1: ") as caught:
            run.run()
    assert caught.value.signum == signum
    assert sound(caught.value.stack, LAYERS).info["epochs"][0] >= 3
    assert not any(isinstance(event, RunFinished) for event in events)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    (state,) = states
    wanted = alone(runtime, handoff, **LONG)
    for other in {SERIAL.name: SERIAL, runtime.name: runtime}.values():
        STATES[handoff].write(tmp_path / "state", state, {})
        resume = STATES[handoff].read(tmp_path / "state")
        given = runtime.options | LONG
        assert ended(bits, other, handoff, resume=resume, **given).outcome == wanted.outcome


@runs_of(*STREAM, serial=True, shared=False)
def test_a_state_between_epochs_is_one_to_go_on_from(bits, alone, tmp_path, runtime, handoff):
    states = []
    with runtime.around():
        run = driver(bits, runtime, handoff, **LONG)
        run.save = lambda state, *, done, final: states.append((state(), done))
        whole = run.run().parameters_sha256
    wanted = alone(runtime, handoff, **LONG)
    assert whole == wanted.parameters
    state, done = states[len(states) // 2]
    STATES[handoff].write(tmp_path / "state", state, {})
    resume = STATES[handoff].read(tmp_path / "state")
    again = ended(bits, runtime, handoff, resume=resume, **LONG)
    assert again.outcome == wanted.outcome
    assert len(again.decisions) == len(wanted.decisions) - sum(done), "no epoch twice"


def assert_state_is_refused(bits, runtime, handoff, layers, others):
    states = []
    run = driver(bits, SERIAL, handoff, layers=layers, epochs=3)
    run.save = lambda state, *, done, final: states.append(state())
    run.run()
    told = "the state of layer [123] is of another layer"
    with runtime.around():
        other = driver(bits, runtime, handoff, layers=others, epochs=3)
        other.resume = states[-1]
        with pytest.raises((CheckpointError, WorkerError), match=told):
            other.run()


@runs_of()
def test_the_state_of_another_stack_is_refused(bits, runtime, handoff):
    assert_state_is_refused(bits, runtime, handoff, LAYERS, (16, 12, 9, 5))


@pytest.mark.parametrize("others", ["conv:6x2,10,5", "conv:4x2,pool:3,10,5"])
def test_so_is_that_of_another_convolution(bits, others):
    own = "1x4x4,conv:4x2,10,5"
    assert_state_is_refused(bits, SERIAL, "epoch", own, f"1x4x4,{others}")


WAYS = {
    "error": "ValueError: out of luck",
    "memory": "MemoryError: out of luck",
    "no way back": "OneWay: .*out of luck",
    "exit": "SystemExit: 3",
}


def arrange(monkeypatch, kind, layer):
    """Have a layer fail, wherever it is trained."""
    monkeypatch.setattr(build, "build_worker", partial(sabotage.build_worker, kind, layer))
    streamed = partial(sabotage.build_streamed_layer, kind, layer)
    monkeypatch.setattr(streaming, "build_streamed_layer", streamed)


@pytest.mark.parametrize(("kind", "layer"), list(zip(WAYS, (1, 2, 3, 1), strict=True)))
@runs_of(*STREAM, serial=True, shared=False)
def test_a_failure_names_layer_epoch_and_cause(bits, monkeypatch, runtime, handoff, kind, layer):
    arrange(monkeypatch, kind, layer)
    told = rf"^layer {layer} failed in epoch 2{runtime.place}: {WAYS[kind]}"
    with runtime.around(), pytest.raises(WorkerError, match=told) as caught:
        driver(bits, runtime, handoff, epochs=3).run()
    sound(caught.value.stack, LAYERS)
    trace = "".join(traceback.format_exception(caught.value))
    assert "sabotage.py" in trace, "where it was raised"


# Of processes alone: errors that cannot be sent, and ways to die.
DEATHS = {
    "unpicklable": r"Unpicklable: Unpicklable\('out of luck'\)",
    "status 0": r"its process \d+ ended with status 0",
    "status 7": r"its process \d+ ended with status 7",
    "segfault": r"its process \d+ was killed by SIGSEGV",
}


@pytest.mark.parametrize(("kind", "layer"), list(zip(DEATHS, (2, 1, 2, 3), strict=True)))
@runs_of(*STREAM, replaced=True, shared=False)
def test_a_process_that_ends_by_itself_is_told(bits, monkeypatch, runtime, handoff, kind, layer):
    arrange(monkeypatch, kind, layer)
    told = rf"^layer {layer} failed in epoch 2: {DEATHS[kind]}"
    with pytest.raises(WorkerError, match=told) as caught:
        driver(bits, runtime, handoff, epochs=3).run()
    sound(caught.value.stack, LAYERS)


@runs_of(*STREAM, mortal=True, shared=False)
def test_a_layer_that_cannot_be_built_is_told(bits, monkeypatch, runtime, handoff):
    arrange(monkeypatch, "worker_factory", 1)
    told = rf"^layer 1 failed in epoch 1{runtime.place}: MemoryError: out of luck"
    with runtime.around(), pytest.raises(WorkerError, match=told) as caught:
        driver(bits, runtime, handoff).run()
    sound(caught.value.stack, LAYERS)


@runs_of(*STREAM, serial=True)
def test_a_layer_that_fails_is_taken_back_to_its_last_epoch(bits, monkeypatch, runtime, handoff):
    wanted = ended(bits, SERIAL, handoff, **of_one_layer(runtime, 1))
    arrange(monkeypatch, "broken", 1)
    with runtime.around(), pytest.raises(WorkerError, match="layer 1 failed in epoch 2") as caught:
        driver(bits, runtime, handoff, **of_one_layer(runtime, 3)).run()
    assert caught.value.stack.parameters_sha256 == wanted.parameters


@pytest.mark.parametrize("kind", [EpochFinished, RunFinished])
@runs_of(serial=True, shared=False)
def test_an_error_of_an_observer_ends_the_run_as_it_is(bits, runtime, handoff, kind):
    fails = DieAt(kind, error=ZeroDivisionError("the observer's own"))
    with runtime.around(), pytest.raises(ZeroDivisionError, match="the observer's own"):
        driver(bits, runtime, handoff, observers=[fails]).run()


@pytest.mark.parametrize(("kind", "layer", "epoch"), [(EpochStarted, 1, 1), (EpochFinished, 2, 3)])
@runs_of(*STREAM, mortal=True)
def test_a_worker_that_is_killed_is_told_at_once_and_the_run_resumed(
    bits, alone, runtime, handoff, kind, layer, epoch
):
    states = []
    # That a rank is lost is looked for a few times a second.
    seen_late = handoff == "epoch" and not runtime.replaces
    epochs = LONG | {"epochs": 400 if seen_late else 20}
    with runtime.around() as around:
        kill = At(kind, partial(runtime.kill, around), layer=layer, epoch=epoch)
        run = driver(bits, runtime, handoff, observers=[kill], **epochs)
        run.save = lambda state, *, done, final: states.append(state())
        told = rf"^layer [1-3, ]+ failed (in|after|before) .*{runtime.death}$"
        with pytest.raises(WorkerError, match=told) as caught:
            run.run()
        assert time.monotonic() - kill.since < DEATH_SECONDS
    sound(caught.value.stack, LAYERS)
    resume = states[-1] if states else None
    given = runtime.options | epochs
    wanted = alone(runtime, handoff, **epochs)
    assert ended(bits, SERIAL, handoff, resume=resume, **given).outcome == wanted.outcome


@runs_of(*STREAM, replaced=True)
def test_a_worker_that_is_killed_is_replaced_to_the_same_bits(bits, alone, runtime, handoff):
    told = []
    kill = At(EpochFinished, partial(runtime.kill, None), layer=2, epoch=3)
    restarts = Restarts(3, told.append)
    run = driver(bits, runtime, handoff, observers=[kill], restarts=restarts, **LONG)
    assert run.run().parameters_sha256 == alone(runtime, handoff, **LONG).parameters
    (message,) = told
    assert "a new process goes on from its last state (restart 1 of 3)" in message


@runs_of(*STREAM, replaced=True)
def test_a_start_that_fails_half_way_leaves_nothing(bits, monkeypatch, runtime, handoff):
    started = []
    original = processes.subprocess.Popen

    def popen(*args, **named):
        if len(started) == 2:
            raise BlockingIOError("no more processes")
        started.append(original(*args, **named))
        return started[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    with pytest.raises(BlockingIOError, match="no more processes"):
        driver(bits, runtime, handoff).run()
    assert len(started) == 2
    assert None not in [process.returncode for process in started], "each has ended"
