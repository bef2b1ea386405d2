"""A fine-tuning that ranks share: rank 0, which leads it, and the share of every other rank.

Every rank has the whole network and some shards of every minibatch. A step is a step of
:class:`~syncpretrain.learners.on_ranks.ExamplesOnRanks`, and has the same bits as the same number
of shards in one process: ranks exchange sums of gradients, each rank moves one slice of the
parameters with its own part of the optimizer's memory, and sends that slice to all.

The other ranks get one order an epoch, and leave the epoch early where all ranks agree on a stop.
So nothing but the next order has to end an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.cluster.group import AgreedStop, Group, GroupError
from syncpretrain.cluster.job import member
from syncpretrain.errors import WorkerError
from syncpretrain.finetuning.optimizers import At, Descent, optimizer_for
from syncpretrain.finetuning.tasks import Examples
from syncpretrain.finetuning.updates import Each, LocalUpdates, Recipe
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.learners.on_ranks import ExamplesOnRanks
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.timeouts import Closing, Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.workers.link import Obey, Raised, described, place_of
from syncpretrain.workers.ranks.run import RankLink, RunRanks
from syncpretrain.workers.ranks.worker import Assignment, RankContext, port

SHARE = 1  # the number of what all ranks hold


class SharedDescent(Descent):
    """The descent of one rank of a group; all ranks call :meth:`train` at the same time.

    A :class:`~syncpretrain.learners.on_ranks.Sharded` too, with all parameters as one array. Its
    state is old outside of this rank's slice, until :meth:`collect`.

    Parameters
    ----------
    own : Descent
        Descent of this rank's network, split by examples; it is taken over.
    stop : AgreedStop
        Stop of the group, agreed on in every step. The group has at most as many ranks as shards.
    """

    def __init__(self, own: Descent, stop: AgreedStop) -> None:
        super().__init__(own.network, own.update, weight_decay=own.weight_decay)
        self.parameters = [own.network.parameters]
        self.gradients = [[vector] for vector in own.network.shard_gradients]
        self.errors = [0.0] * own.network.shards
        self.added: Sequence[int] = ()  # the shards that have rows; the gradients of others are old
        self._gradients: dict[tuple[int, ...], list[Program]] = {}  # by the minibatch's key
        self._moves: dict[tuple[int, int], Program] = {}  # by the ends of the part
        self._rate = 0.0
        self._shared = ExamplesOnRanks(self, stop)

    def train(self, examples: Examples, rows: Any, at: At, run: PhaseRunner = in_turn) -> float:
        """Take one step, with the other ranks; return the error before it."""
        self._rate = at.rate
        self.steps += 1
        return self._shared.train_step(examples, rows, epoch=at.epoch, step=at.step, run=run)

    def begin(self, examples: Examples, rows: Any, *, epoch: int, step: int) -> None:
        """Take a minibatch; then call :meth:`gradient` for every shard."""
        self.network.begin(examples, rows, epoch=epoch, step=step)
        if self.network.key not in self._gradients:
            self._gradients[self.network.key] = self.network.shard_programs()
        programs = self._gradients[self.network.key]
        self.added = tuple(i for i, program in enumerate(programs) if any(program.operations[0][0]))
        self.errors[:] = [0.0] * len(programs)

    def gradient(self, shard: int) -> None:
        """Fill the gradient of a shard, as its part of the gradient of the whole minibatch."""
        if shard in self.added:
            self.errors[shard] = self.network.work(self._gradients[self.network.key][shard])

    def move(self, i: int, block: slice, total: Array) -> None:
        """Move a block of the parameters along its gradient."""
        np.copyto(self.network.gradients[block], total)
        ends = block.start, block.stop
        if ends not in self._moves:
            self._moves[ends] = Program([[self.moves(block)]], 0)
        self._moves[ends].prepare(rate=self._rate, steps=self.steps)
        in_turn(self._moves[ends], 1)

    def collect(self) -> None:
        """Fill the first rank's memory with the slice of every rank; all ranks call this."""
        # A vector that is shorter than the parameters remembers nothing, as without momentum.
        self._shared.collect([[vector for vector in self.state().values() if vector.size]])


