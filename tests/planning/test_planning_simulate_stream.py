"""The simulation of streamed runs, against times that can be told by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncpretrain.planning.simulate import MOST_MINIBATCHES, StreamCost, play_stream
from syncpretrain.schedule.stream import StreamEpochs


def run(costs, *, epochs=10, delay=0.0, steps=10, workers=2, replicas=None, block=1) -> float:
    return play_stream(
        StreamEpochs((epochs,) * len(costs), delay).plans(steps),
        costs,
        steps=steps,
        ring=4,
        block=block,
        workers=workers,
        replicas=replicas or (1,) * len(costs),
    ).seconds


def cost(*seconds: float, forward=0.2, **others: float) -> StreamCost:
    return StreamCost(dict(enumerate(seconds, start=1)), forward, **others)


HANDED, CROWDED = [cost(0.1, handover=1.0)] * 2, [cost(1.0, contention=1.5)] * 2
ONE = [cost(4.0, 2.0, 1.4, 1.0)]
BY_HAND = {
    "one worker adds up": ([cost(1.0), cost(0.5, epoch_end=3.0)], {"workers": 1}, 150 + 30),
    "equal layers take a minibatch more than one": ([cost(1.0)] * 2, {}, 101),
    # The interpreter's lock is held: 100 minibatches of each layer take a second each for that.
    "one worker hands minibatches over": (HANDED, {"workers": 1}, 200 * 1.1),
    "minibatches are handed over one after another": (HANDED, {}, 200),
    "handing over is part of slow steps": ([cost(2.0, handover=0.1)] * 2, {}, 2.1 * 101),
    "a slower last layer sets the pace": ([cost(0.5), cost(2.0)], {}, 200.5),
    "a slower first layer sets the pace": ([cost(2.0), cost(0.5)], {}, 200.5),
    "no more helpers than replicas": (ONE, {"workers": 4, "replicas": (2,)}, 200),
    "as many helpers as replicas": (ONE, {"workers": 4, "replicas": (4,)}, 100),
    "busy workers slow each other": (CROWDED, {}, 99 * 1.5 + 2),
    "one busy worker slows nobody": (CROWDED, {"workers": 1}, 200),
}


@pytest.mark.parametrize(("costs", "options", "seconds"), BY_HAND.values(), ids=BY_HAND)
def test_a_small_stream_takes_as_long_as_by_hand(costs, options, seconds):
    assert run(costs, **options) == pytest.approx(seconds)


def test_a_layer_behind_is_fed_by_forward_passes():
    """One epoch alone, nine together, and one with forward passes of the layer below."""
    assert run([cost(1.0), cost(1.0)], delay=1.0) == pytest.approx(10 + 90 + 10, abs=2)
    assert run([cost(1.0), cost(0.1)], delay=1.0, workers=1) == pytest.approx(110 + 10 * 0.2)


def test_a_helper_comes_whenever_there_is_nothing_else():
    """Per minibatch: 0.5 beside the layer above, then 1.5 that two workers do in half the time."""
    costs = [cost(2.0, 1.0), cost(0.5)]
    assert run(costs) == pytest.approx(200.5)
    assert run(costs, replicas=(2, 1)) == pytest.approx(125, rel=0.02)


def test_a_long_stream_takes_as_much_longer():
    costs = [cost(1.0), cost(0.7)]
    short, long = (run(costs, epochs=n, steps=50) for n in (10, 1000))
    assert MOST_MINIBATCHES < 1000 * 50
    assert long == pytest.approx(100 * short, rel=0.01)


@pytest.mark.parametrize("steps", [2, 7, 500])
def test_a_long_stream_has_no_more_epochs_than_it_has(steps):
    epochs = 84_000 // steps
    found = run([cost(1.0, epoch_end=3.0)], epochs=epochs, steps=steps, workers=1)
    assert found == pytest.approx(epochs * (steps + 3.0), rel=1e-3)


@given(
    seconds=st.lists(st.floats(0.1, 3), min_size=1, max_size=4),
    workers=st.integers(1, 4),
    delay=st.sampled_from([0.0, 0.5, 2.0]),
    block=st.integers(1, 4),
)
def test_never_faster_than_all_work_spread_evenly(seconds, workers, delay, block):
    costs = [cost(x, forward=0.0) for x in seconds]
    took = run(costs, epochs=3, delay=delay, workers=workers, block=block)
    assert took >= 30 * max(sum(seconds) / workers, max(seconds)) * (1 - 1e-9)
    assert took <= 30 * sum(seconds) * (1 + 1e-9)
