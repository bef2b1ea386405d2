"""The kinds of units: their equations, and the properties that follow from them.

Each kind is one record of the table below; the record has everything that differs between kinds.

* ``bernoulli``: mean sigmoid(x); the units of a binary RBM, and the sigmoid of a network;
* ``gaussian``: mean x, variance 1; the linear units of a network (Hinton and Salakhutdinov 2006);
* ``relu``: mean max(0, x); rectified linear units (Nair and Hinton 2010);
* ``tanh``: mean tanh(x); for autoencoders and networks alone, since it has no states to sample;
* ``softmax``: one unit is on; only the last units of a classifier;
* blocks of columns, such as ``bernoulli:20,gaussian:5,softmax:3x7,counts:2000``.

The equations take NumPy as their first argument: the settings read this table too, and the help of
the command line is printed without importing NumPy. A faster form of an equation belongs to
``kernels/_loops.h`` or ``backends/kernels.cu``; a kind without one is computed as written here.

A block is a kind and the number of its units, from the first column on:

* ``bernoulli:20`` and ``gaussian:5`` are units of these kinds;
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
from typing import Any, Literal

Equation = Callable[..., Any]
UNBOUNDED_RATE = 0.001  # without a limit a lower rate is needed (Hinton 2010, section 13.2)
MOST_CERTAIN = 0.01  # smallest distance of a mean from 0 and 1 for the first biases


# In the equations x are inputs, a are means, and the array that is named last gets the result.


def unchanged(np: Any, *arrays: Any) -> None:
    """Do nothing: the mean of a linear unit is its input, its derivative 1."""


def sigmoid(np: Any, x: Any) -> None:
    """Replace x by 1 / (1 + exp(-x)) in place."""
    # Not np.negative, which reads wrong numbers where they are 16 bytes apart (NumPy 2.4).
    np.multiply(x, -1, out=x)
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        np.exp(x, out=x)
    x += 1
    np.reciprocal(x, out=x)


def softmax(np: Any, x: Any) -> None:
    """Replace each row of x by exp(x) / sum(exp(x)) in place."""
    x -= x.max(axis=1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=1, keepdims=True)


def times_sigmoid_derivative(np: Any, a: Any, delta: Any) -> None:
    """Multiply delta by a (1 - a) in place."""
    delta *= a
    delta *= np.subtract(1, a)


def times_tanh_derivative(np: Any, a: Any, delta: Any) -> None:
    """Multiply delta by 1 - a^2 in place."""
    slope = np.square(a)
    delta *= np.subtract(1, slope, out=slope)


def times_step(np: Any, a: Any, delta: Any) -> None:
    """Multiply delta by 1 where a > 0, else by 0, in place."""
    delta *= np.sign(a)  # a >= 0


def sample_binary(np: Any, x: Any, noise: Any, out: Any) -> None:
    """Draw 1 with probability sigmoid(x), else 0."""
    sigmoid(np, x)
    np.less(noise, x, out=out)


def sample_rectified(np: Any, x: Any, noise: Any, out: Any, sigmoid: Equation = sigmoid) -> None:
    """Draw max(0, x + N(0, sigmoid(x))) (Nair and Hinton 2010, section 2)."""
    np.copyto(out, x)
    sigmoid(np, out)
    noise *= np.sqrt(out, out=out)
    np.add(x, noise, out=out)
    np.maximum(x, 0, out=x)
    np.maximum(out, 0, out=out)


def log_sum_binary(np: Any, x: Any, b: Any) -> Any:
    """Return log(1 + exp(x)); in float32 by functions that are a tenth of NumPy's logaddexp."""
    if x.dtype != np.float32:
        return np.logaddexp(0, x)
    sums = np.exp(-np.abs(x))
    sums += 1
    np.log(sums, out=sums)
    sums += np.maximum(x, 0)
    return sums


def log_sum_stepped(np: Any, x: Any, b: Any) -> Any:
    """Return sum_i log(1 + exp(x - i + 1/2)) for i = 1, 2, ...

    By the midpoint rule the sum is the integral of softplus up to x, -Li2(-exp(x)), minus
    sigmoid(x) / 24; the error is below 0.0003.
    """
    u = -np.logaddexp(0, -np.abs(x))  # Li2(1 - exp(-u)) by its Bernoulli series, |u| <= log 2
    near = -(u - u**2 / 4 + u**3 / 36 - u**5 / 3600 + u**7 / 211680)
    integral = np.where(x <= 0, near, x**2 / 2 + math.pi**2 / 6 - near)
    share = x.copy()
    sigmoid(np, share)
    return integral - share / 24


def logarithm(np: Any, x: Any) -> Any:
    """Return log(x) of positive numbers in float64, with the same bits everywhere.

    NumPy's differ in the last bit between processors, but not its sums, products and quotients.
    """
    m, n = np.frexp(x)  # x = 2^n m
    is_low = m < math.sqrt(0.5)
    m, n = np.where(is_low, 2 * m, m), n - is_low
    s, total = (m - 1) / (m + 1), 0.0
    for k in range(23, 0, -2):  # log m = 2 artanh s
        total = total * (s * s) + 1 / k
    return n * math.log(2) + 2 * s * total


