"""Jobs of a real ``mpiexec``, if there is one that mpi4py can use."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

JOB_SECONDS, BEGIN_SECONDS = 90, 60
EVENTS = Path("run", "events.jsonl")
EMULATED_HOSTS = Path(__file__).parents[2] / "examples" / "emulated_hosts.py"


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
def job(ranks: int, *command: object, hosts: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Start a job, which ends with the context."""
    started = start(ranks, *command, hosts=hosts)
    with started:
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)


def start(ranks: int, *command: object, hosts: int = 1) -> subprocess.Popen[str]:
    """Start a job of Python processes, in a session of its own, on one host or emulated ones."""
    launch = [*mpiexec(), "-n", str(ranks), sys.executable, *map(str, command)]
    if hosts > 1:
        launch = [sys.executable, str(EMULATED_HOSTS), "--hosts", str(hosts), "--", *launch]
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


def ranks_of(started, number, has_begun):
    """Return the processes of a job by rank, once its work has begun."""
    deadline = time.monotonic() + BEGIN_SECONDS
    while not has_begun():
        assert started.poll() is None, "the job has ended"
        assert time.monotonic() < deadline, "the job does not begin"
        time.sleep(0.02)
    found = {}
    for process in psutil.Process(started.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # a helper of the launcher that has ended
            is_rank = "-m syncpretrain" in " ".join(process.cmdline())
            environment = process.environ() if is_rank and process.name() != "mpiexec" else {}
            rank = environment.get("PMI_RANK", environment.get("OMPI_COMM_WORLD_RANK"))
            if rank is not None:
                found[int(rank)] = process
    assert sorted(found) == list(range(number))
    return found


def finished(job: subprocess.Popen[str], seconds: float = JOB_SECONDS) -> tuple[int, str, str]:
    """Return status, stdout and stderr of a job; end it if it takes too long."""
    try:
        out, err = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate(timeout=seconds)
        raise AssertionError(f"the job hangs: {out}{err}") from None
    return job.returncode, out, err


def layer_ranks(started, number) -> dict[int, psutil.Process]:
    """Return the processes of a job by rank, once the layers are trained."""
    return ranks_of(
        started, number, lambda: EVENTS.exists() and "EpochFinished" in EVENTS.read_text()
    )
