"""Every runtime ends in the bits of the serial one, whatever trains, and wherever it is stopped."""

import itertools

import numpy as np
import pytest
from contractruns import (
    ASYNC,
    EPOCH,
    LEARNERS,
    PLANS,
    RUNTIMES,
    SERIAL,
    SPLIT,
    STATES,
    STREAM,
    driver,
    ended,
    of_one_layer,
    runs_of,
)
from trialruns import stop_after

from syncpretrain.errors import RunInterrupted
from syncpretrain.observers.history import History
from syncpretrain.schedule.kinds import SCHEDULES

pytestmark = pytest.mark.usefixtures("forked_layers")


@pytest.mark.parametrize("learner", LEARNERS)
@runs_of()
def test_the_bits_are_those_of_one_thread(bits, alone, runtime, handoff, learner):
    options = LEARNERS[learner]
    assert ended(bits, runtime, handoff, **options) == alone(runtime, handoff, **options)


STOPPING = {"early_stopping": "pseudo-likelihood", "patience": 1, "epochs": 12, "blas_threads": 1}
# Layers of every kind of schedule stop at their own times.
OF_SCHEDULES = {f"{name}, stopped early": {"schedule": name, **STOPPING} for name in SCHEDULES}
EVERY = PLANS | {"epoch": PLANS["epoch"] | OF_SCHEDULES}


@runs_of(*STREAM, shared=False)
def test_every_kind_of_run_ends_the_same_with_any_number_of_workers(bits, alone, runtime, handoff):
    differ = []
    plans = list(enumerate(EVERY[handoff].items()))
    first, step = runtime.plans
    for number, (name, plan) in plans[first::step]:
        given = {"seed": number << 33, **plan}
        found = ended(bits, runtime, handoff, workers=1 + number % 4, **given)
        if found != alone(runtime, handoff, **given):
            differ.append(name)
        if "early_stopping" in plan:
            assert np.less(found.epochs, plan["epochs"]).any(), name
    assert not differ


@runs_of()
def test_one_layer_is_a_stack_too(bits, runtime, handoff):
    options = of_one_layer(runtime, 2)
    wanted = ended(bits, SERIAL, handoff, **options)
    assert ended(bits, runtime, handoff, **options) == wanted


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@runs_of(*STREAM, shared=False)
def test_inputs_of_many_chunks_of_rows(runtime, handoff, precision):
    X = np.random.default_rng(0).random((2300, 64)).astype(np.float32)
    options = {"layers": (64, 96, 40, 10), "epochs": 1, "batch_size": 100, "precision": precision}
    wanted = ended(X, SERIAL, handoff, **runtime.options, **options)
    assert ended(X, runtime, handoff, **options) == wanted


@runs_of(*EPOCH)
def test_a_free_run_is_replayed_by_any(bits, runtime, handoff):
    history, options = History(), {"epochs": (6, 3, 2), "pace": "free"}
    with runtime.around():
        run = driver(bits, runtime, handoff, observers=[history], **options)
        free = run.run().parameters_sha256
    assert len(history.reads[0]) == 6
    for other in (SERIAL, runtime):
        again = ended(bits, other, handoff, **runtime.options, replay=history.reads, **options)
        assert again.parameters == free


def state_after(bits, minibatches, monkeypatch, runtime, handoff, plan, *, resume=None):
    """Return the state of a run that was stopped so early, None if it was over before."""
    states = []
    with monkeypatch.context() as patch:
        stop_after(patch, minibatches)
        run = driver(bits, runtime, handoff, **plan)
        run.resume = resume
        run.save = lambda state, *, done, final: states.append(state()) if final else None
        try:
            run.run()
        except RunInterrupted:
            return states[-1]
    return None


@pytest.mark.parametrize(("handoff", "name"), [(h, name) for h in STREAM for name in EVERY[h]])
def test_a_run_stopped_in_any_minibatch_goes_on_to_the_same_bits(
    bits, alone, monkeypatch, tmp_path, handoff, name
):
    """By turns it is stopped in the one runtime of this process and goes on in the other."""
    plan, number = EVERY[handoff][name], list(EVERY[handoff]).index(name)
    wanted, places = alone(SERIAL, handoff, **plan), (SERIAL, RUNTIMES["threads"])
    for stops, minibatches in enumerate(itertools.count(1 + number % 17, 17)):
        first, second = places[stops % 2], places[(stops + number) % 2]
        state = state_after(bits, minibatches, monkeypatch, first, handoff, plan)
        if state is None:
            break
        STATES[handoff].write(tmp_path / "state", state, {})
        resume = STATES[handoff].read(tmp_path / "state")
        again = ended(bits, second, handoff, resume=resume, **plan, workers=1 + stops % 3)
        assert again.outcome == wanted.outcome, f"stopped after {minibatches}"
    assert stops


@pytest.mark.parametrize("handoff", STREAM)
def test_a_run_may_be_stopped_again_and_again(bits, alone, monkeypatch, handoff):
    state, stops = None, 0
    while later := state_after(bits, 3, monkeypatch, SERIAL, handoff, {}, resume=state):
        state, stops = later, stops + 1
    assert stops > 5
    assert ended(bits, SERIAL, handoff, resume=state).outcome == alone(SERIAL, handoff).outcome


@pytest.mark.parametrize("minibatches", [1, 5, 11, 16, 21])
@pytest.mark.parametrize(
    "own", [{}, {"delay_compensation": 0.5, "momentum": "0", "push_every": 1}], ids=["", "made up"]
)
@pytest.mark.parametrize("handoff", ASYNC)
def test_replicas_in_turns_stopped_in_any_minibatch_go_on_to_the_same_bits(
    bits, alone, monkeypatch, tmp_path, handoff, own, minibatches
):
    plan = {"replicas": 4, **own}  # so changes are 3 late
    state = state_after(bits, minibatches, monkeypatch, SERIAL, handoff, plan)
    STATES[handoff].write(tmp_path / "state", state, {})
    resume = STATES[handoff].read(tmp_path / "state")
    again = ended(bits, SERIAL, handoff, resume=resume, **plan)
    assert again.outcome == alone(SERIAL, handoff, **plan).outcome


SHARING = [
    ("threads", {"workers": 5, "replicas": (2, 3, 1)}),
    ("processes", {"workers": 4, "replicas": (4, 2, 1)}),
    ("ranks that share layers", {"replicas": (3, 2, 1)}),
]


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("handoff", STREAM)
def test_any_number_of_workers_that_share_layers_gives_the_bits_of_one(bits, alone, handoff, name):
    plan = {"shards": 4, "epochs": 1, **SPLIT[name]}
    wanted = alone(SERIAL, handoff, **plan)
    for runtime, sharing in SHARING:
        assert ended(bits, RUNTIMES[runtime], handoff, **plan, **sharing) == wanted, runtime
    assert wanted.parameters != alone(SERIAL, handoff, **(plan | {"shards": 1})).parameters
