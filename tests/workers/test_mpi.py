"""The MPI runtime on ranks that are threads: the bits of one thread, every failure told."""

from __future__ import annotations

import multiprocessing as mp
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import sabotage
from localranks import local_ranks

from syncpretrain import Minibatches, pretrain
from syncpretrain.cluster.transport import Link, last_beat
from syncpretrain.errors import CheckpointError, DivergedError, SettingsError, WorkerError
from syncpretrain.events import EpochFinished, EpochStarted, Progress
from syncpretrain.observers.history import History
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.pretraining import build as building
from syncpretrain.pretraining import on_ranks
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.pretraining.streamed import driver as streaming
from syncpretrain.pretraining.streamed.driver import StreamedPretraining
from syncpretrain.settings import settings_from
from syncpretrain.workers.epochs import LinkedEpochs
from syncpretrain.workers.link import Raised
from syncpretrain.workers.state import EPOCHS_STATE, STREAM_STATE

LAYERS = (16, 12, 8, 5)
HANDOFFS = ("epoch", "minibatch")
VARIANTS = {
    "plain": {"epochs": 4},
    "uneven": {"epochs": (2, 5, 3), "refresh_epochs": (0, 2, 3)},
    "greedy": {"epochs": 3, "schedule": "greedy", "blas_threads": 1},
    "replicas": {"replicas": (2, 1, 2), "shards": 2, "split": "units"},
    "denoising": {"model": "denoising", "tied": False},
    "streamed": {"handoff": "minibatch", "epochs": (3, 1, 2), "delay": 0.4},
    "streamed, shared": {"handoff": "minibatch", "shards": 2, "replicas": (2, 1, 1)},
}


def run(bits, *, handoff="epoch", runtime="mpi", observers=(), **options):
    usual = {"epochs": 3, "batch_size": 30, "seed": 3, "handoff": handoff, "runtime": runtime}
    settings = settings_from(LAYERS, **(usual | options)).pretrain
    driver = Pretraining if handoff == "epoch" else StreamedPretraining
    return driver(settings, bits, bits[:50], observers=observers)


@pytest.fixture(scope="module")
def oracle(bits):
    """Return the parameters of each variant, trained in turns."""
    return {
        name: run(bits, runtime="serial", **options).run().parameters_sha256
        for name, options in VARIANTS.items()
    }


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_bits_are_those_of_one_thread(bits, oracle, size):
    with local_ranks(size):
        found = {
            name: run(bits, **options).run().parameters_sha256 for name, options in VARIANTS.items()
        }
    assert found == oracle


def test_a_slow_link_changes_no_bit(bits, oracle):
    with local_ranks(4, Link(bandwidth=1e7, latency=2e-4)):
        for name in ("plain", "streamed"):
            assert run(bits, **VARIANTS[name]).run().parameters_sha256 == oracle[name]


def test_inputs_of_many_chunks_of_rows():
    X = np.random.default_rng(0).random((2300, 64)).astype(np.float32)
    settings = {"layers": (64, 96, 40, 10), "epochs": 2, "validation": X[:100]}
    wanted = pretrain(X, **settings, runtime="serial").parameters_sha256
    with local_ranks(3) as ranks:
        for handoff in HANDOFFS:
            wanted = pretrain(X, **settings, runtime="serial", handoff=handoff)
            stack = pretrain(X, **settings, runtime="mpi", handoff=handoff)
            assert stack.parameters_sha256 == wanted.parameters_sha256
    for told in ranks.told:
        assert told[-1].value.parameters_sha256 == stack.parameters_sha256


def test_a_free_run_is_replayed_and_progress_is_told(bits):
    history, shares = History(), []

    def observe(event):
        if isinstance(event, Progress):
            shares.append(event.fraction)

    settings = {"epochs": (6, 3, 2), "pace": "free"}
    with local_ranks(4):
        free = run(bits, **settings, observers=[history, observe]).run()
    one = Pretraining(
        settings_from(LAYERS, batch_size=30, seed=3, runtime="serial", **settings).pretrain,
        bits,
        bits[:50],
        replay=history.reads,
    )
    assert one.run().parameters_sha256 == free.parameters_sha256


