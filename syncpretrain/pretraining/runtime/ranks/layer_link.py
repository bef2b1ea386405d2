"""The interface to one layer elsewhere, in a process or on a rank: orders there, answers back."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["LayerLink"]


class LayerLink(Protocol):
    """One layer's process or rank, which has one order at a time."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, though an answer may still be on its way."""
        ...

    def send(self, thing: Any) -> None:
        """Send an order; if it has ended, :meth:`receive` returns None."""
        ...

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the end; return whether one of them came."""
        ...

    def receive(self) -> Any:
        """Return the next answer; None if there is none, and never will be."""
        ...

    def ending(self) -> str:
        """Return how it ended, which it has."""
        ...

    def kill(self) -> None:
        """End it, whatever it does."""
        ...
