"""Diagnosis of each layer: overfitting, likelihood and idle units.

The reconstruction error alone says little about how well an RBM models its data (Hinton 2010,
section 5); these figures say more.
"""

from __future__ import annotations

import math
from typing import Any

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.data.visible import has_missing
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import DenseLayer, Layer
from syncpretrain.models.likelihood import free_energy, log_z, pseudo_likelihood
from syncpretrain.models.passes import up_through
from syncpretrain.models.stack import Stack
from syncpretrain.units.kinds import kind_of

__all__ = ["diagnose_layers"]

ROWS = 1000  # of each part, evenly spaced: enough for these means
NEAR_LIMIT = 0.01  # a unit as near to a limit on every example says nothing about any


def diagnose_layers(
    stack: Stack, train: Array, held_out: Array, *, partition: bool = False, seed: int = 0
) -> list[dict[str, Any]]:
    """Return, a layer each, JSON values measured on at most 1,000 examples of each part.

    ``free_energy_gap`` is the mean free energy of held-out examples minus that of training
    examples, in nats: it grows as a layer overfits (Hinton 2010, section 6).
    ``pseudo_likelihood`` is that of held-out examples, or of training ones where there are no
    others. ``dead_units`` and ``saturated_units`` are the hidden units that are off, or on, for
    every example, of a convolution the filters that are so at every position; None for units
    without such limits. With ``partition``, ``log_z`` has its value
    and its error bar, and ``log_likelihood`` is that of the examples under it. An autoencoder, and
    a layer that was fine-tuned, is no RBM, and has None for what only an RBM has; so has
    a convolution. Where values are missing, the free energy leaves them out, and there is neither
    a pseudo-likelihood nor a log-likelihood.
    """
    parts = [evenly_spaced(rows, ROWS) for rows in (train, held_out)]
    missing = any(map(has_missing, parts))
    below, held_out = (stack.prepared(rows, missing=True) if len(rows) else rows for rows in parts)
    found: list[dict[str, Any]] = []
    for layer in stack.layers:
        own = missing and not found  # in the data alone
        figures = _rbm_figures(layer, below, held_out, partition=partition, missing=own, seed=seed)
        found.append(figures)
        below, held_out = up_through([layer], below), up_through([layer], held_out)
        hidden = held_out if len(held_out) else below
        hidden = hidden.reshape(-1, layer.shape.biases[1])  # a row a position of a convolution
        found[-1]["dead_units"], found[-1]["saturated_units"] = _idle(layer.hidden_units, hidden)
    return found


def _rbm_figures(
    layer: Layer, train: Array, held_out: Array, *, partition: bool, missing: bool, seed: int
) -> dict[str, Any]:
    names = ("free_energy_gap", "pseudo_likelihood", "log_z", "log_likelihood")
    figures: dict[str, Any] = dict.fromkeys(names)
    if layer.model != "rbm" or not isinstance(layer, DenseLayer):
        return figures
    rows = held_out if len(held_out) else train
    energy = float(free_energy(layer, rows, missing=missing).mean())
    if len(train) and len(held_out):
        figures["free_energy_gap"] = energy - float(
            free_energy(layer, train, missing=missing).mean()
        )
    visible, hidden = kind_of(layer.visible_units), kind_of(layer.hidden_units)
    if visible.is_binary and not missing:
        figures["pseudo_likelihood"] = pseudo_likelihood(layer, rows, seed=seed)
    has_log_z = hidden.is_binary and not (visible.blocks and visible.blocks.counts)
    if partition and has_log_z and not missing:
        estimate = log_z(layer, seed=seed)
        bounds = (estimate.low, estimate.high)
        low, high = (bound if math.isfinite(bound) else None for bound in bounds)
        figures["log_z"] = {"value": estimate.value, "low": low, "high": high}
        figures["log_likelihood"] = -energy - estimate.value
    return figures


def _idle(units: str, hidden: Array) -> tuple[int | None, int | None]:
    """Return how many units are at their lower, and upper, limit for every row; None without."""
    lower, upper = kind_of(units).lower, kind_of(units).upper
    dead = int((hidden < lower + NEAR_LIMIT).all(axis=0).sum()) if math.isfinite(lower) else None
    on = int((hidden > upper - NEAR_LIMIT).all(axis=0).sum()) if math.isfinite(upper) else None
    return dead, on