def log_odds(np: Any, mean: Any) -> Any:
    """Return log(p / (1 - p)) of means p (Hinton 2010, section 8)."""
    mean = np.clip(mean, MOST_CERTAIN, 1 - MOST_CERTAIN)
    odds = mean / (1 - mean)
    # The means of a device stay there, and get its own logarithm.
    return logarithm(np, odds) if isinstance(odds, np.ndarray) else np.log(odds)


def glorot(fan_in: int, fan_out: int) -> float:
    """Return the variance of the first weights (Glorot and Bengio 2010)."""
    return 2 / (fan_in + fan_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of units. An equation that a kind lacks is None.

    Attributes
    ----------
    name : str
    mean : callable (np, x)
        Replaces inputs by means in place.
    times_derivative : callable (np, a, delta) or None
        Multiplies ``delta`` by the derivative at the means ``a``. None if the derivative is part of
        the loss.
    curvature : callable (np, a) or None
        The second derivative over the first at the means; None if it is 0.
    noise : str or None
        Distribution of the random numbers that ``sample`` needs: ``uniform`` or ``normal``.
    sample : callable (np, x, noise, out) or None
        Draws states into ``out`` and replaces inputs by means; ``noise`` is overwritten. None if
        the kind has no states: then it is not supported in RBMs.
    log_sum : callable (np, x, b) or None
        Returns log sum_h exp(-E) of each hidden unit with input x and bias b, in float64.
    energy : callable (np, v, a) or None
        Returns the part of the energy of each row of visible states v that depends on their biases
        a alone.
    bias_of : callable (np, mean) or None
        Returns the bias that gives a visible unit a mean; None for kinds that cannot be visible.
    weight_variance : callable (fan_in, fan_out)
        Returns the variance of random first weights below such units.
    lower, upper : float
        Range of the means.
    loss : str
        Loss with the delta y - x at the output: ``squared`` or ``cross-entropy``.
    learning_rate : float
        Default of autoencoders and RBMs with such units; a layer takes the lower one of its two
        sides.
    above : str
        Visible units of a layer that reads units of this kind.
    is_input : bool
        True if the visible units of the lowest layer can be of this kind.
    is_binary : bool
        True if states are 0 or 1.
    is_exclusive : bool
        True if one unit of all is on: means depend on each other, and errors are wrong classes.
    blocks : Blocks or None
        Columns of each kind, if there are several; see :class:`Blocks`.
    """

    name: str
    mean: Equation
    times_derivative: Equation | None
    curvature: Equation | None = None
    noise: Literal["uniform", "normal"] | None = None
    sample: Equation | None = None
    log_sum: Equation | None = None
    energy: Equation | None = None
    bias_of: Equation | None = None
    weight_variance: Callable[[int, int], float] = glorot
    lower: float
    upper: float
    loss: Literal["squared", "cross-entropy"] = "squared"
    learning_rate: float = 0.1
    above: str = ""
    is_input: bool = False
    is_binary: bool = False
    is_exclusive: bool = False
    blocks: Any = None

    @property
    def is_bounded(self) -> bool:
        """True if means have a lower and an upper limit."""
        return math.isfinite(self.upper - self.lower)

    @property
    def is_unit_interval(self) -> bool:
        """True if all means are in [0, 1], and examples are neither standardized nor counts."""
        return (self.lower, self.upper) == (0, 1) and self.blocks is None

    @property
    def counts(self) -> tuple[Any, ...]:
        """The blocks of counts; none for other units."""
        return () if self.blocks is None else tuple(self.blocks.counts)

    @property
    def are_counts(self) -> bool:
        """True for counts alone, with which hidden units have no bias: the weights contain it."""
        return self.blocks is not None and len(self.blocks.counts) == len(self.blocks.parts)

    @property
    def is_linear(self) -> bool:
        """True if the derivative is 1 everywhere."""
        return self.times_derivative is unchanged

    def normal_columns(self, np: Any, width: int) -> Any:
        """Return which of some visible units are Gaussian."""
        found = np.full(width, self.blocks is None and not self.is_unit_interval)
        for part in self.blocks.normal if self.blocks is not None else ():
            found[part.columns] = True
        return found


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="bernoulli",
            mean=sigmoid,
            times_derivative=times_sigmoid_derivative,
            curvature=lambda np, a: 1 - 2 * a,
            noise="uniform",
            sample=sample_binary,
            log_sum=log_sum_binary,
            energy=lambda np, v, a: -v @ a,
            bias_of=log_odds,
            lower=0,
            upper=1,
            loss="cross-entropy",
            above="bernoulli",
            is_input=True,
            is_binary=True,
        ),
        Kind(
            name="gaussian",
            mean=unchanged,
            times_derivative=unchanged,
            noise="normal",
            sample=lambda np, x, noise, out: np.add(x, noise, out=out),
            log_sum=lambda np, x, b: 0.5 * (np.square(x) - np.square(b) + math.log(2 * math.pi)),
            energy=lambda np, v, a: 0.5 * np.square(v - a).sum(axis=1),
            bias_of=lambda np, mean: mean,
            lower=-math.inf,
            upper=math.inf,
            learning_rate=UNBOUNDED_RATE,
            above="gaussian",
            is_input=True,
        ),
        Kind(
            name="relu",
            mean=lambda np, x: np.maximum(x, 0, out=x),
            times_derivative=times_step,
            noise="normal",
            sample=sample_rectified,
            log_sum=log_sum_stepped,
            weight_variance=lambda fan_in, fan_out: 2 / fan_in,  # He et al. 2015
            lower=0,
            upper=math.inf,
            learning_rate=UNBOUNDED_RATE,
            above="gaussian",
        ),
        Kind(
            name="tanh",
            mean=lambda np, x: np.tanh(x, out=x),
            times_derivative=times_tanh_derivative,
            curvature=lambda np, a: -2 * a,
            lower=-1,
            upper=1,
            learning_rate=0.01,  # below linear units, which need more than sigmoids do
            above="gaussian",
        ),
        Kind(
            name="softmax",
            mean=softmax,
            times_derivative=None,
            lower=0,
            upper=1,
            loss="cross-entropy",
            is_exclusive=True,
        ),
    )
}
UNITS = tuple(name for name, kind in KINDS.items() if not kind.is_exclusive)  # units of a layer
INPUT_UNITS = tuple(name for name, kind in KINDS.items() if kind.is_input)


def kind_of(name: str) -> Kind:
    """Return the record of a kind of units, or of blocks.

    Raises
    ------
    ValueError
        If there is no kind of that name.
    """
    kind = KINDS.get(name)
    if kind is None and ":" in name:
        return _kind_of_blocks(name)
    if kind is None:
        raise ValueError(f"got units {name!r}; expected one of {', '.join(KINDS)}")
    return kind


SOFTMAX, COUNTS = "softmax", "counts"
FORMS = (*INPUT_UNITS, SOFTMAX, COUNTS)
ITEM = re.compile(r"(\w+)(?::(?:([1-9]\d{0,8})x)?([1-9]\d{0,8}))?")
CHOICES = (0.0, 1.0, 0.1)  # the limits and the learning rate of softmax units
WORDS = (0.0, math.inf, UNBOUNDED_RATE)
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
        self.normal = tuple(part for part in plain if KINDS[part.kind].noise == "normal")
        # Kinds of inputs, which have every equation.
        self._simple: list[tuple[slice, Any]] = [(part.columns, KINDS[part.kind]) for part in plain]
        self._grouped = [part for part in self.parts if part.groups]

    def mean(self, np: Any, x: Any) -> None:
        """Replace inputs by means in place; the means of counts are shares."""
        for columns, kind in self._simple:
            kind.mean(np, x[:, columns])
        for part in self._grouped:
            rows = part.grouped(x).reshape(-1, part.choices)
            softmax(np, rows)
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
            rows = part.grouped(x).reshape(-1, part.choices).copy()
            softmax(np, rows)
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
            bias[part.columns] = logarithm(np, np.maximum(share, least)).reshape(-1)
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
        kind = kind_of(text)
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
    width = taken if width is None and not free else width
    if width is None or free > 1 or (free and taken >= width) or (not free and taken != width):
        wanted = f"{width or 'a number'}, the values of an example that layers begins with"
        raise ValueError(f"got {text}, whose blocks have {taken} columns, expected {wanted}")
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
    if len(merged) == 1 and merged[0][0] in INPUT_UNITS:
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
        examples = "bernoulli:20, gaussian:5, softmax:3x7 (3 groups of 7) or counts:2000"
        raise ValueError(
            f"got {item or 'nothing'!r} in {text!r}, expected blocks such as {examples}"
        )
    groups = int(found[2] or 1) if kind == SOFTMAX else 0
    return kind, groups, int(found[3] or 0)


@lru_cache(maxsize=64)
def _kind_of_blocks(text: str) -> Kind:
    """Return the record of units in blocks."""
    blocks = Blocks(read_blocks(text))
    ungrouped = [KINDS[part.kind] for part in blocks.parts if not part.groups]
    grouped = [CHOICES] * len(blocks.groups) + [WORDS] * len(blocks.counts)
    limits = [(kind.lower, kind.upper, kind.learning_rate) for kind in ungrouped] + grouped
    lower, upper, rates = zip(*limits, strict=True)
    names = ("mean", "times_derivative", "sample", "log_sum", "energy", "bias_of")
    return Kind(
        name=text,
        **{name: getattr(blocks, name) for name in names},
        noise="uniform",
        lower=min(lower),
        upper=max(upper),
        loss="cross-entropy",
        learning_rate=min(rates),
        is_input=True,
        blocks=blocks,
    )
