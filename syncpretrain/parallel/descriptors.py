"""File descriptors that another process is given under the same number, and memory behind them.

A process started with a closed standard stream (``<&-``, some daemons) makes its first file under
that stream's number, 0 to 2. In a process that it starts, these numbers are the standard streams.

Guarantee: a descriptor from here is above them, and is closed in a program that is executed unless
it is passed on by name.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import subprocess
from collections.abc import Iterable
from itertools import accumulate

from syncpretrain.errors import SettingsError

PAGE = 4096  # bytes, at a multiple of which each array in shared memory begins
FIRST_FREE = 3  # behind stdin, stdout and stderr
# select() takes no descriptor from 1024 on, and some numbers have to stay free below the limit.
HIGH, BELOW_LIMIT = 1000, 16


def above_standard(descriptor: int) -> int:
    """Return the descriptor; if it has the number of a standard stream, move it first."""
    if descriptor >= FIRST_FREE:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
    finally:
        os.close(descriptor)


def closed_first(descriptor: int) -> int:
    """Move a descriptor above most others; return it as it is where that fails.

    When a process dies, Linux closes its highest descriptors first.
    """
    # So a witness sees this end before a launcher sees the pipes of the standard streams close.
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, min(HIGH, most - BELOW_LIMIT))
    except OSError:  # a low limit
        return descriptor
    os.close(descriptor)
    return moved


def page_offsets(sizes: Iterable[int]) -> list[int]:
    """Return the offset of each array of so many bytes, and the end of the last array."""
    # An array begins on a page, so that a write to it never touches a page of another array.
    pages = (max(math.ceil(size / PAGE), 1) for size in sizes)
    return [PAGE * before for before in accumulate(pages, initial=0)]


def nameless_memory() -> int:
    """Return the descriptor of new memory without a name, of size 0."""
    return above_standard(os.memfd_create("syncpretrain"))


def size_memory(descriptor: int, size: int) -> None:
    """Give new memory a size in bytes; its pages are yet to be allocated.

    Raises
    ------
    SettingsError
        If the system refuses it: the limit of the size of files holds for it, too.
    """
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        raise SettingsError(
            f"runtime: got processes, but the system refuses {size / 1e6:.3g} MB of shared memory"
            f" ({error.strerror or error}); raise the limit of the size of files (ulimit -f), or"
            " take threads"
        ) from error


def standard_stream(number: int) -> int | None:
    """Return the argument of ``subprocess.Popen`` for stdout or stderr.

    None stands for the stream of this process; ``DEVNULL`` where that is closed or no stream.
    """
    # A descriptor that is not inheritable got this number by chance: it is some other file.
    try:
        return None if os.get_inheritable(number) else subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL
