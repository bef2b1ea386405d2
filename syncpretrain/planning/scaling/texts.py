"""Parse texts of options: bandwidths, latencies, numbers of devices, replicas."""

from __future__ import annotations

import math
import re

from syncpretrain.errors import SettingsError
from syncpretrain.planning.scaling.job import EVERY, PAYING

__all__ = ["bandwidth_from", "devices_from", "latency_from", "replicas_from"]

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECOND_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BITS_A_BYTE = 8
MOST_DEVICES = 65_536
MOST_LATENCY = 1e6  # seconds; more is a slip of the keyboard


def bandwidth_from(text: str) -> float:
    """Return bytes a second of a text such as ``10Gb/s`` (bits), ``1.2GB/s`` (bytes) or ``inf``.

    Raises
    ------
    SettingsError
        If the text is no bandwidth, or less than 1 bit a second.
    """
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?\d+)?)\s*([kMGT]?)(b|B)(?:/s|ps)", text.strip())
    if text.strip() == "inf":
        return math.inf
    number = _finite(found[1]) if found else None
    bits = BITS_A_BYTE if found is not None and found[3] == "B" else 1
    if found is None or not number or number * PREFIXES[found[2]] * bits < 1:
        raise SettingsError(
            f"bandwidth: got {text!r}, expected bits or bytes a second, such as 10Gb/s or 1.2GB/s,"
            " or inf; at least 1b/s"
        )
    return number * PREFIXES[found[2]] * bits / BITS_A_BYTE


def latency_from(text: str) -> float:
    """Return the seconds of a text such as ``20us``, ``1.5ms`` or ``0s``.

    Raises
    ------
    SettingsError
        If the text is no time.
    """
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?\d+)?)\s*(s|ms|us|ns)", text.strip())
    number = _finite(found[1]) if found else None
    if found is None or number is None or number * SECOND_UNITS[found[2]] > MOST_LATENCY:
        raise SettingsError(
            f"latency: got {text!r}, expected a time such as 20us, 1.5ms or 0s, of at most"
            f" {MOST_LATENCY:g}s"
        )
    return number * SECOND_UNITS[found[2]]


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def devices_from(text: str) -> tuple[int, ...]:
    """Return the numbers of devices of a text such as ``1,2,4`` or ``1,2,4,...,1024``.

    With three or more numbers before the dots, the last three by one factor, the numbers go on by
    that factor; else by the last difference.

    Raises
    ------
    SettingsError
        If a number is out of range, or if the dots do not lead to the number behind them.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        dots = parts.index("...")
    except ValueError:
        return _in_range([_count(part, text) for part in parts], text)
    before = list(_in_range([_count(part, text) for part in parts[:dots]], text))
    after = [_count(part, text) for part in parts[dots + 1 :]]
    if len(before) < 2 or len(after) != 1:
        raise _wrong(text)
    factor, difference = before[-1] / before[-2], before[-1] - before[-2]
    by_factor = len(before) > 2 and before[-2] / before[-3] == factor and factor > 1
    while before[-1] < after[0] and difference > 0 and before[-1] <= MOST_DEVICES:
        before.append(round(before[-1] * factor) if by_factor else before[-1] + difference)
    if before[-1] != after[0]:
        raise _wrong(text)
    return _in_range(before, text)


def replicas_from(text: str) -> str | tuple[int, ...]:
    """Return ``auto``, ``all``, or the numbers of a text such as ``2,1,1``.

    Raises
    ------
    SettingsError
        If it is none of them.
    """
    if text in (PAYING, EVERY):
        return text
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise SettingsError(
            f"replicas: got {text!r}, expected {PAYING}, {EVERY}, or whole numbers from 1 on,"
            " separated by commas"
        )
    return found


def _count(part: str, text: str) -> int:
    try:
        return int(part)
    except ValueError:
        raise _wrong(text) from None


def _in_range(counts: list[int], text: str) -> tuple[int, ...]:
    if not all(1 <= count <= MOST_DEVICES for count in counts):
        raise _wrong(text)
    return tuple(counts)


def _wrong(text: str) -> SettingsError:
    return SettingsError(
        f"devices: got {text!r}, expected whole numbers from 1 to {MOST_DEVICES} separated by"
        " commas, such as 1,2,3 or 1,2,4,...,1024"
    )
