"""The training of RBMs by definition."""

from collections.abc import Sequence

import numpy as np
from unitkinds import KINDS, MEANS, STATES

from syncpretrain.learners.rbm import BaseRBM
from syncpretrain.rng import Address, Purpose


def drawn(x: np.ndarray, units: str, draws: np.random.Generator) -> np.ndarray:
    draw = draws.random if KINDS[units].noise == "uniform" else draws.standard_normal
    return STATES[units](x, np.float64(draw(x.shape, dtype=np.float32)))


class Transcription:
    """Contrastive divergence word for word, in float64, with the draws of the same addresses.

    ``parameters`` are those of a dense RBM that a convolutional one stands for.
    """

    def __init__(self, rbm: BaseRBM, parameters: Sequence[np.ndarray] | None = None) -> None:
        self.rbm, self.settings = rbm, rbm.settings
        self.W, self.a, self.b = map(np.float64, parameters or rbm.parameters)
        self.chains = np.zeros((rbm.batch_size, len(self.b)))
        self.velocities = [np.zeros_like(parameter) for parameter in (self.W, self.a, self.b)]

    def draws(self, purpose: Purpose, address: dict[str, int], k: int = 0) -> np.random.Generator:
        place = Address(self.settings.seed, purpose, self.rbm.layer, shard=k << 32, **address)
        return place.generator()

    def kept(self, address: dict[str, int]) -> np.ndarray:
        """1 where a unit stays in; drawn for a whole minibatch, whatever its size."""
        shape = (self.rbm.batch_size, len(self.b))
        uniform = self.draws(Purpose.DROPOUT, address).random(shape, dtype=np.float32)
        return np.float64(uniform >= self.settings.hidden_dropout)

    def gradient(self, v0: np.ndarray, **address: int) -> tuple[np.ndarray, ...]:
        W, a, b, settings = self.W, self.a, self.b, self.settings
        visible, hidden = settings.visible_units, settings.hidden_units
        n = len(v0)
        kept = self.kept(address)[:n]
        share = 1 - settings.hidden_dropout
        x = v0 @ W + b
        h0 = MEANS[hidden](x) * kept
        for k in range(settings.cd_steps):
            up = self.draws(Purpose.HIDDEN, address, k)
            across = self.draws(Purpose.VISIBLE, address, k)
            if settings.persistent:
                v = drawn(self.chains[:n] @ W.T + a, visible, across)
                x = v @ W + b
                self.chains[:n] = drawn(x, hidden, up) * kept / share
            else:
                v = MEANS[visible](drawn(x, hidden, up) * kept / share @ W.T + a)
                x = v @ W + b
        h = MEANS[hidden](x) * kept
        self.error = np.square(v0 - v).sum()
        return (v0.T @ h0 - v.T @ h) / n, (v0 - v).mean(axis=0), (h0 - h).mean(axis=0)

    def train_step(self, v0: np.ndarray, momentum: float = 0, **address: int) -> None:
        parameters, gradients = (self.W, self.a, self.b), self.gradient(v0, **address)
        for x, gradient, velocity in zip(parameters, gradients, self.velocities, strict=True):
            decay = self.settings.weight_decay * x if x is self.W else 0
            velocity *= momentum
            velocity += self.settings.learning_rate * (gradient - decay)
            x += velocity