class RankUpdates(LocalUpdates, Closing):
    """The updates of rank 0 and the next ones, as many as there are replicas or ranks.

    To be entered as a context, which starts the other ranks; this rank leads them. See
    :class:`syncpretrain.finetuning.updates.LocalUpdates`.

    Parameters
    ----------
    recipe : Recipe
        Builds the network of each rank, with two or more replicas.
    examples : Examples
    stop : callable
        Says whether this rank was asked to stop.
    work : callable
        Works the phases of some shards, by as many ``workers`` as it is told.
    tell : callable
        Takes a notice to the user.
    times : Timeouts
        Only ``stall`` is used: how long a message of another rank is waited for.
    """

    def __init__(
        self,
        recipe: Recipe,
        examples: Examples,
        *,
        stop: Callable[[], bool],
        work: Callable[..., None],
        tell: Callable[[str], None],
        times: Timeouts,
    ) -> None:
        Closing.__init__(self, times)
        own, options = member(), recipe.options
        replicas = options.replicas or 1
        most = min(replicas, own.transport.size)
        self._ranks = RunRanks(
            own,
            {SHARE: tuple(range(1, most))},
            times,
            data=examples.rows,
            blas_threads=options.blas_threads or 1,
            is_eager=True,
            called="fine-tuning failed: ",
        )
        self._links: list[RankLink] = []
        every = (own.transport.rank, *self._ranks.groups[SHARE])
        base = port(self._ranks.run, "group", SHARE)
        agreed = AgreedStop(Group(own.transport, every, base, times, self._is_lost), stop)
        threads = -(-replicas // most)
        self._assignment = TunerAssignment(SHARE, recipe, threads, group=every)
        self._epoch = 0
        descent = self._assignment.descent(agreed)
        run = partial(work, workers=threads)
        LocalUpdates.__init__(self, descent, examples, options, stop=agreed, run=run, tell=tell)

    def train(self, epoch: int, first: int, each: Each) -> int:
        """Train on the minibatches of an epoch from ``first`` on, with all ranks."""
        self._epoch = epoch
        with self._failures_elsewhere():
            # Once an epoch: from there the other ranks count the steps themselves, draw the same
            # order of rows, and meet this one in each step's exchange.
            self._order(partial(train_share, epoch=epoch, first=first))
            return super().train(epoch, first, each)

    def state(self) -> dict[str, Array]:
        """Return the memory of all ranks, collected from the slice of each."""
        # The order comes first: collect is a gathering, in which every rank has to take part.
        with self._failures_elsewhere():
            self._order(give_share)
            give_share(self)
        return super().state()

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`state` held, on all ranks, with this rank's parameters."""
        super().load_state(state, steps=steps)
        with self._failures_elsewhere():
            own = self.network.parameters.copy(), state
            self._order(partial(take_share, parameters=own[0], optimizer=own[1], steps=steps))

    def _order(self, order: Callable[[LocalUpdates], Any]) -> None:
        """Send an order to every other rank; raise GroupError if one was lost."""
        if self._is_lost():
            raise GroupError("a rank was lost")
        self._ranks.send(SHARE, "orders", order)

    @contextmanager
    def _failures_elsewhere(self) -> Iterator[None]:
        """Raise what went wrong on another rank."""
        try:
            yield
        except GroupError as error:
            where, how = f"fine-tuning failed in epoch {self._epoch}", self._ranks.lost(SHARE)
            (link,) = self._links
            found = link.receive() if not how and link.poll(self._times.drain) else None
            if not isinstance(found, Raised):
                raise WorkerError(f"{where}: {how or error}") from None
            cause = found.error
            raise WorkerError(f"{where}{place_of(cause)}: {described(cause)}") from cause

    def _is_lost(self) -> bool:
        return self._ranks.lost(SHARE) is not None

    def _open(self) -> None:
        self._links = self._ranks.start([self._assignment])

    def _close(self) -> list[str]:
        return self._ranks.end()


def train_share(updates: LocalUpdates, epoch: int, first: int) -> None:
    """Share the steps of an epoch, from the ``first`` on: an order to another rank."""
    updates.train(epoch, first, lambda error, done: None)


def give_share(updates: LocalUpdates) -> None:
    """Send the first rank what this one remembers of its slice: an order to another rank."""
    assert isinstance(updates.optimizer, SharedDescent)
    updates.optimizer.collect()


def take_share(
    updates: LocalUpdates, parameters: Array, optimizer: Mapping[str, Array], steps: int
) -> None:
    """Go on from a state of ``steps`` steps: an order to another rank."""
    np.copyto(updates.network.parameters, parameters)
    updates.load_state(optimizer, steps=steps)


@dataclass(frozen=True, slots=True)
class TunerAssignment(Assignment):
    """A share of a fine-tuning: the network and how it is trained, and each rank's threads.

    Nothing is answered but an error: ranks meet in the exchanges of each step.
    """

    recipe: Recipe
    threads: int

    def descent(self, stop: AgreedStop) -> SharedDescent:
        """Return the descent of a rank."""
        own = optimizer_for(self.recipe.options)(self.recipe.network())
        assert isinstance(own, Descent), "the settings refuse searches along lines on ranks"
        return SharedDescent(own, stop)

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        threads = min(self.threads, usable_cores())  # more only wait for each other
        pool = WorkerPool(threads, "syncpretrain-finetune", context.times)
        with closing(pool), np.errstate(over="ignore", invalid="ignore"):
            assert context.data is not None and context.agreed is not None
            run, recipe = partial(pool.run, workers=self.threads), self.recipe
            own = self.descent(context.agreed), recipe.examples(context.data), recipe.options
            updates = LocalUpdates(*own, stop=context.agreed, run=run)
            yield lambda order: order(updates)
