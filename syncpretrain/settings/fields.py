"""The fields of the data and pretraining settings, the types of their values, and their defaults.

A field is checked by its type here; :mod:`syncpretrain.settings.checks` has the checks that combine
several fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.reads import MAX_EPOCHS
from syncpretrain.schedule.stream import StreamEpochs
from syncpretrain.settings.architecture import read_architecture, shapes_of
from syncpretrain.settings.asynchronous import AsyncRate, Staleness, Steps
from syncpretrain.shapes import ConvolutionShape, LayerShape
from syncpretrain.units.kinds import UNITS, kind_of

if TYPE_CHECKING:
    Units = str
else:
    Units = Literal[UNITS]

__all__ = [
    "HANDOFF_DEFAULTS",
    "MAX_WORKERS",
    "MODELS",
    "MODEL_DEFAULTS",
    "PER_LAYER",
    "SCHEDULE_DEFAULTS",
    "Count",
    "DataSettings",
    "Epochs",
    "Fraction",
    "Frozen",
    "MomentumSchedule",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "Precision",
    "PretrainFields",
    "Shards",
    "Units",
    "Workers",
    "usual_costs",
    "usual_rates",
]

# Larger numbers are slips of the keyboard: a run without end, or a machine busy with threads alone.
MAX_WORKERS = 1024
Count = Annotated[int, msgspec.Meta(ge=1)]
Epochs = Annotated[int, msgspec.Meta(ge=1, le=MAX_EPOCHS)]
Workers = Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)]
Shards = Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)]  # 0 for as many as replicas
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Precision = Literal["float32", "tf32", "bfloat16", "auto"]  # precision of products
MODELS = ("rbm", "autoencoder", "denoising", "contractive")
MAX_DELAY = 1000.0  # epochs
MAX_CD_STEPS = 1000  # a minibatch cannot be interrupted

PER_LAYER: dict[str, Any] = {  # names and defaults of the settings with one value a layer
    "epochs": 10,
    "settle": 0.0,
    "refresh_epochs": 1,
    "refresh_when": "always",
    "hidden_units": "bernoulli",
    "learning_rate": 0.1,  # lower for some kinds of units, see usual_rates
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
    "replicas": 1,
    "shards": 0,
}
# Defaults that differ from PER_LAYER.
HANDOFF_DEFAULTS: dict[str, dict[str, Any]] = {"minibatch": {"refresh_epochs": 0, "delay": 0.5}}
SCHEDULE_DEFAULTS: dict[str, dict[str, Any]] = {"async": {"delay": 0.0}}
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    "denoising": {"corruption": "masking:0.25"},
    "contractive": {"contraction": 0.1},
}
SPARSITY_COST = 1.0  # for convolutional RBMs: without a cost many filters are on everywhere


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the settings: immutable, keyword-only, unknown names refused."""


class DataSettings(Frozen, frozen=True, kw_only=True):
    """Data to train on, and their split.

    ``validation`` is the fraction of the training examples held out; None takes the data set's
    own split (10,000 of MNIST's 60,000), or a tenth. ``labels`` is the number of training examples
    that keep their labels, as many of each class as far as there are; None keeps all. ``examples``
    is the number of training examples, None for all.

    In a table, ``target`` names the column of the labels, and ``drop`` the columns to leave out,
    separated by commas. ``task`` is the task of the labels, None for the one that suits them.
    ``test`` is a part to test with, a fraction or a file, and ``unlabelled`` a file of more
    examples to train on.
    """

    name: str = "mnist"
    validation: Fraction | None = None
    labels: Count | None = None
    target: str | None = None
    drop: str | None = None
    task: Literal["classification", "regression"] | None = None
    test: str | None = None
    unlabelled: str | None = None
    examples: Count | None = None


