"""Program of the witness: it waits for the end of processes, and tells of the first one.

Standard input has a line for each process, its identifier, a tab and what to call it, of which the
last one counts; and a last line without a tab when all is over. The launcher of a job kills all
other ranks at once when one dies, so none of them could tell. This is a file to be executed, which
needs nothing but Python.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Wait; write on standard error which process has ended, if that is before all is over."""
    names: dict[int, str] = {}
    descriptors: dict[int, int] = {}
    looks = select.poll()
    looks.register(0, select.POLLIN | select.POLLHUP)
    rest = b""
    while True:
        found = [descriptor for descriptor, _ in looks.poll()]
        ended = [descriptors[descriptor] for descriptor in found if descriptor]
        if ended:
            _tell([f"{names[pid]} {_ending(pid)}" for pid in ended])
            return
        text = os.read(0, 1 << 16)
        *lines, rest = (rest + text).split(b"\n")
        if any(b"\t" not in line for line in lines):
            return
        if not text:  # rank 0 has ended without a word, of which the system knows in a moment
            looks.unregister(0)
        for line in lines:
            pid, _, name = line.decode().partition("\t")
            if int(pid) not in names:
                try:
                    descriptor = os.pidfd_open(int(pid))
                except ProcessLookupError:
                    _tell([f"{name} was killed or has crashed"])
                    return
                descriptors[descriptor] = int(pid)
                looks.register(descriptor, select.POLLIN)
            names[int(pid)] = name


def _tell(texts: list[str]) -> None:
    sys.stderr.write(f"Error: {', and '.join(texts)}\n")
    sys.stderr.flush()


def _ending(pid: int) -> str:
    """Return how a process ended, if the system still knows."""
    try:
        state, *_, status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        state, status = "", "0"
    code = os.waitstatus_to_exitcode(int(status)) if state == "Z" else 0
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}" if code else "was killed or has crashed"


if __name__ == "__main__":
    main()
