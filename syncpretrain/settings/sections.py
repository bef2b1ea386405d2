"""The sections of a run's settings and what each value may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.settings.kinds import (
    Count,
    Fraction,
    Frozen,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
)
from syncpretrain.settings.momentum import MomentumSchedule
from syncpretrain.settings.running import RunSettings

__all__ = [
    "MODELS",
    "MODEL_DEFAULTS",
    "PER_LAYER",
    "UNBOUNDED_RATE",
    "DataSettings",
    "PretrainSettings",
    "Settings",
]

Units = Literal["bernoulli", "gaussian", "relu"]

MODELS = ("rbm", "autoencoder", "denoising", "contractive")
PER_LAYER: dict[str, Any] = {  # each with its default
    "epochs": 10,
    "refresh_epochs": 1,
    "hidden_units": "bernoulli",
    "learning_rate": 0.1,
    "momentum": "0.5:5,0.9",
    "weight_decay": 0.0002,
    "l1": 0.0,
    "cd_steps": 1,
    "persistent": False,
    "sparsity_target": 0.1,
    "sparsity_cost": 0.0,
    "hidden_dropout": 0.0,
    "corruption": "none",
    "contraction": 0.0,
}
RBM_ONLY = ("persistent", "sparsity_cost", "hidden_dropout")
UNBOUNDED_RATE = 0.001  # for Gaussian and rectified units (Hinton 2010, section 13.2)
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {  # where they differ from those above
    "denoising": {"corruption": "masking:0.25"},
    "contractive": {"contraction": 0.1},
}
MAX_CD_STEPS = 1000  # a minibatch cannot be interrupted
MAX_UNITS = MAX_EPOCHS = 1_000_000  # of a layer; more is a slip of the keyboard
CORRUPTIONS = ("masking", "salt-and-pepper", "gaussian")


class DataSettings(Frozen, frozen=True, kw_only=True):
    """Which data is trained on and how it is split.

    ``validation`` is the fraction of the training examples held out; None takes the data set's
    own split (10,000 of MNIST's 60,000), or a tenth. ``labels`` is how many training examples
    keep their labels, as many of each class as far as there are; None keeps all.
    """

    name: str = "mnist"
    validation: Fraction | None = None
    labels: Count | None = None


class PretrainSettings(Frozen, frozen=True, kw_only=True):
    """How a stack is pretrained. A tuple has one value a layer.

    Attributes
    ----------
    layers : tuple of int
        Values of an example, then the units of each layer.
    model : str
        ``rbm``, ``autoencoder``, ``denoising`` or ``contractive``.
    visible_units, hidden_units : str, tuple of str
        Of the input, and of each layer: ``bernoulli``, ``gaussian`` or (hidden) ``relu``.
    schedule, group_size, pace, refresh_epochs, finish
        Which layer trains when, on which version (README, ``schedule/plan.py``).
    runtime, workers, blas_threads
        What executes it; only ``blas_threads`` can change the last bits, and of greedy alone.
    epochs, batch_size, learning_rate, momentum, weight_decay, l1
        Of each layer's gradient steps; momentum as in :class:`MomentumSchedule`.
    visible_bias : str
        Visible biases start from ``zero`` or the ``log-odds`` of the units' means.
    cd_steps, persistent, sparsity_target, sparsity_cost, hidden_dropout
        Of RBMs: see :class:`syncpretrain.learners.rbm.RBMSettings`.
    tied, loss, corruption, contraction
        Of autoencoders: see :class:`syncpretrain.learners.autoencoder.AutoencoderSettings`.
    early_stopping, patience : str, int
        What ends a layer's own epochs: see :class:`syncpretrain.evaluation.stopping.EarlyStopping`.
    seed : int
        Of everything that is drawn.
    """

    layers: tuple[Count, ...]
    model: Literal["rbm", "autoencoder", "denoising", "contractive"] = "rbm"
    visible_units: Units = "bernoulli"
    hidden_units: tuple[Units, ...]
    schedule: Literal["synchronized", "greedy", "rounds"] = "synchronized"
    group_size: Count | None = None
    pace: Literal["lockstep", "free"] = "lockstep"
    runtime: Literal["threads", "processes", "serial"] = "threads"
    workers: Count | None = None
    epochs: tuple[Count, ...]
    refresh_epochs: tuple[NonNegativeInt, ...]
    finish: Literal["drain", "first-layer"] = "drain"
    batch_size: Count = 100
    learning_rate: tuple[PositiveFloat, ...]
    momentum: tuple[str, ...]
    weight_decay: tuple[NonNegativeFloat, ...]
    l1: tuple[NonNegativeFloat, ...]
    visible_bias: Literal["zero", "log-odds"] = "zero"
    cd_steps: tuple[Annotated[int, msgspec.Meta(ge=1, le=MAX_CD_STEPS)], ...]
    persistent: tuple[bool, ...]
    sparsity_target: tuple[Fraction, ...]
    sparsity_cost: tuple[NonNegativeFloat, ...]
    hidden_dropout: tuple[Fraction, ...]
    tied: bool = True
    loss: Literal["squared", "cross-entropy"] | None = None
    corruption: tuple[str, ...]
    contraction: tuple[NonNegativeFloat, ...]
    early_stopping: Literal["none", "free-energy-gap", "pseudo-likelihood", "validation-error"] = (
        "none"
    )
    patience: Count = 3
    blas_threads: Count | None = None
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        _check_layers(self.layers)
        for name in PER_LAYER:
            _check_per_layer(name, getattr(self, name), len(self.layers) - 1)
        for momentum in self.momentum:
            MomentumSchedule(momentum)
        for corruption in self.corruption:
            parsed_corruption(corruption)
        _check_model(self)
        _check_early_stopping(self)
        if self.schedule != "synchronized" and self.pace == "free":
            raise SettingsError(
                f"pace: got free with schedule {self.schedule}, where layers wait for the finished"
                " layer below; use pace lockstep, or schedule synchronized"
            )
        if self.schedule != "rounds" and self.group_size is not None:
            raise SettingsError(
                f"group_size: got {self.group_size} with schedule {self.schedule}, expected none;"
                " only rounds train groups of layers"
            )
        if self.seed >= 2**63:
            raise SettingsError(f"seed: got {self.seed}, expected a number below 2**63")

    def visible_units_of(self, layer: int) -> str:
        """Return the visible units of a layer, counted from 1.

        Those of the input, or what suits the hidden units below: a Gaussian unit stands for any
        that is not binary.
        """
        if layer == 1:
            return self.visible_units
        below = self.hidden_units[layer - 2]
        return "bernoulli" if below == "bernoulli" else "gaussian"


class Settings(Frozen, frozen=True, kw_only=True):
    """Everything that determines a run; ``config.toml`` of a run folder holds it."""

    data: DataSettings = DataSettings()
    pretrain: PretrainSettings
    finetune: FinetuneSettings = FinetuneSettings()
    run: RunSettings = RunSettings()


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


def _check_model(settings: PretrainSettings) -> None:
    """Refuse what the model has no use for."""
    model = settings.model
    if settings.visible_units == "relu":
        raise SettingsError("visible_units: got relu, expected bernoulli or gaussian")
    used = {
        "corruption": model == "denoising",
        "contraction": model == "contractive",
        **dict.fromkeys(RBM_ONLY, model == "rbm"),
    }
    for name, is_used in used.items():
        values = [value for value in getattr(settings, name) if value != PER_LAYER[name]]
        if values and not is_used:
            raise SettingsError(f"{name}: got {values[0]} with model {model}, which has none")
    if model == "rbm" and (settings.loss is not None or not settings.tied):
        name = "tied" if settings.loss is None else "loss"
        raise SettingsError(
            f"{name}: got a value with model rbm, expected none; only autoencoders choose"
        )
    if settings.loss == "cross-entropy" and settings.visible_units == "gaussian":
        raise SettingsError(
            "loss: got cross-entropy with gaussian visible units, expected squared; cross-entropy"
            " needs values in [0, 1]"
        )
    if any(cost and "gaussian" in units for cost, units in _sparse(settings)):
        raise SettingsError(
            "sparsity_cost: got a cost for gaussian hidden units, expected 0; their mean activity"
            " says nothing"
        )


def _sparse(settings: PretrainSettings) -> Sequence[tuple[float, str]]:
    return list(zip(settings.sparsity_cost, settings.hidden_units, strict=True))


def _check_early_stopping(settings: PretrainSettings) -> None:
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
    if metric == "pseudo-likelihood" and visible != {"bernoulli"}:
        raise SettingsError(
            "early_stopping: got pseudo-likelihood with visible units that are not bernoulli in"
            " every layer, expected free-energy-gap"
        )
    if settings.finish == "first-layer" and settings.pace == "lockstep":
        raise SettingsError(
            "early_stopping: got a metric with finish first-layer in lockstep, where what follows"
            " would depend on timing; take finish drain, or pace free"
        )


def _check_layers(layers: tuple[int, ...]) -> None:
    if len(layers) < 2:
        raise SettingsError(
            f"layers: got {','.join(map(str, layers)) or 'nothing'}, expected two numbers or more:"
            " the input's width, then the units of each layer, such as 784,1000,500,250,30"
        )
    for units in layers:
        if units > MAX_UNITS:
            raise SettingsError(f"layers: got {units} units, expected at most {MAX_UNITS} a layer")


def _check_per_layer(name: str, values: tuple[Any, ...], depth: int) -> None:
    if len(values) != depth:
        raise SettingsError(
            f"{name}: got {len(values)} values, expected one for all layers or {depth}, one a layer"
        )
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{name}: got {value}, expected a finite number")
        if isinstance(value, int) and value > MAX_EPOCHS:
            raise SettingsError(f"{name}: got {value}, expected at most {MAX_EPOCHS}")
