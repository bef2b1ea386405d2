"""Jobs of a real ``mpiexec``, if there is one that mpi4py can use."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

JOB_SECONDS = 90


@functools.cache
def mpiexec() -> tuple[str, ...]:
    """Return the launcher with the options that it needs here; empty without one."""
    found = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent)]))
    found = found or shutil.which("mpiexec")
    if found is None or find_spec("mpi4py") is None:
        return ()
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" in version.stdout or "OpenRTE" in version.stdout:
        return found, "--allow-run-as-root", "--oversubscribe"
    return (found,)


needs_mpiexec = pytest.mark.skipif(not mpiexec(), reason="needs mpi4py and mpiexec")


@contextmanager
def job(ranks: int, *command: object) -> Iterator[subprocess.Popen[str]]:
    """Start a job, which ends with the context."""
    started = start(ranks, *command)
    with started:
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)


def start(ranks: int, *command: object) -> subprocess.Popen[str]:
    """Start a job of Python processes, in a session of its own."""
    launch = [*mpiexec(), "-n", str(ranks), sys.executable, *map(str, command)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        launch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def finished(job: subprocess.Popen[str], seconds: float = JOB_SECONDS) -> tuple[int, str, str]:
    """Return status, stdout and stderr of a job; end it if it takes too long."""
    try:
        out, err = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate(timeout=seconds)
        raise AssertionError(f"the job hangs: {out}{err}") from None
    return job.returncode, out, err
