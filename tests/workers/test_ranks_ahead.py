"""Streamed layers on ranks that answer a block before its last minibatch is done."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from disturbedsteps import after_steps, before_steps
from localranks import local_ranks

from syncpretrain.errors import RunInterrupted, WorkerError
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining import memory
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.schedule.stream import StreamPlan
from syncpretrain.settings import settings_from
from syncpretrain.workers.link import Raised, RemoteTraceback
from syncpretrain.workers.ranks import stream as held
from syncpretrain.workers.ranks.run import RankLink
from syncpretrain.workers.ranks.stream import StreamWorker
from syncpretrain.workers.ranks.worker import RankContext
from syncpretrain.workers.streamed.job import GiveLayer, Processed
from syncpretrain.workers.streamed.layer import StreamedLayer
from syncpretrain.workers.streamed.remote import LinkedStream, RemoteLayer

LAYERS = (16, 12, 8, 5)
EPOCHS = (3, 2, 4)
WAIT = 20.0


def run(bits, runtime="mpi", *, save=None, resume=None, **options):
    usual = {"epochs": EPOCHS, "batch_size": 30, "seed": 3, "delay": 0.4}
    settings = settings_from(LAYERS, handoff="minibatch", runtime=runtime, **(usual | options))
    own = StreamedPretraining(settings.pretrain, bits, bits[:50], save=save)
    own.resume = resume
    return own


@pytest.fixture(scope="module")
def wanted(bits):
    return run(bits, "serial").run().parameters_sha256


def test_a_block_is_answered_before_its_last_minibatch(bits, wanted, monkeypatch):
    """Not where an epoch may end with it, or the stream."""
    blocks, left = {}, []
    process, send = StreamWorker._process, RankContext.answer

    def processing(self, block):
        blocks[self.context.number] = block.last
        return process(self, block)

    def answering(self, answer):
        if isinstance(answer, Processed):
            last = blocks[self.number]
            left.append((last - answer.position, self.number, last))
        send(self, answer)

    monkeypatch.setattr(StreamWorker, "_process", processing)
    monkeypatch.setattr(RankContext, "answer", answering)
    with local_ranks(4):
        own = run(bits)
        assert own.run().parameters_sha256 == wanted
    assert {number for number, _, _ in left} == {0, 1}
    for number, layer, last in left:
        ends_pass = own.plans[layer - 1].at(last) % 7 == 0
        assert number == 0 or not ends_pass
    assert [layer.position for layer in own._layers] == list(own._schedule.ends)


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("step", range(7))
def test_a_failure_in_any_minibatch_is_reported_with_its_rank(bits, monkeypatch, layer, step):
    def fail(learner, epoch, at):
        if (learner.layer, epoch, at) == (layer, 2, step):
            raise ValueError("out of luck")

    before_steps(monkeypatch, fail)
    told = f"^layer {layer} failed in epoch 2 on rank {layer} on .*: ValueError: out of luck$"
    with local_ranks(4), pytest.raises(WorkerError, match=told) as caught:
        run(bits).run()
    assert isinstance(caught.value.stack, Stack)


def test_a_failure_of_a_layer_that_only_forwards_is_reported(bits, monkeypatch):
    original = StreamedLayer._forward
    last = max(run(bits, "serial")._schedule.ends)

    def forward(self, X, rows, out):
        if self.number == 1 and self.position == last - 1:
            raise ValueError("out of luck")
        original(self, X, rows, out)

    monkeypatch.setattr(StreamedLayer, "_forward", forward)
    with local_ranks(4), pytest.raises(WorkerError, match=r"layer 1 failed in .*: ValueError"):
        run(bits).run()


class Ranks:
    """Ranks that are sent orders, and answer what they were given."""

    def __init__(self):
        self.groups, self.sent = {2: (7,)}, []
        peers = SimpleNamespace(name="rank {}".format, offset=lambda rank: 0.0)
        self.transport = SimpleNamespace(peers=peers)

    def listen(self, name, handler, number):
        pass

    def send(self, layer, name, thing):
        self.sent.append(thing)

    def lost(self, layer):
        return None


def raised():
    error = ValueError("out of luck")
    error.__cause__ = RemoteTraceback("where")
    return Raised(error)


@pytest.fixture
def remote():
    """Return a layer, its link, and the ranks at its end."""
    ranks = Ranks()
    layer = RemoteLayer(2, StreamPlan(skipped=0, steps=70), 7, None, Timeouts(stall=WAIT, tick=0.0))
    link = RankLink(2, ranks)
    place = SimpleNamespace(progress=np.zeros(3), stop=lambda: None, replace=lambda *death: None)
    layer.connect(link, LinkedStream(place, [layer], list, Timeouts()))
    yield layer, link, ranks
    link.close()


def test_a_failure_that_is_no_answer_is_found_where_nothing_is_ordered(remote):
    layer, link, _ = remote
    layer.check()
    link.fail(7, raised())
    assert link.has_ended
    with pytest.raises(WorkerError, match=r"^layer 2 failed in .* on rank 7: ValueError: out of"):
        layer.check()
    layer.check()  # once


def test_a_failure_that_is_no_answer_is_not_taken_for_one(remote):
    layer, link, ranks = remote
    link.fail(7, raised())
    link.take(7, "the layer")
    assert layer.refresh()
    assert layer._newest == "the layer"
    assert [type(order) for order in ranks.sent] == [GiveLayer]


def test_a_late_answer_of_a_lost_rank_is_not_taken_for_that_to_another_order(remote, monkeypatch):
    layer, link, ranks = remote
    monkeypatch.setattr(ranks, "lost", lambda number: "rank 7 has left")
    with pytest.raises(WorkerError, match=r"rank 7 has left$"):
        layer.state(None)
    link.take(7, "a state")
    assert not layer.refresh()
    assert layer._newest is None


def test_a_run_stopped_anywhere_is_resumed_to_the_same_bits(bits, monkeypatch):
    options = {"epochs": (12, 8, 16)}
    wanted = run(bits, "serial", **options).run().parameters_sha256
    main, states = threading.main_thread().ident, []

    def save(state, *, done, final):
        if final:
            states.append(state())

    for number in range(5, 160, 31):
        seen = itertools.count(1)

        def interrupt(seen=seen, number=number):
            if next(seen) == number:
                signal.pthread_kill(main, signal.SIGINT)

        with monkeypatch.context() as patched, local_ranks(4):
            after_steps(patched, interrupt)
            with contextlib.suppress(RunInterrupted):  # it may be over before
                run(bits, save=save, **options).run()
    assert len(states) > 1
    for state in states:
        assert run(bits, "threads", resume=state, **options).run().parameters_sha256 == wanted
    with local_ranks(3):
        assert run(bits, resume=state, **options).run().parameters_sha256 == wanted


def test_a_state_with_more_between_two_layers_than_a_ring_has_room_for(bits, wanted, monkeypatch):
    states = []
    with monkeypatch.context() as patched:
        patched.setattr(memory, "RING_MINIBATCHES", 17)
        run(bits, "serial", save=lambda state, *, done, final: states.append(state())).run()
    state = max(states, key=lambda state: len(state.layers[0].ring))
    assert len(state.layers[0].ring) > memory.RING_MINIBATCHES
    for runtime in ("serial", "threads"):
        assert run(bits, runtime, resume=state).run().parameters_sha256 == wanted


def test_rank_0_is_sent_a_layer_at_its_end_and_once_in_a_while(bits, monkeypatch):
    sent = {"seldom": [], "always": []}
    original = RankContext.answer

    def note(self, answer):
        assert isinstance(answer, Processed), "no layer is asked for in the end"
        if answer.layer is not None:
            found.append((self.number, answer.results[-1].event.epoch))
        original(self, answer)

    monkeypatch.setattr(RankContext, "answer", note)
    for how, seconds in (("seldom", np.inf), ("always", -1.0)):
        monkeypatch.setattr(held, "KNOWN_SECONDS", seconds)
        found = sent[how]
        with local_ranks(4):
            run(bits).run()
    assert sorted(sent["seldom"]) == [(i, n) for i, n in enumerate(EPOCHS, start=1)]
    assert len(sent["always"]) == sum(EPOCHS)
