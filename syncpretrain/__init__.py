"""Pretrain deep networks layer by layer, with the layers trained in parallel.

>>> from syncpretrain import pretrain, finetune, load  # doctest: +SKIP
>>> stack = pretrain(X, layers=[784, 1000, 500, 250, 30])  # doctest: +SKIP

The names below are imported on first use, so that ``syncpretrain --help`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncpretrain.data.minibatches import Minibatches
    from syncpretrain.finetuning import finetune
    from syncpretrain.models.stack import Stack, load
    from syncpretrain.pretraining.call import pretrain
    from syncpretrain.settings.architecture import Conv, Pool
    from syncpretrain.shapes import ImageShape

__version__ = "0.1.0"
__all__ = [
    "Conv",
    "ImageShape",
    "Minibatches",
    "Pool",
    "Stack",
    "__version__",
    "finetune",
    "load",
    "pretrain",
]

_HOMES = {
    "Conv": "settings.architecture",
    "ImageShape": "shapes",
    "Minibatches": "data.minibatches",
    "Pool": "settings.architecture",
    "Stack": "models.stack",
    "finetune": "finetuning",
    "load": "models.stack",
    "pretrain": "pretraining.call",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
