"""Checks of settings whose values depend on each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC, SCHEDULES, schedule_kind
from syncpretrain.schedule.reads import MAX_EPOCHS
from syncpretrain.settings.architecture_text import MAX_UNITS
from syncpretrain.settings.async_pretraining import check_async_pretraining
from syncpretrain.settings.convolutions import check_convolutions
from syncpretrain.settings.defaults import PER_LAYER
from syncpretrain.settings.devices import check_pretraining_backend
from syncpretrain.settings.drift import ALWAYS, check_drift
from syncpretrain.settings.fields import PretrainFields
from syncpretrain.settings.visible_units import check_visible_units
from syncpretrain.units.kinds import KINDS, kind_of

__all__ = [
    "WHOLE_ONLY",
    "check_layers",
    "check_per_layer",
    "check_pretraining",
    "check_schedule",
    "parsed_corruption",
    "parsed_shuffle",
]

WHOLE_ONLY = ("persistent", "sparsity_cost", "hidden_dropout")  # of RBMs, not split by units
RBM_ONLY = ("cd_steps", "sparsity_target", *WHOLE_ONLY)
CORRUPTIONS = ("masking", "salt-and-pepper", "gaussian")


def parsed_corruption(text: str) -> tuple[str, float] | None:
    """Return the kind and the amount of noise that ``masking:0.25`` asks for, None for ``none``.

    Raises
    ------
    SettingsError
        If the text has another form, or the amount is out of range.
    """
    if text == "none":
        return None
    kind, _, number = text.partition(":")
    try:
        amount = float(number)
    except ValueError:
        amount = math.nan
    most = math.inf if kind == "gaussian" else 1
    if kind not in CORRUPTIONS or not 0 < amount < most:
        raise SettingsError(
            f"corruption: got {text!r}, expected none, masking:SHARE, salt-and-pepper:SHARE with a"
            " share above 0 and below 1, or gaussian:DEVIATION"
        )
    return kind, amount


def parsed_shuffle(text: str) -> int:
    """Return the rows of the blocks that ``blocks:1000`` asks for, 0 for ``rows``.

    Raises
    ------
    SettingsError
        If the text has another form, or the number is below 1.
    """
    kind, _, number = text.partition(":")
    if text == "rows":
        return 0
    if kind != "blocks" or not re.fullmatch(r"0*[1-9][0-9]{0,17}", number):
        raise SettingsError(
            f"shuffle: got {text!r}, expected rows, or blocks:N with the rows of a block, such as"
            " blocks:1000"
        )
    return int(number)


def check_pretraining(settings: PretrainFields) -> None:
    """Refuse values that do not go together.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    check_visible_units(settings)
    for corruption in settings.corruption:
        parsed_corruption(corruption)
    parsed_shuffle(settings.shuffle)
    _check_model(settings)
    _check_early_stopping(settings)
    check_convolutions(settings)
    _check_replicas(settings)
    _check_handoff(settings)
    check_async_pretraining(settings)
    check_drift(settings)
    check_pretraining_backend(settings)


def _check_model(settings: PretrainFields) -> None:
    """Refuse what the model has no use for."""
    model = settings.model
    visible = kind_of(settings.visible_units)
    for units in settings.hidden_units:
        if model == "rbm" and kind_of(units).sample is None:
            raise SettingsError(
                f"hidden_units: got {units} with model rbm, expected units whose states can be"
                f" sampled: {' or '.join(n for n in KINDS if KINDS[n].sample)}; or take model"
                " autoencoder"
            )
    used = {
        "corruption": model == "denoising",
        "contraction": model == "contractive",
        **dict.fromkeys(RBM_ONLY, model == "rbm"),
    }
    for name, is_used in used.items():
        values = [value for value in getattr(settings, name) if value != PER_LAYER[name]]
        if values and not is_used:
            raise SettingsError(f"{name}: got {values[0]} with model {model}, which ignores it")
    if model == "rbm" and (settings.loss is not None or not settings.tied):
        name = "tied" if settings.loss is None else "loss"
        raise SettingsError(
            f"{name}: got a value with model rbm, expected none; only autoencoders choose"
        )
    if settings.sample_visible and model != "rbm":
        raise SettingsError(f"sample_visible: got it with model {model}, which ignores it")
    if settings.loss == "cross-entropy" and visible.loss != "cross-entropy":
        raise SettingsError(
            f"loss: got cross-entropy with {visible.name} visible units, expected squared;"
            " cross-entropy needs values in [0, 1]"
        )
    for cost, units in zip(settings.sparsity_cost, settings.hidden_units, strict=True):
        if cost and kind_of(units).lower != 0:
            raise SettingsError(
                f"sparsity_cost: got a cost for {units} hidden units, expected 0; their mean"
                " activity says nothing"
            )


