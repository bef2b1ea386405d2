"""Visible units in blocks of columns: ``bernoulli:20,gaussian:5,softmax:3x7,counts:2000``.

A block is a kind and the number of its units, from the first column on:

* ``bernoulli:20`` and ``gaussian:5`` are units of the kinds of :mod:`syncpretrain.units.kinds`;
* ``softmax:3x7`` is 3 groups of 7 units with one unit on in each group: categories;
* ``counts:2000`` is a replicated softmax (Salakhutdinov and Hinton 2009): the counts of 2000 words
  in a document of D words. Its units are D draws from one softmax with shared weights.

In the replicated softmax a hidden unit has the input v W + D b. Since D is the sum of v, this is
v (W + 1 b^T), and the visible means D softmax(h W^T + a) stay the same if a constant is added to
a column of W. So a layer keeps W' = W + 1 b^T, and the hidden units of counts alone have no other
bias (it stays 0): encoder, decoder, free energy and fine-tuning work as for any other layer.
If there are other blocks too, the hidden units have a bias, which belongs to the other blocks. A
step of contrastive divergence on W' moves b by a share of b's own gradient, D (h0 - h1); with the
whole gradient units were on or off in every document.

The means of counts are shares of the words and add up to 1: a record knows no row. Code that knows
D multiplies by it (:mod:`syncpretrain.kernels.conditions`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from syncpretrain.units import kinds
from syncpretrain.units.kinds import Kind

SOFTMAX, COUNTS = "softmax", "counts"
FORMS = (*kinds.INPUT_UNITS, SOFTMAX, COUNTS)
ITEM = re.compile(r"(\w+)(?::(?:([1-9]\d{0,8})x)?([1-9]\d{0,8}))?")
CHOICES = (0.0, 1.0, 0.1)  # the limits and the learning rate of softmax units
WORDS = (0.0, math.inf, kinds.UNBOUNDED_RATE)
RAREST = 0.01  # smallest first share of a choice, relative to equally likely choices


@dataclass(frozen=True, slots=True)
class Block:
    """Columns from ``start`` to ``stop`` of one kind.

    Softmax units are divided into ``groups``; counts are one group, other kinds 0.
    """

    kind: str
    start: int
    stop: int
    groups: int = 0

    @property
    def columns(self) -> slice:
        """The columns of a row."""
        return slice(self.start, self.stop)

    @property
    def choices(self) -> int:
        """Units of a group."""
        return (self.stop - self.start) // max(self.groups, 1)

    def __str__(self) -> str:
        size = f"{self.groups}x{self.choices}" if self.kind == SOFTMAX else self.stop - self.start
        return f"{self.kind}:{size}"

    def grouped(self, x: Any) -> Any:
        """Return the columns of this block in the shape (..., groups, choices)."""
        return x[..., self.columns].reshape(*x.shape[:-1], self.groups, self.choices)


class Blocks:
    """Blocks of visible units, with their equations on the columns of each block.

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
        plain = [part for part in self.parts if not part.groups]
        self.normal = tuple(part for part in plain if kinds.KINDS[part.kind].noise == "normal")
        # Kinds of inputs, which have every equation.
        self._simple: list[tuple[slice, Any]] = [
            (part.columns, kinds.KINDS[part.kind]) for part in plain
        ]
        self._grouped = [part for part in self.parts if part.groups]

    @property
    def are_counts(self) -> bool:
        """True if all blocks are counts."""
        return len(self.counts) == len(self.parts)

    @property
    def has_bias(self) -> bool:
        """True if hidden units have a bias; for counts alone the weights contain it."""
        return not self.are_counts

    def mean(self, np: Any, x: Any) -> None:
        """Replace inputs by means in place; the means of counts are shares."""
        for columns, kind in self._simple:
            kind.mean(np, x[:, columns])
        for part in self._grouped:
            rows = part.grouped(x).reshape(-1, part.choices)
            kinds.softmax(np, rows)
            x[:, part.columns] = rows.reshape(len(x), -1)

    def times_derivative(self, np: Any, a: Any, delta: Any) -> None:
        """Multiply delta by the derivative of the means a.

        For a group of choices with means a and sum D the product is a (delta - a delta / D).
        """
        for columns, kind in self._simple:
            kind.times_derivative(np, a[:, columns], delta[:, columns])
        for part in self._grouped:
            means, below = part.grouped(a), part.grouped(delta)
            total = means.sum(axis=-1, keepdims=True)
            mean = (means * below).sum(axis=-1, keepdims=True) / np.where(total > 0, total, 1)
            delta[:, part.columns] = (means * (below - mean)).reshape(len(a), -1)

    def sample(self, np: Any, x: Any, noise: Any, out: Any) -> None:
        """Draw states, and replace inputs by means; counts get their means as states too.

        A group takes one number of the noise: the state is the choice at which the cumulative sum
        of the means passes this number.
        """
        for columns, kind in self._simple:
            kind.sample(np, x[:, columns], noise[:, columns], out[:, columns])
        for part in self._grouped:
            rows = part.grouped(x)
            rows = rows.reshape(-1, part.choices).copy()
            kinds.softmax(np, rows)
            x[:, part.columns] = out[:, part.columns] = rows.reshape(len(x), -1)
            if part.kind == COUNTS:
                continue
            uniform = part.grouped(noise)[..., 0].reshape(-1, 1)
            chosen = (np.cumsum(rows, axis=1)[:, :-1] <= uniform).sum(axis=1, keepdims=True)
            states = np.arange(part.choices) == chosen
            out[:, part.columns] = states.reshape(len(x), -1)

    def log_sum(self, np: Any, x: Any, b: Any, words: Iterable[Any] = ()) -> Any:
        """Return log sum_v exp(-E) of each block of visible units, with inputs x and biases b.

        ``words`` has the number D of each row for each block of counts; a state of a document is
        a sequence of its words.
        """
        sums = [kind.log_sum(np, x[:, columns], b[columns]) for columns, kind in self._simple]
        words = iter(words)
        for part in self._grouped:
            rows = part.grouped(x)
            top = rows.max(axis=-1, keepdims=True)
            total = top[..., 0] + np.log(np.exp(rows - top).sum(axis=-1))
            sums.append(total * next(words) if part.kind == COUNTS else total)
        return np.concatenate(sums, axis=1)

    def energy(self, np: Any, v: Any, a: Any) -> Any:
        """Return the part of each row's energy that depends on the visible biases a alone."""
        total = 0.0
        for columns, kind in self._simple:
            total = total + kind.energy(np, v[:, columns], a[columns])
        for part in self._grouped:
            total = total - v[:, part.columns] @ a[part.columns]
        return total

    def bias_of(self, np: Any, mean: Any) -> Any:
        """Return the bias that gives each unit a mean: for a choice, the log of its share."""
        bias = np.empty_like(mean)
        for columns, kind in self._simple:
            bias[columns] = kind.bias_of(np, mean[columns])
        for part in self._grouped:
            share = part.grouped(mean)
            total = share.sum(axis=-1, keepdims=True)
            share = share / np.where(total > 0, total, 1)
            least = RAREST / part.choices
            bias[part.columns] = kinds.logarithm(np, np.maximum(share, least)).reshape(-1)
        return bias

    def matching(self, np: Any, x: Any, y: Any, weights: Any = None) -> float:
        """Return the loss with the delta y - x, summed over the units and examples.

        It is the cross-entropy of Bernoulli units and of choices, and half the squared error of
        Gaussian units. ``weights``, in the shape of y, are weights of the terms.
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
    """Return the record of visible units; None if there are no units or blocks of that name.

    Blocks are known by the standard form of their text alone.
    """
    try:
        kind = kinds.kind_of(text)
        is_kept = kind.blocks is None or blocks_text(text) == text
    except (TypeError, ValueError):
        return None
    return kind if kind.is_input and is_kept else None


def read_blocks(text: str) -> list[Block]:
    """Return the blocks of a text.

    Raises
    ------
    ValueError
        If the text has another form, or a block has no number of units.
    """
    parts, start = list[Block](), 0
    for item in text.split(","):
        kind, groups, size = _item(item, text)
        if not size:
            raise ValueError(f"got {item!r} in {text!r}, expected the number of its units too")
        stop = start + max(groups, 1) * size
        parts.append(Block(kind, start, stop, 1 if kind == COUNTS else groups))
        start = stop
    return parts


def blocks_text(text: str, width: int | None = None) -> str:
    """Return the text of blocks in its standard form: neighbours of one kind become one block.

    Parameters
    ----------
    text : str
    width : int, optional
        Number of columns. One block may leave out its number, and gets the remaining columns.

    Raises
    ------
    ValueError
        If the text has another form, or its widths do not add up to ``width``.
    """
    found = [_item(item, text) for item in text.replace(" ", "").split(",")]
    taken = sum(max(groups, 1) * size for _, groups, size in found)
    free = sum(not size for _, _, size in found)
    if width is None or free > 1 or (free and taken >= width) or (not free and taken != width):
        if width is None and not free:
            width = taken
        else:
            raise ValueError(
                f"got {text}, whose blocks have {taken} columns, expected {width or 'a number'},"
                " the values of an example that layers begins with"
            )
    merged: list[list[Any]] = []
    free = width - taken
    for kind, groups, size in found:
        size = size or free
        last: list[Any] = merged[-1] if merged else ["", 0, 0]
        if last[0] == kind and not groups and kind != COUNTS:
            last[2] += size
        elif last[0] == kind == SOFTMAX and last[2] == size:
            last[1] += groups
        else:
            merged.append([kind, groups, size])
    if len(merged) == 1 and merged[0][0] in kinds.INPUT_UNITS:
        return str(merged[0][0])
    return ",".join(f"{k}:{g}x{n}" if k == SOFTMAX else f"{k}:{n}" for k, g, n in merged)


def fitted_units(text: Any, width: Any) -> Any:
    """Return visible units in their standard form, for the width of an example.

    ``counts`` and ``softmax`` alone stand for all columns; a value that is no text of blocks is
    returned as it is, for others to refuse.

    Raises
    ------
    ValueError
        As :func:`blocks_text`.
    """
    is_text = isinstance(text, str) and isinstance(width, int)
    if not is_text or not (set(":,") & set(text) or text in (SOFTMAX, COUNTS)):
        return text
    return blocks_text(text, width)


def _item(item: str, text: str) -> tuple[str, int, int]:
    """Return the kind, the number of groups, and the units of each: 0 if left out."""
    found = ITEM.fullmatch(item)
    kind = found[1] if found else ""
    if found is None or kind not in FORMS or (found[2] and kind != SOFTMAX):
        raise ValueError(
            f"got {item or 'nothing'!r} in {text!r}, expected blocks such as bernoulli:20,"
            " gaussian:5, softmax:3x7 (3 groups of 7) or counts:2000"
        )
    groups = int(found[2] or 1) if kind == SOFTMAX else 0
    return kind, groups, int(found[3] or 0)


@lru_cache(maxsize=64)
def _kind_of_blocks(text: str) -> Kind:
    """Return the record of units in blocks."""
    blocks = Blocks(read_blocks(text))
    ungrouped = [kinds.KINDS[part.kind] for part in blocks.parts if not part.groups]
    grouped = [CHOICES] * len(blocks.groups) + [WORDS] * len(blocks.counts)
    limits = [(kind.lower, kind.upper, kind.learning_rate) for kind in ungrouped] + grouped
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


kinds.BLOCK_READERS.append(_kind_of_blocks)
