"""Bias-corrected rates of Adam (Kingma and Ba 2015), which every form of its step uses."""

from __future__ import annotations

import math

__all__ = ["adam_rates"]


def adam_rates(
    step: int,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[float, float]:
    """Return the size of a step of Adam and the floor of its denominator, as adam_step uses them.

    The moments are kept as plain decaying sums; see :func:`adam_step`.
    """
    scale1 = (1 - beta1) / (1 - beta1**step)  # m^ = scale1 * first
    scale2 = math.sqrt((1 - beta2) / (1 - beta2**step))  # sqrt(v^) = scale2 * sqrt(second)
    return learning_rate * scale1 / scale2, epsilon / scale2
