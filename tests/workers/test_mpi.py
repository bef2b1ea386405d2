"""The MPI runtime on ranks that are threads: the data sent, the bits, every failure told.

Streamed layers answer a block before its last minibatch is done.
"""

import contextlib
import itertools
import multiprocessing as mp
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from _links import Link
from disturbedsteps import after_steps, before_steps
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from localranks import local_ranks

from syncpretrain import Minibatches, pretrain
from syncpretrain.data import blocks
from syncpretrain.data.blocks import ByteRows
from syncpretrain.errors import RunInterrupted, SettingsError, WorkerError
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining import memory, on_ranks
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.schedule.stream import StreamPlan
from syncpretrain.settings import settings_from
from syncpretrain.workers.epochs import LinkedEpochs
from syncpretrain.workers.link import Raised, RemoteTraceback
from syncpretrain.workers.ranks import stream as held
from syncpretrain.workers.ranks.run import RankLink
from syncpretrain.workers.ranks.stream import StreamWorker
from syncpretrain.workers.ranks.worker import RankContext, received, to_send
from syncpretrain.workers.streamed.job import GiveLayer, Processed
from syncpretrain.workers.streamed.layer import StreamedLayer
from syncpretrain.workers.streamed.remote import LinkedStream, RemoteLayer

LAYERS = (16, 12, 8, 5)


def run(bits, *, handoff="epoch", runtime="mpi", **options):
    usual = {"epochs": 3, "batch_size": 30, "seed": 3, "handoff": handoff, "runtime": runtime}
    settings = settings_from(LAYERS, **(usual | options)).pretrain
    return driver_for(settings, bits, bits[:50])


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


EPOCHS = (3, 2, 4)
WAIT = 20.0


def ahead(bits, runtime="mpi", *, save=None, resume=None, **options):
    """Return a streamed run, whose ranks answer a block before its last minibatch is done."""
    given = {"epochs": EPOCHS, "delay": 0.4, **options}
    own = run(bits, handoff="minibatch", runtime=runtime, **given)
    own.save, own.resume = save, resume
    return own


@pytest.fixture(scope="module")
def wanted(bits):
    return ahead(bits, "serial").run().parameters_sha256


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
        own = ahead(bits)
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
        ahead(bits).run()
    assert isinstance(caught.value.stack, Stack)


def test_a_failure_of_a_layer_that_only_forwards_is_reported(bits, monkeypatch):
    original = StreamedLayer._forward
    last = max(ahead(bits, "serial")._schedule.ends)

    def forward(self, X, rows, out):
        if self.number == 1 and self.position == last - 1:
            raise ValueError("out of luck")
        original(self, X, rows, out)

    monkeypatch.setattr(StreamedLayer, "_forward", forward)
    with local_ranks(4), pytest.raises(WorkerError, match=r"layer 1 failed in .*: ValueError"):
        ahead(bits).run()


def raised():
    error = ValueError("out of luck")
    error.__cause__ = RemoteTraceback("where")
    return Raised(error)


@pytest.fixture
def remote():
    ranks = SimpleNamespace(groups={2: (7,)}, sent=[], lost=lambda layer: None)
    peers = SimpleNamespace(name="rank {}".format, offset=lambda rank: 0.0)
    ranks.transport = SimpleNamespace(peers=peers)
    ranks.listen = lambda name, handler, number: None
    ranks.send = lambda layer, name, thing: ranks.sent.append(thing)
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
    wanted = ahead(bits, "serial", **options).run().parameters_sha256
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
                ahead(bits, save=save, **options).run()
    assert len(states) > 1
    for state in states:
        assert ahead(bits, "threads", resume=state, **options).run().parameters_sha256 == wanted
    with local_ranks(3):
        assert ahead(bits, resume=state, **options).run().parameters_sha256 == wanted


def test_a_state_with_more_between_two_layers_than_a_ring_has_room_for(bits, wanted, monkeypatch):
    states = []
    with monkeypatch.context() as patched:
        patched.setattr(memory, "RING_MINIBATCHES", 17)
        ahead(bits, "serial", save=lambda state, *, done, final: states.append(state())).run()
    state = max(states, key=lambda state: len(state.layers[0].ring))
    assert len(state.layers[0].ring) > memory.RING_MINIBATCHES
    for runtime in ("serial", "threads"):
        assert ahead(bits, runtime, resume=state).run().parameters_sha256 == wanted


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
            ahead(bits).run()
    assert sorted(sent["seldom"]) == [(i, n) for i, n in enumerate(EPOCHS, start=1)]
    assert len(sent["always"]) == sum(EPOCHS)


def same_bits(one, other):
    return one.dtype == other.dtype and np.array_equal(one.view(np.int32), other.view(np.int32))


def test_images_travel_as_bytes():
    pixels = np.arange(3 * 2**19, dtype=np.uint32).astype(np.uint8).reshape(-1, 512)
    train = pixels / np.float32(255)
    sent, small = to_send((train, train[:10]))
    assert isinstance(sent, ByteRows)
    assert sent.numbers.nbytes == train.nbytes // 4
    assert small.base is train, "what is small stays as it is"
    again, few = received((sent, small))
    assert same_bits(again, train)
    assert same_bits(few, train[:10])


@pytest.mark.parametrize("odd", [0.1, -1e-6, 1.0001, 300.0, -0.0, np.nan, np.inf, 1e-30])
@pytest.mark.parametrize("place", [0, -1])
def test_one_value_that_is_no_byte_keeps_all_as_they_are(odd, place):
    train = np.ones((2**10, 2**10), dtype=np.float32)
    train.flat[place] = odd
    assert to_send((train,))[0] is train


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.one_of(
            st.floats(width=32),
            st.integers(0, 255).map(lambda n: float(np.float32(n) / np.float32(255))),
        ),
    )
)
def test_whatever_is_sent_arrives(rows):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "LEAST_BYTES", 0)
        patched.setattr(blocks, "BLOCK_VALUES", 4)  # some blocks of rows
        again, none = received(to_send((rows, rows[:0])))
    assert same_bits(again, rows)
    assert none.shape == (0, rows.shape[1])
