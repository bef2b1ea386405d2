"""Asynchronous pretraining and fine-tuning: what does not depend on timing, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from randomstacks import normal_stack
from stackcomparisons import arrays_of
from toyclasses import toy
from trialruns import died, settings_on

from syncpretrain import Minibatches, finetune, pretrain
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished, FinetuneEpochFinished, RunStarted
from syncpretrain.finetuning.updates import TunedReplica
from syncpretrain.pretraining.memory import replica_bytes
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import settings_from

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 10, 6)
PLAIN = {"epochs": 3, "batch_size": 10, "seed": 3, "warn": False}
RUNTIMES = ["serial", "threads", "processes"]


def trained(bits, **settings):
    return pretrain(bits[:160], layers=LAYERS, **{"schedule": "async", **PLAIN, **settings})


def tuned(**settings):
    X, y = toy(90)
    given = {"epochs": 2, "batch_size": 10, "schedule": "async", "runtime": "serial", **settings}
    return finetune(normal_stack((8, 6, 4), scale=0.5), X, y, **given)


TURNS = {"schedule": "async", "runtime": "serial", "replicas": 2}
TUNING = {"objective": "reconstruction", "epochs": 3, **TURNS}


def close(one, other):
    for a, b in zip(arrays_of(one), arrays_of(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


class TestPretraining:
    def test_its_start_and_its_epochs_are_told(self, bits):
        told = []
        trained(bits, epochs=2, replicas=2, observers=[told.append])
        ended = [(e.layer, e.epoch, e.reads) for e in told if isinstance(e, EpochFinished)]
        assert ended == [(1, 1, 0), (1, 2, 0), (2, 1, 2), (2, 2, 2)]
        (start,) = [e for e in told if isinstance(e, RunStarted)]
        assert (start.schedule, start.workers) == ("async", 2)

    @pytest.mark.parametrize(
        ("handoff", "usual"),
        [("epoch", {"schedule": "greedy", "blas_threads": 1}), ("minibatch", {"delay": 0})],
    )
    def test_one_replica_is_greedy_or_streamed_training(self, bits, handoff, usual):
        wanted = pretrain(bits[:160], layers=LAYERS, handoff=handoff, **usual, **PLAIN)
        close(trained(bits, handoff=handoff), wanted)

    @pytest.mark.parametrize(
        ("handoff", "runtime"),
        [
            ("epoch", "serial"),
            ("epoch", "threads"),
            ("minibatch", "threads"),
            ("minibatch", "processes"),
        ],
    )
    def test_replicas_learn(self, bits, handoff, runtime):
        stack = trained(bits, handoff=handoff, runtime=runtime, replicas=2, epochs=(6, 2))
        errors = stack.history.layers
        assert errors[0].train[-1] < errors[0].train[0]
        assert [len(own.train) for own in errors] == stack.info["epochs"] == [6, 2]

    def test_turns_depend_on_the_seed_and_on_the_staleness_alone(self, bits):
        made = [
            trained(bits, runtime="serial", replicas=2, **own).parameters_sha256
            for own in ({}, {}, {"simulate_staleness": 1}, {"simulate_staleness": 4}, {"seed": 4})
        ]
        assert made[0] == made[1] == made[2]
        assert len(set(made)) == 3

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"pace": "free"}, "pace: got free with schedule async"),
            ({"workers": 2}, "workers: got 2 with schedule async, where replicas"),
            ({"shards": 2}, "shards: got 2 with schedule async"),
            ({"split": "units"}, "split: got units with schedule async"),
            ({"refresh_epochs": 3}, "refresh_epochs: got 3 with schedule async, where no version"),
            ({"blas_threads": 2}, "blas_threads: got 2 with schedule async, where each replica"),
            ({"runtime": "serial", "servers": 2}, "servers: got 2 with runtime serial, whose"),
            ({"schedule": "greedy", "servers": 2}, "servers: got 2 with schedule greedy"),
            ({"settle": 0.1}, "settle: got 0.1 with schedule async"),
            ({"early_stopping": "pseudo-likelihood"}, "early_stopping: got pseudo-likelihood with"),
            ({"handoff": "minibatch", "delay": 1}, "delay: got 1.0 with schedule async"),
            ({"handoff": "minibatch", "replicas": (1, 2)}, "replicas: got 1,2 with schedule async"),
            ({"group_size": 2}, "group_size: got 2 with schedule async"),
            ({"push_every": 2, "fetch_every": 3}, "fetch_every: got 3 with push_every 2, expected"),
            ({"delay_compensation": 1}, "delay_compensation: got 1 with momentum, expected"),
            (
                {"delay_compensation": 1, "momentum": "0", "fetch_every": 2},
                "delay_compensation: got 1 with fetch_every above 1, expected",
            ),
            ({"replicas": 2000}, "replicas: got 2000, expected at most 1024"),
            ({"delay_compensation": float("inf")}, "delay_compensation: got inf, expected"),
            ({"simulate_staleness": 1}, "simulate_staleness: got 1 with runtime threads"),
            ({"schedule": "greedy", "push_every": 2}, "push_every: got 2 with schedule greedy"),
            ({"backend": "cupy"}, "backend: got cupy with schedule async"),
            ({"replay": ((0,),)}, "replay: got one with schedule async"),
        ],
    )
    def test_what_it_does_not_have_is_refused(self, bits, settings, message):
        with pytest.raises(SettingsError) as caught:
            trained(bits, **settings)
        assert str(caught.value).startswith(message)

    def test_replicas_may_be_more_than_the_examples_of_a_minibatch(self, bits):
        settings = {"layers": LAYERS[:2], "schedule": "async", "batch_size": 1, "epochs": 1}
        stack = pretrain(bits[:4], replicas=8, learning_rate=0.01, warn=False, **settings)
        assert stack.info["epochs"] == [1]

    @pytest.mark.parametrize(
        ("own", "vectors"),
        [
            ({"replicas": 2}, 12),
            ({"replicas": 3, "runtime": "serial"}, 20),
            ({"runtime": "serial", "simulate_staleness": 1000}, 22),  # 16 minibatches an epoch
            ({"runtime": "serial", "simulate_staleness": 1000, "push_every": 4}, 10),
        ],
    )
    def test_the_memory_of_replicas(self, own, vectors):
        settings = settings_from((3, 4, 2), schedule="async", **own).pretrain
        assert replica_bytes(settings, 16) == 4 * vectors * (3 * 4 + 3 + 4)
        streamed = settings_from((3, 4, 2), schedule="async", handoff="minibatch", **own).pretrain
        assert replica_bytes(streamed, 16) == 4 * vectors * (3 * 4 + 3 + 4 + 4 * 2 + 4 + 2)

    def test_examples_that_are_not_in_memory_are_refused(self, bits):
        with pytest.raises(SettingsError, match="schedule: got async with sparse rows or an"):
            trained_on = {"schedule": "async", "handoff": "minibatch", **PLAIN}
            pretrain(Minibatches([bits]), layers=LAYERS, **trained_on)


class TestFinetuning:
    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_one_replica_is_synchronous_fine_tuning(self, optimizer):
        own = {"optimizer": optimizer, "replicas": 1}
        usual = tuned(schedule="synchronous", runtime="threads", blas_threads=1, **own)
        close(tuned(**own), usual)

    def test_one_replica_is_the_same_in_every_runtime(self):
        places = [{"runtime": name} for name in RUNTIMES] + [{"runtime": "threads", "servers": 3}]
        stacks = [tuned(replicas=1, dropout=0.2, **place) for place in places]
        assert len({stack.parameters_sha256 for stack in stacks}) == 1

    @pytest.mark.parametrize(
        ("runtime", "push"), [("serial", 1), ("threads", 1), ("threads", 3), ("processes", 3)]
    )
    def test_replicas_learn_a_separable_problem(self, runtime, push):
        own = {"optimizer": "sgd", "learning_rate": 1.0, "epochs": 40}
        stack = tuned(runtime=runtime, replicas=2, push_every=push, **own)
        X, y = toy(90)
        assert (stack.predict(X) == y).mean() > 0.95

    @pytest.mark.parametrize("steps", [0, 7, 2**24 + 1, 2**40 + 3])
    def test_a_state_has_the_number_of_steps_exactly(self, steps):
        found, replica = [], object.__new__(TunedReplica)
        load = lambda state, *, steps: found.append(steps)  # noqa: E731
        replica._updates, replica._trained = SimpleNamespace(state=dict, load_state=load), steps
        state = replica.state()
        assert state["steps"].dtype == np.float32
        replica.load_state(state)
        replica.load_state({"steps": np.array([steps % 1000], np.float32)})  # an older one
        assert found == [steps, steps % 1000]

    def test_reconstruction_without_targets(self):
        X, _ = toy(90)
        own = {"epochs": 20, "batch_size": 10, "schedule": "async", "replicas": 2}
        stack = finetune(normal_stack((8, 6, 4), scale=0.5), X, **own)
        errors = stack.history.finetune.train
        assert errors[-1] < errors[0]

    def test_the_compensation_and_the_bound_change_stale_training_alone(self):
        plain = {"optimizer": "sgd", "replicas": 1}
        late = {**plain, "simulate_staleness": 3}
        made = [
            tuned(**own).parameters_sha256
            for own in (
                plain, {**plain, "max_staleness": 0}, late, {**late, "delay_compensation": 2},
                {**late, "max_staleness": 2}, {**late, "async_rate": "constant"},
            )
        ]  # fmt: skip
        assert made[0] == made[1]
        assert len(set(made)) == 5

    def test_turns_resume_to_the_same_bits(self):
        own = {"replicas": 2, "simulate_staleness": 3, "epochs": 3}
        whole = tuned(**own)
        for minibatches in (4, 9, 14):
            states, asked = [], iter(range(10**6))

            def save(state, *, done, final, states=states):
                states.append(state())

            def stop(asked=asked, minibatches=minibatches):
                return next(asked) >= minibatches

            with pytest.raises(RunInterrupted):
                tuned(stop=stop, save=save, **own)
            resumed = tuned(resume=states[-1], **own)
            assert resumed.parameters_sha256 == whole.parameters_sha256
            assert resumed.history == whole.history

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"optimizer": "cg"}, "finetune_optimizer: got cg with schedule async"),
            ({"split": "units"}, "finetune_split: got units with schedule async"),
            ({"shards": 2}, "finetune_shards: got 2 with schedule async"),
            ({"delay_compensation": 1}, "finetune_delay_compensation: got 1 with momentum"),
            ({"schedule": "synchronous"}, "finetune_runtime: got serial with schedule synchronous"),
            (
                {"schedule": "synchronous", "runtime": "threads", "max_staleness": 2},
                "finetune_max_staleness: got 2 with schedule synchronous, expected none",
            ),
            ({"backend": "cupy"}, "backend: got cupy with fine-tuning on schedule async"),
        ],
    )
    def test_what_it_does_not_have_is_refused(self, settings, message):
        with pytest.raises(SettingsError) as caught:
            tuned(**settings)
        assert str(caught.value).startswith(message)


class TestRuns:
    @pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
    @pytest.mark.parametrize(
        ("kind", "number"), [(EpochFinished, 1), (EpochFinished, 3), (FinetuneEpochFinished, 2)]
    )
    def test_a_run_that_died_goes_on_to_the_same_bits(self, bits, tmp_path, handoff, kind, number):
        settings = settings_on(tmp_path, bits, LAYERS, handoff=handoff, finetune=TUNING, **TURNS)
        whole = train_run(settings, out=tmp_path / "whole")
        assert whole["schedule"] == "async"
        folder = died(settings, tmp_path / "died", kind, number)
        assert resume_run(folder)["parameters_sha256"] == whole["parameters_sha256"]
