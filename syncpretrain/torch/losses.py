"""Local losses, and the heads that compute them from the output of a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from syncpretrain.errors import SettingsError

LOSSES = ("cross-entropy", "predsim", "reconstruction")
HEAD_INPUTS = 4096  # the most numbers that a default head reads, as in Nokland and Eidnes (2019)
SIMILARITY = 0.99  # share of the similarity loss there
POOLS = {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d, 5: nn.AdaptiveAvgPool3d}


class PooledHead(nn.Module):  # type: ignore[misc]
    """Linear outputs of a block's output, which is averaged over places if it is large.

    ``shape`` is of the output of one example: units, or channels and places.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.pool: Any = nn.Identity()
        inputs = math.prod(shape)
        if inputs > HEAD_INPUTS and len(shape) + 1 in POOLS:
            places = len(shape) - 1
            side = max(1, int((HEAD_INPUTS / shape[0]) ** (1 / places)))
            sides = [min(side, n) for n in shape[1:]]
            self.pool = POOLS[len(shape) + 1](sides if places > 1 else sides[0])
            inputs = shape[0] * math.prod(sides)
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, h: Any) -> Any:
        """Return outputs of shape (n, outputs)."""
        return self.linear(self.pool(h).flatten(1))


class PredSimHead(nn.Module):  # type: ignore[misc]
    """Class scores of a block's output, and features with similarities to be matched.

    The features are linear in units, and a 3 x 3 convolution of images (Nokland and Eidnes 2019,
    "Training neural networks with local error signals").
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.classes = PooledHead(shape, classes)
        self.features: Any = (
            nn.Conv2d(shape[0], shape[0], 3, padding=1, bias=False)
            if len(shape) == 3
            else nn.Linear(shape[-1], shape[-1], bias=False)
        )

    def forward(self, h: Any) -> tuple[Any, Any]:
        """Return scores of shape (n, classes), and features with the shape of ``h``."""
        return self.classes(h), self.features(h)


def default_head(loss: Any, inputs: tuple[int, ...], shape: tuple[int, ...], classes: int) -> Any:
    """Return the head of a loss for a block with examples of these shapes below and above."""
    if loss == "reconstruction":
        linear = nn.Linear(math.prod(shape), math.prod(inputs))
        return nn.Sequential(nn.Flatten(), linear, nn.Unflatten(1, inputs))
    return PredSimHead(shape, classes) if loss == "predsim" else PooledHead(shape, classes)


@dataclass(frozen=True, slots=True)
class LocalLoss:
    """A loss of a block: one of :data:`LOSSES`, or a function of outputs and targets.

    A function returns one number, or one number an example, where examples may have weights.
    """

    kind: str | Callable[[Any, Any], Any]

    def __call__(self, head: Any, h: Any, x: Any, y: Any, weight: Any) -> Any:
        """Return the loss of a minibatch: the mean over the examples, by their weights if any."""
        reduction = "mean" if weight is None else "none"
        if self.kind == "reconstruction":
            return _mean(functional.mse_loss(head(h), x, reduction=reduction), weight)
        if self.kind == "cross-entropy":
            return _mean(functional.cross_entropy(head(h), y, reduction=reduction), weight)
        if self.kind == "predsim":
            outputs = head(h)
            if not isinstance(outputs, tuple) or len(outputs) != 2:
                got = "a head that returns one output with loss predsim"
                wanted = "the scores of the classes and features; take loss cross-entropy"
                raise SettingsError(f"heads: got {got}, expected {wanted}")
            scores, features = outputs
            own = _mean(functional.cross_entropy(scores, y, reduction=reduction), weight)
            wanted = similarities(functional.one_hot(y, scores.shape[1]).to(scores.dtype))
            similar = functional.mse_loss(similarities(features), wanted, reduction="none")
            pairs = None if weight is None else torch.outer(weight, weight).flatten()
            return (1 - SIMILARITY) * own + SIMILARITY * _mean(similar.flatten(), pairs)
        assert callable(self.kind)
        return _mean(self.kind(head(h), y), weight)


def similarities(z: Any) -> Any:
    """Return the cosine similarities of examples, centred; of images by their deviations."""
    if z.dim() > 2:
        z = z.flatten(2)
        z = z.std(dim=2) if z.shape[2] > 1 else z.flatten(1)  # one place has no deviation
    z = z - z.mean(dim=1, keepdim=True)
    z = z / (1e-8 + z.norm(dim=1, keepdim=True))
    return z @ z.t()


def _mean(loss: Any, weight: Any) -> Any:
    if weight is None:
        return loss.mean() if loss.dim() else loss
    if not loss.dim():
        wanted = "a loss that returns one number an example"
        got = "weights with a loss that is one number"
        raise SettingsError(f"weight: got {got}, expected {wanted}")
    each = loss.flatten(1).mean(1) if loss.dim() > 1 else loss
    return each.mul(weight).sum() / (weight.sum() or 1)


def noisy(x: Any, share: float) -> Any:
    """Return inputs with a random share of their numbers set to 0; they are floating-point."""
    return x * (torch.rand_like(x) >= share)
