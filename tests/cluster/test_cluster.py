"""Ranks: their place in a job, messages and bells between them, how the loss of one is noticed."""

import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from _links import Link, emulate
from hypothesis import given
from hypothesis import strategies as st
from localengines import local_engines

from syncpretrain.cluster import job, transport
from syncpretrain.cluster.engine import APART_BYTES, pack, sizes_in, unpack
from syncpretrain.cluster.job import Membership, check_ranks, member, using
from syncpretrain.cluster.launched import launched
from syncpretrain.cluster.mpi import MARK_BYTES, Bells, import_mpi, machine_mark
from syncpretrain.cluster.transport import Beat, Naps, Peers, Transport
from syncpretrain.errors import SettingsError, WorkerError
from syncpretrain.parallel.barrier import ended
from syncpretrain.parallel.timeouts import Timeouts

WAIT = 20.0
PORT = (1, "things")


@contextmanager
def transports(size):
    made = [Transport(engine, Timeouts(join=WAIT)) for engine in local_engines(size)]
    try:
        yield made
    finally:
        for transport in made:
            transport.close()


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}, (0, 3)),
        ({"PMIX_RANK": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"PMI_RANK": "", "PMI_SIZE": "2"}, None),
        ({"PMIX_RANK": "1"}, None),
    ],
)
def test_the_place_in_a_job_follows_from_the_launchers_environment(environment, place, monkeypatch):
    monkeypatch.setattr("syncpretrain.cluster.launched.os.environ", environment)
    assert launched() == place


def test_large_arrays_are_not_copied_into_the_envelope():
    large = np.arange(APART_BYTES, dtype=np.float32).reshape(64, -1)
    things = {"large": large, "small": np.arange(3), "columns": large.T, "stripes": large[:, ::2]}
    parts = pack(PORT, 1.5, things)
    assert sizes_in(parts[0]) == (large.nbytes, large.nbytes)
    assert np.shares_memory(np.frombuffer(parts[1], np.float32), large)
    envelope, found = unpack([bytearray(part) for part in parts])
    assert (envelope.port, envelope.sent) == (PORT, 1.5)
    assert all(np.array_equal(found[name], own) for name, own in things.items())
    found["large"][0, 0] = 7.0  # what has come may be written to
    assert large[0, 0] == 0


def test_messages_arrive_in_order_and_wait_for_whoever_listens():
    with transports(3) as (first, second, third):
        large = np.ones(APART_BYTES, dtype=np.float32)
        for i in range(20):
            second.send(0, PORT, (i, large[: 1 + i * 500]))
            third.send(0, PORT, (100 + i, None))
        found = [first.take(PORT, WAIT) for _ in range(40)]
        for rank, start in ((1, 0), (2, 100)):
            assert [x[0] for source, x in found if source == rank] == list(range(start, start + 20))
        first.send(0, PORT, "to itself")
        assert first.take(PORT, WAIT) == (0, "to itself")
        assert first.take(PORT, 0.0) is None
        heard, done = [], threading.Event()

        def listen(source, thing):
            heard.append(thing)
            if thing == "last":
                done.set()

        second.send(0, (2, "early"), "before")
        second.send(0, PORT, "mark")
        assert first.take(PORT, WAIT) == (1, "mark"), "so the one before has come as well"
        first.listen((2, "early"), listen)
        second.send(0, (2, "early"), "last")
        assert done.wait(WAIT)
        assert heard == ["before", "last"]


def test_what_comes_for_a_run_that_is_over_is_dropped():
    with transports(2) as (first, second):
        second.send(0, (1, "old"), 1)
        second.send(0, (2, "new"), 2)
        assert first.take((2, "new"), WAIT) == (1, 2)
        first.forget(1)
        second.send(0, (1, "old"), 3)
        second.send(0, (2, "new"), 4)
        assert first.take((2, "new"), WAIT) == (1, 4)
        assert first.take((1, "old"), 0.0) is None


