"""The memory that is available to this process.

Assumption: other processes do not take the memory between the question and its use. The check
warns in time; it reserves nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from syncpretrain.errors import SettingsError


def available_bytes() -> int:
    """Return the memory that can be had: the system's, cut by the control group's limit."""
    # The smallest number that is known: each source may be missing, or too large alone.
    free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, KeyError, ValueError):  # no Linux: the physical memory has to do
        table = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
        free.append(int(table["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, KeyError, ValueError):  # no control group, or no limit ("max")
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        rows = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
        cached = int(dict(row.split() for row in rows)["inactive_file"])
        free.append(limit - used + cached)  # cached files make room where it is needed
    return max(0, min(free))


def check_available(
    needed: int, what: str, examples: int, *, free: int | None = None, where: str = ""
) -> None:
    """Refuse layers that need more bytes for this number of examples than are available.

    ``free`` are the free bytes of another memory than this machine's; ``where`` names that memory
    in the message.

    Raises
    ------
    SettingsError
        It names the bytes that the layers need and the bytes that are free.
    """
    available = available_bytes() if free is None else free
    if needed > available:
        raise SettingsError(
            f"layers: {what} on {examples} examples need about"
            f" {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free{where}; take fewer"
            " units, or fewer examples"
        )
