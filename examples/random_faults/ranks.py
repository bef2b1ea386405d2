"""Random ranks of MPI jobs that are killed or raise an error; the jobs resumed on other ranks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from random_faults.surprise import check

__all__ = ["fail_ranks"]

TOLD_SECONDS = 5.0
JOB_SECONDS = 60.0
TRAIN = ["train", "--layers", "64,48,32,16,8", "--checkpoint-every", "1"]
TUNE = ["--finetune", "reconstruction", "--finetune-epochs", "40", "--finetune-replicas", "2"]
TUNE += ["--finetune-split", "examples", "--finetune-batch-size", "200"]
WAYS = [
    ["--epochs", "20", "--handoff", "epoch"],
    ["--epochs", "20", "--handoff", "minibatch"],
    ["--epochs", "1", *TUNE],
]
# Raises an error in a minibatch on one rank, after some seconds of training or fine-tuning there.
RAISE = """
import sys, time
from syncpretrain.cli import main
from syncpretrain.cluster.launched import launched
from syncpretrain.finetuning.ranks import SharedDescent
from syncpretrain.pretraining import build
from syncpretrain.pretraining import streamed as streaming
rank, seconds, arguments = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
def failing(step):
    began = []
    def fail(*given, **named):
        began.append(time.monotonic())
        if began[-1] - began[0] > seconds:
            raise ValueError(f"out of luck at {time.monotonic()}")
        return step(*given, **named)
    return fail
def step_for(*given, healthy=build.step_for):
    step = healthy(*given)
    step.train_step = failing(step.train_step)
    return step
if launched().rank == rank:
    build.step_for = streaming.step_for = step_for
    SharedDescent.begin = failing(SharedDescent.begin)
main(arguments, prog_name="syncpretrain")
"""


def fail_ranks(times: int, draw: random.Random) -> None:
    """Kill a rank in some jobs, have one raise an error in as many; resume on other ranks.

    Both hand-overs and fine-tuning take turns.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", np.random.default_rng(0).random((2000, 64)).astype("f4").round())
        trains, expected = [], []
        for i, way in enumerate(WAYS):
            train = [*TRAIN, *way, "--data", str(folder / "X.npy"), "--quiet", "--json"]
            tunes = ["--finetune-runtime", "mpi"] if "--finetune" in train else []
            trains.append([*train, "--runtime", "mpi", *tunes])
            out = ["--out", str(folder / f"whole-{i}"), "--runtime", "serial"]
            whole = ended(start(1, ["-m", "syncpretrain", *train, *out]))
            expected.append(json.loads(whole[1])["parameters_sha256"])
        for kills in (True, False):
            found = []
            for i in range(times):
                k = i % len(WAYS)
                found.append(fail_one(trains[k], folder / "run", expected[k], kills, draw))
                print(f"\r{i + 1} of {times}", end="", file=sys.stderr, flush=True)
            seconds, statuses = zip(*found, strict=True)
            counts = ", ".join(f"{n} x {status}" for status, n in Counter(statuses).items())
            what = "kills" if kills else "errors"
            print(
                f"\nranks: {times} {what}, reported after {median(seconds):.2f} s, at most"
                f" {max(seconds):.2f}; status {counts}; each resumed to the same bits",
                flush=True,
            )


def fail_one(
    train: list[str], out: Path, expected: str, kills: bool, draw: random.Random
) -> tuple[float, int]:
    """Return the seconds from a failure to the end of its job, and the job's status."""
    while True:
        shutil.rmtree(out, ignore_errors=True)
        size, seconds = draw.randint(2, 5), draw.uniform(0.0, 0.5)
        # Rank 0 raises its own errors as they are; of two that fine-tune rank 1 is the other.
        at_work = 2 if "--finetune" in train else size
        rank = draw.randrange(size) if kills else draw.randrange(1, at_work)
        program = ["-m", "syncpretrain"] if kills else ["-c", RAISE, str(rank), str(seconds)]
        job = start(size, [*program, *train, "--out", str(out)])
        ranks = ranks_of(job, size, out)
        time.sleep(seconds)
        if kills and rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):  # its run is over
                ranks[rank].kill()
        since = time.monotonic()
        status, _, error = ended(job)
        over = time.monotonic()
        if status and not (out / "metrics.json").exists():
            break  # else the run was over, and its ranks were ending
    place = rf"rank {rank} on \S+"
    killed = rf"{place} \(process {ranks[rank].pid}\) was killed"
    reason = r"ValueError: out of luck at (\d+\.\d+)"
    raised = rf"(?:layer \d|fine-tuning) failed in epoch \d+ on {place}: {reason}"
    told = re.search(killed if kills else raised, error)
    check(told, f"status {status}, rank {rank} of {size}: {error}")
    check(kills or status == 1, f"status {status}")
    passed = over - (since if kills or told is None else float(told[1]))
    check(passed < TOLD_SECONDS, f"told after {passed:.1f} s")
    _, alive = psutil.wait_procs(list(ranks.values()), timeout=5)
    check(not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], f"still alive: {alive}")
    size = draw.randint(2, 5)
    resume = ["train", "--resume", str(out), "--runtime", "mpi", "--quiet", "--json"]
    resumed, text, error = ended(start(size, ["-m", "syncpretrain", *resume]))
    check(not resumed, f"the resumed run failed: {error}")
    check(json.loads(text)["parameters_sha256"] == expected, "other parameters")
    return passed, status


def start(size: int, arguments: list[str]) -> subprocess.Popen[str]:
    """Start a job."""
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    launcher = found or shutil.which("mpiexec")
    check(launcher, "no mpiexec was found; pip install mpi4py mpich")
    version = subprocess.run(
        [str(launcher), "--version"], capture_output=True, text=True, check=False
    )
    is_open = "Open MPI" in version.stdout or "OpenRTE" in version.stdout
    options = ["--allow-run-as-root", "--oversubscribe"] if is_open else []
    return subprocess.Popen(
        [str(launcher), *options, "-n", str(size), sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )


def ended(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return status, stdout and stderr of a job."""
    try:
        out, error = job.communicate(timeout=JOB_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, error = job.communicate()
        check(False, f"the job hangs: {out}{error}")
    return job.returncode, out, error


def ranks_of(job: subprocess.Popen[str], size: int, out: Path) -> dict[int, psutil.Process]:
    """Return the processes of a job by rank, once its run has begun."""
    deadline = time.monotonic() + JOB_SECONDS
    while time.monotonic() < deadline and job.poll() is None:
        found: dict[int, psutil.Process] = {}
        for process in psutil.Process(job.pid).children(recursive=True):
            try:
                arguments, environment = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            rank = environment.get("PMI_RANK", environment.get("OMPI_COMM_WORLD_RANK"))
            if rank is not None and arguments[1:2] in (["-m"], ["-c"]) and process.pid != job.pid:
                found[int(rank)] = process
        if len(found) == size and (out / "events.jsonl").exists():
            return found
        time.sleep(0.02)
    check(False, f"the job does not begin: {ended(job)}")
    return {}
