"""Parts in processes of their own, with a time limit each, so that a fault ends one part alone.

An error of a GPU can be sticky: all that its process does there afterwards fails too. So every part
has a process, in a group of its own that is killed at the part's limit with all that it started.
The process writes what it prints to ``NAME.txt``, which is printed here while it grows, and the
table's head and rows to ``NAME.jsonl`` as they come.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from gpu_checks.bench import Bench, NoGPUError, Table

__all__ = ["NO_GPU", "Outcome", "Part", "command", "run_parts", "share", "table_of", "work"]

PAUSE = 0.05  # seconds between two looks at a process
RESERVE = 0.25  # of the limit of each later part, which an earlier one leaves
STUBBORN = 5.0  # seconds for a killed process to end, which waits for its driver
TOLD = 0.5  # seconds before its limit at which a part is asked where it hangs, to say so
LEAST = 1.0  # seconds that a part is started for
NO_GPU = 2  # the status of a part that finds no GPU, and of the whole check then


class Part(NamedTuple):
    """What a part measures, and the seconds that it may usually take."""

    measure: Callable[[Bench], Table]
    seconds: float


class Outcome(NamedTuple):
    """How a part ended: its status, None if it ran out of time, and its time."""

    name: str
    status: int | None
    seconds: float
    limit: float

    def __str__(self) -> str:
        if self.status is None and not self.limit:
            return "NOT RUN: no time is left"
        if self.status is None:
            return f"OUT OF TIME ({self.limit:.0f} s)"
        if self.status < 0:
            return f"ENDED BY {signal.Signals(-self.status).name}"
        return f"FAILED (status {self.status})" if self.status else "passed"


def command() -> list[str]:
    """Return the command that starts the check once more, for a part of it."""
    return [sys.executable, str(Path(__file__).parent.parent / "gpu_check.py")]


def share(left: float, own: float, later: Sequence[float]) -> float:
    """Return the seconds that a part may take of those left to it and to the later parts.

    It has its own limit as long as a reserve of each later one's is left, or else its proportion of
    what is left, which is more than its limit where there is plenty.
    """
    proportion = left * own / (own + sum(later))
    return max(proportion, min(own, left - RESERVE * sum(later)))


def run_parts(
    parts: Mapping[str, Part],
    given: Sequence[str],
    *,
    limit: float,
    out: Path,
    say: Callable[[str], None],
) -> Iterator[Outcome]:
    """Run parts one after another, and yield how each ended.

    Parameters
    ----------
    parts : mapping of str to Part
    given : sequence of str
        Options of the check, for every part.
    limit : float
        Seconds for all parts.
    out : Path
        Folder for their files.
    say : callable
        Gets what the parts print, as it comes.
    """
    end, waiting = monotonic() + limit, dict(parts)
    while waiting:
        name = next(iter(waiting))
        if end - monotonic() < LEAST:
            yield from (Outcome(each, None, 0.0, 0.0) for each in waiting)
            return
        own, started = waiting.pop(name).seconds, monotonic()
        seconds = share(end - started, own, [part.seconds for part in waiting.values()])
        (out / f"{name}.jsonl").unlink(missing_ok=True)  # of an earlier check
        say(f"\n=== {name} ({seconds:.0f} s at most)\n")
        options = ["--part", name, "--limit", str(seconds), "--out", str(out)]
        with _started([*command(), *given, *options], out / f"{name}.txt") as process:
            status = _followed(process, out / f"{name}.txt", started + seconds, say)
        yield Outcome(name, status, monotonic() - started, seconds)


@contextmanager
def _started(arguments: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that writes to a file; at the end kill what is left of its group."""
    # Where a signal strikes, and what was printed before, is not to be lost in a buffer.
    environment = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    with output.open("wb") as file:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STUBBORN)


def _followed(
    process: subprocess.Popen[bytes], output: Path, deadline: float, say: Callable[[str], None]
) -> int | None:
    """Say what a process prints until it ends; return its status, None at the deadline."""
    with output.open(encoding="utf-8", errors="replace") as file:
        while process.poll() is None and monotonic() < deadline - TOLD:
            say(file.read())
            sleep(PAUSE)
        if (status := process.poll()) is None:
            process.send_signal(signal.SIGUSR1)
            sleep(TOLD)
        say(file.read())
    return status


def work(name: str, part: Part, bench: Bench) -> int:
    """Measure a part in this process; return its status.

    Rows are printed and kept as they come: what was measured outlives whatever ends the process.
    """
    with (bench.out / f"{name}.jsonl").open("w", encoding="utf-8") as file:

        def keep(row: Sequence[str]) -> None:
            print("  ".join(cell or "-" for cell in row), flush=True)
            file.write(json.dumps(list(row)) + "\n")
            file.flush()

        try:
            head, rows = part.measure(bench)
            keep(head)
            for row in rows:
                keep(row)
        except NoGPUError as error:
            print(error, file=sys.stderr)
            return NO_GPU
        except Exception:
            traceback.print_exc()
            bench.failed.append("the rest of the part")
    if bench.failed:
        print(f"failed: {', '.join(dict.fromkeys(bench.failed))}", flush=True)
    return 1 if bench.failed else 0


def started_work(name: str, part: Part, bench: Bench) -> int:
    """Measure a part in the process that was started for it; return its status."""
    faulthandler.register(signal.SIGUSR1)  # the question where it hangs
    return work(name, part, bench)


def table_of(out: Path, name: str) -> Table | None:
    """Return what a part has measured, as far as it came; None if it measured nothing."""
    kept = out / f"{name}.jsonl"
    if not kept.exists():
        return None
    # The last line of a process that was killed may be half a line.
    lines = [line for line in kept.read_text(encoding="utf-8").splitlines(True) if line[-1] == "\n"]
    head, *rows = [json.loads(line) for line in lines] or [[]]
    return (head, rows) if rows else None
