"""The kinds of units: their equations, and the properties that follow from them.

Each kind is one record of the table below; the record has everything that differs between kinds.

* ``bernoulli``: mean sigmoid(x); the units of a binary RBM, and the sigmoid of a network;
* ``gaussian``: mean x, variance 1; the linear units of a network (Hinton and Salakhutdinov 2006);
* ``relu``: mean max(0, x); rectified linear units (Nair and Hinton 2010);
* ``tanh``: mean tanh(x); for autoencoders and networks alone, since it has no states to sample;
* ``softmax``: one unit is on; only the last units of a classifier;
* blocks of columns, such as ``gaussian:5,softmax:3x7``: :mod:`syncpretrain.units.blocks` has them.

The equations take NumPy as their first argument: the settings read this table too, and the help of
the command line is printed without importing NumPy. A faster form of an equation belongs to
``kernels/_loops.h`` or ``backends/kernels.cu``; a kind without one is computed as written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
        Columns of each kind, if there are several; see :class:`syncpretrain.units.blocks.Blocks`.
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
    def is_linear(self) -> bool:
        """True if the derivative is 1 everywhere."""
        return self.times_derivative is unchanged


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

BLOCK_READERS: list[Callable[[str], Kind]] = []  # blocks.py puts its reader here


def kind_of(name: str) -> Kind:
    """Return the record of a kind of units, or of blocks.

    Raises
    ------
    ValueError
        If there is no kind of that name.
    """
    kind = KINDS.get(name)
    if kind is None and ":" in name and BLOCK_READERS:
        return BLOCK_READERS[0](name)
    if kind is None:
        raise ValueError(f"got units {name!r}; expected one of {', '.join(KINDS)}")
    return kind
