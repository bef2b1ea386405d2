"""One command of the program under test, in a session of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from random_faults.surprise import Surprise, check

__all__ = ["Command", "Ended"]

MODULE = [sys.executable, "-X", "faulthandler", "-m", "syncpretrain"]
DEADLINE = 300.0  # of anything that is waited for
GONE_SECONDS = 5.0
LOOK_SECONDS = 0.002


@dataclass(frozen=True)
class Ended:
    """How a command ended: its status, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The last line of what it wrote on stderr."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""


class Command:
    """``syncpretrain`` at work.

    Its pipes are read at its end; they hold the 64 KiB that a small run stays below.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [*MODULE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        self.started = time.monotonic()
        self.pid = self._process.pid

    def wait_until(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds; return False if the command ended before."""
        deadline = time.monotonic() + DEADLINE
        while not holds():
            if self._process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise self._hang()
            time.sleep(LOOK_SECONDS)
        return self._process.poll() is None

    def signal(self, signum: int) -> None:
        """Send the process a signal; one that has ended gets none."""
        self._process.send_signal(signum)

    def kill(self) -> None:
        """Kill the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def children(self) -> list[int]:
        """Return the process identifiers of the layers' processes."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def end(self) -> Ended:
        """Wait for the end; check that no process and no traceback is left."""
        try:
            out, err = self._process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            raise self._hang() from None
        self._check_gone()
        ended = Ended(self._process.returncode, out, err)
        check("Traceback" not in err, f"a traceback, status {ended.status}: {err}")
        errors = re.findall(r"^Error: ", err, re.MULTILINE)
        check(len(errors) <= 1, f"{len(errors)} errors, status {ended.status}: {err}")
        if ended.status in (1, 2):
            check(ended.message.startswith("Error: "), f"status {ended.status} without one: {err}")
        return ended

    def _hang(self) -> Surprise:
        """End a command that hangs; return where it did."""
        self.signal(signal.SIGABRT)  # faulthandler writes the stacks of all threads
        for child in self.children():
            os.kill(child, signal.SIGABRT)
        time.sleep(1)
        self.kill()
        _, err = self._process.communicate(timeout=DEADLINE)
        return Surprise(f"it hangs for {DEADLINE:g} s, here: {err}")

    def _check_gone(self) -> None:
        """Check that every process of the session has ended."""
        deadline = time.monotonic() + GONE_SECONDS
        while left := [pid for pid in psutil.pids() if self._is_ours(pid)]:
            if time.monotonic() > deadline:
                self.kill_all(left)
                raise Surprise(f"processes outlive the command: {left}")
            time.sleep(LOOK_SECONDS)

    def _is_ours(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.pid and (
                psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            )
        except (ProcessLookupError, psutil.NoSuchProcess, PermissionError):
            return False

    @staticmethod
    def kill_all(pids: Sequence[int]) -> None:
        """Kill processes that ought to have ended."""
        for pid in pids:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
