"""Several workers in one layer: the bits depend on the shards alone."""

import pytest
from trialruns import library_threads

from syncpretrain import finetune, pretrain
from syncpretrain.schedule.kinds import LayerPlan, Planned, greedy_row, lockstep_row
from syncpretrain.schedule.schedule import Schedule
from syncpretrain.workers.threads import ThreadsRuntime

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)


def train(bits, **settings):
    return pretrain(bits, **({"layers": LAYERS, "batch_size": 30, "epochs": 2} | settings))


@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fine_tuning_gives_the_same_bits_with_any_number_of_workers(bits, split, dropout):
    stack = train(bits, epochs=1)
    settings = {"batch_size": 30, "epochs": 2, "shards": 4, "split": split, "dropout": dropout}
    tuned = [finetune(stack, bits, replicas=replicas, **settings) for replicas in (1, 2, 3, 4)]
    assert len({one.parameters_sha256 for one in tuned}) == 1
    assert not library_threads()


def test_workers_to_spare_go_to_the_layer_with_the_longest_way_to_go():
    plans = [LayerPlan(epochs=3)] * 3
    schedule = Schedule(plans, Planned(plans, lockstep_row), slots=3)
    schedule.begin()
    assert schedule.workers_per_layer(4, (3, 2, 1)) == {1: 3}, "no more than the layer takes"
    assert schedule.workers_per_layer(2, (3, 2, 1)) == {1: 2}
    schedule.finished(1)
    assert set(schedule.training) == {1, 2}
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


def test_members_are_given_and_taken_while_a_run_goes_on(bits, monkeypatch):
    """The lowest layer has both workers until layer 2 wakes, and the top one at its end."""
    given, set_workers = [], ThreadsRuntime.set_workers

    def note(self, layer, workers):
        given.append((layer, workers))
        set_workers(self, layer, workers)

    monkeypatch.setattr(ThreadsRuntime, "set_workers", note)
    train(bits, split="units", replicas=2, workers=2)
    assert given[0] == (1, 2)
    assert (1, 1) in given
    assert given[-1] == (3, 2)
