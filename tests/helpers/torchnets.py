"""Networks and data for the tests of syncpretrain.torch; processes import its modules from here."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import nn


class Shaken(nn.Module):
    """A block that draws random numbers of its own, and not through dropout."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.linear = nn.Linear(units, units)

    def forward(self, x: Any) -> Any:
        h = self.linear(x)
        return h + 0.1 * torch.randn(h.shape) if self.training else h


class Two(nn.Linear):
    """A block that returns two tensors."""

    def forward(self, x: Any) -> Any:
        h = super().forward(x)
        return h, h


class InPlace(nn.Linear):
    """A head that changes what it reads."""

    def forward(self, h: Any) -> Any:
        return super().forward(h.mul_(2))


def rows(n: int = 90, shape: tuple[int, ...] = (12,)) -> tuple[Any, Any]:
    draws = np.random.default_rng(0)
    y = draws.integers(3, size=n)
    X = draws.standard_normal((n, *shape), dtype=np.float32)
    X += y.reshape(n, *[1] * len(shape)).astype(np.float32)
    return X, y


def perceptron(*, drop: float = 0.2, last: int = 3) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(12, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(16, 16),
        nn.ReLU(),
        Shaken(16),
        nn.ReLU(),
        nn.Linear(16, last),
    )


def convolutional() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.1),
        nn.Sequential(nn.Flatten(), nn.Linear(8 * 4 * 4, 3)),
    )


def digest(*modules: Any) -> str:
    tensors = [t.detach() for own in modules for t in (*own.parameters(), *own.buffers())]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def digest_of(trainer: Any) -> str:
    return digest(trainer.model, *trainer.heads)