def test_a_run_is_forgotten_after_its_last_message_was_handled():
    """What the handler uses is closed then, and an error of it would end all communication."""
    begun, released, seen = threading.Event(), threading.Event(), []

    def handle(source, thing):
        begun.set()
        assert released.wait(WAIT)
        seen.append(thing)

    with transports(2) as (first, second):
        first.listen((1, "answers"), handle)
        second.send(0, (1, "answers"), "late")
        assert begun.wait(WAIT)
        threading.Timer(0.05, released.set).start()
        first.forget(1)
        assert seen == ["late"]


def test_a_failing_engine_breaks_every_wait_with_its_reason(monkeypatch):
    with transports(2) as (first, second):

        def fail():
            raise OSError("the cable is out")

        monkeypatch.setattr(first._engine, "take_arrived", fail)
        with pytest.raises(WorkerError, match=r"rank 0 can no longer .*OSError: the cable is out"):
            first.take(PORT, WAIT)
        assert not first.close()
        second.send(0, PORT, "in vain")


def test_ranks_that_add_up_bfloat16_in_different_orders_are_refused():
    with transports(3) as (leader, *_), using(leader) as own:
        own.sums = {0: "tiles", 1: "tiles", 2: "pairs"}
        check_ranks("mpi", "float32")
        with pytest.raises(SettingsError) as refused:
            check_ranks("mpi", "bfloat16", "finetune_runtime")
        assert str(refused.value).startswith("finetune_runtime: got mpi with precision bfloat16 on")
        told = r"orders: rank 2( on \S+)? by pairs, rank 0( on \S+)? by tiles; set SYNC"
        assert re.search(told, str(refused.value))
        assert "SYNCPRETRAIN_BFLOAT16=pairs for all of them" in str(refused.value)
        own.sums[2] = "tiles"
        check_ranks("mpi", "bfloat16")


def test_a_rank_that_leaves_waits_for_the_last_words_of_others():
    with transports(3) as ranks:
        first, *others = ranks
        for other in others:
            assert other.close(0.0)
        assert first.close(WAIT)
        assert first.peers.have_left([1, 2])


def test_a_rank_leaves_alone_when_others_stay():
    with transports(2) as (first, second):
        assert first.close(0.01)
        assert not first.peers.have_left([1])
        with second._arrived:
            assert second._is_handled.wait_for(lambda: second.peers.have_left([0]), WAIT)
        second._next_beat = 0.0
        assert second.close(0.01), "and says no more to who has left"


def test_the_first_rank_on_each_machine():
    peers = Peers(Beat("a", "A", 1), 0.0, 1.0)
    for rank, machine in ((2, "B"), (0, "A"), (3, "A"), (1, "B")):
        peers.record(rank, Beat(machine.lower(), machine, rank))
    assert peers.first_on_machines() == {0: 0, 1: 1, 2: 1, 3: 0}


def test_while_the_whole_job_is_stopped_no_rank_is_silent():
    with transports(2) as (first, second):
        second.send(0, PORT, "here")
        assert first.take(PORT, WAIT) == (1, "here")
        assert first.close(), "so that nothing but this test looks for messages"
        now = time.monotonic()
        first._looked = now - 100
        first.peers.hear(1, sent=0.0, now=now - 100)
        assert first.lost(1) is None, "nobody has listened since"
        first._post()
        assert first.lost(1) is None
        assert "not been heard of" in first.peers.lost(1, time.monotonic() + 31)


def test_who_is_missing_is_told_and_then_an_error(monkeypatch, capsys):
    monkeypatch.setattr(job, "MISSING_SECONDS", 0.01)
    with transports(3) as (first, second, _):
        second.send(0, job.HELLO, None)
        with pytest.raises(WorkerError, match=r"^rank 2 did not come within 0.1 s, to the same"):
            Membership(first).gather(0.1)
    assert "waiting for rank " in capsys.readouterr().err


def test_without_descriptors_of_processes_there_is_no_witness(monkeypatch):
    def refuse(pid):
        raise OSError("not implemented")

    monkeypatch.setattr(job.os, "pidfd_open", refuse)
    alone = job.Witness(job.new_address())
    assert alone.address is None, "so that no rank waits for it"
    alone.watch(1, "nobody")
    alone.close()