@pytest.mark.parametrize("handoff", HANDOFFS)
def test_a_state_of_any_number_of_ranks_is_resumed_by_any(bits, tmp_path, handoff):
    write, read = (
        (EPOCHS_STATE.write, EPOCHS_STATE.read)
        if handoff == "epoch"
        else (STREAM_STATE.write, STREAM_STATE.read)
    )
    options = {"handoff": handoff, "epochs": (8, 5, 6), "persistent": True}
    wanted = run(bits, runtime="serial", **options).run().parameters_sha256
    states = []
    with local_ranks(4):
        first = run(bits, **options)
        first.save = lambda state, *, done, final: states.append(state())
        assert first.run().parameters_sha256 == wanted
    write(tmp_path / "state", states[len(states) // 2], {})
    state = read(tmp_path / "state")
    with local_ranks(2):
        again = run(bits, **options)
        again.resume = state
        assert again.run().parameters_sha256 == wanted
    alone = run(bits, runtime="threads", **options)
    alone.resume = state
    assert alone.run().parameters_sha256 == wanted


WAYS = {
    "error": "in epoch 2 on rank {} on .*: ValueError: out of luck",
    "no way back": r"in epoch 2 .*OneWay: OneWay\('out of luck'",
    "exit": "in epoch 2 on rank {} on .*: SystemExit: 3",
    "worker_factory": "in epoch 1 on rank {} on .*: MemoryError: out of luck",
}


@pytest.mark.parametrize("handoff", HANDOFFS)
@pytest.mark.parametrize(("kind", "layer"), list(zip(WAYS, (1, 2, 3, 1), strict=True)))
def test_every_way_to_fail_is_told_with_layer_rank_and_cause(
    bits, monkeypatch, handoff, kind, layer
):
    builder = partial(sabotage.build_worker, kind, layer)
    monkeypatch.setattr(building, "build_worker", builder)
    builder = partial(sabotage.build_streamed_layer, kind, layer)
    monkeypatch.setattr(streaming, "build_streamed_layer", builder)
    told = f"^layer {layer} failed {WAYS[kind].format(layer)}"
    with local_ranks(4), pytest.raises(WorkerError, match=told) as caught:
        run(bits, handoff=handoff).run()
    assert caught.value.stack.widths == LAYERS
    assert "sabotage.py" in str(caught.value.__cause__.__cause__), "where it was raised"


@pytest.mark.parametrize("handoff", HANDOFFS)
def test_divergence_names_layer_epoch_and_rank(bits, handoff):
    told = r"^layer 2 diverged in epoch \d.* \(on rank 2 on "
    with local_ranks(4), pytest.raises(DivergedError, match=told):
        run(bits, handoff=handoff, learning_rate=(0.1, 1e6, 0.1), epochs=8).run()


@pytest.mark.parametrize("handoff", HANDOFFS)
@pytest.mark.parametrize("moment", [EpochStarted, EpochFinished])
def test_the_loss_of_a_rank_ends_the_run(bits, handoff, moment):
    with local_ranks(4) as ranks:
        peers = ranks.own.transport.peers

        def lose(event):
            if isinstance(event, moment) and (event.layer, event.epoch) == (2, 1):
                peers.record(3, last_beat(peers.beats[3]))

        told = r"^layer 3 failed .*: rank 3 on .* \(process \d+\) has left$"
        with pytest.raises(WorkerError, match=told):
            run(bits, handoff=handoff, observers=[lose], epochs=5000).run()
        assert ranks.own.broken, "the others are not left waiting"


def test_every_rank_raises_what_rank_0_does(bits):
    with local_ranks(3) as ranks:
        with pytest.raises(SettingsError, match=r"^batch_size: got 500"):
            pretrain(bits, layers=LAYERS, batch_size=500, runtime="mpi")
        stack = pretrain(bits, layers=LAYERS, epochs=1, runtime="mpi")
    for told in ranks.told:
        assert type(told[0].error) is SettingsError
        assert told[1].value.parameters_sha256 == stack.parameters_sha256


def test_a_rank_is_called_by_its_layers_as_long_as_it_holds_them(bits, monkeypatch):
    told = []
    with local_ranks(3) as ranks:
        monkeypatch.setattr(ranks.own, "describe", lambda *given: told.append(given))
        run(bits, epochs=1).run()
    assert told == [(1, "layer 1 failed: "), (2, "layer 2, 3 failed: "), (1,), (2,)]


def test_a_state_of_another_stack_is_refused(bits):
    states = []
    first = run(bits, handoff="minibatch", runtime="serial")
    first.save = lambda state, *, done, final: states.append(state())
    first.run()
    with local_ranks(3):
        other = run(bits, handoff="minibatch", model="autoencoder")
        other.resume = states[0]
        other.resume.layers[1].state.step_state.clear()
        with pytest.raises(CheckpointError, match="the state of layer 2 is of another layer"):
            other.run()


def test_an_iterable_stays_where_it_is(bits):
    stream = Minibatches(lambda number: iter([bits]))
    with local_ranks(2), pytest.raises(SettingsError, match="runtime: got mpi with an iterable"):
        pretrain(stream, layers=LAYERS, handoff="minibatch", runtime="mpi", epochs=1)


class Linked(LinkedEpochs):
    def _jobs(self):
        return [None, None]

    def _order(self, command):
        return command


def test_an_answer_that_comes_as_a_rank_is_lost_is_not_lost_with_it():
    lost = {"has_ended": True, "receive": lambda: None, "ending": lambda: "is gone"}
    first, second = (SimpleNamespace(channel=pipe, has_ended=False) for pipe in mp.Pipe())
    vars(second).update(lost)
    first.receive = lambda: Raised(ValueError("out of luck"))
    place = SimpleNamespace(start=lambda jobs: [first, second], end=list)
    place.replace = lambda number, death: None
    with first.channel, second.channel, Linked(place, TIMEOUTS) as runtime:
        second.channel.send_bytes(b".")
        errors = [str(runtime.wait(0.0).failure()) for _ in range(2)]
    assert errors == [
        "layer 1 failed in epoch 1: ValueError: out of luck",
        "layer 2 failed before its first epoch: is gone",
    ]


@pytest.mark.parametrize("call", [on_ranks.follow_command, lambda: on_ranks.on_every_rank(print)])
def test_a_rank_that_has_lost_rank_0_leaves_by_an_abort(monkeypatch, call):
    own = SimpleNamespace(transport=SimpleNamespace(rank=1), broken=False)

    def lost(transport):
        raise WorkerError("rank 0 has not been heard of for 30 s")

    monkeypatch.setattr(on_ranks, "member", lambda: own)
    monkeypatch.setattr(on_ranks, "follow", lost)
    with pytest.raises(WorkerError, match="rank 0"):
        call()
    assert own.broken, "MPI's own end would wait for rank 0"
