"""Small RBMs with chains of their own, and rows for each kind of visible units."""

import numpy as np
from onelayer import layer_settings

from syncpretrain.learners.rbm import RBM
from syncpretrain.settings import MomentumSchedule
from syncpretrain.units.kinds import kind_of

VISIBLE, HIDDEN = 6, 4
WORDS = 5  # of each document
KINDS = ["bernoulli", "gaussian", "softmax:2x3", "counts:6", "bernoulli:1,gaussian:2,softmax:1x3"]


def make(units: str = "bernoulli", **changed) -> RBM:
    given = {
        "batch_size": 10,
        "persistent": True,
        "chains": 50,
        "visible_units": units,
        "momentum": MomentumSchedule("0.5"),
        "seed": 3,
    }
    rbm = RBM(1, VISIBLE, HIDDEN, layer_settings(**given | changed))
    draws = np.random.default_rng(0)
    rbm.weight[:] = draws.normal(0, 0.5, rbm.weight.shape)
    rbm.visible_bias[:] = draws.normal(0, 0.5, VISIBLE)
    if not kind_of(units).are_counts:
        rbm.hidden_bias[:] = draws.normal(0, 0.5, HIDDEN)
    return rbm


def rows(units: str, n: int = 10, seed: int = 1) -> np.ndarray:
    draws, kind = np.random.default_rng(seed), kind_of(units)
    if kind.blocks is None:
        X = draws.normal(size=(n, VISIBLE))
        return np.float32(X if units == "gaussian" else X > 0)
    if units.startswith("counts"):
        return np.float32(draws.multinomial(WORDS, np.full(VISIBLE, 1 / VISIBLE), size=n))
    choices = [np.eye(3)[draws.integers(3, size=n)] for _ in range(2)]
    if units.startswith("bernoulli"):
        choices[0] = np.column_stack([draws.random(n) < 0.5, draws.normal(size=(n, 2))])
    return np.float32(np.hstack(choices))
