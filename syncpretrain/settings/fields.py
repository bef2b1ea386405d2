"""The fields of the data and pretraining settings: each is declared once, here.

A field has its type with its range, its default, and a :class:`Setting`: the section, text and form
of its option. The options with their help, the tables of the documentation, the check of types, the
settings with one value a layer and their form in TOML follow. :mod:`syncpretrain.settings.checks`
has the checks that combine several fields.
"""

# Annotations are objects here, not texts, for what they say is read at every start.
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from types import SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC, MAX_EPOCHS
from syncpretrain.schedule.stream import StreamEpochs
from syncpretrain.settings.architecture import read_architecture, shapes_of
from syncpretrain.shapes import ConvolutionShape, LayerShape
from syncpretrain.units.kinds import KINDS, UNITS, kind_of

if TYPE_CHECKING:
    Units = str
else:
    Units = Literal[UNITS]

T = TypeVar("T")

# Larger numbers are slips of the keyboard: a run without end, or a machine busy with threads alone.
MAX_WORKERS = 1024
MAX_DELAY = 1000.0  # epochs
MAX_CD_STEPS = 1000  # a minibatch cannot be interrupted
MAX_STEPS = 1_000_000  # minibatches
MAX_CHAINS = 1_000_000
Count = Annotated[int, msgspec.Meta(ge=1)]
Epochs = Annotated[int, msgspec.Meta(ge=1, le=MAX_EPOCHS)]
Workers = Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)]
Shards = Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)]  # 0 for as many as replicas
Steps = Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]
Staleness = Annotated[int, msgspec.Meta(ge=0, le=MAX_STEPS)]
Chains = Annotated[int, msgspec.Meta(ge=0, le=MAX_CHAINS)]  # 0 for one a row of the minibatch
GibbsSteps = Annotated[int, msgspec.Meta(ge=1, le=MAX_CD_STEPS)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Each = tuple[T, ...]  # a value for each layer
AsyncRate = Literal["staleness", "constant"]
Precision = Literal["float32", "tf32", "bfloat16", "auto"]  # precision of products
Products = Literal["auto", "blas", "own"]
PRODUCTS_HELP = "own: same bits on every CPU. Default auto."
Loss = Literal["squared", "cross-entropy"]
Runtime = Literal["threads", "processes", "serial", "mpi"]
CORRUPTIONS = ("masking", "salt-and-pepper", "gaussian")

# Defaults that differ from the fields'.
HANDOFF_DEFAULTS: dict[str, dict[str, Any]] = {
    "epoch": {"delay": 0.0},
    "minibatch": {"refresh_epochs": 0, "delay": 0.5},
}
SCHEDULE_DEFAULTS: dict[str, dict[str, Any]] = {"async": {"delay": 0.0}}
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    "denoising": {"corruption": "masking:0.25"},
    "contractive": {"contraction": 0.1},
}
SPARSITY_COST = 1.0  # for convolutional RBMs: without a cost many filters are on everywhere


class Setting(msgspec.Struct, frozen=True):
    """Declaration of a field, without its name.

    An annotation has the section of the help, called with ``metavar``, ``opposite`` and ``each``
    where it has them, and the text of the help behind it. :func:`settings_of` adds the others.

    Attributes
    ----------
    section : str
        Section of the help.
    metavar : str
        Stands for a value; default ``N`` for whole numbers, and ``X`` for others.
    opposite : str
        Name of the option that stands for False; default ``--no-`` and the field's name.
    each : Any
        Default of a layer, if the field has a value for each.
    text : str
        Text of the help. One that names no default gets it appended.
    kind : type
        Type of a value, without its range.
    default : Any
        Default, of a layer if there is a value for each.
    """

    section: str
    metavar: str = ""
    opposite: str = ""
    each: Any = None
    text: str = ""
    kind: Any = None
    default: Any = None

    def __call__(self, **more: Any) -> "Setting":
        """Return a setting that has more to say."""
        return msgspec.structs.replace(self, **more)


