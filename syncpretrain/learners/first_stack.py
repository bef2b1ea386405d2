"""A stack that nothing has trained: random weights, and biases of zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from syncpretrain.data.scaling import Scaling
from syncpretrain.learners.first_convolution import first_convolution
from syncpretrain.learners.first_dense import first_dense
from syncpretrain.models.layer import Layer
from syncpretrain.models.stack import Stack
from syncpretrain.shapes import LayerShape
from syncpretrain.units.kinds import kind_of

__all__ = ["untrained_stack"]

# By the shape's name, a function of the layer's number and its shape.
FIRST: dict[str, Callable[..., Layer]] = {
    "dense": lambda n, shape, **own: first_dense(n, shape.visible, shape.hidden, **own),
    "convolution": first_convolution,
}


def untrained_stack(
    shapes: Sequence[LayerShape],
    hidden_units: Sequence[str],
    visible_units: str = "bernoulli",
    *,
    seed: int = 0,
    scaling: Scaling | None = None,
) -> Stack:
    """Return a stack to be trained from random weights by fine-tuning alone.

    They are normal with variance 2 / (fan in + fan out) (Glorot and Bengio 2010), or 2 / fan in
    below rectified units (He et al. 2015).

    Parameters
    ----------
    shapes : sequence of LayerShape
        Of the layers, from the input up.
    hidden_units : sequence of str
        One kind a layer.
    visible_units : str
        Of the lowest layer; those of the others follow from the units below.
    seed : int
    scaling : Scaling, optional
        How Gaussian visible units see the input.
    """
    layers: list[Layer] = []
    below = visible_units
    for number, (shape, units) in enumerate(zip(shapes, hidden_units, strict=True), start=1):
        variance = kind_of(units).weight_variance(shape.fan_in, shape.fan_out)
        kinds = {"hidden_units": units, "visible_units": below, "model": "autoencoder"}
        first, spread = FIRST[shape.name], math.sqrt(variance)
        layers.append(first(number, shape, seed=seed, spread=spread, kinds=kinds))
        below = kind_of(units).above
    return Stack(tuple(layers), {}, scaling)
