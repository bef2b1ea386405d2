"""The network that is fine-tuned: flat parameters, a minibatch in place, and its step as a program.

A chain of links, dense and convolutional, with everything that a step touches allocated before the
first one. The parameters are one flat vector, so that an optimizer knows nothing of layers; each
weight and bias is a view of it, and so is each gradient.

:meth:`Network.begin` copies a minibatch to where it always lies. So a step is the same operations
on the same arrays each time: a :class:`~syncpretrain.kernels.program.Program`, built once for each
size of a minibatch by ``program.py``. Data flow one way, from the rows to the moved parameters; the
operations of the optimizer are in the program too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from syncpretrain.backends.base import Backend, Rule, TunedArrays
from syncpretrain.finetuning import program as programs
from syncpretrain.finetuning.chain import Affine, Dropout, Link, places_of, views
from syncpretrain.finetuning.tasks import Examples
from syncpretrain.finetuning.unlabelled import PROBE, Passes, align, guess, scaled_rows
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import count_errors, loss_of, squared_error
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.rng import Address, Purpose
from syncpretrain.units.kinds import kind_of


class Network:
    """A chain of links, trained so that its output comes near to a target.

    Parameters
    ----------
    chain : sequence of Link
        The initial parameters are copied; all arithmetic has their type, float32 or float64, except
        the products, which have the precision of their link.
    loss : str
        "squared", or "cross-entropy" of a last layer of bernoulli or softmax units.
    batch_size : int
        The most examples that a minibatch can have.
    dropout : Dropout, optional
        The units that are left out do not depend on shards or split.
    noise : float
        Standard deviation of the noise added to the inputs.
    adversarial_noise : float
        Distance by which rows with a guessed class are moved; see
        :mod:`syncpretrain.finetuning.unlabelled`.
    aligns : bool
        True to guess classes with the shares that they have among the labels.
    epochs : int
        Epochs of the whole training: the weight of rows without a label rises through them.
    shards : int
        Number of parts that a step is cut into, for workers to share. One on a device.
    split : str
        "examples": by the examples of the minibatch. "units" or "filters", which mean the same: by
        units, on the way down by channels. "hybrid": convolutions by examples, dense links by
        units. "columns": as hybrid, with the columns of the convolutions dealt out too; the number
        of shards is a multiple of the number of columns.
    precision : str
        Precision of the products; see :mod:`syncpretrain.kernels.precision`.
    backend : Backend, optional
        Backend of its arrays; on a device errors are arrays too, not synchronized.

    Attributes
    ----------
    parameters, gradients : ndarray of shape (n_parameters,)
        In the order of the chain; weight, then bias. On a device with gaps of zeros, see
        :class:`syncpretrain.learners.base.Places`.
    chain, chain_gradients : list of (weight, bias)
        Views of ``parameters`` and of ``gradients``.
    shard_gradients : list of ndarray
        Split by examples, the flat gradient of each shard; the first is ``gradients``.
    places : Places
        Places of the links in the flat vectors.
    minibatch : Minibatch
        The arrays in which the present minibatch lies.
    """

    def __init__(
        self,
        chain: Sequence[Link],
        loss: str,
        *,
        batch_size: int,
        dropout: Dropout | None = None,
        noise: float = 0.0,
        adversarial_noise: float = 0.0,
        aligns: bool = False,
        epochs: int = 1,
        shards: int = 1,
        split: str = "units",
        precision: str | None = None,
        backend: Backend | None = None,
    ) -> None:
        chain = [link.in_precision(precision) if precision else link for link in chain]
        self.backend: Backend = backend or Backend()
        self.loss, self.shards, self._dropout = loss, shards, dropout or Dropout()
        self._noise, self._adversarial_noise, self._epochs = noise, adversarial_noise, epochs
        self._aligns = aligns
        kind = chain[0].weight.dtype
        self.places = places_of(chain, self.backend)
        size = self.places.starts[-1]
        self.parameters, self.gradients = (self.backend.zeros(size, kind) for _ in range(2))
        self.chain = list(views(self.parameters, chain, self.places))
        self.chain_gradients = list(views(self.gradients, chain, self.places))
        self._is_exclusive = kind_of(chain[-1].units).is_exclusive
        self._shares = [self._dropout.input] + [self._dropout.hidden] * (len(chain) - 1)
        self._buffers = self._allocate(chain, batch_size, programs.sections_of(chain, split))
        self._x = self.backend.empty((batch_size, chain[0].reads.numbers), kind)
        self._target = self.backend.empty((batch_size, chain[-1].makes.numbers), kind)
        self._weights: tuple[Array, Array] | None = None  # by example, and by output
        self.minibatch = programs.Minibatch(self._x[:0], self._target[:0])
        self._forward: dict[tuple[Any, ...], Program] = {}
        self._gradient: dict[tuple[int, ...], Program] = {}
        self._moves: dict[int, tuple[Program, Array]] = {}  # by the number of rows
        for mine, given in zip(self.chain, chain, strict=True):
            np.copyto(mine[0], self.backend.asarray(given.weight))
            np.copyto(mine[1], self.backend.asarray(given.bias))

    # What overflows makes the error of the step no number, which is told.
    @np.errstate(over="ignore", invalid="ignore")
    def begin(
        self,
        examples: Examples,
        rows: Any,
        *,
        epoch: int = 0,
        step: int = 0,
        run: PhaseRunner = in_turn,
    ) -> None:
        """Copy some rows of examples to where a minibatch lies; draw noise, and what is left out.

        ``rows`` are row numbers, or places in the ``numbers`` of examples, on a device as an array
        of that device; ``epoch`` and ``step`` are the address of what is drawn. ``run`` works the
        phases in which classes are guessed.
        """
        n, gather = len(rows), self.backend.gather
        if examples.numbers is None:
            x = target = gather(examples.inputs, rows, out=self._x[:n])
            if examples.targets is not examples.inputs:
                target = gather(examples.targets, rows, out=self._target[:n])
            weights = None
            if examples.weights is not None:
                own, weights = self._weights_of(n)
                np.copyto(weights, gather(examples.weights, rows, out=own))
            self.minibatch = programs.Minibatch(x, target, weights)
        else:
            self.minibatch = self._with_guesses(examples, rows, epoch, step, run)
        if self._noise:
            x = self.minibatch.x
            draws: Any = Address(self._dropout.seed, Purpose.NOISE, 0, epoch, step).generator()
            noise = draws.standard_normal(x.shape, dtype=np.float32)
            noise *= np.float32(self._noise)
            x += noise
        self._draw_masks(epoch, step)

    @property
    def key(self) -> tuple[int, ...]:
        """Key of the minibatch: minibatches with the same key lie in the same arrays."""
        x, target, weights, _ = self.minibatch
        return len(x), target is x, weights is not None

    def program(self, moves: programs.Moves = programs.no_moves) -> Program:
        """Return a step on minibatches with the present :attr:`key`."""
        phases = programs.step_phases(self._buffers, self.minibatch, moves)
        return Program(phases, 2 * self.shards, self._results(2 * self.shards))

    def work(self, program: Program, run: PhaseRunner = in_turn) -> float:
        """Work a step, or one of :meth:`shard_programs`; return its error summed over examples.

        The error is squared, or 1 for each wrong class; NaN where the output is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the error
            run(program, self.shards)
            return self._error_of(program.results)

    def gradient(self, run: PhaseRunner = in_turn) -> float:
        """Fill the gradients of the loss of the minibatch; return its error as :meth:`work` does.

        The loss is the mean over the examples.
        """
        if self.key not in self._gradient:
            self._gradient[self.key] = self.program()
        return self.work(self._gradient[self.key], run)

    def fused(self, moments: tuple[Array, ...], rule: Rule) -> Any:
        """Return the step together with its optimizer's as one of the device, if it has such steps.

        ``moments`` are the arrays of the optimizer. There is none with dropout, with weights of
        examples, with normalization or with convolutions.
        """
        buffers = self._buffers
        links = [link for link in buffers.links if isinstance(link, Affine)]
        has_masks = any(mask is not None for mask in buffers.masks)
        is_plain = len(links) == len(buffers.links) and not any(x.is_normalized for x in links)
        if has_masks or self.minibatch.weights is not None or not is_plain:
            return None
        written = self.parameters, moments, self.chain, buffers.activations, buffers.deltas
        units = [link.units for link in links]
        arrays = TunedArrays(*written, units, self.loss, links[0].precision)
        return self.backend.fused_tuning(arrays, rule)

    def shard_programs(self) -> list[Program]:
        """Return the gradient of each shard, split by examples, on minibatches with this key.

        A shard has the same operations as in a step of the whole network, so its gradient has the
        same bits.
        """
        dealt = programs.shard_gradients(self._buffers, self.minibatch)
        return [Program([[operations]], 2 * self.shards) for operations in dealt]

    def loss_of_minibatch(self) -> float:
        """Return the loss that :meth:`gradient` differentiates, with the same units left out.

        Normalized, it is so in one shard or by units: by examples, shards standardize over their
        own rows, and this over all.
        """
        x, target, weights, _ = self.minibatch
        y, units = self._output(len(x), drops=True), self._buffers.links[-1].units
        as_documents(y, target, units)
        return loss_of(target, y, units, self.loss, weights) / len(x)

    def error(self, X: Array, target: Array) -> float:
        """Return the mean error of the rows of X: squared, or the share of wrong classes."""
        total, size, units = 0.0, len(self._x), self._buffers.links[-1].units
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(X), size):
                x, t = X[start : start + size], target[start : start + size]
                np.copyto(self._x[: len(x)], x)
                y = as_documents(self._output(len(x), drops=False), t, units)
                total += count_errors(t, y) if self._is_exclusive else squared_error(t, y, out=y)
        return float(total) / len(X)

    def _allocate(
        self, chain: Sequence[Link], batch_size: int, sections: list[programs.Section]
    ) -> programs.Buffers:
        kind = self.parameters.dtype

        def made(width: int) -> Any:
            return self.backend.empty((batch_size, width), kind)

        drops = list(zip([link.reads.numbers for link in chain], self._shares, strict=True))
        makes = [link.makes.numbers for link in chain]
        places = [m if link.stores_argmax else 0 for link, m in zip(chain, makes, strict=True)]
        normals = [m if link.is_normalized else 0 for link, m in zip(chain, makes, strict=True)]
        scratch = max(link.scratch for link in chain)
        own = [link for section in sections if section.columns for link in section.links]
        columns = max(1, *(section.columns for section in sections))
        gradients, self.shard_gradients = [self.chain_gradients], [self.gradients]
        for _ in range(1, self.shards // columns):
            some = [chain[link] for link in own]
            own_places = places_of(some, self.backend)
            vector = self.backend.zeros(own_places.starts[-1], kind)
            mine = dict(zip(own, views(vector, some, own_places), strict=True))
            gradients += [[mine.get(i, pair) for i, pair in enumerate(self.chain_gradients)]]
            self.shard_gradients.append(vector)
        gradients *= columns
        return programs.Buffers(
            chain,
            sections,
            self.places.starts,
            self.chain,
            gradients,
            [made(width) for width in makes],
            [made(width) for width in makes],
            [made(width) for width in places],
            [made(width) if share else None for width, share in drops],
            [made(width) if share else None for width, share in drops],
            [self.backend.empty(scratch, kind) for _ in range(self.shards)],
            [made(width) for width in normals],
            [self.backend.empty((self.shards, width), kind) for width in normals],
            self.loss,
            bool(self.backend.devices()),
        )

    def _results(self, slots: int) -> Any:
        """Return where the results of a program go on a device, None on the host."""
        return [None] * slots if self.backend.devices() else None

    def _output(self, n: int, *, drops: bool) -> Array:
        """Return what comes out for the first rows where a minibatch lies, in a buffer."""
        if (n, drops) not in self._forward:
            phases = programs.forward_phases(self._buffers, self._x[:n], drops=drops)
            self._forward[n, drops] = Program(phases, 1, self._results(1))
        in_turn(self._forward[n, drops], 1)
        return self._buffers.activations[-1][:n]

    def _error_of(self, results: Any) -> float:
        """Return the error that the results of a program's shards make up."""
        # One after another, in any version of Python: see ordered_sum.
        error: float = reduce(add, results[: self.shards])
        # NaN where the output is not finite, without a look at it, for which a device must wait
        return reduce(add, results[self.shards :]) + 0 * error if self._is_exclusive else error

    def _weights_of(self, n: int) -> tuple[Array, Array]:
        """Return where the weights of n rows lie, by row and by output."""
        if self._weights is None:
            empty, (size, outputs) = self.backend.empty, self._target.shape
            kind = self.parameters.dtype
            self._weights = empty((size, 1), kind), empty((size, outputs), kind)
        own, by_output = (array[:n] for array in self._weights)
        return own, by_output

    def _with_guesses(
        self, examples: Examples, rows: Any, epoch: int, step: int, run: PhaseRunner
    ) -> programs.Minibatch:
        """Return a minibatch of rows with a target, and of others with one that is guessed.

        See :mod:`syncpretrain.finetuning.unlabelled`.
        """
        n, gather = len(rows), self.backend.gather
        passes = Passes(examples, n, 0, self._epochs)
        known, others = passes.labelled, n - passes.labelled
        x, target = self._x[:n], self._target[:n]
        gather(examples.inputs, examples.numbers[rows], out=x)  # type: ignore[index]
        gather(examples.targets, rows[:known], out=target[:known])
        own, weights = self._weights_of(n)
        own[:known] = n / known
        if examples.weights is not None:
            own[:known] *= gather(examples.weights, rows[:known], out=weights[:known, :1].copy())
        # By examples every shard would standardize over rows of its own, so one has them all.
        shards = self.shards if all(not s.columns for s in self._buffers.sections) else 1
        if ("guess", others) not in self._forward:
            phases = programs.forward_phases(
                self._buffers, x[known:], drops=False, in_shards=shards > 1
            )
            self._forward["guess", others] = Program(phases, 1, self._results(1))
        run(self._forward["guess", others], shards)
        y = self._buffers.activations[-1][:others].copy()
        if self._adversarial_noise:
            np.copyto(target[known:], y)
            moves = self._adversarial_moves(x[known:], target[known:], (epoch, step), run, shards)
            gather(examples.inputs, examples.numbers[rows[known:]], out=x[known:])  # type: ignore[index]
            x[known:] += moves
        if self._aligns:
            align(y, examples.targets.mean(axis=0))
        own[known:, 0] = guess(y, target[known:]) * (passes.rise(epoch, step) * n / others)
        np.copyto(weights, own)
        return programs.Minibatch(x, target, weights, known)

    def _adversarial_moves(
        self, x: Array, y: Array, at: tuple[int, int], run: PhaseRunner, shards: int
    ) -> Array:
        """Return moves of rows x away from where the network's outputs are y; x is used up."""
        draws: Any = Address(self._dropout.seed, Purpose.ADVERSARY, 0, *at).generator()
        probes = draws.standard_normal(x.shape, dtype=np.float32).astype(x.dtype, copy=False)
        x += scaled_rows(probes, PROBE)
        if len(x) not in self._moves:
            moves = self.backend.empty(x.shape, x.dtype)
            minibatch = programs.Minibatch(x, y, known=0)
            phases = programs.input_gradient_phases(
                self._buffers, minibatch, moves, in_shards=shards > 1
            )
            self._moves[len(x)] = Program(phases, 2 * self.shards), moves
        program, moves = self._moves[len(x)]
        run(program, shards)
        return scaled_rows(moves, self._adversarial_noise)

    def _draw_masks(self, epoch: int, step: int) -> None:
        """Draw a factor for each unit: 0, or what makes up for the units left out."""
        masks = self._buffers.masks
        if all(mask is None for mask in masks):
            return
        address = Address(self._dropout.seed, Purpose.DROPOUT, 0, epoch, step)
        draws: Any = self.backend.generator(address)
        for mask, share in zip(masks, self._shares, strict=True):
            if mask is not None:
                drawn = mask if mask.dtype == np.float32 else np.empty(mask.shape, np.float32)
                draws.random(out=drawn, dtype=np.float32)
                np.greater_equal(drawn, np.float32(share), out=mask)
                mask *= np.float32(1 / (1 - share))
