"""The training of a network on the minibatches of an epoch, by this process or by replicas of it.

:class:`LocalUpdates` trains minibatch after minibatch; on a device, a block of them at a time.
:class:`ReplicaUpdates` is asynchronous: each replica trains on minibatches of its own, and the one
that is free next trains on the next minibatch of the same order. The server has the parameters, and
nothing else: each replica has its own momentum or Adam's moments, because a momentum of the server
would go on along directions as stale as it is long (Giladi et al. 2019). Updates that ranks share
are in ``ranks.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.backends.base import Backend, StepBlock
from syncpretrain.finetuning import optimizers
from syncpretrain.finetuning.chain import Dropout, Link
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import At, Optimizer
from syncpretrain.finetuning.options import TuningOptions
from syncpretrain.finetuning.tasks import Examples
from syncpretrain.finetuning.unlabelled import Passes
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.precision import precision_of
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import Task, tasks_of
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.workers.replicas import replicas_in

Each = Callable[[float, int], None]  # given the error of some minibatches, and how many are done
STEPS = "steps"
# Base of the two digits in which float32 keeps a number of steps: its whole numbers end at 2^24,
# and two digits of 2^20 reach 2^40.
STEPS_BASE = 1 << 20


class LocalUpdates:
    """The training of a network in this process.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer of the network.
    examples : Examples
        On the network's device.
    options : TuningOptions
    stop : callable
        Asked before each minibatch, or block of them, whether to stop.
    run : callable
        Works the phases of a step.
    tell : callable
        Takes a notice to the user.

    Attributes
    ----------
    network : Network
        Network with the parameters after all updates so far.
    passes : Passes
        Minibatches of each epoch.
    steps : int
        How many of them an epoch has.
    first_error : float
        Mean error of an example in the very first minibatch, before any update; NaN before that.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        examples: Examples,
        options: TuningOptions,
        *,
        stop: Callable[[], bool] = lambda: False,
        run: PhaseRunner = in_turn,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.network, self.optimizer, self.examples = optimizer.network, optimizer, examples
        self._options, self._stop, self._run, self._tell = options, stop, run, tell
        self._rate = options.learning_rate or optimizers.LEARNING_RATES[options.optimizer]
        self._recorder = self.network.backend.recorder()
        self.passes = passes_of(examples, options)
        self.steps = self.passes.steps
        self.first_error = math.nan

    def train(self, epoch: int, first: int, each: Each) -> int:
        """Train on the minibatches of an epoch from ``first`` on, until all are done or at a stop.

        ``each`` is called behind some minibatches, in their order, with the sum of their errors,
        each before its update, and with how many of the epoch are done. On a device the sum is an
        array, not synchronized. Return how many are done at the end.
        """
        backend, size = self.network.backend, self._options.batch_size
        order = backend.order(self.examples.inputs, self.passes.order(epoch))
        for step in range(first, self.steps, backend.steps_at_once):
            if self._stop():
                return step
            done = min(step + backend.steps_at_once, self.steps)
            each(self._block(order[step * size : done * size], epoch, step, done), done)
        notice = self._recorder.take_notice()
        if notice is not None and self._tell is not None:
            self._tell(f"fine-tuning is {notice}")
        return self.steps

    def minibatch(self, rows: Any, *, epoch: int, step: int) -> float:
        """Train on some rows, the ``step``-th minibatch of an epoch; return their summed error."""
        at = At(self._rate_of((epoch - 1) * self.steps + step), epoch, step)
        error = self.optimizer.train(self.examples, rows, at, self._run)
        if (epoch, step) == (1, 0):
            self.first_error = float(error) / self.passes.labelled
        return error

    def state(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the parameters; live arrays."""
        return self.optimizer.state()

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go on from the network's parameters and a state after ``steps`` steps."""
        self.optimizer.load_state(state, steps=steps)

    def _block(self, rows: Any, epoch: int, step: int, done: int) -> float:
        """Train on the minibatches from ``step`` to ``done``, in one block of the recorder."""
        optimizer, first, table = self.optimizer, (epoch - 1) * self.steps, None
        if self.network.backend.devices():  # elsewhere nothing is recorded
            steps = range(first + step, first + done)
            numbers = [optimizer.numbers(self._rate_of(at), at + 1) for at in steps]
            with np.errstate(over="ignore"):  # the caller checks the error
                table = np.array(numbers, dtype=np.float32)
        size = self._options.batch_size
        block = StepBlock(self._step, None, rows, size, epoch, step, None, table)
        error: float = self._recorder.train(block)
        optimizer.steps = first + done  # a block that was launched again has not counted
        return error

    def _step(self, X: None, rows: Any, *, epoch: int, step: int) -> float:
        # A block whose recording failed has counted its steps without working them.
        self.optimizer.steps = (epoch - 1) * self.steps + step
        return self.minibatch(rows, epoch=epoch, step=step)

    def _rate_of(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0 over all epochs."""
        done = step / (self._options.epochs * self.steps)
        return self._rate * optimizers.scheduled(self._options.rate_schedule, done)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and its training, which is sent to replicas and ranks.

    ``beside`` are the weights and the numbers of the examples.
    """

    chain: Sequence[Link]
    loss: str
    options: TuningOptions
    beside: tuple[Any, ...]

    def network(self, backend: Backend | None = None) -> Network:
        """Build the network."""
        own = self.options
        return Network(
            self.chain,
            self.loss,
            split=own.split or "units",
            batch_size=own.batch_size,
            dropout=Dropout(own.input_dropout, own.dropout, own.seed),
            noise=own.input_noise,
            adversarial_noise=own.adversarial_noise,
            aligns=own.unlabelled == "aligned",
            epochs=own.epochs,
            shards=own.shards or 1,
            precision=precision_of(own.precision, own.products).name,
            backend=backend,
        )

    def examples(self, rows: Sequence[Any]) -> Examples:
        """Return the examples with these :attr:`Examples.rows`."""
        return Examples(rows[0], rows[-1], *self.beside)


class TunedReplica:
    """A network that trains on its own; see :class:`syncpretrain.parallel.replicas.steps.Replica`.

    Parameters
    ----------
    recipe : Recipe
    rows : sequence of ndarray
        The inputs, and the targets if they are others.

    Attributes
    ----------
    parameters : list of one ndarray
        The flat vector of the network.
    """

    def __init__(self, recipe: Recipe, rows: Sequence[Any]) -> None:
        options, network = recipe.options, recipe.network()
        optimizer = optimizers.optimizer_for(options)(network)
        self._updates = LocalUpdates(optimizer, recipe.examples(rows), options)
        self.parameters: list[Array] = [network.parameters]
        self._size = options.batch_size
        self._trained = 0
        self._order: tuple[int, Any] = (0, None)

    def train(self, epoch: int, step: int) -> tuple[float]:
        """Train on a minibatch of an epoch; return its summed error."""
        if self._order[0] != epoch:
            self._order = epoch, self._updates.passes.order(epoch)
        rows = self._order[1][step * self._size : (step + 1) * self._size]
        self._trained += 1
        return (float(self._updates.minibatch(rows, epoch=epoch, step=step)),)

    def state(self) -> dict[str, Array]:
        """Return what the optimizer remembers."""
        digits = np.array(divmod(self._trained, STEPS_BASE), np.float32)
        return {**self._updates.state(), STEPS: digits}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held."""
        self._trained = 0
        for digit in state[STEPS]:  # an older state has a single one, the number
            self._trained = self._trained * STEPS_BASE + int(digit)
        self._updates.load_state(state, steps=self._trained)


class ReplicaUpdates:
    """Asynchronous training by replicas; else as :class:`LocalUpdates`.

    Parameters
    ----------
    recipe : Recipe
        Builds the network of each replica, and the one that holds the server's parameters.
    examples : Examples
    stop : callable
        Asked between tasks whether to stop.
    tell : callable
        Takes a notice to the user.
    times : Timeouts
        How long the server waits for the replicas.

    Attributes
    ----------
    fleet : Fleet
        The replicas, to be entered as a context around the training.
    """

    def __init__(
        self,
        recipe: Recipe,
        examples: Examples,
        *,
        stop: Callable[[], bool],
        tell: Callable[[str], None],
        times: Timeouts,
    ) -> None:
        options, self.network = recipe.options, recipe.network()
        self._options, self._stop = options, stop
        self.passes = passes_of(examples, options)
        self.steps = self.passes.steps
        self.first_error = math.nan
        self.fleet = replicas_in(
            options.runtime,
            ParameterServer(self.network.parameters, options, options.servers),
            options,
            partial(TunedReplica, recipe),
            examples.rows,
            replicas=options.replicas or 1,
            report=tell,
            times=times,
        )

    def train(self, epoch: int, first: int, each: Each) -> int:
        """Train on the minibatches of an epoch from ``first`` on; see :class:`LocalUpdates`."""
        done = first

        def trained(task: Task, errors: Sequence[float], staleness: int) -> None:
            nonlocal done
            if (task.epoch, task.first) == (1, 0):
                passes = self.passes
                known = min(task.count * passes.labelled, passes.counted)
                self.first_error = errors[0] / known
            done += task.count
            each(errors[0], done)

        tasks = tasks_of(epoch, first, self.steps, self._options.push_every)
        self.fleet.train(tasks, self._stop, trained)
        return done

    def state(self) -> dict[str, Array]:
        """Return what the replicas remember."""
        return self.fleet.state()

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go on from what the replicas remembered; each has counted its own steps."""
        self.fleet.load_state(state)


Updates = LocalUpdates | ReplicaUpdates


def passes_of(examples: Examples, options: TuningOptions) -> Passes:
    """Return the minibatches of each epoch of a fine-tuning."""
    return Passes(examples, options.batch_size, options.seed, options.epochs)
