"""Many draws, two at a time, and a table of what was seen."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from random_faults.disk import can_mount
from random_faults.draws import draw_for
from random_faults.story import Story
from random_faults.surprise import Surprise, check

__all__ = ["SHARED", "left_shared", "play_random"]

JOBS = 2
SHARED = Path("/dev/shm")
OTHERS = ("mpich_", "sem.", "joblib_")


@dataclass(frozen=True)
class Outcome:
    """What one draw came to: the faults seen, and a complaint if something did not hold."""

    seed: int
    seen: list[tuple[str, str]]
    complaint: str


def play_random(times: int, seed: int, only: int | None) -> None:
    """Play draws; exit with a message if one of them did not hold."""
    seeds = [only] if only is not None else [seed * 100_000 + n for n in range(times)]
    started, failed = time.monotonic(), 0
    seen: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        mounts = can_mount(Path(name) / "disk")
        # Started afresh, so that no draw inherits the threads of another.
        with ProcessPoolExecutor(JOBS, mp_context=get_context("spawn")) as pool:
            played = [pool.submit(play_one, number, Path(name), mounts) for number in seeds]
            for count, done in enumerate(as_completed(played), start=1):
                outcome = done.result()
                seen.update(outcome.seen)
                if outcome.complaint:
                    failed += 1
                    print(f"\n--only {outcome.seed}: {outcome.complaint}")
                print(f"\r{count} of {len(seeds)}", end="", flush=True)
    seconds = time.monotonic() - started
    print(f"\n{_table(seen)}")
    print(f"{len(seeds)} draws in {seconds:.0f} s, {failed} failed")
    if failed:
        sys.exit(1)


def play_one(seed: int, folder: Path, mounts: bool) -> Outcome:
    """Play one draw in a folder of its own."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what it runs behind
        signal.signal(signal.SIGINT, signal.default_int_handler)
    draw = draw_for(seed)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        shared = set(SHARED.iterdir())
        story = Story(draw, Path(name), mounts=mounts)
        complaint = ""
        try:
            story.play()
            left = left_shared(shared)
            check(not left, f"left in /dev/shm: {left}")
        except Surprise as surprise:
            complaint = f"{surprise}; before it {story.seen}; {draw}"
        except Exception:
            complaint = f"{traceback.format_exc()}; before it {story.seen}; {draw}"
        return Outcome(seed, story.seen, complaint)


def left_shared(before: set[Path]) -> set[Path]:
    """Return the new names of shared memory that no process uses; others may be another program's.

    Those of MPICH and joblib are left out: what of these is killed, anywhere on the machine, leaves
    them.
    """
    new = {path for path in set(SHARED.iterdir()) - before if not path.name.startswith(OTHERS)}
    return {path for path in new if not _is_used(path)}


def _is_used(path: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended, or is not ours to look at
            if str(path) in maps.read_text():
                return True
    return not path.exists()


def _table(seen: Counter[tuple[str, str]]) -> str:
    """Return a table of faults, how often each happened, and the statuses that followed."""
    kinds = sorted({kind for kind, _ in seen})
    rows = []
    for kind in kinds:
        statuses = {status: n for (name, status), n in sorted(seen.items()) if name == kind}
        text = ", ".join(f"{status} x{n}" for status, n in statuses.items())
        rows.append(f"{kind:26}{sum(statuses.values()):5}   {text}")
    return "\n".join([f"{'fault':26}{'count':>5}   statuses", *rows])
