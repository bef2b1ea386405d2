"""Starts the processes of layers as forks of one that has imported what they need.

Python and the package take half a second of a processor to start, which is most of a short run.
The process is a new one all the same, a child of this one, with the descriptors, the environment
and the path that it is to have. Tests of the start itself take the real one.
"""

import ctypes
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from syncpretrain.parallel.blas import blas_environment
from syncpretrain.workers import processes

SUBREAPER = 36  # of prctl: who becomes the parent of a child's orphans
PID = struct.Struct("i")
STREAMS = ("stdin", "stdout", "stderr")
# Run by the template; a fork of a fork goes on behind the loop, as the process of a layer.
TEMPLATE = """
import fcntl, json, os, signal, socket, struct, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # as a layer's has them
sys.path[:] = json.loads(sys.argv[2])
from importlib import import_module
for name in ("processes", "streamed.job"):
    import_module(f"syncpretrain.workers.{name}")
import syncpretrain.pretraining.streamed
asked = socket.socket(fileno=int(sys.argv[1]))
while True:
    text, given, _, _ = socket.recv_fds(asked, 1 << 20, 200)
    if not text:
        os._exit(0)
    if not (between := os.fork()):
        if own := os.fork():
            asked.send(struct.pack("i", own))
            os._exit(0)
        break
    for each in given:
        os.close(each)
    os.waitpid(between, 0)
    asked.send(b".")  # its parent is the template's now
asked.close()
wanted = json.loads(text)
high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 600) for each in given]
for each, number in zip(high, wanted["descriptors"], strict=True):
    os.dup2(each, number)
for each in {*given, *high} - {*wanted["descriptors"]}:
    os.close(each)
os.chdir(wanted["folder"])
os.environ.clear()
os.environ.update(wanted["environment"])
sys.argv[1:] = wanted["arguments"]
sys.path[:] = sys.argv[3:]
import_module("syncpretrain.workers.processes").main(int(sys.argv[2]))
"""
started: dict[int, int] = {}  # processes, and their layers
templates: set[int] = set()  # processes


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what Python, the package and BLAS read of an environment when they are started."""
    names = ("PYTHON", "SYNCPRETRAIN", *blas_environment(1))
    return {name: text for name, text in environment.items() if name.startswith(names)}


class Template:
    """A process that forks; with one thread of BLAS, as a layer's has usually."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.environment = {**os.environ, **blas_environment(1)}
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", TEMPLATE, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                env=self.environment,
                pass_fds=[theirs.fileno()],
            )
        templates.add(self._process.pid)

    def fork(self, descriptors: dict[int, int], **wanted) -> int:
        """Return a new child of this process; ``descriptors`` are its numbers, and ours."""
        wanted |= {"descriptors": list(descriptors), "folder": str(Path.cwd())}
        text = json.dumps(wanted).encode()
        prctl = ctypes.CDLL(None).prctl
        with self._lock:
            prctl(SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [text], list(descriptors.values()))
                answer = self._socket.recv(PID.size, socket.MSG_WAITALL)
                assert self._socket.recv(1) == b"."
            finally:
                prctl(SUBREAPER, 0)
        return int(PID.unpack(answer)[0])

    def end(self) -> None:
        self._socket.close()
        assert self._process.wait(20) == 0
        templates.remove(self._process.pid)


class Fork:
    """A process, with what ``subprocess.Popen`` has of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        deadline = time.monotonic() + timeout
        while (found := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.001)
        return found

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def forked(template: Template) -> Iterator[None]:
    """Let the processes of layers be forks, but where their start would read something else."""

    def popen(command: list[str], **given):
        environment = given["env"]
        if read_at_start(environment) != read_at_start(template.environment):
            return subprocess.Popen(command, **given)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            streams = {n: n if given[name] is None else null for n, name in enumerate(STREAMS)}
            numbers = streams | {each: each for each in given["pass_fds"]}
            pid = template.fork(numbers, environment=environment, arguments=command[3:])
        finally:
            os.close(null)
        started[pid] = int(command[3].rpartition("-")[2])
        return Fork(pid)

    stand_in = SimpleNamespace(**vars(subprocess) | {"Popen": popen})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "subprocess", stand_in)
        yield
    started.clear()
