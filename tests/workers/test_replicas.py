"""Several workers in one layer: the bits depend on the shards alone."""

from __future__ import annotations

import numpy as np
import pytest
from trialruns import library_threads

from syncpretrain import finetune, pretrain
from syncpretrain.errors import WorkerError
from syncpretrain.learners.by_examples import ByExamples
from syncpretrain.schedule.kinds import LayerPlan, Planned, greedy_row, lockstep_row
from syncpretrain.schedule.schedule import Schedule

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)


@pytest.fixture(scope="module")
def train(bits):
    def run(**settings):
        return pretrain(bits, **({"layers": LAYERS, "batch_size": 30, "epochs": 2} | settings))

    return run


def assert_same(one, other):
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        for (name, a), (_, b) in zip(mine.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_shards_change_the_draws_and_so_the_bits(train):
    whole, cut = train(runtime="serial"), train(runtime="serial", shards=2)
    assert (whole.layers[0].weight != cut.layers[0].weight).any()


@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fine_tuning_gives_the_same_bits_with_any_number_of_workers(train, bits, split, dropout):
    stack = train(epochs=1)
    settings = {"batch_size": 30, "epochs": 2, "shards": 4, "split": split, "dropout": dropout}
    alone = finetune(stack, bits, replicas=1, **settings)
    for replicas in (2, 3, 4):
        assert_same(alone, finetune(stack, bits, replicas=replicas, **settings))
    assert not library_threads()


def test_a_failure_of_a_second_worker_names_its_layer(train, monkeypatch):
    healthy = ByExamples._move

    def broken(self, shard):
        if shard == 1 and self.learner.layer == 2 and self._epoch == 2:
            raise ZeroDivisionError("in the second shard")
        healthy(self, shard)

    monkeypatch.setattr(ByExamples, "_move", broken)
    with pytest.raises(
        WorkerError, match="layer 2 failed in epoch 2: ZeroDivisionError"
    ) as reported:
        train(replicas=2, workers=5)
    assert isinstance(reported.value.__cause__, ZeroDivisionError)
    assert not library_threads()


def running(schedule: Schedule) -> set[int]:
    return set(schedule.training)


def test_workers_to_spare_go_to_the_layer_with_the_longest_way_to_go():
    plans = [LayerPlan(epochs=3)] * 3
    schedule = Schedule(plans, Planned(plans, lockstep_row), slots=3)
    schedule.begin()
    assert schedule.workers_per_layer(4, (3, 2, 1)) == {1: 3}, "no more than the layer takes"
    assert schedule.workers_per_layer(2, (3, 2, 1)) == {1: 2}
    schedule.finished(1)
    assert running(schedule) == {1, 2}
    assert schedule.workers_per_layer(2, (3, 2, 1)) == {1: 1, 2: 1}
    assert schedule.workers_per_layer(3, (3, 2, 1)) == {1: 2, 2: 1}
    assert schedule.workers_per_layer(9, (3, 2, 1)) == {1: 3, 2: 2}
    assert schedule.workers_per_layer(1, (3, 2, 1)) == {1: 1, 2: 1}, "each has one"


def test_greedy_layers_take_turns_with_all_workers():
    plans = [LayerPlan(epochs=1), LayerPlan(epochs=1)]
    schedule = Schedule(plans, Planned(plans, greedy_row), slots=2)
    schedule.begin()
    assert schedule.workers_per_layer(4, (4, 2)) == {1: 4}
    schedule.finished(1)
    assert schedule.workers_per_layer(4, (4, 2)) == {2: 2}
    schedule.finished(2)
    assert schedule.workers_per_layer(4, (4, 2)) == {}


def test_members_are_given_and_taken_while_a_run_goes_on(train, monkeypatch):
    """The lowest layer has both workers until layer 2 wakes, and the top one at its end."""
    from syncpretrain.workers.threads import ThreadsRuntime

    given: list[tuple[int, int]] = []
    set_workers = ThreadsRuntime.set_workers

    def note(self, layer, workers):
        given.append((layer, workers))
        set_workers(self, layer, workers)

    monkeypatch.setattr(ThreadsRuntime, "set_workers", note)
    train(split="units", replicas=2, workers=2)
    assert given[0] == (1, 2)
    assert (1, 1) in given
    assert given[-1] == (3, 2)