def test_only_rank_0_leads():
    with transports(2) as (first, second):
        with using(second), pytest.raises(SettingsError, match=r"^runtime: got mpi on rank 1, wh"):
            check_ranks("mpi", "float32")
        with using(first):
            check_ranks("mpi", "float32")


def test_a_launcher_of_another_mpi_library_is_told_from_none(monkeypatch):
    class Alone:
        size, library = 1, "Open MPI v5.0.11"

    monkeypatch.setattr(job, "MPIEngine", Alone)
    with pytest.raises(SettingsError, match=r"^runtime: got mpi in a single process, expected two"):
        member()
    tuning = r"^finetune_runtime: got mpi in a single .* train \.\.\. --finetune-runtime mpi$"
    with pytest.raises(SettingsError, match=tuning):
        check_ranks("mpi", "float32", "finetune_runtime")
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "3")
    told = r"got mpi in 3 processes that do not know each other.* loads \(Open MPI v5.0.11\)"
    with pytest.raises(SettingsError, match=told):
        member()


def test_a_link_takes_messages_one_after_the_other():
    link = Link(bandwidth=1000.0, latency=0.5)
    assert link.due(10.0, 2000) == 12.5
    assert link.due(11.0, 1000) == 13.5, "it waits for the first"
    assert link.due(20.0, 0) == 20.5
    with transports(2) as (first, second):
        emulate(first, Link(latency=1e-3))
        for i in range(3):
            second.send(0, PORT, i)
        assert [first.take(PORT, WAIT)[1] for _ in range(3)] == [0, 1, 2]


def test_the_loss_of_a_rank_is_noticed_by_its_process_its_last_word_or_its_silence():
    own = Beat("here", "machine", os.getpid())
    peers = Peers(own, now=0.0, first_seconds=60.0)
    assert peers.lost(1, 59.0) is None
    assert peers.lost(1, 61.0) == "did not come within 60 s"
    peers.record(1, own)
    peers.hear(1, sent=5.0, now=10.0)
    assert peers.lost(1, 40.0) is None
    assert "has not been heard of for 30 s" in peers.lost(1, 41.0)
    assert peers.offset(1) == 0.0, "the same machine has the same clock"
    peers.record(1, Beat("there", "other", os.getpid()))
    peers.hear(1, sent=6.0, now=12.0)
    assert peers.offset(1) == 5.0, "the shortest way that a message took"
    assert peers.name(1) == "rank 1 on there"
    child = os.posix_spawnp("true", ["true"], os.environ)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended(child, start=0), "though nobody has asked how"
        peers.record(1, Beat("here", "machine", child))
        assert peers.lost(1, 12.0) == f"(process {child}) was killed or has crashed"
    finally:
        os.waitpid(child, 0)
    peers.record(1, Beat("there", "other", 5, leaves=True))
    peers.record(1, own)
    assert peers.lost(1, 12.0) == "(process 5) has left", "which it said last"
    assert ended(child, start=0)
    assert not ended(os.getpid(), start=0)


def test_what_to_install_is_said_without_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    told = r"runtime: got mpi, which needs mpi4py .* pip install 'syncpretrain\[mpi\]' mpich$"
    with pytest.raises(SettingsError, match=told):
        import_mpi()


needs_bells = pytest.mark.skipif(not any(machine_mark()), reason="needs sockets without files")


def look(own, now, **found):
    usual = {"moved": False, "rings": False, "is_eager": False, "is_sending": False}
    return own.after(now, **(usual | found))


def settled(own, now, **found):
    return [look(own, now, **found) for _ in range(10)][-1]


def test_naps_grow_until_something_moves():
    own = Naps(now=0.0)
    assert [look(own, 0.0) / transport.SHORTEST_NAP for _ in range(3)] == [2, 4, 8]
    assert settled(own, 0.4) == transport.LONGEST_NAP
    assert look(own, 0.6) == 2 * transport.LONGEST_NAP, "nothing has moved for half a second"
    assert settled(own, 0.7) == transport.IDLE_NAP
    assert look(own, 0.8, is_sending=True) == transport.LONGEST_NAP, "for what is on its way"
    assert look(own, 0.9, moved=True) == transport.SHORTEST_NAP
    assert settled(own, 0.9, is_eager=True) == transport.EAGER_NAP


