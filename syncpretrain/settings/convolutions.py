"""Settings that convolutional layers do not have, and those that they have by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from syncpretrain.errors import SettingsError
from syncpretrain.settings.architecture_text import layer_text, read_architecture
from syncpretrain.settings.defaults import PER_LAYER
from syncpretrain.settings.fields import PretrainFields
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import UNITS, kind_of

__all__ = ["check_convolutions", "usual_costs"]

SPARSITY_COST = 1.0  # of convolutional RBMs: without one many filters are on everywhere
OF_ENERGIES = ("free-energy-gap", "pseudo-likelihood")


class Refusal(NamedTuple):
    """A setting, its value where a layer cannot have it, else None, and what to do instead."""

    setting: str
    value: Callable[[PretrainFields, int], Any]  # of the layer's place, counted from 0
    instead: str


REFUSALS = (
    Refusal(
        "layers",
        lambda s, i: layer_text(s.shapes[i]) if _excludes(s, i) and s.model != "rbm" else None,
        "pooling by max or mean; only RBMs pool by probabilities",
    ),
    Refusal(
        "hidden_units",
        lambda s, i: s.hidden_units[i] if _excludes(s, i) and not _is_binary(s, i) else None,
        "bernoulli with pooling by probabilities; or pool by max or mean",
    ),
    Refusal(
        "hidden_dropout",
        lambda s, i: s.hidden_dropout[i] if _excludes(s, i) and s.hidden_dropout[i] else None,
        "0 with pooling by probabilities; or pool by max or mean",
    ),
    Refusal(
        "split",
        lambda s, i: s.split if s.split == "units" and s.shards_of(i + 1) > 1 else None,
        "filters, or examples; only dense layers are split by units",
    ),
    Refusal(
        "split",
        lambda s, i: s.split if _excludes(s, i) and _is_by_filters(s, i) else None,
        "examples with pooling by probabilities; or pool by max or mean",
    ),
    Refusal(
        "persistent",
        lambda s, i: "it" if s.persistent[i] and _is_by_filters(s, i) else None,
        "split examples with it; chains are not split by filters",
    ),
    Refusal(
        "hidden_dropout",
        lambda s, i: s.hidden_dropout[i] if _is_by_filters(s, i) and s.hidden_dropout[i] else None,
        "split examples with it; what is left out is not split by filters",
    ),
    Refusal(
        "sample_visible",
        lambda s, i: "it" if s.sample_visible and not i and _is_by_filters(s, i) else None,
        "split examples with it; filters reconstruct by means",
    ),
    Refusal(
        "contraction",
        lambda s, i: s.contraction[i] or None,
        "0; the penalty is known for dense layers alone. Take model denoising, or one value a"
        " layer",
    ),
    Refusal(
        "early_stopping",
        lambda s, i: s.early_stopping if s.early_stopping in OF_ENERGIES else None,
        "none; convolutions have no free energy here. Autoencoders stop by validation-error",
    ),
)


def check_convolutions(settings: PretrainFields) -> None:
    """Refuse what a convolutional layer is asked for and does not have.

    Raises
    ------
    SettingsError
        Naming the setting and the layer.
    """
    for i, shape in enumerate(settings.shapes):
        if not isinstance(shape, ConvolutionShape):
            continue
        for setting, value, instead in REFUSALS:
            found = value(settings, i)
            if found is not None:
                raise SettingsError(
                    f"{setting}: got {found} for layer {i + 1}, a convolution, expected {instead}"
                )


def _excludes(settings: PretrainFields, i: int) -> bool:
    """Return whether the units of a block exclude each other."""
    shape = settings.shapes[i]
    return isinstance(shape, ConvolutionShape) and shape.pooling == "prob"


def _is_by_filters(settings: PretrainFields, i: int) -> bool:
    return settings.split_of(i + 1) == "filters" and settings.shards_of(i + 1) > 1


def _is_binary(settings: PretrainFields, i: int) -> bool:
    return kind_of(settings.hidden_units[i]).is_binary


def usual_costs(architecture: Any, hidden: Sequence[Any], depth: int) -> list[float]:
    """Return the usual sparsity cost of each layer of RBMs.

    None of dense ones, and of units whose mean activity says nothing. What is no text, and no kind
    of units, is refused later.
    """
    has_text = isinstance(architecture, str) and architecture
    shapes = read_architecture(architecture)[1] if has_text else [None] * depth
    return [
        SPARSITY_COST
        if isinstance(shape, ConvolutionShape) and units in UNITS and kind_of(units).lower == 0
        else PER_LAYER["sparsity_cost"]
        for shape, units in zip_longest(shapes, hidden[:depth])
    ]
