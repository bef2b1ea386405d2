"""Fine-tuning on bars and stripes, where a stack of a few units can learn every picture."""

import copy
from functools import partial
from itertools import count, product

import numpy as np
import pytest
from minibatches import train
from randomstacks import normal_stack
from stackcomparisons import arrays_of

from syncpretrain import pretrain
from syncpretrain.errors import DivergedError, RunInterrupted, StalledError
from syncpretrain.events import FinetuneEpochFinished, FinetuneStarted, Progress
from syncpretrain.finetuning import finetune, prepared
from syncpretrain.finetuning.chain import Affine
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import gradient_descent
from syncpretrain.parallel.worker_pool import WorkerPool

SIDE = 4
make_stack = partial(normal_stack, (16, 12, 6), scale=0.5)


def bars_and_stripes():
    stripes = [np.repeat(bits, SIDE).reshape(SIDE, SIDE) for bits in product((0, 1), repeat=SIDE)]
    pictures = np.array([*stripes, *(picture.T for picture in stripes)], dtype=np.float32)
    return np.unique(pictures.reshape(len(pictures), -1), axis=0)  # 30 pictures of 16 pixels


def error_of(stack, X):
    return float(((stack.reconstruct(X) - X) ** 2).sum() / len(X))


def tuned(stack=None, X=None, **settings):
    given = {"epochs": 3, "batch_size": 8, "blas_threads": 1, **settings}
    return finetune(stack or make_stack(), bars_and_stripes() if X is None else X, **given)


@pytest.mark.parametrize("split", ["units", "examples"])
def test_a_worker_that_waits_for_ever_for_another_one_is_a_stall(split, monkeypatch):
    def take_a_shard(self, rank):
        self._counters[0] += 1  # and never end it

    monkeypatch.setattr(WorkerPool, "_wake", take_a_shard)
    with pytest.raises(StalledError, match=r"syncpretrain-finetune waited 0\.25 s"):
        tuned(shards=2, replicas=2, split=split, stall_seconds=0.25)


class TestResult:
    def test_learns_bars_and_stripes(self):
        X, stack = bars_and_stripes(), make_stack()
        after = tuned(stack, X, epochs=400, learning_rate=0.01)
        assert error_of(after, X) < 0.5 < 2 < error_of(stack, X)

    def test_first_step_of_sgd_is_the_gradient_of_the_tied_stack_untied(self):
        X, stack = bars_and_stripes(), make_stack()
        after = tuned(stack, X, optimizer="sgd", epochs=1, batch_size=len(X), learning_rate=0.25)
        network = Network(
            [Affine(x.weight, x.hidden_bias, "bernoulli") for x in stack.layers]
            + [Affine(x.weight.T, x.visible_bias, "bernoulli") for x in reversed(stack.layers)],
            loss="squared",
            batch_size=len(X),
        )
        error = train(gradient_descent(network), X, X, rate=0.25)
        assert error / len(X) == pytest.approx(error_of(stack, X), rel=1e-5)
        found = [(x.weight, x.hidden_bias) for x in after.layers]
        found += [(x.decoder_weight, x.visible_bias) for x in reversed(after.layers)]
        for pair, expected in zip(found, network.chain, strict=True):
            for have, want in zip(pair, expected, strict=True):
                np.testing.assert_allclose(have, want, atol=1e-6)

    def test_input_stack_is_unchanged_and_nothing_is_shared(self):
        stack = make_stack(info={"epochs": [1, 1], "settings": {"seed": 3}})
        before, info = stack.parameters_sha256, copy.deepcopy(stack.info)
        after = tuned(stack)
        after.info["settings"]["seed"] = 4
        assert stack.info == info
        assert stack.parameters_sha256 == before
        mine, given = arrays_of(after), arrays_of(stack)
        assert not any(np.shares_memory(a, b) for a in mine for b in given)
        assert all(array.flags.c_contiguous and array.base is None for array in mine)

    def test_layers_are_untied_and_the_record_says_what_was_done(self):
        after = tuned(make_stack(info={"made": "by hand"}), seed=5)
        assert all(layer.decoder_weight is not None for layer in after.layers)
        assert after.widths == (16, 12, 6)
        assert after.info["made"] == "by hand"
        (record,) = after.info["finetune"]
        done = {"optimizer": "adam", "learning_rate": 0.001, "epochs": 3, "seed": 5, "examples": 30}
        assert done.items() <= record.items()

    def test_a_fine_tuned_stack_can_be_fine_tuned_again(self):
        X, once = bars_and_stripes(), tuned(epochs=5)
        twice = tuned(once, X, epochs=5)
        assert error_of(twice, X) < error_of(once, X)
        assert [len(stack.info["finetune"]) for stack in (once, twice)] == [1, 2]

    def test_other_seed_other_bits(self):
        assert tuned(seed=1).parameters_sha256 != tuned(seed=2).parameters_sha256


