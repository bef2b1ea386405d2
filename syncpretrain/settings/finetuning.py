"""Settings of fine-tuning."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings import fields

TUNING, REGULARIZATION, WORKERS = fields.OF_TUNING
PREFIX = "finetune_"  # of the names of these settings in messages
LABELLED_PART = 5  # one of so many rows of a minibatch has a label, where others train too


def labelled_of(batch_size: int, labelled: int) -> int:
    """Return how many rows of a minibatch have a label, where rows without one are trained on."""
    return max(1, min(batch_size // LABELLED_PART, labelled))


def steps_with_unlabelled(batch_size: int, labelled: int, others: int) -> int:
    """Return the minibatches of a pass over the rows without a label, or over the labelled ones.

    An epoch is the longer one of the two passes.
    """
    known = labelled_of(batch_size, labelled)
    return max(math.ceil(others / (batch_size - known)), math.ceil(labelled / known))


class FinetuneSettings(fields.AsyncFields, frozen=True, kw_only=True):
    """Settings of fine-tuning the pretrained stack by backpropagation.

    Attributes
    ----------
    objective : str
        ``reconstruction``, ``classification`` or ``regression``.
    epochs, batch_size : int
        Passes over the examples, and examples in a minibatch.
    optimizer : str
        ``adam``, ``sgd``, or on large minibatches ``cg`` and ``lbfgs``, which need SciPy.
    learning_rate : float or None
        None takes 0.001 for adam and 0.1 for sgd.
    rate_schedule : str
        Fall of the rate to 0 by the end: none (``constant``), ``linear``, or as a ``cosine``.
    momentum, nesterov : float, bool
        Momentum of sgd.
    weight_decay : float
        Decay of the weights, decoupled from the gradient (Loshchilov and Hutter 2019).
    loss : str or None
        Loss of reconstruction: ``squared`` (None), or ``cross-entropy`` for binary visible units.
    dropout, input_dropout : float
        Shares of the hidden units and of the inputs left out of an example.
    precision : str
        Precision of products, as in pretraining; cg and lbfgs permit ``float32`` alone.
    products : str
        Products of float32 of dense layers, as in pretraining: ``blas``; or ``own``, with adam and
        sgd.
    replicas : int or None
        Workers that share every minibatch, with adam and sgd; None takes one for each usable core
        if the network is large enough.
    split, shards
        Division of a minibatch among replicas: by ``units`` of every layer or by ``examples``. The
        last bits depend on the number of shards; 0 takes the number of replicas. ``filters`` are
        the units of convolutions, and ``hybrid`` divides convolutions by examples and dense layers
        by units (Krizhevsky 2014); ``columns`` also deals out the columns of the convolutions.
        None takes hybrid with convolutions, else units; with runtime ``mpi`` it takes examples, the
        only split of ranks.
    schedule, runtime : str
        ``synchronous``, or ``async``: each replica trains on minibatches of its own, and a server
        adds up their changes. The replicas of ``async`` run in ``threads``, ``processes`` or in
        turns (``serial``). With ``mpi`` the replicas of either schedule are on the ranks of a job;
        ranks share minibatches by examples.
    push_every, fetch_every, async_rate, delay_compensation, max_staleness, simulate_staleness
        Settings of schedule ``async``, as are ``trim_replicas`` and ``servers``: see
        :class:`syncpretrain.settings.fields.AsyncFields`.
    input_noise : float
        Standard deviation of the Gaussian noise added to the inputs, as the lowest layer sees them,
        in classification and regression.
    normalization : str
        ``batch`` standardizes the inputs of relu units over each minibatch while they are trained
        (Ioffe and Szegedy 2015); the resulting layers have weights and biases alone.
    unlabelled : str
        ``pseudo``: in classification, rows without a label are trained on too, for the class that
        the network is sure of (Lee 2013). A minibatch then has a fifth of rows with a label, and an
        epoch is a pass over the rows without, or over the others if that is longer. ``aligned``:
        so that classes are guessed as often as they are among the labels (Berthelot et al. 2020).
    adversarial_noise : float
        Distance by which training moves rows without a label, as the lowest layer sees them, to
        where the network's output changes most (Miyato et al. 2018).
    patience : int or None
        Stop after this number of epochs without a better validation error; keep the best weights.
    """

    objective: Annotated[
        Literal["none", "reconstruction", "classification", "regression"],
        TUNING,
        "Backpropagation through the stack.",
    ] = "none"
    epochs: Annotated[fields.Epochs, TUNING] = 10
    optimizer: Annotated[
        Literal["adam", "sgd", "cg", "lbfgs"], TUNING, "cg, lbfgs: large batches, SciPy."
    ] = "adam"
    learning_rate: Annotated[
        fields.PositiveFloat | None, TUNING, "Default 0.001 for adam, 0.1 for sgd."
    ] = None
    rate_schedule: Annotated[
        Literal["constant", "linear", "cosine"], TUNING, "How the rate falls to 0."
    ] = "constant"
    momentum: Annotated[fields.Fraction, TUNING, "Momentum of sgd."] = 0.0
    nesterov: Annotated[bool, TUNING, "Nesterov's momentum."] = False
    weight_decay: Annotated[fields.NonNegativeFloat, REGULARIZATION] = 0.0
    loss: Annotated[fields.Loss | None, TUNING, "Loss of reconstruction. Default squared."] = None
    dropout: Annotated[fields.Fraction, REGULARIZATION, "Share of hidden units left out."] = 0.0
    input_dropout: Annotated[fields.Fraction, REGULARIZATION, "Share of inputs left out."] = 0.0
    input_noise: Annotated[
        fields.NonNegativeFloat, REGULARIZATION, "Deviation of noise on inputs."
    ] = 0.0
    normalization: Annotated[Literal["none", "batch"], TUNING, "batch standardizes relu units."] = (
        "none"
    )
    unlabelled: Annotated[
        Literal["none", "pseudo", "aligned"], TUNING, "pseudo: guessed classes train too."
    ] = "none"
    adversarial_noise: Annotated[
        fields.NonNegativeFloat, REGULARIZATION, "Distance that guessed rows are moved."
    ] = 0.0
    patience: Annotated[
        fields.Count | None, REGULARIZATION, "End N epochs after the best; keep its weights."
    ] = None
    batch_size: Annotated[fields.Count, TUNING(metavar="B")] = 100
    precision: Annotated[
        fields.Precision, WORKERS(metavar="NAME"), "float32 (default), tf32, bfloat16 or auto."
    ] = "float32"
    products: Annotated[fields.Products, WORKERS, fields.PRODUCTS_HELP] = "auto"
    replicas: Annotated[
        fields.Workers | None,
        WORKERS(metavar="R"),
        "Sharing a minibatch. Default one a usable core.",
    ] = None
    split: Annotated[
        Literal["units", "examples", "filters", "hybrid", "columns"] | None,
        WORKERS,
        "What replicas share. Default units, or hybrid.",
    ] = None
    shards: Annotated[fields.Shards, WORKERS(metavar="S"), "Default as many as replicas."] = 0
    schedule: Annotated[Literal["synchronous", "async"], WORKERS] = "synchronous"
    runtime: Annotated[fields.Runtime, WORKERS, "For async; or mpi, by examples."] = "threads"

    def __post_init__(self) -> None:
        fields.check_finite(self, prefix=PREFIX)
        self._check_schedule()
        stepping, is_own = self.optimizer in ("adam", "sgd"), self.products == "own"
        parts = max(self.shards, self.replicas or 1)
        cuts_examples = self.split in ("examples", "hybrid", "columns")
        is_rough, is_exact = self.precision in ("bfloat16", "tf32"), self.precision == "float32"
        moved = "momentum" if self.momentum else "nesterov" if self.nesterov else ""
        refused = {
            f"replicas: got more than 1 with optimizer {self.optimizer}, which is not split; take"
            " optimizer adam or sgd": not stepping and parts > 1,
            f"replicas: got {self.replicas} for {self.shards} shards, expected no more workers than"
            " shards": 0 < self.shards < parts,
            f"shards: got more than the {self.batch_size} examples of a minibatch": cuts_examples
            and parts > self.batch_size,
            f"precision: got {self.precision} with optimizer {self.optimizer}, whose searches need"
            " exact products; take float32, or optimizer adam or sgd": is_rough and not stepping,
            f"products: got own with optimizer {self.optimizer} and precision {self.precision},"
            " expected adam or sgd, and float32, which have own products": is_own
            and not (stepping and is_exact),
            f"{moved}: got {moved} with optimizer {self.optimizer}, which has its own; take"
            " optimizer sgd, and a momentum above 0": moved and self.optimizer != "sgd",
            "nesterov: got no momentum, expected one above 0": self.nesterov and not self.momentum,
        }
        fields.refuse(refused, prefix=PREFIX)
        self._check_noise()
        squared, entropy = self.loss == "squared", self.loss == "cross-entropy"
        refused = {
            "squared for classes, expected cross-entropy": self._is_for("classification")
            and squared,
            "cross-entropy for numbers, expected squared": self._is_for("regression") and entropy,
        }
        fields.refuse(refused, prefix="finetune_loss: got ")

    def _check_noise(self) -> None:
        """Refuse what only the training for targets has."""
        name = "input_noise" if self.input_noise else "normalization"
        is_noisy = self.input_noise or self.normalization != "none"
        is_guessing, noise = self.unlabelled != "none", self.adversarial_noise
        refused = {
            f"{name}: got {getattr(self, name)} with objective reconstruction, expected none; or"
            " take objective classification or regression": self._is_for("reconstruction")
            and is_noisy,
            f"unlabelled: got {self.unlabelled} with objective {self.objective}, expected none, or"
            " objective classification and labels of some rows": is_guessing
            and not self._is_for("none", "classification"),
            f"adversarial_noise: got {noise} with unlabelled none, expected 0; or take unlabelled"
            " pseudo and labels of some rows": noise and not is_guessing,
            f"batch_size: got {self.batch_size} with unlabelled {self.unlabelled}, expected 2 or"
            " more, a row with a label and one without": is_guessing and self.batch_size < 2,
        }
        fields.refuse(refused, prefix=PREFIX)

    def _is_for(self, *objectives: str) -> bool:
        return self.objective in objectives

    def _check_schedule(self) -> None:
        """Refuse settings that asynchronous fine-tuning lacks, and settings that only it has."""
        has_momentum = bool(self.momentum) or self.optimizer != "sgd"
        fields.check_async(self, has_momentum=has_momentum, prefix=PREFIX)
        if self.schedule != ASYNC:
            self._check_synchronous()
            return
        why = f"with schedule {ASYNC}, whose replicas share no minibatch, expected"
        refused = {
            f"optimizer: got {self.optimizer} {why} adam or sgd": self.optimizer
            not in ("adam", "sgd"),
            f"split: got {self.split} {why} none": self.split is not None,
            f"shards: got {self.shards} {why} none": self.shards,
        }
        fields.refuse(refused, prefix=PREFIX)

    def _check_synchronous(self) -> None:
        """Refuse runtimes that share no minibatch, and splits that ranks do not support."""
        on_ranks = self.runtime == "mpi"
        refused = {
            f"runtime: got {self.runtime} with schedule {self.schedule}, expected threads or mpi;"
            f" or take finetune_schedule={ASYNC}": self.runtime not in ("threads", "mpi"),
            f"replicas: got {self.replicas or 'none'} with runtime mpi, expected 2 or more, which"
            " the ranks share": on_ranks and (self.replicas or 1) == 1,
            f"split: got {self.split} with runtime mpi, expected examples; or take"
            " finetune_runtime=threads": on_ranks and self.split not in (None, "examples"),
        }
        fields.refuse(refused, prefix=PREFIX)
