"""Train the blocks of a PyTorch network at the same time, each on a loss of its own."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from syncpretrain.errors import SettingsError
from syncpretrain.events import Observer, all_observers, tell
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import ModuleLayer
from syncpretrain.observers.history import ErrorHistory
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.pretraining.memory import StreamSize
from syncpretrain.pretraining.streamed import BuildLayer, StreamedPretraining
from syncpretrain.settings.sections import PretrainSettings, settings_from
from syncpretrain.torch import block as building
from syncpretrain.torch.block import STEPPED, Block, Layout
from syncpretrain.torch.data import Given, given_rows, held_out_rows
from syncpretrain.torch.learner import ModuleLearner, SavedFit, build_block, load_layer, load_state
from syncpretrain.torch.losses import LOSSES, LocalLoss, PredSimHead, default_head
from syncpretrain.workers.activations import Split
from syncpretrain.workers.restarts import Restarts

RUNTIMES = "serial", "threads", "processes", "mpi", "auto"
PRECISIONS = None, torch.bfloat16, torch.float16  # that PyTorch casts to on a CPU
MEASURED_STEPS = 3  # of which the least time counts
MEASURED_SECONDS = 0.02  # a block, at most; one step more may be running by then
LEAST_GAIN = 1.1  # that a second worker must promise
PROBED_ROWS = 4  # of which the shapes are learned
# Minibatches wait between two blocks in at most so many bytes, but two of any size: one is read
# while the other is written. One will do where there are so many blocks a worker that it always
# finds one to train, though neighbours then take turns.
RING_BYTES, LEAST_RING, MANY_BLOCKS = 1 << 22, 2, 4


class BlockPretraining(StreamedPretraining):
    """A streamed run of blocks."""

    def __init__(self, settings: PretrainSettings, blocks: Sequence[Block], *rest: Any, **how: Any):
        self._blocks = blocks
        super().__init__(settings, *rest, **how)

    def _prepared(
        self, settings: PretrainSettings, X: Any, validation: Any
    ) -> tuple[PretrainSettings, Split, None]:
        return settings, Split(X, validation), None

    def _builds(self) -> list[BuildLayer]:
        return [partial(build_block, block) for block in self._blocks]

    def _stream_size(self, steps: int) -> StreamSize:
        size = super()._stream_size(steps)
        widest = max(block.above.width for block in self._blocks[:-1] or self._blocks)
        fitting = RING_BYTES // (FLOAT_BYTES * self.settings.batch_size * widest)
        here = self.settings.runtime in ("serial", "threads")
        least = 1 if here and len(self._blocks) >= MANY_BLOCKS * self.slots else LEAST_RING
        ring = max(least, min(size.ring, fitting))
        return size._replace(ring=ring, block=min(size.block, max(1, ring // 2)))

    def _train(self, request: Any) -> None:
        try:
            super()._train(request)
        except Stopped:
            if self._is_settled:
                self._bring_back()
            raise
        self._bring_back()

    def _bring_back(self) -> None:
        """Bring optimizers and draws of other processes into the blocks, for the next call."""
        if self.settings.runtime in ("processes", "mpi"):
            for block, layer in zip(self._blocks, self._layers, strict=True):
                load_state(block, layer.state(None).state.step_state)

    def stack(self) -> Any:
        """Bring the newest arrays into the blocks; return them."""
        newest: Any = tuple(self._newest())
        load_all(self._blocks, newest)
        return newest


def load_all(blocks: Sequence[Block], layers: Iterable[ModuleLayer]) -> None:
    """Bring arrays into each block."""
    for block, layer in zip(blocks, layers, strict=True):
        load_layer(block, layer)


class LocalTrainer:
    """Trains a network block by block, each on a loss of its own, at the same time.

    A block is a module with a weight, and the modules without one that follow it.

    Parameters
    ----------
    model : nn.Sequential, or list of modules
        Is trained in place, on the CPU.
    classes : int, optional
        Number of classes, for the default heads.
    loss : str or callable
        "predsim" (Nokland and Eidnes 2019), "cross-entropy", "reconstruction" of the block's input,
        which needs no targets, or a function of the head's outputs and the targets.
    optimizer : callable
        Returns an optimizer for a list of parameters.
    scheduler : callable, optional
        Returns a schedule of the rate for an optimizer.
    scheduler_every : str
        "epoch" or "minibatch": between two epochs, or after each minibatch,
        with ``accumulate`` after each step of the optimizer.
    heads : callable, optional
        Returns the head of a block, given its number from 1 and the shapes of an example below and
        above. By default a linear layer, after averages over places where there are many; the last
        block has none if it returns ``classes`` numbers.
    clip : float, optional
        The largest norm of the gradient of a block with its head.
    accumulate : int
        Minibatches that give a step of the optimizer their mean gradient; an epoch ends with a
        step.
    precision : torch.dtype, optional
        The type of automatic mixed precision: ``torch.bfloat16``, or ``torch.float16``, in which
        values above 65,504 are infinite and gradients below 6e-8 are lost: no loss is scaled.
    noise : float
        Share of a block's input that is set to 0 while it trains.
    workers : int or "auto"
        Blocks that train at a time. "auto" measures the blocks.
    runtime : str
        "serial", "threads", "processes", "mpi" (on every rank of a job, with arrays), or "auto":
        threads where more than one worker pays.
    block_threads : int
        Threads of an operation of a block; a result depends on it, and not on workers and runtime.
    seed : int
        Seed of the order of the rows, and of what blocks and heads draw.
    observers : iterable of callable
        Called with each event of :mod:`syncpretrain.events`.

    Attributes
    ----------
    model : nn.Sequential
        The network without heads.
    heads : list of nn.Module
        Known after the first call of :meth:`fit`.
    classifier : nn.Sequential
        The network with the head of its last block.
    history : ErrorHistory
        Mean losses by block and epoch.

    Raises
    ------
    SettingsError
        If a setting is wrong, or blocks share parameters.
    """

    def __init__(
        self,
        model: Any,
        *,
        classes: int | None = None,
        loss: str | Callable[[Any, Any], Any] = "predsim",
        optimizer: Callable[[Any], Any] = torch.optim.Adam,
        scheduler: Callable[[Any], Any] | None = None,
        scheduler_every: str = "epoch",
        heads: Callable[[int, tuple[int, ...], tuple[int, ...]], Any] | None = None,
        clip: float | None = None,
        accumulate: int = 1,
        precision: Any = None,
        noise: float = 0.0,
        workers: int | str = "auto",
        runtime: str = "auto",
        block_threads: int = 1,
        seed: int = 0,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._modules = building.blocks_of(model)
        self.model = model if isinstance(model, nn.Sequential) else nn.Sequential(*model)
        is_chosen = workers == "auto" or building.is_count(workers)
        is_norm = clip is None or (hasattr(clip, "__float__") and 0 < clip < math.inf)
        for name, is_wrong, own, expected in (  # what is wrong, the value, and what it should be
            ("runtime", runtime not in RUNTIMES, runtime, " or ".join(RUNTIMES)),
            ("scheduler_every", scheduler_every not in STEPPED, scheduler_every, STEPPED),
            ("noise", not hasattr(noise, "__float__") or not 0 <= noise < 1, noise, "0 to below 1"),
            ("clip", not is_norm, clip, "a number above 0"),
            ("precision", precision not in PRECISIONS, precision, "torch.bfloat16 or float16"),
            ("optimizer", not callable(optimizer), type(optimizer), "a function of parameters"),
            ("seed", not hasattr(seed, "__index__") or seed < 0, seed, "a whole number, 0 or more"),
            ("workers", not is_chosen, workers, "auto, or 1 or more"),
            ("loss", not (callable(loss) or loss in LOSSES), loss, f"{LOSSES} or a function"),
            ("classes", loss in LOSSES[:2] and classes is None, None, f"a number with loss {loss}"),
        ):
            if is_wrong:
                raise SettingsError(f"{name}: got {building.shown(own)}, expected {expected}")
        building.check_whole(classes=classes, block_threads=block_threads, accumulate=accumulate)
        if accumulate > 1 and any(getattr(own, "sparse", False) for own in self.model.modules()):
            raise SettingsError(f"accumulate: got {accumulate} with sparse gradients, expected 1")
        self._classes, self._loss, self._seed = classes, loss, seed
        self._optimizer, self._scheduler, self._make_head = optimizer, scheduler, heads
        self._workers, self._runtime, self._threads = workers, runtime, block_threads
        every: dict[str, Any] = {"accumulate": accumulate, "precision": precision, "noise": noise}
        every |= {"is_per_step": scheduler_every == "minibatch", "clip": clip}
        self._every_block = every | {"threads": block_threads}
        self._observers = all_observers(observers)
        self._blocks, self._modes = list[Block](), dict[Any, bool]()  # modes modules train in
        self.history = ErrorHistory()

    @property
    def heads(self) -> list[Any]:
        """The heads of the blocks."""
        return [block.head for block in self._blocks]

    @property
    def classifier(self) -> Any:
        """The network with the head of its last block, which returns the scores alone."""
        if not self._blocks:
            raise SettingsError("classifier: the heads are known after the first call of fit")
        head = self.heads[-1]
        return nn.Sequential(self.model, head.classes if isinstance(head, PredSimHead) else head)

    def __getstate__(self) -> dict[str, Any]:
        if self._blocks:  # a pickle of a block is a whole, and has modules of its own
            got, wanted = "a trainer that has trained", "its model; or take copy.deepcopy"
            raise SettingsError(f"pickle: got {got}, expected {wanted}")
        return self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalTrainer:
        own = memo[id(self)] = object.__new__(type(self))
        vars(own).update(copy.deepcopy(vars(self), memo))
        return own

    def fit(
        self,
        X: Any,
        y: Any = None,
        weight: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        validation: Any = None,
        resume: str | PathLike[str] | None = None,
        max_restarts: int = 0,
    ) -> LocalTrainer:
        """Train every block for some epochs; return the trainer.

        Parameters
        ----------
        X : array or tensor of shape (n, ...), or iterable of minibatches
            An iterable, such as a ``DataLoader``, gives X, or tuples of X, y and weights.
        y : array or tensor of shape (n, ...), optional
        weight : array or tensor of shape (n,), optional
            Weights of the examples in the losses.
        epochs : int
        batch_size : int, optional
            By default that of a ``DataLoader``, else 64.
        validation : tuple of X and y, or iterable, optional
            At most 1000 examples of it are used; the losses on them are in ``history``.
        resume : path, optional
            A folder for a checkpoint, written every minute and at a stop; if it holds one, the run
            goes on from there, with the same bits.
        max_restarts : int
            How often a process that dies is replaced.

        Raises
        ------
        SettingsError, DataError, CheckpointError
            For a wrong argument, before a block trains.
        DivergedError, WorkerError, StalledError
            If a block fails; the blocks have their last finite parameters.
        RunInterrupted
            On Ctrl-C, SIGTERM or SIGHUP, after the running minibatches.
        """
        building.check_whole(batch_size=batch_size, epochs=epochs)
        if max_restarts != 0 and not building.is_count(max_restarts):
            got = building.shown(max_restarts)
            raise SettingsError(f"max_restarts: got {got}, expected 0 or more")
        how: dict[str, Any] = {"batch_size": batch_size, "passes": epochs, "seed": self._seed}
        classes = self._classes if self._loss in LOSSES[:2] else None
        given = given_rows(X, y, weight, classes=classes, **how)
        if self._loss != "reconstruction" and given.layout.y_shape is None:
            got = f"nothing with loss {self._loss}"
            raise SettingsError(f"y: got {got}, expected the targets of each row")
        if self._every_block["noise"] and not given.layout.dtype.is_floating_point:
            raise SettingsError("noise: got it with whole numbers as X, expected real numbers")
        held_out = held_out_rows(validation, given.layout)
        found = torch.get_num_threads()
        self._modes = self._modes or building.modes_of(nn.Sequential(self.model))
        modes = {own: True for head in self.heads for own in head.modules()} | self._modes
        try:
            with building.in_modes(modes):
                self._build_blocks(given)
                self._check_last(given)
                for block in self._blocks:
                    block.steps = -(-len(given.train) // given.batch_size)
                    building.check_schedule(block, epochs)
                work = partial(self._trained, given, held_out, epochs, resume, max_restarts)
                if self._runtime == "mpi":
                    from syncpretrain.pretraining.on_ranks import on_every_rank

                    load_all(self._blocks, on_every_rank(work))
                else:
                    work()
        finally:
            torch.set_num_threads(found)
        return self

    def _trained(
        self, given: Given, held_out: Any, epochs: int, resume: Any, max_restarts: int
    ) -> tuple[ModuleLayer, ...]:
        """Train; return the arrays of the blocks, which have them too."""
        workers, runtime, message = self._chosen(given)
        settings = self._settings(given, epochs, workers, runtime)
        restarts = Restarts(max_restarts, partial(tell, self._observers))
        how = {"observers": self._observers, "restarts": restarts}
        driver = BlockPretraining(settings, self._blocks, given.train, held_out, **how)
        self.history = driver.history
        if message:
            driver.notify(message)
        own = self._blocks, resume, driver.settings, given.train
        saved = None if resume is None else SavedFit(*own, validation=held_out)
        if saved is not None:
            driver.save, driver.resume = saved.save, saved.newest()
        layers: Any = driver.run()
        if saved is not None:
            saved.delete()
        return tuple(layers)

    def _build_blocks(self, given: Given) -> None:
        """Build heads and optimizers; another call of fit goes on with the first call's."""
        if self._blocks:
            first = self._blocks[0].below
            for name in Layout.__slots__:
                if (got := getattr(given.layout, name)) != (had := getattr(first, name)):
                    raise SettingsError(f"X: got {name} {got}, expected {had} as in the first call")
            return
        rows = given.sample[:PROBED_ROWS]
        x, y, weight = given.layout.cut(rows if len(rows) > 1 else np.repeat(rows, 2, axis=0))
        below, blocks = given.layout, list[Block]()
        for number, modules in enumerate(self._modules, start=1):
            h, draws = building.handed_up(number, modules, x)
            above = replace(below, shape=tuple(h.shape[1:]), dtype=torch.float32)
            is_built_in = not callable(self._loss) and self._is_classifier(number, above.shape)
            block = Block(
                number=number,
                modules=modules,
                head=self._head(number, below.shape, above.shape),
                below=below,
                above=above,
                loss=LocalLoss("cross-entropy" if is_built_in else self._loss),
                generator=building.seeded(self._seed, number),
                **self._every_block,
            )
            block.draws = building.head_draws(block, h, (x, y, weight)) or draws or block.noise > 0
            blocks.append(block)
            x, below = h, above
        building.check_apart("heads", ((block.modules, block.head) for block in blocks))
        building.finish(blocks, self._optimizer, self._scheduler)
        self._blocks = blocks

    def _check_last(self, given: Given) -> None:
        """Refuse a last minibatch of one example, where a block cannot train on that."""
        if len(given.train) % given.batch_size != 1 and given.batch_size != 1:
            return
        x, *others = given.layout.cut(given.sample[:1])
        for block in self._blocks:
            try:
                h, _ = building.handed_up(block.number, block.modules, x)
                building.head_draws(block, h, (x, *others))
                x = h
            except SettingsError as error:
                why = "batch_size: the last minibatch has one example; take another, or drop_last"
                raise SettingsError(f"{why} ({error})") from error

    def _is_classifier(self, number: int, shape: tuple[int, ...]) -> bool:
        """Return whether the last block returns the scores of the classes itself."""
        own = not callable(self._loss) or self._make_head is None  # a function reads given heads
        fits = self._loss != "reconstruction" and shape == (self._classes,)
        return own and fits and number == len(self._modules)

    def _head(self, number: int, below: tuple[int, ...], above: tuple[int, ...]) -> Any:
        # The caller's draws stay as they are.
        state = building.seeded(self._seed, number + (1 << 16))
        with building.named(f"heads: block {number}"), building.drawing(state):
            if self._make_head is not None:
                head = self._make_head(number, below, above)
                building.check_kinds("heads", [head])
                for own in set(head.modules()) - self._modes.keys():  # which may be of the network
                    own.training = True
                return head
            if self._is_classifier(number, above):
                return nn.Identity()
            if callable(self._loss) and not self._classes:
                raise SettingsError("heads: got nothing with a loss of your own, expected heads")
            return default_head(self._loss, below, above, self._classes or 0).train()

    def _settings(self, given: Given, epochs: int, workers: int, runtime: str) -> PretrainSettings:
        widths = [given.layout.width, *(block.above.width for block in self._blocks)]
        # Only factors of a rate are used, and a warm-up may begin with 0.
        rates = [float(b.optimizer.param_groups[0]["lr"]) or 1.0 for b in self._blocks]
        how: dict[str, Any] = {"epochs": epochs, "runtime": runtime, "workers": workers}
        how |= {"handoff": "minibatch", "delay": 0.0, "products": "blas"}  # PyTorch multiplies
        how |= {"batch_size": given.batch_size, "seed": self._seed, "learning_rate": rates}
        return settings_from(widths, **how).pretrain

    def _chosen(self, given: Given) -> tuple[int, str, str]:
        """Return the number of workers, the runtime, and what is to be said of a choice."""
        most = min(usable_cores() // self._threads or 1, len(self._blocks))
        workers: Any = self._workers
        message = ""
        if workers == "auto" and (most == 1 or self._runtime in ("serial", "mpi")):
            workers = len(self._blocks) if self._runtime == "mpi" else 1
        if workers == "auto":
            probes = self._probes(given)
            costs = [least_seconds([[probe]]) for probe in probes]
            ideal = [sum(costs) / max(max(costs), sum(costs) / n) for n in range(1, most + 1)]
            best = min(range(most), key=lambda i: (ideal[i] < max(ideal) / 1.03, i))
            gain, how = ideal[best], "at best"
            if best and self._runtime != "processes":
                # Blocks of small operations wait for the interpreter, which has one lock.
                pairs = [(block, own.rows) for block, own in zip(self._blocks, probes, strict=True)]
                copies = [[self._probe(given, *pair) for pair in pairs] for _ in range(best)]
                alone = (best + 1) * sum(costs)
                together = alone / least_seconds([probes, *copies], enough=alone / LEAST_GAIN)
                gain, how = min((gain, how), (together, f"{best + 1} threads"))
            workers = best + 1 if gain > LEAST_GAIN else 1
            times = ", ".join(f"{1000 * cost:.3g}" for cost in costs)
            message = (
                f"{workers} worker{'s' if workers > 1 else ''} for {len(costs)} blocks, measured at"
                f" {times} ms a minibatch; {how} {gain:.2f} times one"
            )
        by_workers = "threads" if workers > 1 else "serial"
        return workers, by_workers if self._runtime == "auto" else self._runtime, message

    def _probes(self, given: Given) -> list[Probe]:
        """Return a copy of each block, which has trained on a minibatch, with its minibatch."""
        rows, probes = given.sample, list[Probe]()
        for block in self._blocks:
            probes.append(self._probe(given, block, rows))
            probes[-1].train()
            rows = probes[-1].learner.up(rows)
        return probes

    def _probe(self, given: Given, block: Block, rows: Any) -> Probe:
        settings = self._settings(given, 1, 1, "serial").of_layer(block.number)
        with building.named(f"workers: auto cannot copy block {block.number}; give a number"):
            return Probe(ModuleLearner(block.number, copy.deepcopy(block), settings), rows)


class Probe(NamedTuple):
    """A block that trains on one minibatch, to measure its time."""

    learner: ModuleLearner
    rows: Any

    def train(self) -> None:
        """Train the block on its minibatch once."""
        self.learner.gradient(self.rows, np.arange(len(self.rows)), epoch=1, step=0)
        self.learner.update(epoch=1)


def least_seconds(copies: Sequence[Sequence[Probe]], enough: float = 0.0) -> float:
    """Return the least seconds, or any below enough, in which each thread trains its copy once."""

    def train(number: int) -> None:
        for probe in copies[number]:
            probe.train()

    least, began = math.inf, time.perf_counter()
    with closing(WorkerPool(len(copies), "syncpretrain-measure")) as pool:
        for _ in range(MEASURED_STEPS):
            started = time.perf_counter()
            pool.run([train], len(copies), len(copies))
            least = min(least, time.perf_counter() - started)
            if least < enough or time.perf_counter() - began > MEASURED_SECONDS * len(copies[0]):
                break
    return least