def test_where_a_bell_rings_naps_are_longer():
    own = Naps(now=0.0)
    assert look(own, 0.1, moved=True, rings=True) == transport.LONGEST_NAP
    assert settled(own, 0.2, rings=True) == transport.RESTING_NAP
    assert look(own, 0.1, moved=True, rings=True, is_sending=True) == transport.SENDING_NAP
    own.wake()
    assert look(own, 0.2, rings=True) == transport.SHORTEST_NAP, "it may come in a moment"


@given(st.lists(st.tuples(*[st.booleans()] * 5), max_size=40))
def test_no_nap_is_longer_than_a_rank_may_be_deaf(looks):
    own, now = Naps(now=0.0), 0.0
    for moved, rings, is_eager, is_sending, wakes in looks:
        if wakes:
            own.wake()
        found = {"moved": moved, "rings": rings, "is_eager": is_eager, "is_sending": is_sending}
        nap = look(own, now, **found)
        assert transport.SHORTEST_NAP <= nap <= transport.RESTING_NAP
        assert nap <= transport.LONGEST_NAP or not is_sending
        now += nap


@needs_bells
def test_a_bell_ends_a_wait_however_long_it_is():
    first, second = (Bells(b"job", rank, {0, 1}) for rank in range(2))
    try:
        assert not first.wait(0.0)
        second.ring(0)
        second.ring(0)
        assert first.wait(WAIT)
        assert not first.wait(1e-3), "it was heard once, and for all"
        first.ring(0)
        assert first.wait(WAIT), "one's own"
        for _ in range(1000):
            first.ring(1)  # which does not wait until it is heard
        assert second.wait(WAIT)
    finally:
        first.close()
        second.close()
    first.ring(1)  # which has left
    second.ring(0)


@needs_bells
def test_bells_of_other_jobs_and_machines_are_not_heard():
    own, other, far = Bells(b"one", 0, {0, 1}), Bells(b"two", 1, {0, 1}), Bells(b"one", 1, {1})
    try:
        other.ring(0)
        far.ring(0)
        assert not own.wait(1e-3)
    finally:
        for bells in (own, other, far):
            bells.close()


def test_the_mark_of_a_machine_is_the_same_again():
    assert machine_mark() == machine_mark()
    assert len(machine_mark()) == MARK_BYTES


def test_an_engine_that_was_woken_before_does_not_wait():
    first, second = local_engines(2)
    first.wake()
    assert first.wait(WAIT)
    assert not first.wait(0.0)
    second.start(0, [b"envelope"])
    assert first.wait(WAIT)
    assert first.take_arrived() == [(1, [bytearray(b"envelope")])]


def test_who_sends_wakes_a_rank_that_would_sleep_for_long(monkeypatch):
    """Each of many messages is waited for, so that both ranks rest before each."""
    monkeypatch.setattr(transport, "RESTING_NAP", 4 * WAIT)
    with transports(2) as ranks:
        for i in range(50):
            ranks[0].send(1, PORT, np.full(1 << 15, i, dtype=np.float32))
            assert ranks[1].take(PORT, WAIT)[1][0] == i
            ranks[1].send(0, PORT, i)
            assert ranks[0].take(PORT, WAIT)[1] == i
        assert all(rank.close() for rank in ranks)


def test_a_message_ends_only_the_wait_at_its_own_port():
    with transports(2) as (first, second), ThreadPoolExecutor(2) as pool:
        names = ["one", "other"]
        found = [pool.submit(second.take, (1, name), WAIT) for name in names]
        for name in reversed(names):
            first.send(1, (1, name), name)
        assert [take.result(WAIT) for take in found] == [(0, name) for name in names]
        assert first.close() and second.close()
