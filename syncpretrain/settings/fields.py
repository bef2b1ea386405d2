"""The fields of the data and pretraining settings, without the checks that combine them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from syncpretrain.settings.architecture import shapes_of
from syncpretrain.settings.asynchronous import AsyncRate, Staleness, Steps
from syncpretrain.settings.kinds import (
    Count,
    Fraction,
    Frozen,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Precision,
    Workers,
)
from syncpretrain.shapes import ConvolutionShape, LayerShape
from syncpretrain.units.kinds import UNITS, kind_of

__all__ = ["MODELS", "DataSettings", "PretrainFields", "Units"]

if TYPE_CHECKING:
    Units = str
else:
    Units = Literal[UNITS]

MODELS = ("rbm", "autoencoder", "denoising", "contractive")
MAX_DELAY = 1000.0  # epochs
MAX_CD_STEPS = 1000  # a minibatch cannot be interrupted


class DataSettings(Frozen, frozen=True, kw_only=True):
    """Which data is trained on and how it is split.

    ``validation`` is the fraction of the training examples held out; None takes the data set's
    own split (10,000 of MNIST's 60,000), or a tenth. ``labels`` is how many training examples
    keep their labels, as many of each class as far as there are; None keeps all. ``examples`` is
    how many training examples there are to be, None for all.

    Of tables, ``target`` names the column of the labels and ``drop`` those that are left out, with
    commas between; ``task`` is what the labels are for, None for what suits them. ``test`` is a
    part to test with, a fraction or a file, and ``unlabelled`` a file of more examples to train on.
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
    """How a stack is pretrained. A tuple has one value a layer.

    Attributes
    ----------
    layers : tuple of int
        Values of an example, then the units of each layer.
    architecture : str
        The convolutions among the layers, such as ``1x28x28,conv:20x5,pool:2,500``; empty without.
    model : str
        ``rbm``, ``autoencoder``, ``denoising`` or ``contractive``.
    visible_units, hidden_units : str, tuple of str
        Of the input, and of each layer: see ``syncpretrain/units/kinds.py``. Those of the input
        may be blocks, such as ``bernoulli:20,softmax:3x7``: see ``syncpretrain/units/blocks.py``.
    missing, sparse : bool
        Whether values of the input may be missing, and whether it is sparse rows; follow from the
        examples.
    schedule, group_size, pace, handoff, delay, refresh_epochs, refresh_when, finish
        Which layer trains when, on which version (docs/schedules.rst).
    shuffle : str
        The order of a streamed run's examples: ``rows``, or ``blocks:1000`` for a file that does
        not fit the memory (docs/schedules.rst).
    runtime, workers, blas_threads, replicas
        What executes it; only ``blas_threads`` can change the last bits, and of greedy alone.
    backend : str
        What computes: ``numpy``, ``cupy`` with the layers dealt to all GPUs, ``cupy:1`` for that
        GPU alone, or ``auto``, CuPy where it can compute and is asked for nothing that only the CPU
        does. The last bits depend on it.
    precision : str
        Of products: ``float32``; ``bfloat16``, to which their factors are rounded; ``tf32``, on a
        GPU; or ``auto``, bfloat16 where it was measured to be faster, on the CPU.
    split, shards
        How each minibatch of a layer is cut for its replicas: by ``examples``; by ``units``; by the
        ``filters`` of convolutions and the units of dense layers; or ``hybrid``, convolutions by
        examples and dense layers by units. Into this number of shards, on which the result depends;
        0 for as many as the layer has replicas.
    epochs, batch_size, learning_rate, momentum, weight_decay, l1
        Of each layer's gradient steps; momentum as in
        :class:`syncpretrain.settings.MomentumSchedule`.
    settle : tuple of float
        A layer's own epochs end once another one changes its outputs by less; 0 for never.
    visible_bias : str
        Visible biases start from ``zero`` or the ``log-odds`` of the units' means.
    sample_visible : bool
        Whether contrastive divergence reconstructs the input by sampled states instead of means.
    cd_steps, persistent, sparsity_target, sparsity_cost, hidden_dropout
        Of RBMs: see :class:`syncpretrain.learners.rbm.RBMSettings`.
    tied, loss, corruption, contraction
        Of autoencoders: see :class:`syncpretrain.learners.autoencoder.AutoencoderSettings`.
    early_stopping, patience : str, int
        What ends a layer's own epochs: see
        :class:`syncpretrain.learners.early_stopping.EarlyStopping`.
    push_every, fetch_every, async_rate, delay_compensation, max_staleness, simulate_staleness
        Of schedule ``async``, as are ``trim_replicas`` and ``servers``: see
        :class:`syncpretrain.settings.asynchronous.AsyncFields`.
    exchange : str
        Of schedule ``async`` on ranks, how replicas get parameters and give back changes: in
        ``messages`` from and to servers, or through ``windows``, memory of other ranks.
    seed : int
        Of everything that is drawn.
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

    def shards_of(self, layer: int) -> int:
        """Return into how many shards the minibatches of a layer, counted from 1, are cut."""
        return self.shards[layer - 1] or self.replicas[layer - 1]

    def split_of(self, layer: int) -> str:
        """Return how the minibatches of a layer, counted from 1, are cut.

        By ``examples``, ``units`` or ``filters``.
        """
        if self.split not in ("filters", "hybrid"):
            return self.split
        if self.shapes[layer - 1].name == "dense":
            return "units"
        return "filters" if self.split == "filters" else "examples"

    def visible_units_of(self, layer: int) -> str:
        """Return the visible units of a layer, counted from 1.

        Those of the input, or what suits the hidden units below.
        """
        if layer == 1:
            return self.visible_units
        return kind_of(self.hidden_units[layer - 2]).above

    def passes_up_again(self, layer: int) -> bool:
        """Whether a streamed layer, counted from 1, makes a forward pass beside each of its steps.

        It does where the hidden means of its step are not those of the plain input: with dropout,
        with noise on the input, or where an RBM pools by the mean.
        """
        if self.model == "rbm":
            shape = self.shapes[layer - 1]
            pools_by_mean = isinstance(shape, ConvolutionShape) and shape.pooling == "mean"
            return self.hidden_dropout[layer - 1] > 0 or pools_by_mean
        return self.corruption[layer - 1] != "none"
