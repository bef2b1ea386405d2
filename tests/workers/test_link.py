"""The conversation with a worker is the same wherever it is; a new place is tested by one line."""

import os
import signal
from multiprocessing import connection

import pytest
from places import PLACES, STOP, TIMES, WAIT, WORKERS, Adding

from syncpretrain.errors import DivergedError, IterableError, StalledError, WorkerError
from syncpretrain.learners.epoch import Stopped
from syncpretrain.workers.link import Inbox, Raised, RemoteTraceback, death_of, failure_of, ready
from syncpretrain.workers.processes import Processes
from syncpretrain.workers.restarts import Restarts

pytestmark = pytest.mark.usefixtures("forked_layers")
JOBS = [Adding(1), Adding(2), Adding(3)]


@pytest.fixture(params=PLACES)
def place(request):
    with PLACES[request.param]() as own:
        yield own


def answer_of(link):
    assert link.poll(WAIT)
    return link.receive()


def test_every_worker_answers_its_orders_in_their_order(place):
    links = place.start(JOBS)
    for order in (10, 20):
        for link in links:
            link.send(order)
    assert [[answer_of(link) for _ in range(2)] for link in links] == [[11, 21], [12, 22], [13, 23]]


def test_an_error_is_an_answer_and_the_worker_goes_on(place):
    link, *_ = place.start(JOBS)
    link.send("out of luck")
    error = answer_of(link).error
    assert (type(error), error.args) == (ValueError, ("out of luck",))
    cause = error.__cause__
    where = str(cause) if cause is not None else error.__traceback__.tb_next.tb_frame.f_code.co_name
    assert "obey" in where, "where it was raised"
    link.send(1)
    assert answer_of(link) == 2


def test_a_worker_that_cannot_be_built_says_why(place):
    whole, broken = place.start([Adding(1), Adding(2, is_broken=True)])
    failure = answer_of(broken)
    assert isinstance(failure, Raised)
    assert isinstance(failure.error, MemoryError)
    whole.send(1)
    assert answer_of(whole) == 2


def test_a_request_to_stop_and_the_number_of_threads_reach_a_worker(place):
    first, second, _ = place.start(JOBS)
    place.set_workers(2, 3)
    for link in (first, second):
        link.send(WORKERS)
    assert (answer_of(first), answer_of(second)) == (1, 3)
    place.stop()
    first.send(STOP)
    assert isinstance(answer_of(first).error, Stopped)


def test_the_links_with_an_answer_are_ready(place):
    links = place.start(JOBS)
    assert ready(links, 0.0) == []
    links[1].send(1)
    assert ready(links, WAIT) == [links[1]]
    assert links[1].receive() == 3
    assert ready(links, 0.0) == []


def killed(link):
    os.kill(link._process.pid, signal.SIGKILL)
    assert ready([link], WAIT) == [link]
    return link.receive(), link.ending()


def test_a_killed_process_ends_its_link_and_is_replaced_as_often_as_it_may_be():
    place = Processes(TIMES, restarts=Restarts(1))
    try:
        (link,) = place.start([Adding(1)])
        answer, how = killed(link)
        assert answer is None
        assert how == f"its process {link._process.pid} was killed by SIGKILL"
        assert ready([link], 0.0) == []
        again = place.replace(1, WorkerError(how))
        again.send(1)
        assert answer_of(again) == 2
        assert place.replace(1, WorkerError(killed(again)[1])) is None
    finally:
        assert place.end() == []


def test_what_comes_once_an_inbox_is_closed_is_dropped():
    inbox = Inbox()
    inbox.put(1)
    assert connection.wait([inbox.channel], WAIT) == [inbox.channel]
    inbox.close()
    inbox.put(2)
    assert (inbox.poll(0.0), inbox.receive(), inbox.channel) == (False, None, None)


def from_elsewhere(error, place=""):
    error.__cause__ = RemoteTraceback("", place)
    return error


FAILED, DIVERGED = "layer 2 failed in epoch 3", "layer 2 diverged"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no"), WorkerError, f"{FAILED}: ValueError: no"),
        (StalledError("no"), StalledError, f"{FAILED}: StalledError: no"),
        (DivergedError(DIVERGED), DivergedError, DIVERGED),
        (WorkerError("a process ended"), WorkerError, "a process ended"),
        (from_elsewhere(ValueError("no"), "A"), WorkerError, f"{FAILED} on A: ValueError: no"),
        (from_elsewhere(DivergedError(DIVERGED), "A"), DivergedError, f"{DIVERGED} (on A)"),
        (from_elsewhere(WorkerError("Odd: Odd(1)")), WorkerError, f"{FAILED}: Odd: Odd(1)"),
    ],
)
def test_the_failure_of_a_layer_is_one_sentence(error, kind, text):
    failure = failure_of(2, 3, error)
    assert (type(failure), str(failure)) == (kind, text)
    assert failure is error or failure.__cause__ is error


def test_the_cause_of_an_iterables_failure_is_what_it_raised():
    error = IterableError("X: its generator")
    error.__cause__ = OSError("gone")
    assert str(failure_of(1, 2, error).__cause__) == "gone"


@pytest.mark.parametrize(
    ("running", "done", "moment"),
    [(2, 1, "in epoch 2"), (0, 1, "after epoch 1"), (0, 0, "before its first epoch")],
)
def test_a_death_says_when(running, done, moment):
    death = death_of(4, "it is gone", running=running, done=done)
    assert str(death) == f"layer 4 failed {moment}: it is gone"
