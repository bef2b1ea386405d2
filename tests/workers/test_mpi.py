"""The MPI runtime on ranks that are threads: the bits of one thread, every failure told."""

from __future__ import annotations

import multiprocessing as mp
from types import SimpleNamespace

import pytest
from _links import Link
from localranks import local_ranks

from syncpretrain import Minibatches, pretrain
from syncpretrain.errors import SettingsError, WorkerError
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.pretraining import on_ranks
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.settings import settings_from
from syncpretrain.workers.epochs import LinkedEpochs
from syncpretrain.workers.link import Raised

LAYERS = (16, 12, 8, 5)


def run(bits, *, handoff="epoch", runtime="mpi", observers=(), **options):
    usual = {"epochs": 3, "batch_size": 30, "seed": 3, "handoff": handoff, "runtime": runtime}
    settings = settings_from(LAYERS, **(usual | options)).pretrain
    driver = Pretraining if handoff == "epoch" else StreamedPretraining
    return driver(settings, bits, bits[:50], observers=observers)


@pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
def test_a_slow_link_changes_no_bit(bits, handoff):
    wanted = run(bits, handoff=handoff, runtime="serial").run().parameters_sha256
    with local_ranks(4, Link(bandwidth=1e7, latency=2e-4)):
        assert run(bits, handoff=handoff).run().parameters_sha256 == wanted


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
