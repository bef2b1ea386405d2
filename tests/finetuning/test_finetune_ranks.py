"""Fine-tuning on ranks that are threads: the bits of as many shards in one process."""

import re
import signal
from contextlib import nullcontext
from itertools import count

import numpy as np
import pytest
from localranks import local_ranks
from scipy import sparse

from syncpretrain import finetune, pretrain
from syncpretrain.cluster.transport import last_beat
from syncpretrain.errors import DataError, DivergedError, RunInterrupted, SettingsError, WorkerError
from syncpretrain.events import FinetuneEpochFinished
from syncpretrain.finetuning.options import tuning_options
from syncpretrain.learners.on_ranks import ExamplesOnRanks
from syncpretrain.settings import Settings, moved_elsewhere, off_ranks, replaced, settings_from
from syncpretrain.workers.state import FINETUNE_STATE

USUAL = {"epochs": 2, "batch_size": 30, "seed": 3, "warn": False}
VARIANTS = {
    "plain": {"replicas": 4},
    "odd": {"replicas": 3, "shards": 7, "optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    "no memory": {"replicas": 2, "optimizer": "sgd", "weight_decay": 0.01},
    "dropout": {"replicas": 4, "dropout": 0.3, "input_dropout": 0.1, "weight_decay": 0.01},
    "small rest": {"replicas": 5, "shards": 8, "batch_size": 66},  # of 200 examples
    "early": {"replicas": 2, "patience": 1, "epochs": 4},
    "rest without rows": {"replicas": 7, "shards": 11, "batch_size": 65},  # 5 examples
}
CONVOLUTIONS = "1x4x4,conv:3x3:same,pool:2,conv:4x2,6"


@pytest.fixture(scope="module", params=[(16, 12, 5), CONVOLUTIONS], ids=["dense", "convolutions"])
def stack(request, bits):
    return pretrain(bits, layers=request.param, epochs=1, batch_size=30, seed=1, warn=False)


def tune(stack, bits, runtime="mpi", y=None, **options):
    given = {**USUAL, "validation": bits[:50], "split": "examples", "runtime": runtime, **options}
    if y is not None:
        given["validation_y"] = y[:50]
    return finetune(stack, bits, y, **given)


@pytest.fixture(scope="module")
def oracle(stack, bits):
    """Return the parameters of each variant, in one process."""
    return {name: tune(stack, bits, "threads", **own) for name, own in VARIANTS.items()}


@pytest.mark.parametrize(
    ("size", "names"),
    [(2, list(VARIANTS)), (3, ["odd", "plain"]), (6, ["plain", "small rest", "rest without rows"])],
)
def test_the_bits_are_those_of_one_process(stack, bits, oracle, size, names):
    with local_ranks(size) as ranks:
        for name in names:
            found = tune(stack, bits, **VARIANTS[name])
            assert found.parameters_sha256 == oracle[name].parameters_sha256, name
            assert found.history.finetune == oracle[name].history.finetune, name
    wanted = [oracle[name].parameters_sha256 for name in names]
    for told in ranks.told:
        assert [ended.value.parameters_sha256 for ended in told] == wanted


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_targets_and_weights_of_examples(stack, bits, kind):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, len(bits)) if kind == "classes" else bits @ rng.random((16, 2)) + 0.5
    own = {"y": y, "weights": rng.random(len(bits)), "replicas": 3}
    alone = tune(stack, bits, "threads", **own)
    with local_ranks(3):
        assert tune(stack, bits, **own).parameters_sha256 == alone.parameters_sha256


def test_each_rank_has_its_shards_and_threads(stack, bits, monkeypatch):
    threads, gradient = set(), ExamplesOnRanks._gradient

    def note(self, i):
        threads.add((self.group.size, self.group.number, self.own[i]))
        gradient(self, i)

    monkeypatch.setattr(ExamplesOnRanks, "_gradient", note)
    with local_ranks(4):
        tune(stack, bits, replicas=2, shards=5)
    assert threads == {(2, 0, 0), (2, 0, 1), (2, 1, 2), (2, 1, 3), (2, 1, 4)}


def stopped_state(stack, bits, size, moment, **options):
    """Return the state of a run that is stopped after an epoch, or in it."""
    states, seen = [], count(1)

    def stop(event):
        if isinstance(event, FinetuneEpochFinished) and event.epoch == 2 and moment == "after":
            signal.raise_signal(signal.SIGINT)

    def asked():
        return moment == "in" and next(seen) == 10

    def save(state, *, done, final):
        if final:
            states.append(state())

    with local_ranks(size) as ranks, pytest.raises(RunInterrupted):
        tune(stack, bits, observers=[stop], stop=asked, save=save, epochs=4, **options)
    assert not ranks.own.broken
    return states[0]


