"""Training of any PyTorch network block by block, each block on a loss of its own.

A block trains on a minibatch as soon as the block below has produced it; there is no backward pass
over the whole network. Blocks are streamed layers of the library (see :mod:`syncpretrain.workers`).
This module imports PyTorch when :class:`LocalTrainer` is first asked for; the rest of the library
never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncpretrain.torch.trainer import LocalTrainer

__all__ = ["LocalTrainer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from syncpretrain.torch.trainer import LocalTrainer
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        advice = f'pip install "syncpretrain[torch]" ({error})'
        raise ImportError(f"syncpretrain.torch: PyTorch is missing; {advice}") from error
    return LocalTrainer
