"""The simulation of a run against small cases worked out by hand, and what always holds of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncpretrain.planning.simulate import EpochCost, Simulated, simulate
from syncpretrain.schedule.kinds import Free, LayerPlan, Pace, Planned, greedy_row, lockstep_row
from syncpretrain.schedule.schedule import Schedule


def run(
    costs: list[EpochCost],
    *,
    epochs: int = 1,
    workers: int = 1,
    replicas: list[int] | None = None,
    schedule: str = "synchronized",
) -> Simulated:
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


def test_one_core_adds_everything_up():
    costs = [cost(4, validation=0.5), cost(2, transform=1, validation=0.25)]
    assert run(costs, epochs=3, schedule="greedy").seconds == pytest.approx(
        3 * 4.5 + 1 + 3 * 2.25
    ), "greedy makes layer 2's input once"
    assert run(costs, epochs=3).seconds == pytest.approx(3 * (4.5 + 1 + 2.25)), (
        "in lockstep every epoch of layer 2 has an input of its own"
    )


def test_greedy_gains_nothing_from_a_second_core():
    costs = [cost(4), cost(2, transform=1)]
    found = run(costs, epochs=2, schedule="greedy", workers=2)
    assert found.seconds == pytest.approx(2 * 4 + 1 + 2 * 2)
    assert found.epochs == (2, 2)
    assert found.buffers == (1, 0)


def test_two_equal_layers_in_lockstep_take_one_epoch_more_than_one():
    assert run([cost(3), cost(3)], epochs=5, workers=2).seconds == pytest.approx(6 * 3)


def test_the_slower_layer_sets_the_pace():
    first_slow = run([cost(4), cost(1)], epochs=5, workers=2)
    assert first_slow.seconds == pytest.approx(5 * 4 + 1)
    last_slow = run([cost(1), cost(4)], epochs=5, workers=2)
    assert last_slow.seconds == pytest.approx(1 + 5 * 4)


def test_a_spare_core_goes_to_the_layer_that_takes_more():
    # Layer 1 has both cores for its first epoch, one as soon as layer 2 is awake, and layer 2
    # has both again in the end.
    costs = [cost(4, 2), cost(4, 2)]
    elastic = run(costs, epochs=2, workers=2, replicas=[2, 2])
    assert elastic.seconds == pytest.approx(2 + 4 + 2)
    assert run(costs, epochs=2, workers=2, replicas=[2, 1]).seconds == pytest.approx(2 + 4 + 4)
    assert run(costs, epochs=2, workers=2).seconds == pytest.approx(3 * 4)


def test_workers_that_come_in_the_middle_of_an_epoch_speed_up_the_rest_of_it():
    # Layer 1's second epoch (6 s) has one core until layer 2 is done with its first (2 s), then
    # both for the 4 s of work that are left.
    costs = [cost(6, 3), cost(2)]
    found = run(costs, epochs=2, workers=2, replicas=[2, 1])
    assert found.seconds == pytest.approx(3 + 2 + 4 / 2 + 2)


def test_busy_cores_slow_each_other():
    costs = [cost(2, slow=1.5), cost(2, slow=1.5)]
    found = run(costs, epochs=3, workers=2)
    assert found.seconds == pytest.approx(2 + 2 * 2 * 1.5 + 2), "alone, together twice, alone"


def test_what_was_timed_with_all_workers_is_not_slowed_again():
    costs = [cost(2, 1.25, slow=1.5)]
    assert run(costs, epochs=4, workers=2, replicas=[2]).seconds == pytest.approx(5)


def test_contention_grows_with_the_cores_at_work():
    # Two of three workers are busy: half of what all three lose.
    costs = [cost(2, slow=1.5), cost(2, slow=1.5)]
    found = run(costs, epochs=2, workers=3)
    assert found.seconds == pytest.approx(2 + 2 * 1.25 + 2)


def test_a_validation_pass_takes_one_worker_whatever_there_is():
    costs = [EpochCost({1: 4, 2: 2}, {1: 0}, validation=1)]
    assert run(costs, epochs=2, workers=2, replicas=[2]).seconds == pytest.approx(2 * 3)


def test_transforms_are_shared_too():
    costs = [cost(1), EpochCost({1: 1}, {1: 2, 2: 1})]
    found = run(costs, workers=2, replicas=[1, 2])
    assert found.seconds == pytest.approx(1 + 1 + 1)


def test_between_two_numbers_of_workers_the_lower_one_counts():
    costs = [EpochCost({1: 8, 2: 4, 4: 2}, {1: 0})]
    assert run(costs, workers=3, replicas=[3]).seconds == pytest.approx(4)
    assert run(costs, workers=8, replicas=[8]).seconds == pytest.approx(2)


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
@given(stacks(), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.floats(1, 2))
def test_never_faster_than_all_work_spread_evenly(costs, epochs, workers, elastic, slow):
    costs = [EpochCost(c.train, c.transform, c.validation, slow) for c in costs]
    replicas = [4 if elastic else 1] * len(costs)
    found = run(costs, epochs=epochs, workers=workers, replicas=replicas)
    least = sum(c.train[1] for c in costs) * epochs / workers
    assert found.seconds >= least * (1 - 1e-6)
    assert min(found.epochs) >= epochs


@settings(deadline=None)
@given(stacks(), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_a_second_worker_of_equal_layers_is_never_slower(costs, epochs, workers, elastic):
    costs = [costs[0]] * len(costs)
    replicas = [4 if elastic else 1] * len(costs)
    fewer = run(costs, epochs=epochs, workers=workers, replicas=replicas)
    more = run(costs, epochs=epochs, workers=workers + 1, replicas=replicas)
    assert more.seconds <= fewer.seconds * (1 + 1e-6)


@settings(deadline=None)
@given(stacks(), st.integers(1, 5), st.integers(1, 4))
def test_greedy_is_never_slower_with_more_workers(costs, epochs, workers):
    replicas = [4] * len(costs)
    first = run(costs, epochs=epochs, workers=workers, replicas=replicas, schedule="greedy")
    more = run(costs, epochs=epochs, workers=workers + 1, replicas=replicas, schedule="greedy")
    assert more.seconds <= first.seconds * (1 + 1e-6)


@settings(deadline=None)
@given(stacks(), st.integers(1, 5), st.integers(1, 4))
def test_the_free_pace_ends_too(costs, epochs, workers):
    found = run(costs, epochs=epochs, workers=workers, schedule="free")
    assert min(found.epochs) >= epochs