class TestEvents:
    def test_started_and_every_epoch(self):
        X, events, stack = bars_and_stripes(), [], make_stack()
        after = tuned(stack, X, validation=X[:7], observers=[events.append])
        started, *epochs = [event for event in events if not isinstance(event, Progress)]
        assert isinstance(started, FinetuneStarted)
        assert (started.objective, started.optimizer) == ("reconstruction", "adam")
        assert all(isinstance(event, FinetuneEpochFinished) for event in epochs)
        assert [event.epoch for event in epochs] == [1, 2, 3]
        assert [event.time for event in events] == sorted(event.time for event in events)
        assert epochs[-1].validation_error == pytest.approx(error_of(after, X[:7]), rel=1e-5)

    def test_progress_comes_within_an_epoch_without_validation_error(self, monkeypatch):
        monkeypatch.setattr("syncpretrain.finetuning.trainer.PROGRESS_SECONDS", 0.0)
        events = []
        tuned(epochs=1, observers=[events.append])
        progress = [event for event in events if isinstance(event, Progress)]
        assert [event.fraction for event in progress] == [0.25, 0.5, 0.75, 1.0]
        assert {(event.layer, event.epoch) for event in progress} == {(0, 1)}
        assert events[-1].validation_error is None, "there is no validation"

    def test_large_validation_data_is_sampled_evenly(self):
        X, events = np.tile(bars_and_stripes(), (100, 1)), []
        after = tuned(validation=X, observers=[events.append])
        expected = error_of(after, X[np.arange(1000) * 3])
        assert events[-1].validation_error == pytest.approx(expected, rel=1e-5)


class TestMinibatches:
    def test_every_example_counts_once_an_epoch_whatever_the_batch(self):
        X, stack = bars_and_stripes(), make_stack()
        for batch_size in (1, 7, 29, 30):
            events = []
            tuned(stack, X, batch_size=batch_size, learning_rate=1e-12, observers=[events.append])
            assert events[-1].train_error == pytest.approx(error_of(stack, X), rel=1e-5)


@pytest.mark.parametrize(
    ("minibatches", "match", "done"),
    [(0, "epoch 1", (0, 0)), (5, "epoch 2 of 3", (1, 1)), (4, "stopped in epoch", (1, 0))],
)
def test_a_run_that_is_stopped_holds_the_updates_before(minibatches, match, done):
    """An epoch has 4 of them."""
    asked, stack = count(1), make_stack()
    with pytest.raises(RunInterrupted, match=match) as caught:
        tuned(stack, stop=lambda: next(asked) > minibatches)
    found = caught.value.stack
    (record,) = found.info["finetune"]
    assert (record["epochs"], record["minibatches_since"]) == done
    if done == (0, 0):
        np.testing.assert_array_equal(found.layers[0].weight, stack.layers[0].weight)
    is_one_epoch = found.parameters_sha256 == tuned(epochs=1).parameters_sha256
    assert is_one_epoch == (done == (1, 0))


class TestDivergence:
    def test_infinite_step_raises_with_the_input_stack(self):
        stack = make_stack()
        with pytest.raises(DivergedError, match="fine-tuning diverged in epoch 1") as caught:
            tuned(stack, optimizer="sgd", learning_rate=1e39)
        assert caught.value.stack is stack

    def test_infinite_last_step_is_seen(self):
        with pytest.raises(DivergedError, match="no longer finite"):
            tuned(optimizer="sgd", learning_rate=1e39, epochs=1, batch_size=30)

    def test_saturated_units_are_a_divergence(self):
        X, stack = bars_and_stripes(), tuned(epochs=200, learning_rate=0.01)
        with pytest.raises(DivergedError, match="training error rose") as caught:
            tuned(stack, X, optimizer="sgd", learning_rate=1e20)
        assert caught.value.stack is stack

    def test_a_later_epoch_leaves_the_last_finite_one(self):
        X = bars_and_stripes()

        def poison(event):
            if isinstance(event, FinetuneEpochFinished) and event.epoch == 2:
                X[3, 3] = np.nan  # float32 rows are not copied

        with pytest.raises(DivergedError, match="in epoch 3") as caught:
            tuned(X=X, observers=[poison])
        assert caught.value.stack.parameters_sha256 == tuned(epochs=2).parameters_sha256
        assert caught.value.stack.info["finetune"][0]["epochs"] == 2

    def test_a_poor_start_is_no_divergence(self):
        tuned(make_stack(scale=0.0), optimizer="sgd", learning_rate=1e-6, batch_size=1)


def test_more_replicas_than_cores_start_no_more_threads_than_help(bits, monkeypatch):
    asked, pool = [], prepared.WorkerPool

    def noted(most, *others):
        asked.append(most)
        return pool(most, *others)

    monkeypatch.setattr(prepared, "WorkerPool", noted)
    monkeypatch.setattr(prepared, "usable_cores", lambda: 2)
    stack = pretrain(bits, layers=[16, 9], epochs=1)
    many = finetune(stack, bits, epochs=1, batch_size=100, replicas=8, split="examples")
    few = finetune(stack, bits, epochs=1, batch_size=100, replicas=2, shards=8, split="examples")
    assert asked == [4, 2]
    assert many.parameters_sha256 == few.parameters_sha256
