from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from syncpretrain.workers.mailbox import Broken, Mailbox

WAIT = 20.0


@pytest.fixture
def start() -> Iterator[Callable[..., Future]]:
    with ThreadPoolExecutor(max_workers=4) as pool:
        yield pool.submit


class Watched(threading.Condition):
    """A condition that tells when somebody waits on it: the race is staged, not slept for."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.asleep = threading.Semaphore(0)
        self.expected = expected

    def wait(self, timeout: float | None = None) -> bool:
        self.asleep.release()  # the lock is held until the wait proper begins
        return super().wait(timeout)

    def all_asleep(self) -> None:
        for _ in range(self.expected):
            assert self.asleep.acquire(timeout=WAIT)


def watched(expected: int = 1) -> tuple[Mailbox[int], Watched]:
    mailbox: Mailbox[int] = Mailbox()
    mailbox._condition = Watched(expected)
    return mailbox, mailbox._condition


def test_first_in_first_out():
    mailbox: Mailbox[int] = Mailbox()
    for item in range(5):
        mailbox.put(item)
    assert [mailbox.take(WAIT) for _ in range(5)] == list(range(5))


def test_a_take_ends_at_its_deadline():
    assert Mailbox().take(0.0) is None
    assert Mailbox().take(0.01) is None


def test_a_put_wakes_who_waits(start):
    mailbox, condition = watched()
    taken = start(mailbox.take, WAIT)
    condition.all_asleep()
    mailbox.put(7)
    assert taken.result(WAIT) == 7


def test_every_one_who_waits_gets_an_item(start):
    mailbox, condition = watched(expected=4)
    taken = [start(mailbox.take, WAIT) for _ in range(4)]
    condition.all_asleep()
    for item in range(4):
        mailbox.put(item)
    assert sorted(future.result(WAIT) for future in taken) == [0, 1, 2, 3]


def test_a_wake_up_without_an_item_goes_on_waiting(start):
    mailbox, condition = watched()
    taken = start(mailbox.take, WAIT)
    condition.all_asleep()
    with condition:
        condition.notify_all()  # as a spurious wake-up would
    condition.all_asleep()
    assert not taken.done()
    mailbox.put(1)
    assert taken.result(WAIT) == 1


def test_breaking_ends_every_wait_now_and_later(start):
    mailbox, condition = watched(expected=3)
    taken = [start(mailbox.take, WAIT) for _ in range(3)]
    condition.all_asleep()
    mailbox.break_("the run has ended")
    for future in taken:
        with pytest.raises(Broken, match="the run has ended"):
            future.result(WAIT)
    with pytest.raises(Broken, match="the run has ended"):
        mailbox.take(WAIT)


def test_a_broken_mailbox_drops_items_of_before_and_after():
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    mailbox.break_("over")
    mailbox.put(2)
    with pytest.raises(Broken, match="over"):
        mailbox.take(0.0)
