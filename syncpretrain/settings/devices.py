"""Settings that are supported on the CPU only, or on GPUs only."""

from __future__ import annotations

import re
from collections.abc import Iterable

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings.fields import PretrainFields, refusal, refuse
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.shapes import LayerShape
from syncpretrain.units.kinds import kind_of

TAKE = "take backend numpy or auto"
MOST_COUNTED = 2**31 - 1  # numbers of a convolution for one example


def check_backend(name: str) -> bool:
    """Return whether a backend is certainly a device: "cupy", not "auto".

    Raises
    ------
    SettingsError
        If there is no such backend.
    """
    if not re.fullmatch(r"auto|numpy|cupy(:\d+)?", name):
        raise SettingsError(f"backend: got {name!r}, expected auto, numpy, cupy or cupy:NUMBER")
    return name.startswith("cupy")


def check_precision(precision: str, backend: str, setting: str = "precision") -> None:
    """Refuse the precision of GPUs if the backend is certainly the CPU.

    Raises
    ------
    SettingsError
    """
    if precision == "tf32" and backend == "numpy":
        raise SettingsError(
            f"{setting}: got tf32 on the CPU, which does not multiply it; take float32, bfloat16 or"
            " auto, or --backend cupy on a GPU"
        )


def check_pretraining_backend(settings: PretrainFields) -> None:
    """Refuse settings of pretraining that the backend does not support.

    Raises
    ------
    SettingsError
    """
    check_precision(settings.precision, settings.backend)
    is_own = settings.products == "own"
    refused = {
        f"precision {settings.precision}, expected float32, which alone has own products": is_own
        and settings.precision != "float32",
        "sparse examples, expected products blas": is_own and settings.sparse,
    }
    refuse(refused, prefix="products: got own with ")
    lacks = why_not_on_a_device(settings)
    if check_backend(settings.backend) and lacks:
        raise SettingsError(f"backend: got {settings.backend} {lacks}")


def check_tuning_backend(name: str, settings: FinetuneSettings) -> None:
    """Refuse settings of fine-tuning that the backend does not support.

    Raises
    ------
    SettingsError
    """
    lacks = why_not_tuned_on_a_device(settings)
    if settings.objective != "none":
        check_precision(settings.precision, name, "finetune_precision")
    if check_backend(name) and settings.objective != "none" and lacks:
        raise SettingsError(f"backend: got {name} {lacks}")


def why_not_on_a_device(settings: PretrainFields) -> str | None:
    """Return why only the CPU supports this pretraining; None if devices do too."""
    too_large = too_large_for_a_device(settings.shapes)
    if too_large is not None:
        return too_large
    has_blocks = kind_of(settings.visible_units).blocks is not None
    has_chains, streams = any(settings.chains), settings.handoff == "minibatch"
    layers = range(1, len(settings.layers))
    shared = {settings.split_of(layer) for layer in layers if settings.shards_of(layer) > 1}
    rows = "missing values" if settings.missing else "sparse rows"
    starts_at_data = "data" in settings.chain_start
    refused = {
        f"with visible units in blocks, which compute on the CPU; {TAKE}": has_blocks,
        f"with {rows}, which are trained on by the CPU; {TAKE}": settings.missing
        or settings.sparse,
        f"with schedule {ASYNC}, which computes on the CPU; {TAKE}": settings.schedule == ASYNC,
        f"with own products, which the CPU computes; {TAKE}": settings.products == "own",
        f"with split {settings.split}, expected examples: GPUs share a minibatch by its examples."
        " Or take backend numpy": shared - {"examples"},
        "with handoff minibatch and minibatches in shards, expected replicas and shards of 1:"
        " layers that hand over minibatches are on one GPU each. Or take handoff epoch": streams
        and shared,
        f"with checkpoints by updates, which the CPU stops for; {TAKE}": settings.marks,
        f"with the centred gradient, which the CPU computes; {TAKE}": any(settings.centred),
        f"with chains in shards, which the CPU has; {TAKE}": has_chains and shared,
        f"with chains that start at data, which the CPU has; {TAKE}": has_chains and starts_at_data,
        f"with runtime mpi, whose ranks compute on the CPU; {TAKE}": settings.runtime == "mpi",
        "with runtime processes, whose activations are in the memory of the host; take runtime"
        " threads, which keeps them on the GPU, or backend numpy": settings.runtime == "processes",
    }
    return refusal(refused)


def too_large_for_a_device(shapes: Iterable[LayerShape]) -> str | None:
    """Return a phrase if a layer is too large for a device's kernels, which count in 32 bits."""
    for shape in shapes:
        most = max(shape.lowered, shape.units)
        if most > MOST_COUNTED:
            return (
                f"with the convolution {shape}, whose filters see {most} numbers of an example,"
                f" expected at most {MOST_COUNTED}. Or take backend numpy"
            )
    return None


def why_not_tuned_on_a_device(settings: FinetuneSettings) -> str | None:
    """Return why only the CPU supports this fine-tuning; None if devices do too."""
    if settings.objective == "none":
        return None
    optimizer, is_own = settings.optimizer, settings.products == "own"
    parts, is_async = max(settings.shards, settings.replicas or 1), settings.schedule == ASYNC
    off = {"unlabelled": "none", "normalization": "none", "input_noise": 0}
    refused = {
        f"with the optimizer {optimizer} of fine-tuning, which is SciPy's and computes on the CPU;"
        " take optimizer adam or sgd, or backend numpy": optimizer not in ("adam", "sgd"),
        f"with own products of fine-tuning, which the CPU computes; {TAKE}": is_own,
        f"with fine-tuning on schedule {ASYNC}, which computes on the CPU; {TAKE}": is_async,
        **{
            f"with finetune_{name} {value}, which computes on the CPU; {TAKE}": value != off[name]
            for name, value in {name: getattr(settings, name) for name in off}.items()
        },
        "with fine-tuning split by columns, expected no split; a GPU works a whole minibatch at"
        " once. Or take backend numpy": settings.split == "columns",
        "with replicas or shards of fine-tuning, expected none; a GPU works a whole minibatch at"
        " once. Or take backend numpy": parts > 1,
    }
    return refusal(refused)
