"""Equations that follow one another, as one: on a device they are one launch."""

from __future__ import annotations

from syncpretrain.kernels.activations import means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.contrastive_divergence import phase_differences
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.kernels.losses import squared_error

__all__ = ["means_and_differences", "means_and_error"]


@accelerated
def means_and_error(y: Array, bias: Array, units: str, x: Array, *, out: Array) -> float:
    """Replace the inputs y without their bias by the units' means; return |y - x|^2 of these.

    The sum is over units and examples; y - x is left in ``out``, which may be y itself.
    """
    return squared_error(x, means(y, bias, units), out=out)


@accelerated
def means_and_differences(
    v: Array, h: Array, bias: Array, units: str, *, da: Array, db: Array, examples: int
) -> None:
    """Do what :func:`phase_differences` does, where h1 are inputs of units without their bias.

    These become means.
    """
    means(h[len(h) // 2 :], bias, units)
    phase_differences(v, h, da=da, db=db, examples=examples)
