"""Ranks of a job as threads of this process, each with its transport."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from _links import Link, emulate
from localengines import local_engines

from syncpretrain.cluster.job import Membership, using
from syncpretrain.cluster.transport import Transport
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.ranks.worker import CONTROL, RunEnded, follow

WAIT = 20.0
LAST = 99  # the status that ends a follower here


class LocalRanks:
    """The other ranks, and what rank 0 told them at the end of each call."""

    def __init__(self, own: Membership, others: list[Transport]) -> None:
        self.own, self.others = own, others
        self.told: list[list[RunEnded]] = [[] for _ in others]
        self._threads = [
            threading.Thread(target=self._follow, args=(i, transport), name=f"rank {i + 1}")
            for i, transport in enumerate(others)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for transport in self.others:
            self.own.transport.send(transport.rank, CONTROL, RunEnded(status=LAST))
        for thread in self._threads:
            thread.join(WAIT)
        assert not any(thread.is_alive() for thread in self._threads)
        assert all(transport.close() for transport in self.others)

    def _follow(self, i: int, transport: Transport) -> None:
        while (ended := follow(transport)).status != LAST:
            self.told[i].append(ended)


@contextmanager
def local_ranks(size: int, link: Link | None = None) -> Iterator[LocalRanks]:
    """Start a job of threads, of which the caller is rank 0."""
    times = Timeouts(stall=WAIT, join=WAIT)
    leader, *others = [Transport(engine, times) for engine in local_engines(size)]
    if link is not None:
        for transport in others:
            emulate(transport, Link(link.bandwidth, link.latency))
    with using(leader) as own:
        ranks = LocalRanks(own, others)
        try:
            yield ranks
        finally:
            ranks.close()