class PretrainFields(Frozen, frozen=True, kw_only=True):
    """Settings of a stack's pretraining. A tuple has one value a layer.

    Attributes
    ----------
    layers : tuple of int
        Values of an example, then the units of each layer.
    architecture : str
        Text of layers with convolutions, such as ``1x28x28,conv:20x5,pool:2,500``; else empty.
    model : str
        ``rbm``, ``autoencoder``, ``denoising`` or ``contractive``.
    visible_units, hidden_units : str, tuple of str
        Kinds of units of the input, and of each layer: see ``syncpretrain/units/kinds.py``. The
        input may have blocks, such as ``bernoulli:20,softmax:3x7``: see
        ``syncpretrain/units/blocks.py``.
    missing, sparse : bool
        True if values of the input may be missing, and if the input is sparse rows; both follow
        from the examples.
    schedule, group_size, pace, handoff, delay, refresh_epochs, refresh_when, finish
        Times at which layers train, and the versions that they train on (docs/schedules.rst).
    shuffle : str
        Order of a streamed run's examples: ``rows``, or ``blocks:1000`` for a file that does not
        fit the memory (docs/schedules.rst).
    runtime, workers, blas_threads, replicas
        Execution; only ``blas_threads`` can change the last bits, and only with schedule greedy.
    backend : str
        Array library: ``numpy``, ``cupy`` with the layers dealt to all GPUs, ``cupy:1`` for that
        GPU alone, or ``auto``: CuPy, if there is a GPU and no setting that only the CPU supports.
        The last bits depend on it.
    precision : str
        Precision of products: ``float32``; ``bfloat16``, to which the factors are rounded;
        ``tf32``, on a GPU; or ``auto``, bfloat16 on a CPU on which it was measured to be faster.
    split, shards
        Division of a layer's minibatch among its replicas: by ``examples``; by ``units``; by the
        ``filters`` of convolutions and the units of dense layers; or ``hybrid``, convolutions by
        examples and dense layers by units. The result depends on the number of shards; 0 takes the
        number of the layer's replicas.
    epochs, batch_size, learning_rate, momentum, weight_decay, l1
        Gradient steps of each layer; momentum as in
        :class:`syncpretrain.settings.MomentumSchedule`.
    settle : tuple of float
        A layer's own epochs end once another epoch changes its outputs by less; 0 for never.
    visible_bias : str
        Visible biases start from ``zero`` or the ``log-odds`` of the units' means.
    sample_visible : bool
        True makes contrastive divergence reconstruct the input by sampled states, not by means.
    cd_steps, persistent, sparsity_target, sparsity_cost, hidden_dropout
        Settings of RBMs: see :class:`syncpretrain.learners.rbm.RBMSettings`.
    tied, loss, corruption, contraction
        Settings of autoencoders: see
        :class:`syncpretrain.learners.autoencoder.AutoencoderSettings`.
    early_stopping, patience : str, int
        Criterion that ends a layer's own epochs: see
        :class:`syncpretrain.learners.early_stopping.EarlyStopping`.
    push_every, fetch_every, async_rate, delay_compensation, max_staleness, simulate_staleness
        Settings of schedule ``async``, as are ``trim_replicas`` and ``servers``: see
        :class:`syncpretrain.settings.asynchronous.AsyncFields`.
    exchange : str
        Exchange of parameters and changes with schedule ``async`` on ranks: in ``messages`` from
        and to servers, or through ``windows``, memory of other ranks.
    seed : int
        Seed of all random numbers.
    """

    layers: tuple[Count, ...]
    architecture: str = ""
    model: Literal["rbm", "autoencoder", "denoising", "contractive"] = "rbm"
    visible_units: str = "bernoulli"
    hidden_units: tuple[Units, ...]
    schedule: Literal["synchronized", "greedy", "rounds", "async", "none"] = "synchronized"
    group_size: Count | None = None
    pace: Literal["lockstep", "free"] = "lockstep"
    handoff: Literal["epoch", "minibatch"] = "epoch"
    delay: Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY)] = 0.0
    shuffle: str = "rows"
    runtime: Literal["threads", "processes", "serial", "mpi"] = "threads"
    backend: str = "auto"
    precision: Precision = "float32"
    workers: Workers | None = None
    replicas: tuple[Count, ...]
    split: Literal["examples", "units", "filters", "hybrid"] = "examples"
    shards: tuple[NonNegativeInt, ...]
    epochs: tuple[Count, ...]
    settle: tuple[NonNegativeFloat, ...]
    refresh_epochs: tuple[NonNegativeInt, ...]
    refresh_when: tuple[str, ...]
    finish: Literal["drain", "first-layer"] = "drain"
    batch_size: Count = 100
    learning_rate: tuple[PositiveFloat, ...]
    momentum: tuple[str, ...]
    weight_decay: tuple[NonNegativeFloat, ...]
    l1: tuple[NonNegativeFloat, ...]
    visible_bias: Literal["zero", "log-odds"] = "zero"
    missing: bool = False
    sparse: bool = False
    sample_visible: bool = False
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
    push_every: Steps = 1
    fetch_every: Steps | None = None
    async_rate: AsyncRate = "staleness"
    delay_compensation: NonNegativeFloat = 0.0
    max_staleness: Staleness | None = None
    simulate_staleness: Staleness | None = None
    trim_replicas: bool = False
    servers: Workers = 1
    exchange: Literal["messages", "windows"] = "messages"
    blas_threads: Workers | None = None
    seed: NonNegativeInt = 0

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The shape of each layer."""
        return shapes_of(self.layers, self.architecture)

    @property
    def stream(self) -> StreamEpochs:
        """The epochs of the layers as a stream trains them."""
        return StreamEpochs(self.epochs, self.delay)

    def shards_of(self, layer: int) -> int:
        """Return the number of shards in a minibatch of a layer, counted from 1."""
        return self.shards[layer - 1] or self.replicas[layer - 1]

    def split_of(self, layer: int) -> str:
        """Return how the minibatches of a layer, counted from 1, are divided.

        The result is ``examples``, ``units`` or ``filters``.
        """
        if self.split not in ("filters", "hybrid"):
            return self.split
        if self.shapes[layer - 1].name == "dense":
            return "units"
        return "filters" if self.split == "filters" else "examples"

    def visible_units_of(self, layer: int) -> str:
        """Return the visible units of a layer, counted from 1.

        Layer 1 has the units of the input; others have units that suit the hidden units below.
        """
        if layer == 1:
            return self.visible_units
        return kind_of(self.hidden_units[layer - 2]).above

    def passes_up_again(self, layer: int) -> bool:
        """Return whether a streamed layer, counted from 1, makes a forward pass after each step.

        It does if the hidden means of its step do not belong to the plain input: with dropout, with
        noise on the input, or if an RBM pools by the mean.
        """
        if self.model == "rbm":
            shape = self.shapes[layer - 1]
            pools_by_mean = isinstance(shape, ConvolutionShape) and shape.pooling == "mean"
            return self.hidden_dropout[layer - 1] > 0 or pools_by_mean
        return self.corruption[layer - 1] != "none"


class MomentumSchedule:
    """Momentum by epoch, as text such as ``0.5:5,0.9``: 0.5 for 5 epochs, then 0.9.

    Parameters
    ----------
    text : str
        Stages separated by commas; every stage but the last ends with ``:EPOCHS``.

    Raises
    ------
    SettingsError
        If the text has another form, or a momentum is not in [0, 1).
    """

    def __init__(self, text: str) -> None:
        *stages, last = text.split(",")
        try:
            pairs = [stage.split(":") for stage in stages]
            self._stages = [(float(value), int(epochs)) for value, epochs in pairs]
            self._last = float(last)
        except ValueError:
            raise SettingsError(
                f"momentum: got {text!r}, expected a number, or stages such as 0.5:5,0.9"
                " (0.5 for 5 epochs, then 0.9)"
            ) from None
        for value in (*(value for value, _ in self._stages), self._last):
            if not 0 <= value < 1:
                raise SettingsError(f"momentum: got {value:g}, expected at least 0 and below 1")
        if any(epochs < 1 for _, epochs in self._stages):
            raise SettingsError(f"momentum: got {text!r}, every stage needs 1 epoch or more")

    @property
    def last_begins(self) -> int:
        """The first epoch with the last momentum."""
        return 1 + sum(epochs for _, epochs in self._stages)

    def at(self, epoch: int) -> float:
        """Return the momentum of an epoch, counted from 1."""
        for value, epochs in self._stages:
            if epoch <= epochs:
                return value
            epoch -= epochs
        return self._last


def usual_rates(visible: Any, hidden: Sequence[Any]) -> list[float]:
    """Return the usual learning rate of each layer: the lower one of its two kinds of units.

    An unknown kind of units takes the default; it is refused later.
    """
    return list(map(min, pairwise(map(_usual_rate, (visible, *hidden)))))


def usual_costs(architecture: Any, hidden: Sequence[Any], depth: int) -> list[float]:
    """Return the usual sparsity cost of each layer of RBMs.

    Dense layers, and units without a lower limit of 0, have no cost. An architecture that is no
    text, and an unknown kind of units, are refused later.
    """
    has_text = isinstance(architecture, str) and architecture
    shapes = read_architecture(architecture)[1] if has_text else [None] * depth
    return [
        SPARSITY_COST
        if isinstance(shape, ConvolutionShape) and units in UNITS and kind_of(units).lower == 0
        else PER_LAYER["sparsity_cost"]
        for shape, units in zip_longest(shapes, hidden[:depth])
    ]


def _usual_rate(units: Any) -> Any:
    if units in UNITS or (isinstance(units, str) and ":" in units):  # blocks, in a known form
        return kind_of(units).learning_rate
    return PER_LAYER["learning_rate"]