def _check_replicas(settings: PretrainFields) -> None:
    for layer, replicas in enumerate(settings.replicas, start=1):
        shards = settings.shards_of(layer)
        if replicas > shards:
            raise SettingsError(
                f"replicas: got {replicas} for layer {layer}, whose minibatches have {shards}"
                " shards, expected no more workers than shards"
            )
        split = settings.split_of(layer)
        most = {
            "examples": settings.batch_size,
            "units": min(settings.layers[layer - 1 : layer + 1]),
            "filters": settings.shapes[layer - 1].biases[1],
        }[split]
        if shards > most and settings.schedule != ASYNC:
            raise SettingsError(
                f"shards: got {shards} for layer {layer}, expected at most {most}, the {split}"
                " there are"
            )
    if settings.split in ("filters", "hybrid") and not settings.architecture:
        raise SettingsError(
            f"split: got {settings.split} for layers without convolutions, expected examples or"
            " units"
        )
    by_units = [
        layer
        for layer in range(1, len(settings.layers))
        if settings.split_of(layer) == "units" and settings.shards_of(layer) > 1
    ]
    if settings.model != "rbm" and (by_units or settings.split == "units"):
        raise SettingsError(
            f"split: got {settings.split} with model {settings.model}, expected examples; only RBMs"
            " are split by units"
        )
    for layer in by_units:
        if layer == 1 and settings.sample_visible:
            raise SettingsError(
                f"split: got {settings.split} with sample_visible, expected examples"
            )
        for name in WHOLE_ONLY:
            if getattr(settings, name)[layer - 1]:
                raise SettingsError(f"split: got {settings.split} with {name}, expected examples")


def _check_early_stopping(settings: PretrainFields) -> None:
    metric = settings.early_stopping
    if metric == "none":
        return
    if settings.model == "rbm" and metric == "validation-error":
        raise SettingsError(
            "early_stopping: got validation-error with model rbm, expected free-energy-gap or"
            " pseudo-likelihood; an RBM's reconstruction error is a poor guide (Hinton 2010)"
        )
    if settings.model != "rbm" and metric != "validation-error":
        raise SettingsError(
            f"early_stopping: got {metric} with model {settings.model}, expected validation-error"
        )
    layers = range(1, len(settings.layers))
    visible = {settings.visible_units_of(layer) for layer in layers}
    if metric == "pseudo-likelihood" and not all(kind_of(name).is_binary for name in visible):
        binary = " or ".join(name for name, kind in KINDS.items() if kind.is_binary)
        raise SettingsError(
            f"early_stopping: got pseudo-likelihood with visible units that are not {binary} in"
            f" every layer, expected {'free-energy-gap' if settings.handoff == 'epoch' else 'none'}"
        )
    if settings.finish == "first-layer" and settings.pace == "lockstep":
        raise SettingsError(
            "early_stopping: got a metric with finish first-layer in lockstep, where what follows"
            " would depend on timing; take finish drain, or pace free"
        )


def check_schedule(settings: PretrainFields) -> None:
    """Raise SettingsError if the schedule does not have the pace or the groups asked for."""
    kind = schedule_kind(settings.schedule)
    if settings.pace == "free" and kind.free is None:
        raise SettingsError(
            f"pace: got free with schedule {settings.schedule}, where layers wait for the finished"
            " layer below; use pace lockstep, or schedule"
            f" {_names(name for name, other in SCHEDULES.items() if other.free is not None)}"
        )
    if settings.group_size is not None and not kind.has_groups:
        raise SettingsError(
            f"group_size: got {settings.group_size} with schedule {settings.schedule}, expected"
            f" none; only {_names(name for name, other in SCHEDULES.items() if other.has_groups)}"
            " train groups of layers"
        )


def _names(names: Iterable[str]) -> str:
    return " or ".join(names)


def _check_handoff(settings: PretrainFields) -> None:
    """Refuse what a streamed run does not have, and what only a streamed run has."""
    if settings.handoff == "epoch":
        if settings.shuffle != "rows":
            raise SettingsError(
                f"shuffle: got {settings.shuffle} with handoff epoch, expected rows; take handoff"
                " minibatch"
            )
        if settings.delay:
            raise SettingsError(
                f"delay: got {settings.delay:g} with handoff epoch, expected none; take handoff"
                " minibatch"
            )
        return
    usual = {
        "schedule": (_names([*(n for n in SCHEDULES if SCHEDULES[n].can_stream), ASYNC]), None),
        "pace": ("lockstep", None),
        "finish": ("drain", None),
        "early_stopping": (
            "none, pseudo-likelihood or validation-error: the gap is judged by fixed examples",
            ("none", "pseudo-likelihood", "validation-error"),
        ),
        "refresh_when": (f"{ALWAYS}: no newer version wakes a layer", (ALWAYS,)),
        "settle": (
            "0, and numbers of epochs, not auto: there are no versions to compare",
            (0,),
        ),
        "refresh_epochs": ("0: no newer version wakes a layer", (0,)),
    }
    for name, (expected, values) in usual.items():
        found = getattr(settings, name)
        for value in found if isinstance(found, tuple) else (found,):
            if value not in (values or expected.split(" or ")):
                raise SettingsError(
                    f"{name}: got {value} with handoff minibatch, expected {expected}; leave it"
                    " out, or take handoff epoch"
                )


def check_layers(layers: tuple[int, ...]) -> None:
    """Raise SettingsError unless these can be the widths of a stack."""
    if len(layers) < 2:
        raise SettingsError(
            f"layers: got {','.join(map(str, layers)) or 'nothing'}, expected two numbers or more:"
            " the input's width, then the units of each layer, such as 784,1000,500,250,30"
        )
    for units in layers:
        if units > MAX_UNITS:
            raise SettingsError(f"layers: got {units} units, expected at most {MAX_UNITS} a layer")


def check_per_layer(name: str, values: tuple[Any, ...], depth: int) -> None:
    """Raise SettingsError unless there is one number in range for each of ``depth`` layers."""
    if len(values) != depth:
        raise SettingsError(
            f"{name}: got {len(values)} values, expected one for all layers or {depth}, one a layer"
        )
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{name}: got {value}, expected a finite number")
        if isinstance(value, int) and value > MAX_EPOCHS:
            raise SettingsError(f"{name}: got {value}, expected at most {MAX_EPOCHS}")
