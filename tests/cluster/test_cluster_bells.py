"""Bells between ranks, and the naps of the thread that they wake."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from localengines import local_engines

from syncpretrain.cluster import transport
from syncpretrain.cluster.mpi import MARK_BYTES, Bells, machine_mark
from syncpretrain.cluster.transport import Naps, Transport
from syncpretrain.parallel.timeouts import Timeouts

WAIT = 20.0
PORT = (1, "things")
needs_bells = pytest.mark.skipif(not any(machine_mark()), reason="needs sockets without files")


def look(own, now, **found):
    usual = {"moved": False, "rings": False, "is_eager": False, "is_sending": False}
    return own.after(now, **(usual | found))


def test_naps_grow_until_something_moves():
    own = Naps(now=0.0)
    assert [look(own, 0.0) / transport.SHORTEST_NAP for _ in range(3)] == [2, 4, 8]
    for _ in range(10):
        longest = look(own, 0.4)
    assert longest == transport.LONGEST_NAP
    assert look(own, 0.6) == 2 * transport.LONGEST_NAP, "nothing has moved for half a second"
    for _ in range(10):
        longest = look(own, 0.7)
    assert longest == transport.IDLE_NAP
    assert look(own, 0.8, is_sending=True) == transport.LONGEST_NAP, "for what is on its way"
    assert look(own, 0.9, moved=True) == transport.SHORTEST_NAP
    for _ in range(10):
        longest = look(own, 0.9, is_eager=True)
    assert longest == transport.EAGER_NAP


def test_where_a_bell_rings_naps_are_longer():
    own = Naps(now=0.0)
    assert look(own, 0.1, moved=True, rings=True) == transport.LONGEST_NAP
    for _ in range(10):
        longest = look(own, 0.2, rings=True)
    assert longest == transport.RESTING_NAP
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
    ranks = [Transport(engine, Timeouts(join=WAIT)) for engine in local_engines(2)]
    try:
        for i in range(50):
            ranks[0].send(1, PORT, np.full(1 << 15, i, dtype=np.float32))
            assert ranks[1].take(PORT, WAIT)[1][0] == i
            ranks[1].send(0, PORT, i)
            assert ranks[0].take(PORT, WAIT)[1] == i
    finally:
        assert all(rank.close() for rank in ranks)


def test_a_message_ends_only_the_wait_at_its_own_port():
    ranks = [Transport(engine, Timeouts(join=WAIT)) for engine in local_engines(2)]
    found: dict[str, object] = {}

    def take(name):
        found[name] = ranks[1].take((1, name), WAIT)

    takers = [threading.Thread(target=take, args=(name,)) for name in ("one", "other")]
    try:
        for taker in takers:
            taker.start()
        for name in ("other", "one"):
            ranks[0].send(1, (1, name), name)
        for taker in takers:
            taker.join(WAIT)
        assert found == {"one": (0, "one"), "other": (0, "other")}
    finally:
        assert all(rank.close() for rank in ranks)