@pytest.mark.parametrize(
    ("moment", "optimizer"), [("in", {}), ("after", {"optimizer": "sgd", "momentum": 0.5})]
)
def test_a_stopped_run_is_resumed_by_any_number_of_ranks(stack, bits, tmp_path, moment, optimizer):
    own = {"replicas": 4, "shards": 5, **optimizer}
    wanted = tune(stack, bits, "threads", epochs=4, **own).parameters_sha256
    FINETUNE_STATE.write(tmp_path / "state", stopped_state(stack, bits, 4, moment, **own), {})
    for runtime, around in (("mpi", local_ranks(3)), ("threads", nullcontext())):
        state = FINETUNE_STATE.read(tmp_path / "state")
        with around:
            again = tune(stack, bits, runtime, epochs=4, resume=state, **own)
        assert again.parameters_sha256 == wanted, runtime


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_error_on_one_rank_names_it(stack, bits, monkeypatch, number):
    healthy = ExamplesOnRanks.train_step

    def broken(self, X, rows, *, epoch, step, **how):
        if self.group.number == number and (epoch, step) == (2, 1):
            raise ValueError("out of luck")
        return healthy(self, X, rows, epoch=epoch, step=step, **how)

    monkeypatch.setattr(ExamplesOnRanks, "train_step", broken)
    place = rf"fine-tuning failed in epoch 2 on rank {number} on .*: ValueError: "
    told = f"^{place * (number > 0)}out of luck"
    with local_ranks(4) as ranks:
        with pytest.raises((WorkerError, ValueError), match=told) as caught:
            tune(stack, bits, replicas=3)
        assert not ranks.own.broken, "the others have left"
        if number:
            assert caught.value.stack.info["finetune"][-1]["epochs"] == 1
            assert "in broken" in str(caught.value.__cause__.__cause__), "where it was raised"
    for told_rank in ranks.told:
        assert re.search("out of luck", str(told_rank[0].error))


def test_the_loss_of_a_rank_ends_the_run(stack, bits):
    with local_ranks(3) as ranks:
        peers = ranks.own.transport.peers

        def lose(event):
            if isinstance(event, FinetuneEpochFinished):
                peers.record(2, last_beat(peers.beats[2]))

        told = r"^fine-tuning failed in epoch \d+: rank 2 on .* has left$"
        with pytest.raises(WorkerError, match=told):
            tune(stack, bits, replicas=3, observers=[lose], epochs=1000)
        assert ranks.own.broken


def test_divergence_is_that_of_one_process(stack, bits):
    own = {"replicas": 2, "optimizer": "sgd", "learning_rate": 1e39}
    with pytest.raises(DivergedError) as alone:
        tune(stack, bits, "threads", **own)
    with local_ranks(3) as ranks:
        with pytest.raises(DivergedError) as caught:
            tune(stack, bits, **own)
        assert not ranks.own.broken
    assert str(caught.value) == str(alone.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "finetune_replicas: got none with runtime mpi, expected 2 or more"),
        ({"replicas": 1}, "finetune_replicas: got 1 with runtime mpi"),
        ({"replicas": 2, "optimizer": "cg"}, "finetune_replicas: got more than 1 with optimizer"),
        *(
            ({"replicas": 2, "split": split}, f"finetune_split: got {split} with runtime mpi")
            for split in ("units", "filters", "hybrid", "columns")
        ),
        ({"replicas": 2, "shards": 1}, "finetune_replicas: got 2 for 1 shards"),
        ({"replicas": 40, "split": "examples", "batch_size": 30}, "finetune_shards: got more than"),
    ],
)
def test_what_ranks_do_not_share_is_refused(options, told):
    with pytest.raises(SettingsError, match=f"^{told}"):
        tuning_options({"runtime": "mpi", **options})


def test_what_only_the_data_show_is_refused_on_every_rank(bits, stack):
    told = pytest.raises((SettingsError, DataError), match="mpi with rows that are sparse")
    with local_ranks(2) as ranks, told:
        finetune(stack, sparse.csr_matrix(bits), runtime="mpi", replicas=2)
    assert [type(ended.error) for ended in ranks.told[0]] == [SettingsError]


def test_a_run_that_leaves_the_ranks_keeps_its_bits():
    tuning = {"objective": "reconstruction", "runtime": "mpi", "replicas": 2}
    settings = settings_from((16, 5), runtime="mpi", finetune=tuning)
    assert isinstance(settings, Settings)
    moved = moved_elsewhere(settings, runtime="threads").finetune
    assert (moved.runtime, moved.split) == ("threads", "examples")
    assert off_ranks(settings.finetune) == moved
    assert moved_elsewhere(settings, workers=2).finetune == settings.finetune
    asynchronous = replaced(settings.finetune, schedule="async")
    assert off_ranks(asynchronous).split is None


@pytest.mark.parametrize("servers", [1, 2])
def test_one_asynchronous_replica_has_the_bits_of_one_in_turns(stack, bits, servers):
    own = {"schedule": "async", "split": None, "replicas": 1}
    alone = tune(stack, bits, "serial", **own).parameters_sha256
    with local_ranks(3):
        assert tune(stack, bits, servers=servers, **own).parameters_sha256 == alone
        tune(stack, bits, **(own | {"replicas": 3}))