SECTIONS = (  # of the help, in their order
    *("Data and settings", "Model", "Learning", "RBMs", "Autoencoders", "Schedule", "Workers"),
    *("Fine-tuning", "Regularization of fine-tuning", "Workers of fine-tuning", "Asynchronous"),
    "Run folder and output",
)
DATA, MODEL, LEARNING, RBMS, AUTOENCODERS, SCHEDULE, WORKERS, *OF_TUNING, ASYNCHRONOUS, OUTPUT = (
    map(Setting, SECTIONS)
)


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return " or ".join(filter(None, [", ".join(most), last]))


def _described(name: str) -> str:
    """Return the name of a kind of units, with the restriction that a user should know."""
    if KINDS[name].sample is None:
        return f"{name} (autoencoders)"
    return f"{name} (linear)" if KINDS[name].is_linear else name


def _lower_rates() -> str:
    """Return the default learning rates below the usual one, and the kinds that have them."""
    rates: dict[float, list[str]] = {}
    for name in UNITS:
        rates.setdefault(KINDS[name].learning_rate, []).append(name)
    lower = sorted(rates)[:-1]
    return ", ".join(f"{rate:g} with {_listed(rates[rate])} units" for rate in lower)


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the settings: immutable, keyword-only, unknown names refused."""


class DataSettings(Frozen, frozen=True, kw_only=True):
    """Data to train on, and their split.

    ``validation`` is the fraction of the training examples held out; None takes the data set's
    own split (10,000 of MNIST's 60,000), or a tenth. ``labels`` is the number of training examples
    that keep their labels, as many of each class as far as there are; None keeps all. ``examples``
    is the number of training examples, None for all.

    In a table, ``target`` names the column of the labels, ``weights`` the column of the rows'
    weights, and ``drop`` the columns to leave out, separated by commas. ``task`` is the task of the
    labels, None for the one that suits them. ``test`` is a part to test with, a fraction or a file,
    and ``unlabelled`` a file of more examples to train on.
    """

    name: Annotated[str, DATA(metavar="NAME|FILE")] = "mnist"
    target: Annotated[
        str | None,
        DATA(metavar="COLUMN"),
        "The column of a table that holds the labels, by name, or by number from 1 (-1 for the"
        " last).",
    ] = None
    drop: Annotated[
        str | None, DATA(metavar="COLUMN[,COLUMN]"), "Columns of a table to leave out."
    ] = None
    weights: Annotated[
        str | None, DATA(metavar="COLUMN"), "The column of a table that holds the rows' weights."
    ] = None
    task: Annotated[
        Literal["classification", "regression"] | None,
        DATA,
        "What the labels are for. Default classification for text and whole numbers.",
    ] = None
    test: Annotated[
        str | None,
        DATA(metavar="FRACTION|FILE"),
        "A part to test with: a fraction of the examples, or another file.",
    ] = None
    unlabelled: Annotated[
        str | None, DATA(metavar="FILE"), "A file of more examples to train on, without labels."
    ] = None
    examples: Annotated[
        Count | None, DATA, "Train on N of the training examples only. Default all."
    ] = None
    validation: Annotated[
        Fraction | None,
        DATA(metavar="FRACTION"),
        "Share of the training examples to hold out. Default 10,000 of MNIST's 60,000, or a tenth.",
    ] = None
    labels: Annotated[
        Count | None, DATA, "Keep the labels of N training examples only. Default all."
    ] = None


class AsyncFields(Frozen, frozen=True, kw_only=True):
    """Fields of an asynchronous schedule, of pretraining and of fine-tuning.

    Attributes
    ----------
    push_every : int
        Local steps after which a replica pushes its change.
    fetch_every : int or None
        Local steps after which a replica fetches the parameters; None for as often as it pushes.
    async_rate : str
        ``staleness`` divides a change by its staleness, the number of changes that the server
        applied since the replica fetched (Zhang, Gupta et al. 2016); ``constant`` applies it whole.
    delay_compensation : float
        lambda_0 of the compensation for late changes (Zheng et al. 2017), 0 for none.
    max_staleness : int or None
        Largest staleness of a change; with a larger one, the replica fetches and repeats its steps.
    simulate_staleness : int or None
        With runtime ``serial``: every change is applied this number of changes late.
    trim_replicas : bool
        True stops replicas that do not make the error fall faster, as the run begins.
    servers : int
        Slices of the parameters, each with a thread of the server or, with runtime ``mpi``, a rank.
    """

    push_every: Annotated[Steps, ASYNCHRONOUS, "Local steps before a replica pushes."] = 1
    fetch_every: Annotated[
        Steps | None, ASYNCHRONOUS, "Local steps before it fetches. Default as often."
    ] = None
    async_rate: Annotated[
        AsyncRate, ASYNCHRONOUS, "Divide changes by their staleness (default)."
    ] = "staleness"
    delay_compensation: Annotated[
        NonNegativeFloat, ASYNCHRONOUS, "Lambda of the compensation. Default 0, none."
    ] = 0.0
    max_staleness: Annotated[
        Staleness | None, ASYNCHRONOUS, "Make a change anew that is staler than N."
    ] = None
    simulate_staleness: Annotated[
        Staleness | None, ASYNCHRONOUS, "In turns: apply changes N changes late."
    ] = None
    trim_replicas: Annotated[bool, ASYNCHRONOUS, "Stop replicas that do not pay."] = False
    servers: Annotated[
        Workers, WORKERS, "Async: slices of the parameters, each with a thread or rank."
    ] = 1

    @property
    def period(self) -> int:
        """Number of pushes from a fetch to the next one."""
        return (self.fetch_every or self.push_every) // self.push_every

    def share(self, staleness: int) -> float:
        """Return the share of a change that is added to the parameters."""
        # A change that is not stale counts whole, like one that is one push late.
        return 1.0 if self.async_rate == "constant" else 1 / max(1, staleness)

    def takes(self, staleness: int) -> bool:
        """Return whether a change is taken."""
        return self.max_staleness is None or staleness <= self.max_staleness

    def fetches(self, pushes: int) -> bool:
        """Return whether a replica fetches after a number of pushes since its start."""
        return pushes % self.period == 0


ASYNC_DEFAULTS = {own.name: own.default for own in msgspec.structs.fields(AsyncFields)}


class PretrainFields(AsyncFields, frozen=True, kw_only=True):
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
        input may have blocks, such as ``bernoulli:20,softmax:3x7``.
    missing, sparse : bool
        True if values of the input may be missing, and if the input is sparse rows; both follow
        from the examples.
    marks : int
        Updates of a layer after which it is kept as it is then, spaced by their logarithm; follows
        from ``checkpoint_every`` of a run.
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
    products : str
        Products of float32 of dense layers: ``blas``, NumPy's; ``own``, with which a run has the
        same bits on every x86-64 CPU, with any version of NumPy and any BLAS; or ``auto``: own ones
        for stacks of 65,536 weights or more, but with schedule greedy, on CPUs with AVX2.
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
    sample_input : tuple of bool
        True for training on binary states, drawn from the means that the layer below hands over,
        or from the data, anew in each epoch; False for training on these means. Data of other than
        binary units are states as they are.
    cd_steps, persistent
        The k of CD-k; with ``persistent`` the chains go on from where the last minibatch left them
        (Tieleman 2008).
    chains, chain_start
        Number of persistent chains apart from the minibatch, which are all moved at every update,
        and saved with the model; 0 for a chain a row of the minibatch. They start at ``noise``,
        visible units drawn by their biases alone, or at rows of the first minibatch, ``data``.
    centred
        True for the centred gradient (Montavon and Mueller 2012; Melchior, Fischer and Wiskott
        2016).
    sparsity_target, sparsity_cost
        The cost weighs the pull of each hidden unit's mean activity to the target (Hinton 2010,
        section 11).
    hidden_dropout
        The probability with which a hidden unit of an RBM is left out of an example (Srivastava et
        al. 2014, section 8); the others are scaled up in the decoder, so that all together reach
        it.
    tied, loss
        Settings of autoencoders: whether the decoder shares the weights, and ``squared`` or
        ``cross-entropy``.
    corruption
        Kind and amount of noise on an autoencoder's input (Vincent et al. 2010).
    contraction
        Weight of the penalty on the Jacobian of an autoencoder's code (Rifai et al. 2011).
    early_stopping, patience : str, int
        Criterion that ends a layer's own epochs: see
        :class:`syncpretrain.learners.early_stopping.EarlyStopping`.
    push_every, fetch_every, async_rate, delay_compensation, max_staleness, simulate_staleness
        Settings of schedule ``async``, as are ``trim_replicas`` and ``servers``: see
        :class:`syncpretrain.settings.fields.AsyncFields`.
    exchange : str
        Exchange of parameters and changes with schedule ``async`` on ranks: in ``messages`` from
        and to servers, or through ``windows``, memory of other ranks.
    seed : int
        Seed of all random numbers.
    """

    layers: Annotated[
        Each[Count],
        MODEL(metavar="N,N[,N...]"),
        "Values of an example, then units of each layer: 784,500,30; or"
        " 1x28x28,conv:20x5,pool:2,500 of images, conv:FILTERSxSIZE[:PAD][/GROUPS] and"
        " pool:SIZE[:mean].",
    ]
    architecture: str = ""
    model: Annotated[
        Literal["rbm", "autoencoder", "denoising", "contractive"], MODEL, "Kind of all layers."
    ] = "rbm"
    visible_units: Annotated[
        str,
        MODEL(metavar="KIND[:N,...]"),
        "Input: bernoulli (default), gaussian, auto, or by columns gaussian:5,softmax:3x7.",
    ] = "bernoulli"
    hidden_units: Annotated[
        Each[Units], MODEL(each="bernoulli"), f"{_listed(map(_described, UNITS))}."
    ]
    visible_bias: Annotated[
        Literal["zero", "log-odds"], MODEL, "Start at 0 (default), or log-odds of the means."
    ] = "zero"
    missing: bool = False
    sparse: bool = False
    marks: NonNegativeInt = 0
    tied: Annotated[
        bool,
        AUTOENCODERS(opposite="--untied"),
        "Autoencoders: the decoder shares the weights (default), or has its own.",
    ] = True
    loss: Annotated[
        Loss | None,
        AUTOENCODERS,
        "Loss of autoencoders. Default cross-entropy, squared for gaussian visible units.",
    ] = None
    corruption: Annotated[
        Each[str],
        AUTOENCODERS(metavar="KIND:X[,...]", each="none"),
        "Denoising: masking:0.25 (default), salt-and-pepper:SHARE or gaussian:DEVIATION.",
    ]
    contraction: Annotated[
        Each[NonNegativeFloat],
        AUTOENCODERS(each=0.0),
        "Weight of the contractive penalty. Default 0.1.",
    ]
    epochs: Annotated[
        Each[Count],
        LEARNING(metavar="N|auto[:N]", each=10),
        "Default 10; auto: until settled, up to N (100).",
    ]
    batch_size: Annotated[Count, LEARNING(metavar="B"), "Examples in a minibatch."] = 100
    learning_rate: Annotated[
        Each[PositiveFloat], LEARNING(each=0.1), f"Default 0.1, {_lower_rates()}."
    ]
    momentum: Annotated[
        Each[str],
        LEARNING(metavar="V[:EPOCHS,V...]", each="0.5:5,0.9"),
        "Default '0.5:5,0.9', which is 0.5 for 5 epochs, then 0.9; a ';' between layers.",
    ]
    weight_decay: Annotated[Each[NonNegativeFloat], LEARNING(each=0.0002)]
    l1: Annotated[Each[NonNegativeFloat], LEARNING(each=0.0), "Weight decay by the weights' signs."]
    cd_steps: Annotated[Each[GibbsSteps], RBMS(each=1), "Gibbs steps, the k of CD-k."]
    sample_visible: Annotated[
        bool, RBMS(opposite="--visible-means"), "Reconstruct the input by samples, not means."
    ] = False
    sample_input: Annotated[
        Each[bool],
        RBMS(opposite="--input-means", each=False),
        "Train on states drawn from the input, not on its means.",
    ]
    persistent: Annotated[
        Each[bool],
        RBMS(opposite="--not-persistent", each=False),
        "Keep the chains between minibatches (PCD).",
    ]
    chains: Annotated[
        Each[Chains], RBMS(each=0), "PCD: chains apart from the batch. Default one a row of it."
    ]
    chain_start: Annotated[
        Each[Literal["noise", "data"]],
        RBMS(metavar="noise|data", each="noise"),
        "Where these chains start.",
    ]
    centred: Annotated[
        Each[bool], RBMS(opposite="--not-centred", each=False), "The centred gradient."
    ]
    sparsity_target: Annotated[Each[Fraction], RBMS(each=0.1), "Mean activity to aim for."]
    sparsity_cost: Annotated[
        Each[NonNegativeFloat], RBMS(each=0.0), "Weight of the pull to that activity."
    ]
    hidden_dropout: Annotated[
        Each[Fraction], RBMS(each=0.0), "Share of hidden units left out of an example."
    ]
    early_stopping: Annotated[
        Literal["none", "free-energy-gap", "pseudo-likelihood", "validation-error"],
        LEARNING,
        "End a layer's own epochs when it overfits (the gap), or no longer gets better. The last"
        " is for autoencoders.",
    ] = "none"
    patience: Annotated[Count, LEARNING, "Bad epochs that end a layer."] = 3
    seed: Annotated[NonNegativeInt, LEARNING, "The same seed gives the same model."] = 0
    schedule: Annotated[
        Literal["synchronized", "greedy", "rounds", "async", "none"],
        SCHEDULE,
        "Layers in parallel (default), in turn or groups; auto: the fastest.",
    ] = "synchronized"
    group_size: Annotated[
        Count | None, SCHEDULE(metavar="G"), "Layers that rounds train at a time. Default 2."
    ] = None
    pace: Annotated[
        Literal["lockstep", "free"],
        SCHEDULE,
        "Epoch k reads version k of the layer below (default), or the newest there is.",
    ] = "lockstep"
    handoff: Annotated[
        Literal["epoch", "minibatch"],
        SCHEDULE,
        "Train on whole versions of the layer below (default), or on its minibatches as they are"
        " computed.",
    ] = "epoch"
    delay: Annotated[
        float,
        msgspec.Meta(ge=0, le=MAX_DELAY),
        SCHEDULE,
        "Epochs that a layer starts after the one below, with minibatch. Default 0.5.",
    ] = 0.0
    shuffle: Annotated[
        str,
        SCHEDULE(metavar="rows|blocks:N"),
        "Order of a streamed run: rows (default), or blocks of N rows, for large files.",
    ] = "rows"
    refresh_epochs: Annotated[
        Each[NonNegativeInt], SCHEDULE(each=1), "Epochs on each newer version."
    ]
    refresh_when: Annotated[
        Each[str],
        SCHEDULE(metavar="always|drift:X", each="always"),
        "Refresh on every version (default), or on one that differs by more than X from the last.",
    ]
    settle: Annotated[
        Each[NonNegativeFloat],
        SCHEDULE(each=0.0),
        "Change of outputs that ends a layer's epochs. Default 0; with auto 0.15, or the X of"
        " drift:X.",
    ]
    finish: Annotated[
        Literal["drain", "first-layer"],
        SCHEDULE,
        "Stop when every version is read (default), or do not wait for refreshes.",
    ] = "drain"
    runtime: Annotated[
        Runtime,
        WORKERS,
        "Layers in threads (default), processes, turns, or on ranks of mpiexec (mpi).",
    ] = "threads"
    backend: Annotated[
        str,
        WORKERS(metavar="auto|numpy|cupy[:N]"),
        "CPU, all GPUs, or GPU N; auto (default) takes a GPU that CuPy can use.",
    ] = "auto"
    precision: Annotated[Precision, WORKERS, "Matrix products; tf32 on a GPU."] = "float32"
    products: Annotated[Products, WORKERS, PRODUCTS_HELP] = "auto"
    workers: Annotated[
        Workers | None, WORKERS(metavar="P"), "For all layers. Default the usable cores."
    ] = None
    replicas: Annotated[
        Each[Count], WORKERS(metavar="R", each=1), "Workers of one layer, if to spare."
    ]
    split: Annotated[
        Literal["examples", "units", "filters", "hybrid"],
        WORKERS,
        "What replicas share; hybrid: examples of convolutions, units of others.",
    ] = "examples"
    shards: Annotated[
        Each[NonNegativeInt],
        WORKERS(metavar="S", each=0),
        "Parts of a minibatch; they decide the result. Default as many as replicas.",
    ]
    exchange: Annotated[
        Literal["messages", "windows"],
        WORKERS,
        "Async with mpi: by messages (default), or one-sided in windows.",
    ] = "messages"
    blas_threads: Annotated[
        Workers | None,
        WORKERS,
        "For greedy and fine-tuning; parallel layers take one each. Default the usable cores.",
    ] = None

    @property
    def stack_text(self) -> str:
        """The units of the input and of each layer, or the layers with convolutions, as text."""
        return self.architecture or "-".join(map(str, self.layers))

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The shape of each layer."""
        return shapes_of(self.layers, self.architecture)

    @property
    def stream(self) -> StreamEpochs:
        """The epochs of the layers as a stream trains them."""
        return StreamEpochs(self.epochs, self.delay)

    def of_layer(self, layer: int) -> "LayerSettings":
        """Return the settings of a layer, counted from 1."""
        i, units = layer - 1, self.visible_units_of(layer)
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values |= {name: values[name][i] for name in PER_LAYER}
        # Values of the input alone may be missing, sparse or sampled.
        values |= {n: values[n] and not i for n in ("missing", "sparse", "sample_visible")}
        usual = kind_of(units).loss
        below = kind_of(self.hidden_units[i - 1] if i else units)
        return LayerSettings(
            **values
            | {
                "visible_units": units,
                "momentum": MomentumSchedule(values["momentum"]),
                "corruption": parsed_corruption(values["corruption"]),
                "loss": usual if usual == "squared" else self.loss or usual,
                "limits": (below.lower, below.upper) if below.is_bounded else (0, 1),
            }
        )

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
        return self.visible_units if layer == 1 else kind_of(self.hidden_units[layer - 2]).above

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


def values_of(settings: msgspec.Struct, name: str) -> tuple[Any, ...]:
    """Return the values of a setting: one a layer, or the one it has."""
    found = getattr(settings, name)
    return found if isinstance(found, tuple) else (found,)


def check_finite(settings: msgspec.Struct, *, prefix: str = "") -> None:
    """Refuse infinity and NaN; ``prefix`` is the prefix of the options' names.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    for name in settings.__struct_fields__:
        for value in values_of(settings, name):
            if isinstance(value, float) and not math.isfinite(value):
                raise SettingsError(f"{prefix}{name}: got {value}, expected a finite number")


def refusal(refused: Mapping[str, object]) -> str | None:
    """Return the first text that is refused, None if no text is: each stands with its condition."""
    return next((text for text, is_refused in refused.items() if is_refused), None)


def refuse(refused: Mapping[str, object], *, prefix: str = "") -> None:
    """Raise the first text that is refused, behind a prefix.

    Raises
    ------
    SettingsError
    """
    if text := refusal(refused):
        raise SettingsError(f"{prefix}{text}")


def check_async(settings: Any, *, has_momentum: bool, prefix: str = "") -> None:
    """Refuse settings that an asynchronous schedule lacks, and settings that only it has.

    Parameters
    ----------
    settings : AsyncFields
        Settings that have a schedule and a runtime too.
    has_momentum : bool
        True if a local step depends on more than its own gradient.
    prefix : str
        Prefix of the options' names.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    schedule, runtime = settings.schedule, settings.runtime
    if schedule != ASYNC:
        for name, default in ASYNC_DEFAULTS.items():
            value = getattr(settings, name)
            if value != default:
                raise SettingsError(
                    f"{prefix}{name}: got {value} with schedule {schedule}, expected none; take"
                    f" {prefix}schedule {ASYNC}"
                )
        return
    strength, fetches = settings.delay_compensation, settings.fetch_every
    steps, in_turns = max(settings.push_every, fetches or 1), runtime == "serial"
    name = "push_every" if settings.push_every > 1 else "fetch_every"
    other = f"{name} above 1" if steps > 1 else "momentum"
    is_simulated = settings.simulate_staleness is not None
    refused = {
        f"fetch_every: got {fetches} with push_every {settings.push_every}, expected a multiple of"
        " it; what was not pushed would be lost at a fetch": (fetches or 0) % settings.push_every,
        f"delay_compensation: got {strength:g} with {other}, expected plain steps along one"
        " gradient, of fetched parameters; take push_every and fetch_every 1, and sgd without"
        " momentum": strength and (steps > 1 or has_momentum),
        "trim_replicas: got it with runtime serial, whose replicas take turns; take"
        f" {prefix}runtime threads or processes": settings.trim_replicas and in_turns,
        f"servers: got {settings.servers} with runtime serial, whose replicas take turns, expected"
        f" 1; take {prefix}runtime threads or processes": settings.servers > 1 and in_turns,
        f"simulate_staleness: got {settings.simulate_staleness} with runtime {runtime}, where it is"
        f" what it is; take {prefix}runtime serial": is_simulated and not in_turns,
    }
    refuse(refused, prefix=prefix)


def names_of(kind: type[msgspec.Struct]) -> list[str]:
    """Return the names of the fields of settings, the fields of :class:`AsyncFields` last."""
    return sorted(kind.__struct_fields__, key=ASYNC_DEFAULTS.__contains__)


def settings_of(kind: type[msgspec.Struct]) -> dict[str, Setting]:
    """Return what is declared of the fields that have an option, by name."""
    hints, found = typing.get_type_hints(kind, include_extras=True), dict[str, Setting]()
    defaults = dict(zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True))
    for name in names_of(kind):
        said = getattr(hints[name], "__metadata__", ())
        text = "".join(x for x in said if isinstance(x, str))
        for setting in (x for x in said if isinstance(x, Setting)):
            default = defaults[name] if setting.each is None else setting.each
            found[name] = setting(text=text, kind=_type_of_value(hints[name]), default=default)
    return found


def _type_of_value(hint: Any) -> Any:
    """Return the type of a value, or of the value of a layer, without None and its range."""
    while typing.get_origin(hint) in (Annotated, Union, UnionType, tuple):
        hint = typing.get_args(hint)[0]
    return hint


DECLARED = settings_of(PretrainFields)
# Names and defaults of the settings with one value a layer.
PER_LAYER = {name: own.each for name, own in DECLARED.items() if own.each is not None}
OF_RBMS = [name for name in PER_LAYER if DECLARED[name].section == RBMS.section]
OF_SCHEDULES = {name for name, own in DECLARED.items() if own.section == SCHEDULE.section}


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


def kind_and_number(text: str) -> tuple[str, float]:
    """Return the parts of a text such as ``drift:0.05``; NaN where there is no number."""
    kind, _, number = text.partition(":")
    try:
        return kind, float(number)
    except ValueError:
        return kind, math.nan


def parsed_corruption(text: str) -> tuple[str, float] | None:
    """Return the kind and the amount of noise in a text such as ``masking:0.25``; None: ``none``.

    Raises
    ------
    SettingsError
        If the text has another form, or the amount is out of range.
    """
    if text == "none":
        return None
    kind, amount = kind_and_number(text)
    most = math.inf if kind == "gaussian" else 1
    if kind not in CORRUPTIONS or not 0 < amount < most:
        raise SettingsError(
            f"corruption: got {text!r}, expected none, masking:SHARE, salt-and-pepper:SHARE with a"
            " share above 0 and below 1, or gaussian:DEVIATION"
        )
    return kind, amount


class LayerSettings(SimpleNamespace):
    """Settings of one layer: the fields of :class:`PretrainFields` as they apply to it.

    ``momentum`` is a :class:`MomentumSchedule`, and ``corruption`` is None or the kind of noise and
    its amount. ``limits`` are the values of pepper and salt.
    """

    @property
    def is_conditioned(self) -> bool:
        """True if visible means depend on more than the hidden units: blocks, missing entries."""
        return self.missing or kind_of(self.visible_units).blocks is not None

    @property
    def is_plain(self) -> bool:
        """True if an RBM does plain CD-k, without chains, conditions and the like."""
        samples = self.sample_visible or self.sample_input or self.persistent
        changes = self.sparsity_cost or self.hidden_dropout or self.centred
        return not (self.sparse or self.is_conditioned or samples or changes)

    @property
    def is_divisible(self) -> bool:
        """True if a step of an RBM with own products has the same bits in any pieces."""
        # Of uniform draws it is known how many a state takes, of normal ones it is not.
        hidden = kind_of(self.hidden_units)
        return self.is_plain and hidden.noise == "uniform" and hidden.blocks is None

    def kinds(self, model: str) -> dict[str, str]:
        """Return the kinds of units and the model of a layer, by name."""
        kinds = {"hidden_units": self.hidden_units, "visible_units": self.visible_units}
        return kinds | {"model": model}


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
