"""Visible units in blocks of columns: ``bernoulli:20,gaussian:5,softmax:3x7,counts:2000``.

A block is a kind and the number of its units, from the first column on:

* ``bernoulli:20`` and ``gaussian:5`` are units of the kinds of :mod:`syncpretrain.units.kinds`;
* ``softmax:3x7`` is 3 groups of 7 units, of which one is on in each group: categories;
* ``counts:2000`` is a replicated softmax (Salakhutdinov and Hinton 2009): how often each of 2000
  words is in a document of D words. Its units are D draws from one softmax with shared weights.

In the replicated softmax a hidden unit has the input v W + D b. Since D is the sum of v, that is
v (W + 1 b^T), and the visible means D softmax(h W^T + a) stay the same if a constant is added to
a column of W. So a layer keeps W' = W + 1 b^T, and the hidden units of counts alone have no other
bias (it stays 0): encoder, decoder, free energy and fine-tuning are those of any other layer.
Beside other blocks the hidden units have a bias, which belongs to these. A step of contrastive
divergence on W' moves b by a share of its own gradient, D (h0 - h1); with the whole of it units
were on or off in every document.

The means of counts are shares of the words, whose sum is 1: a record knows of no row. Who knows D
multiplies by it (:mod:`syncpretrain.kernels.conditions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from syncpretrain.units.kinds import BLOCK_READERS, KINDS, UNBOUNDED_RATE, Kind, kind_of, softmax
from syncpretrain.units.text import COUNTS, SOFTMAX, Block, blocks_text, read_blocks

__all__ = ["Blocks", "visible_kind"]

CHOICES = (0.0, 1.0, 0.1)  # the limits and the learning rate of softmax units
WORDS = (0.0, math.inf, UNBOUNDED_RATE)
RAREST = 0.01  # of what a choice has where all are as likely; a rarer one starts there


class Blocks:
    """The blocks of visible units, and their equations on the columns of each.

    Parameters
    ----------
    parts : sequence of Block

    Attributes
    ----------
    parts : tuple of Block
    width : int
        Columns of a row.
    counts, normal, groups : tuple
        Blocks of counts, of Gaussian units, and of softmax units.
    """

    def __init__(self, parts: Iterable[Block]) -> None:
        self.parts = tuple(parts)
        self.width = self.parts[-1].stop
        self.counts = tuple(part for part in self.parts if part.kind == COUNTS)
        self.groups = tuple(part for part in self.parts if part.kind == SOFTMAX)
        self.normal = tuple(p for p in self.parts if not p.groups and _noise(p) == "normal")
        self._simple = [(p.columns, KINDS[p.kind]) for p in self.parts if not p.groups]
        self._grouped = [part for part in self.parts if part.groups]

    @property
    def are_counts(self) -> bool:
        """Whether there are counts alone."""
        return len(self.counts) == len(self.parts)

    @property
    def has_bias(self) -> bool:
        """Whether hidden units have a bias; that of counts is in the weights."""
        return not self.are_counts

    def mean(self, np: Any, x: Any) -> None:
        """Replace inputs by means in place; those of counts are shares."""
        for columns, kind in self._simple:
            kind.mean(np, x[:, columns])
        for part in self._grouped:
            rows = part.grouped(x).reshape(-1, part.choices)
            softmax(np, rows)
            x[:, part.columns] = rows.reshape(len(x), -1)

    def times_derivative(self, np: Any, a: Any, delta: Any) -> None:
        """Multiply delta by the derivative of the means a; ``a`` is overwritten.

        Of the choices of a group with means a and sum D: a (delta - a delta / D).
        """
        for columns, kind in self._simple:
            assert kind.times_derivative is not None
            kind.times_derivative(np, a[:, columns], delta[:, columns])
        for part in self._grouped:
            means, below = part.grouped(a), part.grouped(delta)
            total = means.sum(axis=-1, keepdims=True)
            mean = (means * below).sum(axis=-1, keepdims=True) / np.where(total > 0, total, 1)
            delta[:, part.columns] = (means * (below - mean)).reshape(len(a), -1)

    def sample(self, np: Any, x: Any, noise: Any, out: Any) -> None:
        """Draw states, and replace inputs by means; of counts, means into both.

        A group takes one number of the noise: the choice where the sum of the means passes it.
        """
        for columns, kind in self._simple:
            assert kind.sample is not None
            kind.sample(np, x[:, columns], noise[:, columns], out[:, columns])
        for part in self._grouped:
            rows = part.grouped(x)
            rows = rows.reshape(-1, part.choices).copy()
            softmax(np, rows)
            x[:, part.columns] = out[:, part.columns] = rows.reshape(len(x), -1)
            if part.kind == COUNTS:
                continue
            uniform = part.grouped(noise)[..., 0].reshape(-1, 1)
            chosen = (np.cumsum(rows, axis=1)[:, :-1] <= uniform).sum(axis=1, keepdims=True)
            states = np.arange(part.choices) == chosen
            out[:, part.columns] = states.reshape(len(x), -1)

    def log_sum(self, np: Any, x: Any, b: Any, words: Iterable[Any] = ()) -> Any:
        """Return log sum_v exp(-E) of visible units with inputs x and biases b, of each block.

        ``words`` has the number D of each row for each block of counts; the states of a document
        are those of its words in their order.
        """
        sums = [
            kind.log_sum(np, x[:, columns], b[columns])  # type: ignore[misc]
            for columns, kind in self._simple
        ]
        words = iter(words)
        for part in self._grouped:
            rows = part.grouped(x)
            top = rows.max(axis=-1, keepdims=True)
            total = top[..., 0] + np.log(np.exp(rows - top).sum(axis=-1))
            sums.append(total * next(words) if part.kind == COUNTS else total)
        return np.concatenate(sums, axis=1)

    def energy(self, np: Any, v: Any, a: Any) -> Any:
        """Return the energy of each row of v that depends on the visible biases a alone."""
        total = 0.0
        for columns, kind in self._simple:
            assert kind.energy is not None
            total = total + kind.energy(np, v[:, columns], a[columns])
        for part in self._grouped:
            total = total - v[:, part.columns] @ a[part.columns]
        return total

    def bias_of(self, np: Any, mean: Any) -> Any:
        """Return the bias with which each unit has a mean: of a choice, the log of its share."""
        bias = np.empty_like(mean)
        for columns, kind in self._simple:
            assert kind.bias_of is not None
            bias[columns] = kind.bias_of(np, mean[columns])
        for part in self._grouped:
            share = part.grouped(mean)
            total = share.sum(axis=-1, keepdims=True)
            share = share / np.where(total > 0, total, 1)
            least = RAREST / part.choices
            bias[part.columns] = np.log(np.maximum(share, least)).reshape(-1)
        return bias

    def matching(self, np: Any, x: Any, y: Any, weights: Any = None) -> float:
        """Return the loss whose delta is y - x, summed over the units and examples.

        The cross-entropy of Bernoulli units and of choices, half the squared error of Gaussian
        ones. ``weights``, of the shape of y, say how much each term counts.
        """
        terms, least = np.empty_like(y), np.finfo(y.dtype).tiny
        for part in self._grouped:
            own = part.columns
            terms[:, own] = -x[:, own] * np.log(np.maximum(y[:, own], least))
        for columns, kind in self._simple:
            target, own = x[:, columns], y[:, columns]
            if kind.loss == "squared":
                terms[:, columns] = np.square(own - target) / 2
                continue
            off = (1 - target) * np.log(np.maximum(1 - own, least))
            terms[:, columns] = -target * np.log(np.maximum(own, least)) - off
        return float((terms if weights is None else weights * terms).sum(dtype="f8"))


def visible_kind(text: Any) -> Kind | None:
    """Return the record of visible units, None if there are none of that name or in these blocks.

    Blocks are known by the one form of their text that is kept.
    """
    try:
        kind = kind_of(text)
        is_kept = kind.blocks is None or blocks_text(text) == text
    except (TypeError, ValueError):
        return None
    return kind if kind.is_input and is_kept else None


def _noise(part: Block) -> str | None:
    return KINDS[part.kind].noise


@lru_cache(maxsize=64)
def _kind_of_blocks(text: str) -> Kind:
    """Return the record of units in blocks."""
    return _record(text, Blocks(read_blocks(text)))


def _record(text: str, blocks: Blocks) -> Kind:
    kinds = [KINDS[part.kind] for part in blocks.parts if not part.groups]
    grouped = [CHOICES] * len(blocks.groups) + [WORDS] * len(blocks.counts)
    limits = [(kind.lower, kind.upper, kind.learning_rate) for kind in kinds] + grouped
    lower, upper, rates = zip(*limits, strict=True)
    equations: dict[str, Callable[..., Any]] = {
        name: getattr(blocks, name)
        for name in ("mean", "times_derivative", "sample", "log_sum", "energy", "bias_of")
    }
    return Kind(
        name=text,
        **equations,  # type: ignore[arg-type]
        noise="uniform",
        lower=min(lower),
        upper=max(upper),
        loss="cross-entropy",
        learning_rate=min(rates),
        is_input=True,
        blocks=blocks,
    )


BLOCK_READERS.append(_kind_of_blocks)
