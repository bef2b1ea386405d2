"""The equations: pure functions of arrays with ``out=``; no state, no I/O."""

from syncpretrain.kernels import native

__all__ = ["native"]
