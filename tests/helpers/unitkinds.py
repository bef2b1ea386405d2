"""What each kind of units is by definition, in float64: one line of each table for a new kind."""

import numpy as np
from binaryunits import logistic

from syncpretrain.units.kinds import INPUT_UNITS as INPUT_UNITS  # as the others come from here
from syncpretrain.units.kinds import KINDS, UNITS

RBM_UNITS = [name for name in UNITS if KINDS[name].sample is not None]


MEANS = {  # of inputs
    "bernoulli": logistic,
    "gaussian": lambda x: x,
    "relu": lambda x: np.where(x > 0, x, 0),
    "tanh": np.tanh,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
}
SLOPES = {  # of means
    "bernoulli": lambda a: a * (1 - a),
    "gaussian": np.ones_like,
    "relu": lambda a: np.float64(a > 0),
    "tanh": lambda a: 1 - a**2,
}
STATES = {  # of inputs and of the noise that the kind's record names
    "bernoulli": lambda x, noise: np.float64(noise < logistic(x)),
    "gaussian": lambda x, noise: x + noise,
    "relu": lambda x, noise: np.maximum(0, x + noise * np.sqrt(logistic(x))),
}


def _integrated(x, b):
    h = np.linspace(-40, 40, 8001)
    density = np.exp((x - b)[:, None] * h - (h - b) ** 2 / 2)
    return np.log(density.sum(axis=1) * (h[1] - h[0]))


LOG_SUMS = {  # log sum_h exp(-E) over one hidden unit of inputs x and bias b; and its tolerance
    "bernoulli": (lambda x, b: np.logaddexp(0, x), 1e-7),
    "gaussian": (_integrated, 1e-7),
    # binary copies with biases b - 1/2, b - 3/2, ...
    "relu": (lambda x, b: np.logaddexp(0, x[:, None] + 0.5 - np.arange(1, 200)).sum(axis=1), 3e-4),
}


def examples_for(units: str, rows: int, columns: int, seed: int = 1) -> np.ndarray:
    """Return float32 examples in the range of visible units of a kind."""
    rng = np.random.default_rng(seed)
    lower, upper = KINDS[units].lower, KINDS[units].upper
    if np.isfinite(upper - lower):
        made = lower + (upper - lower) * rng.random((rows, columns))
    else:
        made = np.maximum(rng.normal(size=(rows, columns)), lower)
    return made.astype(np.float32)
