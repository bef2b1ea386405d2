"""Context managers that start threads or processes, and end them within a deadline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from syncpretrain.errors import StalledError
from syncpretrain.parallel.timeouts import Timeouts

__all__ = ["Closing"]

ClosingT = TypeVar("ClosingT", bound="Closing")


class Closing(ABC):
    """What starts threads or processes when it is entered, and ends all of them when it is left.

    Parameters
    ----------
    times : Timeouts
        Of which ``join`` bounds the end.
    """

    def __init__(self, times: Timeouts) -> None:
        self._times = times

    def __enter__(self: ClosingT) -> ClosingT:
        try:
            self._open()
        except BaseException:  # such as "can't start new thread": leave none of the others behind
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        alive = self._close()
        if alive and error is None:
            raise StalledError(f"{', '.join(alive)} did not end within {self._times.join:g} s")

    @abstractmethod
    def _open(self) -> None:
        """Start them."""

    @abstractmethod
    def _close(self) -> Sequence[str]:
        """End them; return the names of those that did not end in time."""
