"""What a draw was not to come to."""

from __future__ import annotations

__all__ = ["Surprise", "check"]


class Surprise(Exception):  # noqa: N818 - what it tells may be no error of this program
    """Something that the documentation says does not happen."""


def check(holds: object, complaint: str) -> None:
    """Raise Surprise unless something holds."""
    if not holds:
        raise Surprise(complaint)
