"""Places by name, a toy among them, and a job that any of them can start."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from localranks import local_ranks

from syncpretrain.learners.epoch import Stopped
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.link import Context, Inbox, Obey, Place, serve
from syncpretrain.workers.processes import Processes
from syncpretrain.workers.ranks.placement import spread
from syncpretrain.workers.ranks.run import RunRanks
from syncpretrain.workers.ranks.worker import Assignment
from syncpretrain.workers.threads import Threads

WAIT = 20.0
TIMES = Timeouts(stall=WAIT, join=WAIT, sleep=0.1)
WORKERS, STOP = "workers", "stop"  # orders: tell how many they are; wait for a request to stop


@dataclass(frozen=True, slots=True)
class Adding(Assignment):
    """A worker that adds its number to numbers; an order that is another text is raised."""

    is_broken: bool = False

    @contextmanager
    def open(self, context) -> Iterator[Obey]:
        if self.is_broken:
            raise MemoryError("no room")
        yield partial(self.obey, context)

    def obey(self, context, order):
        if order == WORKERS:
            return int(context.workers[0])
        if order == STOP:
            deadline = time.monotonic() + WAIT
            while not context.stop():
                assert time.monotonic() < deadline
            raise Stopped
        if isinstance(order, str):
            raise ValueError(order)
        return self.number + order


class ToyLink:
    """A worker that is built anew for each order, in the thread that sends it."""

    offset, has_ended = 0.0, False

    def __init__(self, job, context: Context) -> None:
        self._build, self._inbox = partial(job.open, context), Inbox()
        self.poll, self.receive = self._inbox.poll, self._inbox.receive
        self.kill = self._inbox.close
        self.send(None)

    @property
    def channel(self):
        return self._inbox.channel

    def send(self, order) -> None:
        serve(self._build, iter([order, None]).__next__, self._inbox.put)

    def ending(self) -> str:
        return "it never ends"


class Toy:
    """A place for :class:`ToyLink`."""

    def start(self, jobs) -> list[ToyLink]:
        self.progress, self.workers = np.zeros(len(jobs) + 1), np.ones(len(jobs) + 1)
        self._stops: list[int] = []
        self._links = []
        for i, job in enumerate(jobs, start=1):
            numbers = self.progress[i : i + 1], self.workers[i : i + 1]
            self._links.append(ToyLink(job, Context(i, *numbers, lambda: bool(self._stops), TIMES)))
        return self._links

    def replace(self, number: int, death: BaseException) -> None:
        pass

    def set_workers(self, number: int, workers: int) -> None:
        self.workers[number] = workers

    def stop(self) -> None:
        self._stops.append(1)

    def dump_stacks(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def end(self) -> list[str]:
        for link in self._links:
            link.kill()
        return []


@contextmanager
def here(build: Callable[[], Place]) -> Iterator[Place]:
    place = build()
    try:
        yield place
    finally:
        assert place.end() == []


@contextmanager
def on_ranks(size: int) -> Iterator[Place]:
    """Three workers, on the ranks that there are beside the first."""
    with local_ranks(size) as ranks:
        groups = spread(3, size)
        with here(partial(RunRanks, ranks.own, groups, TIMES)) as place:
            yield place


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "threads": partial(here, partial(Threads, "syncpretrain-layer", TIMES)),
    "processes": partial(here, partial(Processes, TIMES)),
    "ranks": partial(on_ranks, 3),
    "toy": partial(here, Toy),
}
