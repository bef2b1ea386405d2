"""The settings of one fine-tuning, and what they leave open fixed for a machine and a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from syncpretrain.backends.choice import resolve_backend
from syncpretrain.errors import SettingsError
from syncpretrain.parallel.blas import blas_threads as resolve_threads
from syncpretrain.parallel.precision_choice import resolve_precision, resolve_products
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings import devices
from syncpretrain.settings.convert import checked
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.shapes import ConvolutionShape, LayerShape, common_groups

OF_CONVOLUTIONS = ("filters", "hybrid", "columns")  # splits
# Arguments of finetune() beside the settings.
TUNING_ARGUMENTS = ("validation", "validation_y", "verbose", "warn", "observers")
STEPPING = ("adam", "sgd")  # the others search along lines
# Examples of a minibatch times weights, 20 million operations a product: some tenths of a ms a
# step. Waiting for each other some times a step would cost workers more than they save on less.
WORTH_SHARING = 10**7


class TuningOptions(FinetuneSettings, frozen=True, kw_only=True):
    """The settings of one call, checked together."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    blas_threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        FinetuneSettings.__post_init__(self)
        devices.check_tuning_backend(self.backend, self)


def tuning_options(settings: FinetuneSettings | dict[str, Any], **others: Any) -> TuningOptions:
    """Return the options of a fine-tuning from its settings and others on top.

    Raises
    ------
    SettingsError
        If a value is wrong, or they do not go together.
    """
    plain = settings if isinstance(settings, dict) else msgspec.to_builtins(settings)
    return checked({**plain, **others}, TuningOptions)


def resolve_options(
    options: TuningOptions, shapes: Sequence[LayerShape], *, sparse: bool = False
) -> TuningOptions:
    """Fill in replicas, the BLAS threads of each, shards, split, backend and precision.

    ``shapes`` are the shapes of the stack's layers; ``sparse`` says that it reads sparse rows.

    Raises
    ------
    SettingsError
        If such layers are not split or not trained in a way that was asked for.
    """
    if sparse and options.products == "own":
        raise SettingsError("finetune_products: got own with sparse examples, expected blas")
    replicas, shards = options.replicas, options.shards
    split = _split_of(options, shapes)
    lacks = why_on_the_cpu(options, shapes, sparse=sparse)
    if options.backend.startswith("cupy") and lacks:
        raise SettingsError(f"backend: got {options.backend} {lacks}")
    backend = resolve_backend(options.backend, lacks)
    precision = tuning_precision(options, backend)
    work = options.batch_size * sum(shape.products for shape in shapes)
    is_alone = options.optimizer not in STEPPING or work < WORTH_SHARING  # the BLAS has all cores
    given = options.products, precision, backend, shapes
    own = resolve_products(*given, prefers_blas=sparse or is_alone)
    options = msgspec.structs.replace(options, backend=backend, precision=precision, products=own)
    if options.schedule == ASYNC:
        count = replicas or resolve_threads(options.blas_threads)
        return msgspec.structs.replace(options, replicas=count, blas_threads=1)
    if backend != "numpy":
        replicas = 1
    if replicas is None:
        threads = resolve_threads(options.blas_threads)
        if is_alone:
            replicas = 1
        else:
            replicas, threads = min(threads, shards or threads), 1
    else:
        threads = options.blas_threads or 1
    if _has_convolutions(shapes):
        threads = 1  # their many products are too small to be shared
    columns = common_groups(shape.groups for shape in shapes) if split == "columns" else 1
    if shards % columns:
        raise SettingsError(
            f"finetune_shards: got {shards} for the split by columns, of which these layers have"
            f" {columns}, expected a multiple of {columns}"
        )
    shards = shards or -(-replicas // columns) * columns
    settled = {"replicas": replicas, "blas_threads": threads, "shards": shards, "split": split}
    return msgspec.structs.replace(options, **settled)


def tuning_precision(settings: FinetuneSettings, backend: str) -> str:
    """Return the precision that ``auto`` stands for, float32 where searches need it."""
    if settings.precision == "auto" and settings.optimizer not in STEPPING:
        return "float32"
    return resolve_precision(settings.precision, backend, "finetune_precision")


def _has_convolutions(shapes: Sequence[LayerShape]) -> bool:
    return any(isinstance(shape, ConvolutionShape) for shape in shapes)


def _split_of(options: TuningOptions, shapes: Sequence[LayerShape]) -> str:
    """Return how minibatches are split; by default what suits the layers."""
    if options.split == "columns" and all(shape.groups == 1 for shape in shapes):
        raise SettingsError(
            "finetune_split: got columns for layers without them, expected convolutions in groups,"
            " as --columns 2 makes them; or take hybrid"
        )
    on_ranks = options.runtime == "mpi" and options.schedule != ASYNC
    if _has_convolutions(shapes):
        return options.split or ("examples" if on_ranks else "hybrid")
    if options.split in OF_CONVOLUTIONS:
        raise SettingsError(
            f"finetune_split: got {options.split} for layers without convolutions, expected units"
            " or examples"
        )
    return options.split or ("examples" if on_ranks else "units")


def why_on_the_cpu(
    options: TuningOptions, shapes: Sequence[LayerShape], *, sparse: bool
) -> str | None:
    """Return why a GPU is not supported, None if it is."""
    if sparse:
        return "with a sparse matrix, expected numpy or auto, or X as a dense array"
    return devices.why_not_tuned_on_a_device(options) or devices.too_large_for_a_device(shapes)
