"""Counts in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int | str, what: str) -> str:
    """Return a count, or several as text, with what is counted.

    Examples
    --------
    >>> counted(1, "epoch"), counted(20, "epoch"), counted("1,2", "epoch")
    ('1 epoch', '20 epochs', '1,2 epochs')
    """
    return f"{count} {what}{'' if str(count) == '1' else 's'}"
