"""A fine-tuning that is checked and settled before there is a stack to tune.

All that does not depend on the stack's weights is built once, at construction: the targets, the
options, the optimizer, the backend. So a run refuses before its pretraining whatever its
fine-tuning would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.choice import backend_for, why_no_fused_steps, why_no_gpu
from syncpretrain.cluster.job import check_ranks
from syncpretrain.data.blocks import StoredRows, chosen_rows
from syncpretrain.data.examples import evenly_spaced
from syncpretrain.data.order import steps_per_epoch
from syncpretrain.data.scaling import same_rows
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.data.weights import checked_weights
from syncpretrain.errors import DataError, RunInterrupted, SettingsError
from syncpretrain.events import Observer, tell
from syncpretrain.finetuning import tasks
from syncpretrain.finetuning.normalization import check_normalized, check_rows, normalized
from syncpretrain.finetuning.optimizers import VECTORS, optimizer_for
from syncpretrain.finetuning.options import TuningOptions, resolve_options, why_on_the_cpu
from syncpretrain.finetuning.tasks import Examples, Form, Part, Reconstruction, Standard, Supervised
from syncpretrain.finetuning.trainer import Trainer, placed
from syncpretrain.finetuning.updates import LocalUpdates, Recipe, ReplicaUpdates, TunedReplica
from syncpretrain.kernels.arrays import BLOCK, FLOAT_BYTES, Array
from syncpretrain.kernels.convolution import scratch_size
from syncpretrain.kernels.program import compiled_program, in_turn
from syncpretrain.models.diagnosis import mean_error, on_tuning
from syncpretrain.models.inputs import is_bounded
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import ErrorHistory
from syncpretrain.parallel.available_memory import check_available
from syncpretrain.parallel.blas import blas_limit, usable_cores
from syncpretrain.parallel.signals import stop_on_signals
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings.by_data import Facts, finetune_by_data
from syncpretrain.settings.finetuning import steps_with_unlabelled
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.workers.state import FinetuneState, Saver

THREADS_PER_CORE = 2
COPIES_LOWERED, COPIES_MAPS = 2, 6  # of the forms in NumPy
MOST_ROWS_JUDGED = 1000  # an error is compared with the spread of so many targets
TUNED_COPIES = 5  # parameters, the last good, the best, the result; a part's while it is made


class Finetuning:
    """One fine-tuning: everything checked at construction, trained by :meth:`run`.

    The values of the examples are checked by :meth:`run` alone: pretraining has seen the same.

    Parameters
    ----------
    form : Form
        Form of the stack that will be tuned.
    options : TuningOptions
    train, validation : Part
        ``validation`` is None where there are no such examples.
    given : collection of str, optional
        Names of the options that the user gave; others follow from the number of rows with a
        target. None leaves all options as they are.
    copies : int
        Copies of the stack's parameters that pretraining still holds, for the check of the memory.

    Raises
    ------
    SettingsError, DataError
        If the settings, the targets, a missing package or the memory do not permit it.
    """

    def __init__(
        self,
        form: Form,
        options: TuningOptions,
        train: Part,
        validation: Part | None = None,
        *,
        given: Collection[str] | None = None,
        copies: int = 0,
    ) -> None:
        tasks.check_targets(options.objective, train, validation)
        self._form, self._train, self._validation = form, train, validation
        self._labels = self._judged = None
        if options.objective == "reconstruction":
            tasks.reconstruction_loss(options.loss, form.units[0])
        else:
            self._labels = tasks.targets_of(options.objective, train, usual=form.classes)
            if validation is not None:
                self._judged = tasks.targets_of(options.objective, validation, like=self._labels)
        rows = None if self._labels is None else self._labels.rows
        self.examples = len(train.X) if rows is None else len(rows)  # each with a target
        self._weights = checked_weights(train.weights, len(train.X), rows)
        others = len(train.X) - self.examples
        self.facts = Facts(self.examples, form.shapes[0].visible, unlabelled=others)
        self.by_data: dict[str, Any] = {}  # options that follow from the data
        if given is not None:
            options, self.by_data = finetune_by_data(options, given, self.facts, form.shapes)
        self._left_out: str | None = None
        if not others and options.unlabelled != "none":
            self._left_out = (
                f"unlabelled {options.unlabelled} has no effect: every row has a label, so no class"
                " is guessed"
            )
            options = msgspec.structs.replace(options, unlabelled="none", adversarial_noise=0.0)
        parts = [part.X for part in (train, validation) if part is not None]
        is_sparse = any(isinstance(X, SparseRows) for X in parts)
        lacks = why_on_the_cpu(options, form.shapes, sparse=is_sparse)
        self._idle_gpu = why_no_gpu(options.backend, lacks)
        self.options = resolve_options(options, form.shapes, sparse=is_sparse)
        self._optimizer = optimizer_for(self.options)
        self._backend = backend_for(self.options.backend).for_layer(1)
        check_ranks(self.options.runtime, self.options.precision, "finetune_runtime")
        self._check_layout()
        has_judges = validation is not None and (self._judged is None or len(self._judged.rows) > 0)
        with_targets = self._labels is not None
        trained = len(train.X) if self.options.unlabelled != "none" else self.examples
        tasks.check_sizes(self.options, trained, has_judges, with_targets=with_targets)
        self._check_memory(copies)

    @property
    def steps(self) -> int:
        """Minibatches of an epoch."""
        size = self.options.batch_size
        if self.options.unlabelled != "none":
            return steps_with_unlabelled(size, self.examples, self.facts.unlabelled)
        return steps_per_epoch(self.examples, size)

    @property
    def unlabelled(self) -> dict[str, tuple[int, int]]:
        """By the name of each part's targets the rows without one, and all rows."""
        parts = ((self._train, self._labels), (self._validation, self._judged))
        return {
            part.name: (len(part.X) - len(labels.rows), len(part.X))
            for part, labels in parts
            if part is not None and labels is not None
        }

    def run(
        self,
        stack: Stack,
        *,
        observers: Sequence[Observer] = (),
        stop: Callable[[], bool] | None = None,
        save: Saver | None = None,
        resume: FinetuneState | None = None,
        stall_seconds: float | None = None,
    ) -> Stack:
        """Return a new stack that does its task better; see :func:`syncpretrain.finetune`."""
        # It begins with that of pretraining.
        history = ErrorHistory([] if stack.history is None else list(stack.history.layers))
        form = Form.of(stack)
        if form[:2] != self._form[:2]:
            raise DataError(f"stack: got {form}, expected {self._form}, as it was prepared for")
        times = Timeouts(stall=stall_seconds or TIMEOUTS.stall)
        notify = partial(tell, observers)
        # The signals are outermost: an interrupt leaves no BLAS limit behind.
        threads = self.options.blas_threads or 1
        with stop_on_signals() as request, blas_limit(threads), self._backend.stream():
            task, train, held_out = self._task(stack)
            asked = request.either(stop)
            with self._updates(task, train, times, stop=asked, tell=notify) as updates:
                how: Any = {"observers": observers, "history": history, "save": save}
                trainer = Trainer(task, updates, train, held_out, self.options, **how)
                own = self.options.backend, self.options.precision
                in_parts = why_no_fused_steps(*own, tunes=True)
                found = self._left_out, tasks.unknown_classes(self._judged)
                for notice in filter(None, (self._idle_gpu, in_parts, *found)):
                    notify(notice)
                with trainer.ending(request):
                    tuned = trainer.train(resume)
        del trainer, updates  # and what they have on a device
        self._backend.free_unused()
        if request():  # in the last minibatch
            text = "fine-tuning was stopped at its end"
            raise RunInterrupted(text, stack=tuned, signum=request.signum or 2)
        tuned, held_out = replace(tuned, history=history), held_out or train
        return self._with_verdict(tuned, task, history.finetune, train.targets, held_out.targets)

    @contextmanager
    def _updates(
        self, task: Reconstruction | Supervised, examples: Examples, times: Timeouts, **how: Any
    ) -> Iterator[LocalUpdates | ReplicaUpdates]:
        """Yield what trains the task's network: this process, replicas, or ranks.

        ``how`` are ``stop`` and ``tell``, which all of these take.
        """
        options, recipe = self.options, self._recipe(task, examples)
        if options.schedule == ASYNC:
            replicas = ReplicaUpdates(recipe, examples, times=times, **how)
            with replicas.fleet:
                yield replicas
            return
        # More threads than cores only wait for each other; the bits depend on the shards.
        workers = options.replicas or 1
        count = min(workers, THREADS_PER_CORE * usable_cores())
        with closing(WorkerPool(count, "syncpretrain-finetune", times)) as pool:
            if options.runtime == "mpi":
                from syncpretrain.finetuning.ranks import RankUpdates

                with RankUpdates(recipe, examples, work=pool.run, times=times, **how) as ranks:
                    yield ranks
                return
            network = recipe.network(self._backend)
            optimizer = self._optimizer(network)
            run = partial(pool.run, workers=workers) if workers > 1 else in_turn
            yield LocalUpdates(optimizer, placed(examples, network), options, run=run, **how)

    def replica(self, stack: Stack) -> TunedReplica:
        """Return a network of the stack that trains on its own, as one of asynchronous replicas."""
        task, examples, _ = self._task(stack)
        return TunedReplica(self._recipe(task, examples), examples.rows)

    def _recipe(self, task: Reconstruction | Supervised, examples: Examples) -> Recipe:
        """Return the links to train, and how."""
        chain = task.chain()
        if self.options.normalization != "none":
            chain = normalized(chain, examples.inputs)
        return Recipe(chain, task.loss, self.options, examples[2:])

    def _task(self, stack: Stack) -> tuple[Reconstruction | Supervised, Examples, Examples | None]:
        """Return what a stack is tuned for, and the examples as its lowest layer sees them."""
        labels, judged, held_out = self._labels, self._judged, self._validation
        X, objective = stack.prepared(self._train.X, missing=bool(labels)), self.options.objective
        V = held_out and stack.prepared(held_out.X, "validation", missing=bool(labels))
        if labels is None:
            unrolled = Reconstruction(stack, loss=self.options.loss)
            return unrolled, Examples(X, X, self._weights), None if V is None else Examples(V, V)
        standard = None if labels.classes else Standard.of(labels.targets, self._weights)
        head = labels.head(stack, objective, self.options.seed, standard)
        task = Supervised(stack, head, objective, standard)
        train = self._examples(X, labels.rows, task.targets(labels.targets))
        if V is None or judged is None or not len(judged.rows):
            return task, train, None
        return task, train, Examples(chosen_rows(V, judged.rows), task.targets(judged.targets))

    def _examples(self, X: Any, rows: NDArray[np.intp], targets: Array) -> Examples:
        """Return the rows to train on; ``rows`` have the targets."""
        if len(rows) == len(X):
            return Examples(X, targets, self._weights)
        if self.options.unlabelled == "none":
            return Examples(chosen_rows(X, rows), targets, self._weights)
        others = np.setdiff1d(np.arange(len(X)), rows)
        return Examples(X, targets, self._weights, np.concatenate([rows, others]))

    def _with_verdict(
        self, tuned: Stack, task: Reconstruction | Supervised, curve: Any, seen: Any, held_out: Any
    ) -> Stack:
        """Return a tuned stack with the verdict on its curve of errors in its info.

        ``seen`` are the training targets of the task, of shape (n, outputs), and ``held_out`` the
        validation targets, or else the same.
        """
        if task.objective == "classification":  # the most frequent class is right
            constant = 1 - float(held_out.mean(axis=0)[seen.mean(axis=0).argmax()])
        else:
            own, some = (evenly_spaced(x, MOST_ROWS_JUDGED) for x in (held_out, seen))
            constant = mean_error(own, some.mean(axis=0, dtype=np.float64)) * task.error_scale
        cause = same_rows(self._train.X)
        found = on_tuning(task.objective, curve, constant, examples=len(seen))
        sentences = [cause] if cause else found
        info = dict(tuned.info)
        before = info.pop("verdict", [])  # of pretraining: a cause, if the result is poor
        if sentences:
            info["verdict"] = [*before, *sentences]
        return replace(tuned, info=info)

    def _check_layout(self) -> None:
        """Refuse layers and minibatches that are not normalized, and rows that are not shared."""
        if self.options.normalization != "none":
            check_normalized(self._form.units[1:], self._form.shapes)
            parts = self.options.shards if self.options.split == "examples" else 1
            check_rows(self.options.batch_size, parts or 1)
        if self.options.runtime in ("processes", "mpi") and isinstance(self._train.X, StoredRows):
            expected = "threads or serial" if self.options.schedule == ASYNC else "threads"
            raise SettingsError(
                f"finetune_runtime: got {self.options.runtime} with rows that are sparse or not all"
                f" in memory, expected {expected}, or X as a dense array"
            )

    def _check_memory(self, copies: int) -> None:
        """Estimate the memory, and refuse what cannot fit into it; a device has its own."""
        form, labels = self._form, self._labels
        parts = [part for part in (self._train, self._validation) if part is not None]
        sizes = [len(part.X) for part in parts]
        copied = [len(part.X) for part in parts if not isinstance(part.X, StoredRows)]
        scaled = 0 if is_bounded(form.units[0], form.scaling) else sum(copied)
        chosen = self.examples if self.examples < len(self._train.X) else 0
        if self._judged is not None:
            chosen += len(self._judged.rows)
        widths = (form.shapes[0].visible, *(shape.hidden for shape in form.shapes))
        what = f"fine-tuning {','.join(map(str, widths))}"
        targets = 0 if labels is None else len(labels.rows)
        copies += _copies_of_replicas(self.options, self.examples)
        self.bytes = self._needed(rows=scaled + chosen, labelled=targets, copies=copies)
        (worker,) = self._backend.for_replicas(1)  # one device has all of it
        if (free := worker.free_bytes()) is None:
            check_available(self.bytes, what, sum(sizes))
            return
        least = self._needed()  # the examples may stay on the host
        check_available(least, what, sum(sizes), free=free, where=" on the GPU")

    def _needed(self, rows: int = 0, labelled: int = 0, copies: int = 0) -> int:
        """Return an upper bound of the bytes that are allocated beside data and checkpoints.

        ``rows`` and ``labelled`` count the examples that are copied and those with a target,
        ``copies`` the copies of the stack's parameters that are held too.
        """
        options, shapes, labels = self.options, self._form.shapes, self._labels
        shards = options.shards
        outputs = None if labels is None else labels.targets.shape[1]  # None for an unrolled stack
        top = shapes[-1].hidden
        head = 0 if outputs is None else top * outputs + outputs
        halves = 2 if outputs is None else 1
        # Reconstruction trains encoder and decoder, with both biases; a head the encoder alone.
        network = head + sum(halves * x.weights + sum(x.biases[-halves:]) for x in shapes)
        stack = sum(shape.weights + sum(shape.biases) for shape in shapes)
        convolutions = [shape for shape in shapes if isinstance(shape, ConvolutionShape)]
        above = [shape.visible for shape in reversed(shapes)] if outputs is None else [outputs]
        chain = [shapes[0].visible, *(shape.hidden for shape in shapes), *above]
        drops = options.dropout or options.input_dropout
        # For an example, each link's output and its delta; with dropout its factors and input too.
        buffers = 2 * sum(chain[1:]) + (2 * sum(chain[:-1]) if drops else 0)
        # Probes, moves, and their squares.
        buffers += 3 * chain[0] if options.adversarial_noise else 0
        parameters = (TUNED_COPIES + VECTORS[options.optimizer] + 1) * network + copies * stack
        parameters += 2 * shards * min(BLOCK, network)  # scratch of the optimizer
        local = sum(halves * x.weights + sum(x.biases[-halves:]) for x in convolutions)
        # Shards with rows of their own need gradients of their own, where they split by examples.
        own = {"examples": network, "hybrid": local, "columns": local}.get(options.split or "", 0)
        parameters += (shards - 1) * own
        if convolutions:
            kinds = [replace(x, pooling=kind) for x in convolutions for kind in ("max", "mean")]
            parameters += shards * max(map(scratch_size, kinds))
            buffers += sum(shape.hidden for shape in convolutions)  # where pooling stores an index
            if compiled_program([[[]]]) is None:  # NumPy lays out the inputs of all filters at once
                buffers += max(
                    COPIES_LOWERED * x.lowered + COPIES_MAPS * x.units for x in convolutions
                )
        minibatches = options.batch_size * (chain[0] + chain[-1] + buffers)
        data = rows * chain[0] + 2 * labelled * (outputs or 0)
        return FLOAT_BYTES * (parameters + minibatches + data)


def _copies_of_replicas(options: TuningOptions, examples: int) -> int:
    """Return how many vectors of the parameters' size asynchronous replicas hold here."""
    if options.schedule != ASYNC:
        return 0
    replicas = options.replicas or 1
    if options.runtime == "mpi":
        return 2 * replicas  # the fetched parameters and the change
    # The four: parameters, gradients, fetched ones and the change.
    own = 4 + VECTORS[options.optimizer]
    late = max(options.simulate_staleness or 0, replicas)
    tasks = -(-examples // (options.batch_size * options.push_every))  # of an epoch
    waiting = min(late, tasks) * 2 if options.runtime == "serial" else 0
    return own * replicas + waiting
