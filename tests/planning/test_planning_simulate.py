"""The simulation of a run against small cases worked out by hand, and what always holds of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncpretrain.planning.simulate import EpochCost, simulate
from syncpretrain.schedule.kinds import Free, LayerPlan, Pace, Planned, greedy_row, lockstep_row
from syncpretrain.schedule.schedule import Schedule


def run(costs, *, epochs=1, workers=1, replicas=None, schedule="synchronized"):
    plans = [LayerPlan(epochs)] * len(costs)
    pace: Pace = Free(plans)
    if schedule != "free":
        pace = Planned(plans, greedy_row if schedule == "greedy" else lockstep_row)
    machine = Schedule(plans, pace, slots=min(workers, len(costs)))
    return simulate(machine, costs, workers=workers, replicas=replicas or [1] * len(costs))


def cost(*seconds: float, transform: float = 0.0, validation: float = 0.0, slow: float = 1.0):
    """Return an epoch whose steps take ``seconds`` with 1, 2, ... workers."""
    train = dict(enumerate(seconds, start=1))
    return EpochCost(train, {1: transform}, validation, slow)


def case(costs, seconds, **options):
    return costs, seconds, options


ONE_CORE = [cost(4, validation=0.5), cost(2, transform=1, validation=0.25)]
ELASTIC, CROWDED = [cost(4, 2)] * 2, [cost(2, slow=1.5)] * 2
BY_NUMBER = [EpochCost({1: 8, 2: 4, 4: 2}, {1: 0})]
SHARED_TRANSFORM = [cost(1), EpochCost({1: 1}, {1: 2, 2: 1})]
BY_HAND = {
    "one core, greedy, makes layer 2's input once": case(
        ONE_CORE, 3 * 4.5 + 1 + 3 * 2.25, epochs=3, schedule="greedy"
    ),
    "one core, in lockstep, makes it in every epoch": case(
        ONE_CORE, 3 * (4.5 + 1 + 2.25), epochs=3
    ),
    "equal layers take one epoch more than one": case([cost(3)] * 2, 6 * 3, epochs=5, workers=2),
    "a slower first layer sets the pace": case([cost(4), cost(1)], 21, epochs=5, workers=2),
    "a slower last layer sets the pace": case([cost(1), cost(4)], 21, epochs=5, workers=2),
    # Layer 1 has both cores for its first epoch, one as soon as layer 2 is awake, and layer 2
    # has both again in the end.
    "a spare core": case(ELASTIC, 2 + 4 + 2, epochs=2, workers=2, replicas=[2, 2]),
    "a spare core for layer 1": case(ELASTIC, 2 + 4 + 4, epochs=2, workers=2, replicas=[2, 1]),
    "no use for a spare core": case(ELASTIC, 3 * 4, epochs=2, workers=2),
    # Layer 1's second epoch (6 s) has one core until layer 2 is done with its first (2 s), then
    # both for the 4 s of work that are left.
    "workers that come within an epoch speed up the rest": case(
        [cost(6, 3), cost(2)], 3 + 2 + 4 / 2 + 2, epochs=2, workers=2, replicas=[2, 1]
    ),
    # Alone, together twice, alone.
    "busy cores slow each other": case(CROWDED, 2 + 2 * 2 * 1.5 + 2, epochs=3, workers=2),
    "what was timed with all workers is not slowed again": case(
        [cost(2, 1.25, slow=1.5)], 5, epochs=4, workers=2, replicas=[2]
    ),
    # Two of three workers are busy: half of what all three lose.
    "contention grows with the cores": case(CROWDED, 2 + 2 * 1.25 + 2, epochs=2, workers=3),
    "validation takes one worker": case(
        [cost(4, 2, validation=1)], 2 * 3, epochs=2, workers=2, replicas=[2]
    ),
    "transforms are shared too": case(SHARED_TRANSFORM, 1 + 1 + 1, workers=2, replicas=[1, 2]),
    "between two numbers of workers the lower counts": case(BY_NUMBER, 4, workers=3, replicas=[3]),
    "above all numbers the highest counts": case(BY_NUMBER, 2, workers=8, replicas=[8]),
}


@pytest.mark.parametrize(("costs", "seconds", "options"), BY_HAND.values(), ids=BY_HAND)
def test_a_small_run_takes_as_long_as_by_hand(costs, seconds, options):
    assert run(costs, **options).seconds == pytest.approx(seconds)


def test_greedy_gains_nothing_from_a_second_core():
    found = run([cost(4), cost(2, transform=1)], epochs=2, schedule="greedy", workers=2)
    assert found.seconds == pytest.approx(2 * 4 + 1 + 2 * 2)
    assert (found.epochs, found.buffers) == ((2, 2), (1, 0))


def test_a_pipeline_has_more_versions_at_a_time():
    costs = [cost(3), cost(2, transform=1), cost(1, transform=1)]
    found = run(costs, epochs=6, workers=3)
    assert found.buffers[-1] == 0, "nobody reads the last layer"
    assert 1 < max(found.buffers) <= 3


@st.composite
def stacks(draw, *, most: int = 4):
    """Draw costs in which more workers help, but never more than their number."""
    costs = []
    for _ in range(draw(st.integers(1, 4))):
        whole = draw(st.floats(0.1, 10))
        share = draw(st.floats(0, 1))  # that workers share; the rest is one's
        train = {m: whole * (1 - share + share / m) for m in range(1, most + 1)}
        validation, made = draw(st.floats(0, 1)), draw(st.floats(0, 2))
        costs.append(EpochCost(train, {m: made / m for m in train}, validation))
    return costs


@settings(deadline=None)
@given(
    *(stacks(), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.floats(1, 2)),
    st.sampled_from(["synchronized", "free"]),
)
def test_never_faster_than_all_work_spread_evenly(costs, epochs, workers, elastic, slow, schedule):
    costs = [EpochCost(c.train, c.transform, c.validation, slow) for c in costs]
    replicas = [4 if elastic else 1] * len(costs)
    found = run(costs, epochs=epochs, workers=workers, replicas=replicas, schedule=schedule)
    least = sum(c.train[1] for c in costs) * epochs / workers
    assert found.seconds >= least * (1 - 1e-6)
    assert min(found.epochs) >= epochs


@pytest.mark.parametrize("schedule", ["synchronized", "greedy"])
@settings(deadline=None)
@given(stacks(), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_a_second_worker_of_equal_layers_is_never_slower(schedule, costs, epochs, workers, elastic):
    """In greedy training, of any layers."""
    costs = costs if schedule == "greedy" else [costs[0]] * len(costs)
    given = {"epochs": epochs, "schedule": schedule}
    given["replicas"] = [4 if elastic or schedule == "greedy" else 1] * len(costs)
    fewer, more = (run(costs, workers=n, **given).seconds for n in (workers, workers + 1))
    assert more <= fewer * (1 + 1e-6)
