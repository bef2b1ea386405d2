"""Build a run from its settings: schedule, learners and steps, workers, each layer's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import backend_for
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners import convolution
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.base import Learner
from syncpretrain.learners.by_examples import ByExamples, ByExamplesOnDevices
from syncpretrain.learners.early_stopping import EarlyStopping, Outputs
from syncpretrain.learners.rbm import RBM, SparseRBM
from syncpretrain.learners.steps import (
    ByUnits,
    InPieces,
    MarkedStep,
    Step,
    WholeStep,
    fused_step_of,
)
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.precision_choice import WORTH_OWN
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtimes import workers_of
from syncpretrain.schedule.kinds import SCHEDULES, Fixed, LayerPlan, Pace, Reads, ScheduleOptions
from syncpretrain.schedule.schedule import Schedule
from syncpretrain.settings.checks import parsed_waking
from syncpretrain.settings.fields import LayerSettings, MomentumSchedule
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.shapes import DenseShape
from syncpretrain.workers.ranks.placement import RankShares
from syncpretrain.workers.state import LayerState, refusing_others
from syncpretrain.workers.worker import Inputs, LayerInTraining, LayerWorker, WorkerFactory

if TYPE_CHECKING:
    from syncpretrain.cluster.group import AgreedStop

AUTOENCODER_PRODUCTS = 5  # of a step: as many as of CD-1


def layer_costs(settings: PretrainSettings) -> tuple[float, ...]:
    """Return the multiplications of each layer in all its epochs, for one example."""
    layers = zip(settings.shapes, settings.epochs, settings.cd_steps, strict=True)
    return tuple(float(shape.products * n * _products(settings, k)) for shape, n, k in layers)


def backend_of_layers(settings: PretrainSettings) -> Backend:
    """Return the backend of the settings, its layers dealt to the devices that it has.

    Raises
    ------
    SettingsError
        If something is missing for it.
    """
    return backend_for(settings.backend).dealt(layer_costs(settings), settings.replicas)


def _products(settings: PretrainSettings, cd_steps: int) -> int:
    return 2 * cd_steps + 3 if settings.model == "rbm" else AUTOENCODER_PRODUCTS


SHAREABLE = ("examples", "units")  # splits whose shards may be on several ranks


def build_schedule(
    settings: PretrainSettings, *, slots: int, replay: Reads | None = None
) -> Schedule:
    """Return the schedule of a run, or of the replay of recorded reads.

    Raises
    ------
    SettingsError
        If the recorded reads have another number of layers.
    """
    plans = layer_plans(settings)
    if replay is not None:  # the reads say already which version woke a layer
        plans = [replace(plan, least_drift=None) for plan in plans]
    return Schedule(plans, _pace(settings, plans, replay), slots=slots)


def layer_plans(settings: PretrainSettings) -> list[LayerPlan]:
    """Return the plan of each layer."""
    drifts = map(parsed_waking, settings.refresh_when)
    return list(map(LayerPlan, settings.epochs, settings.refresh_epochs, drifts))


WORTH_A_PIECE = 1 << 21  # multiplications of a product: for fewer, threads wait too long


def pieces_of(settings: PretrainSettings, layer: int) -> int:
    """Return how many pieces a step of a layer is worth; 1 if its bits depend on their number."""
    shape, own = settings.shapes[layer - 1], settings.of_layer(layer)
    is_own = settings.model == "rbm" and settings.products == "own" and own.is_divisible
    is_whole = settings.shards_of(layer) == 1 and settings.runtime in ("threads", "processes")
    is_wide = type(shape) is DenseShape and shape.weights >= WORTH_OWN
    work = settings.batch_size * shape.weights
    return max(1, work // WORTH_A_PIECE) if is_own and is_whole and is_wide else 1


def threads_of(settings: PretrainSettings, layer: int) -> int:
    """Return how many threads may work on a step of a layer: its replicas, or on pieces all."""
    pieces = pieces_of(settings, layer)
    # Of more threads than cores some only wait, and the others for them.
    most = min(workers_of(settings), usable_cores(), pieces)
    return most if pieces > 1 else settings.replicas[layer - 1]


def threads_of_layers(settings: PretrainSettings) -> list[int]:
    """Return :func:`threads_of` each layer, from the lowest up."""
    return [threads_of(settings, layer) for layer in range(1, len(settings.layers))]


def rank_shares(settings: PretrainSettings) -> RankShares:
    """Return how many ranks may share each layer: its replicas, split by examples or units."""
    numbered = enumerate(settings.replicas, start=1)
    most = tuple(n if settings.split_of(layer) in SHAREABLE else 1 for layer, n in numbered)
    return RankShares(most, SCHEDULES[settings.schedule].one_at_a_time)


def _pace(settings: PretrainSettings, plans: list[LayerPlan], replay: Reads | None) -> Pace:
    if replay is not None:
        if len(replay) != len(plans):
            raise SettingsError(
                f"replay: the recorded run has {len(replay)} layers, this one {len(plans)}"
            )
        if not 1 <= len(replay[0]) <= plans[0].epochs:  # fewer are those of a run that was stopped
            raise SettingsError(
                f"replay: layer 1 has {len(replay[0])} recorded epochs, expected 1 to"
                f" {plans[0].epochs}"
            )
        return Fixed(replay)
    kind = SCHEDULES[settings.schedule]
    options = ScheduleOptions(drain=settings.finish == "drain", group_size=settings.group_size)
    if settings.pace == "free" and kind.free is not None:
        return kind.free(plans, options)
    return kind.lockstep(plans, options)


# By the shape's name, a function of the layer's number, its shape and its settings.
LearnerFactory = Callable[[int, Any, LayerSettings], Learner]
RBMS: dict[str, LearnerFactory] = {
    "dense": lambda layer, shape, own: (SparseRBM if own.sparse else RBM)(
        layer, shape.visible, shape.hidden, own
    ),
    "convolution": convolution.convolutional_rbm,
}
AUTOENCODERS: dict[str, LearnerFactory] = {
    "dense": lambda layer, shape, own: Autoencoder(layer, shape.visible, shape.hidden, own),
    "convolution": convolution.ConvolutionalAutoencoder,
}


def build_learners(settings: PretrainSettings) -> list[Learner]:
    """Return one learner a layer, from the lowest up, each with its arrays allocated."""
    return [build_learner(settings, layer) for layer in range(1, len(settings.layers))]


def build_learner(
    settings: PretrainSettings, layer: int, backend: Backend | None = None
) -> Learner:
    """Return the learner of one layer, its arrays allocated where a backend has them."""
    shape = settings.shapes[layer - 1]
    build = (RBMS if settings.model == "rbm" else AUTOENCODERS)[shape.name]
    learner = build(layer, shape, settings.of_layer(layer))
    if backend is not None:
        learner.to(backend.for_layer(layer))
    return learner


def build_worker(
    settings: PretrainSettings,
    layer: int,
    state: LayerState | None,
    keep_states: bool,
    backend: Backend | None,
    times: Timeouts,
    weights: Array | None,
    inputs: Inputs,
    shared: AgreedStop | None = None,
) -> LayerWorker:
    """Return the worker of one layer, where its state says it is, if it has one.

    ``backend`` is where the layers are trained, None NumPy; ``weights``, of shape
    (n_examples,), weigh the examples, None if all count alike; ``shared`` is of the ranks that make
    its steps together.
    """
    own = build_layer(settings, layer, backend, shared, weights=weights)
    on_host = own.learner.backend.name == "numpy"
    replicas = threads_of(settings, layer) if on_host else 1  # else one thread queues all
    worker = LayerWorker(own, inputs, keep_states=keep_states, replicas=replicas, times=times)
    if state is not None:
        with refusing_others(f"the state of layer {layer} is of another layer"):
            worker.load_state(state)
    return worker


def build_layer(
    settings: PretrainSettings,
    layer: int,
    backend: Backend | None = None,
    shared: AgreedStop | None = None,
    *,
    hands_up: bool = False,
    shards: int | None = None,
    weights: Array | None = None,
) -> LayerInTraining:
    """Return one layer, ready to be trained.

    ``shared`` is of the ranks that make its steps together, and ``hands_up`` whether hidden means
    are copied from these; ``shards`` are of a minibatch, None as the settings say.
    """
    learner, workers = build_learner(settings, layer, backend), settings.replicas[layer - 1]
    if weights is not None:
        learner.weigh_rows(weights)
    shards = shards or settings.shards_of(layer)
    step = step_for(learner, shards, settings.split_of(layer), workers, threads_of(settings, layer))
    if shared is not None:
        step = step_on_ranks(step, shared, hands_up=hands_up)
    if settings.marks:
        step = MarkedStep(step, learner, epochs=settings.epochs[layer - 1], count=settings.marks)
    stopping = build_stopping(settings, layer)
    return LayerInTraining(learner, step, stopping, build_outputs(settings, layer))


def step_for(learner: Learner, shards: int, split: str, workers: int = 1, threads: int = 1) -> Step:
    """Return the step of a learner in ``shards`` shards, split by "examples", "units" or "filters".

    ``workers`` are the devices that the shards are dealt to, if the learner is on one. ``threads``
    may work on a step in one shard, if it is divisible.

    Raises
    ------
    ValueError
        If the learner cannot be split so.
    """
    if shards == 1:
        if is_plain(learner):
            return InPieces(learner, threads) if threads > 1 else ByUnits(learner, 1)
        fused = fused_step_of(learner) if _is_cd(learner) else None
        return WholeStep(learner) if fused is None else fused
    if learner.backend.name != "numpy":
        if split != "examples":
            raise ValueError(f"split: got {split} on a device, expected examples")
        return ByExamplesOnDevices(learner, shards, workers)
    if split == "examples":
        return ByExamples(learner, shards)
    if split == "filters" and isinstance(learner, convolution.ConvolutionalRBM):
        return convolution.RBMByFilters(learner, shards)
    if split == "filters" and isinstance(learner, convolution.ConvolutionalAutoencoder):
        return convolution.AutoencoderByFilters(learner, shards)
    if split == "units" and isinstance(learner, RBM):
        return ByUnits(learner, shards)
    raise ValueError(f"split: got {split} for {learner.model}, expected examples")


def is_plain(learner: Learner) -> TypeGuard[RBM]:
    """Return whether the learner does CD-k on the host: its whole step is a program too."""
    return learner.backend.name == "numpy" and _is_cd(learner)


def _is_cd(learner: Learner) -> TypeGuard[RBM]:
    """Return whether the learner does plain CD-k, without chains, conditions and the like."""
    is_weighted = learner.row_weights is not None
    return isinstance(learner, RBM) and not is_weighted and learner.settings.is_plain


def step_on_ranks(step: Step, stop: AgreedStop, *, hands_up: bool = False) -> Step:
    """Return the step of a group of ranks that has the bits of a step on one.

    ``stop`` is of that group, and ``hands_up`` whether hidden means are copied from the step.

    Raises
    ------
    ValueError
        If the step cannot be shared so.
    """
    if isinstance(step, ByExamples):
        from syncpretrain.learners.on_ranks import ByExamplesOnRanks

        return ByExamplesOnRanks(step, stop, hands_up=hands_up)
    if isinstance(step, ByUnits):
        from syncpretrain.learners.on_ranks import ByUnitsOnRanks

        return ByUnitsOnRanks(step, stop)
    raise ValueError(f"step: got {type(step).__name__}, expected one split by examples or units")


def build_worker_factories(
    settings: PretrainSettings, states: Sequence[LayerState | None], *own: Any
) -> list[WorkerFactory]:
    """Return one function a layer that builds its worker.

    It is fit to be sent to another process, as long as the backend is NumPy. ``own`` are the
    parameters of :func:`build_worker` from ``keep_states`` to ``weights``.
    """
    depth = len(settings.layers) - 1
    return [
        partial(build_worker, settings, layer, state, *own)
        for layer, state in zip(range(1, depth + 1), states or [None] * depth, strict=True)
    ]


def build_stopping(settings: PretrainSettings, layer: int) -> EarlyStopping | None:
    """Return what stops a layer early, if anything is to."""
    if settings.early_stopping == "none":
        return None
    own: Any = {"seed": settings.seed, "missing": settings.missing and layer == 1}
    return EarlyStopping(settings.early_stopping, settings.patience, **own)


def build_outputs(settings: PretrainSettings, layer: int) -> Outputs | None:
    """Return what measures the drift of a layer, if anything depends on it."""
    settle, above = settings.settle[layer - 1], settings.refresh_when[layer : layer + 1]
    if not settle and all(parsed_waking(text) is None for text in above):
        return None
    # A momentum that is still to rise makes the changes rise as well.
    return Outputs(settle, MomentumSchedule(settings.momentum[layer - 1]).last_begins)
