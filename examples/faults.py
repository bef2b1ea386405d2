"""Kill a run in every way, resume it, and compare its bits with an undisturbed run's.

    python examples/faults.py layer --times 200       # SIGKILL one layer's process
    python examples/faults.py parent --times 50       # SIGKILL the process that was started
    python examples/faults.py group --times 50        # SIGKILL it and all its processes at once
    python examples/faults.py layer --handoff minibatch   # the same of a streamed run
    python examples/faults.py replace --times 50      # kill layers' processes, which are replaced
    python examples/faults.py write --times 200       # SIGKILL while checkpoints are written
    python examples/faults.py random --times 300      # any fault, at any moment, in any run
    python examples/faults.py random --only 17        # one of those again, by its own seed
    python examples/faults.py ranks --times 20        # ranks of MPI jobs: killed, or with an error
    python examples/faults.py bits                    # every runtime, workers 1 to 4, 3 seeds
    python examples/faults.py fits --times 100        # what is left after many fits

The first three train a tiny stack with ``--runtime processes`` and kill it at a random moment.
After each kill they check that nothing outlives it: no process after 1 s, no name in /dev/shm, no
temporary file; that a dead layer is told within 0.5 s with its layer, pid and signal; and that
``train --resume`` comes to the same parameters. They stop at the first surprise. ``replace`` kills
one to five processes in each run, which has ``--max-restarts``: each run must end well, with the
same parameters.

``random`` (``random_faults/``) draws a small run (schedule, hand-over, pace, runtime, model, early
stopping, fine-tuning, checkpoints, restarts, now and then a replay) and one to three faults, each
at a moment of its own (after a time, an event, a new checkpoint or model):

* SIGKILL of the process, of one child or of all; SIGTERM, SIGINT; a second ``--resume`` beside it;
* a disk of its own that is full from the start or later, and may have room again (where nothing can
  be mounted: a limit of file sizes, which is drawn as well);
* before it is resumed: a flipped bit in the newest checkpoint, or its end cut off; a stray and a
  stale temporary file; half a line at the end of the log; changed data, labels or kernels, which
  must be refused; two resumes at once.

It goes on until the run is done, and checks the status and message of every command, that it ends,
without a traceback, and leaves no process, no name in /dev/shm and no temporary file; that it went
on from the newest good checkpoint, and lost no more epochs than lie between two; that every
model loads; that the bits are those of an undisturbed run; and that ``train --replay`` of what it
recorded comes to them too. A draw that does not hold is printed with its seed; the table at the end
counts faults and statuses. 300 draws take about ten minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from random_faults.ranks import fail_ranks
from random_faults.session import SHARED, left_shared, play_random

from syncpretrain import pretrain
from syncpretrain.array_files import read_arrays
from syncpretrain.runs.checkpoints import newest_checkpoint

MODES = ["layer", "parent", "group", "replace", "write", "bits", "fits", "random", "ranks"]
LAYERS = (64, 48, 32, 16, 8)
MODULE = [sys.executable, "-m", "syncpretrain"]
WRITER = """
import sys, pathlib, itertools, numpy as np
from syncpretrain.runs.checkpoints import checkpoint_path, prune_checkpoints
from syncpretrain.array_files import write_arrays
folder, arrays = pathlib.Path(sys.argv[1]), {"a": np.ones((1000, 500), dtype=np.float32)}
for number in itertools.count(1):
    write_arrays(checkpoint_path(folder, "pretrain", number), {"number": number}, arrays)
    prune_checkpoints(folder, "pretrain", 2)
    print(number, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=MODES)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--handoff", choices=["epoch", "minibatch"], default="epoch")
    parser.add_argument("--only", type=int, metavar="SEED", help="of random: repeat one draw")
    options = parser.parse_args()
    if options.what == "random":
        play_random(options.times, options.seed, options.only)
        return
    draw = random.Random(options.seed)
    if options.what == "bits":
        compare_bits()
        return
    if options.what == "ranks":
        fail_ranks(options.times, draw)
        return
    if options.what == "fits":
        fit_often(options.times)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.what == "write":
            kill_writers(folder, options.times, draw)
        elif options.what == "replace":
            kill_and_replace(folder, options, draw)
        else:
            kill_runs(folder, options, draw)


def kill_runs(folder: Path, options: argparse.Namespace, draw: random.Random) -> None:
    what, times = options.what, options.times
    train, expected, seconds = undisturbed(folder, options)
    told: list[float] = []
    killed = 0
    while killed < times:
        out = folder / f"run-{killed}"
        shared = set(SHARED.iterdir())
        began = time.monotonic()
        run = subprocess.Popen(
            [*train, "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        delay = draw.uniform(0.3 * seconds, seconds)
        wait_for(run, delay)
        found = kill(run, what, draw)
        if found is None:  # it was over, or had not begun
            run.communicate(timeout=60)
            seconds = min(seconds, time.monotonic() - began)  # the first one may have been slow
            remove(out)
            continue
        at = time.monotonic()
        _, error = run.communicate(timeout=60)
        if what == "layer" and found:
            check_told(run.returncode, error, found[0].pid)
            told.append(time.monotonic() - at)
        check_gone(found, at)
        left = left_shared(shared)
        check(not left, f"left in /dev/shm: {left}")
        check(not list(out.rglob(".*")), "a temporary file was left")
        check_resumed(out, expected)
        killed += 1
        remove(out)
        print(f"\r{killed} of {times}", end="", flush=True)
    latest = f"; told after {median(told):.2f} s, at most {max(told):.2f}" if told else ""
    print(f"\n{what}: {times} kills, each resumed to the same bits, nothing left{latest}")


def undisturbed(folder: Path, options: argparse.Namespace) -> tuple[list[str], str, float]:
    """Return the command of a run, and the parameters that it comes to, and its seconds."""
    data = folder / "data.npy"
    np.save(data, (np.random.default_rng(0).random((2000, 64)) < 0.3).astype(np.float32))
    train = [*MODULE, "train", "--layers", "64,48,32,16", "--data", str(data), "--epochs", "12"]
    train += ["--runtime", "processes", "--checkpoint-every", "1", "--quiet", "--json"]
    train += ["--handoff", options.handoff]
    started = time.monotonic()
    whole = subprocess.run(
        [*train, "--out", str(folder / "whole")], check=True, capture_output=True, text=True
    )
    seconds = time.monotonic() - started
    return train, json.loads(whole.stdout)["parameters_sha256"], seconds


def kill_and_replace(folder: Path, options: argparse.Namespace, draw: random.Random) -> None:
    """Kill layers' processes of runs that replace them; the parameters must be the same."""
    train, expected, seconds = undisturbed(folder, options)
    killed = 0
    for number in range(options.times):
        out, shared = folder / f"run-{number}", set(SHARED.iterdir())
        run = subprocess.Popen(
            [*train, "--out", str(out), "--max-restarts", "100"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        found: list[psutil.Process] = []
        kills = draw.randint(1, 5)
        for _ in range(kills):
            wait_for(run, draw.uniform(0, 2 * seconds / kills))
            found += kill(run, "layer", draw) or []
        at = time.monotonic()
        output, error = run.communicate(timeout=60)
        check(run.returncode == 0, f"status {run.returncode} and this message: {error}")
        parameters = json.loads(output)["parameters_sha256"]
        check(parameters == expected, "the run came to other parameters")
        check_gone(found, at)
        left = left_shared(shared)
        check(not left, f"left in /dev/shm: {left}")
        log = (out / "events.jsonl").read_text(encoding="utf-8")
        killed += log.count("goes on from its last state")
        remove(out)
        print(f"\r{number + 1} of {options.times}", end="", flush=True)
    print(f"\nreplace: {killed} processes replaced, the same bits each time, nothing left")


def wait_for(run: subprocess.Popen[str], seconds: float) -> None:
    try:
        run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


def kill(run: subprocess.Popen[str], what: str, draw: random.Random) -> list[psutil.Process] | None:
    """Kill and return the processes that must be gone; the killed layer's first."""
    if run.poll() is not None:
        return None
    layers = [
        p
        for p in psutil.Process(run.pid).children()
        if "syncpretrain-layer" in " ".join(cmdline(p))
    ]
    if not layers:
        return None
    draw.shuffle(layers)
    if what == "layer":
        os.kill(layers[0].pid, signal.SIGKILL)
    elif what == "parent":
        run.kill()
    else:
        os.killpg(run.pid, signal.SIGKILL)
    return layers


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def check_told(status: int, error: str, pid: int) -> None:
    if status == 0:  # killed after its last epoch
        return
    named = re.search(r"layer \d", error) and str(pid) in error and "SIGKILL" in error
    check(status == 1 and bool(named), f"status {status} and this message: {error}")


def check_gone(processes: list[psutil.Process], since: float) -> None:
    left = max(0.1, since + 1 - time.monotonic())
    _, left_over = psutil.wait_procs(processes, timeout=left)
    alive = [p for p in left_over if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    check(not alive, f"still alive: {alive}")


def check_resumed(out: Path, expected: str) -> None:
    if (out / "metrics.json").is_file():  # it was over all the same
        report = json.loads((out / "metrics.json").read_text())
    else:
        resume = [*MODULE, "train", "--resume", str(out), "--quiet", "--json"]
        resumed = subprocess.run(resume, capture_output=True, text=True, check=False)
        check(resumed.returncode == 0, f"the resumed run failed: {resumed.stderr}")
        report = json.loads(resumed.stdout)
    check(report["parameters_sha256"] == expected, "the resumed run came to other parameters")


def kill_writers(folder: Path, times: int, draw: random.Random) -> None:
    """Kill processes that write one checkpoint after another; the newest must load."""
    for number in range(times):
        out = folder / str(number)
        out.mkdir()
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(out)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        writer.stdout.readline()  # the first is there
        time.sleep(draw.uniform(0, 0.05))
        writer.kill()
        done = [int(line) for line in writer.stdout.read().split()]
        writer.wait(timeout=60)
        writer.stdout.close()
        told: list[str] = []
        found = newest_checkpoint(out, "pretrain", read_arrays, told.append)
        check(found is not None and not told, f"the newest cannot be read: {told}")
        assert found is not None
        check(found[0]["number"] >= max(done, default=1), "a finished checkpoint was lost")
        check(not [p for p in out.iterdir() if p.name.startswith(".")], "a temporary file was left")
        remove(out)
        print(f"\r{number + 1} of {times}", end="", flush=True)
    print(f"\nwrite: {times} kills, the newest checkpoint loads each time, nothing left")


def compare_bits() -> None:
    """Train with every runtime and number of workers; interrupt and resume is ``layer``'s part."""
    X = (np.random.default_rng(0).random((500, 64)) < 0.3).astype(np.float32)
    shared = {"replicas": (2, 1, 1, 1), "split": "units"}
    hand_overs: dict[str, dict[str, Any]] = {
        "whole versions": {},
        "streamed": {"handoff": "minibatch"},
        "streamed, layer 1 shared": {"handoff": "minibatch", **shared},
    }
    for (name, how), seed in product(hand_overs.items(), range(3)):
        found = {
            pretrain(
                X, layers=LAYERS, epochs=3, seed=seed, runtime=runtime, workers=workers, **how
            ).parameters_sha256
            for runtime in ("serial", "threads", "processes")
            for workers in (1, 2, 3, 4)
        }
        check(len(found) == 1, f"{name}, seed {seed}: {found}")
        print(f"{name}, seed {seed}: serial, threads and processes, 1 to 4 workers: same bits")


def fit_often(times: int) -> None:
    """Fit again and again in this process; compare what it holds after a tenth and at the end."""
    X = (np.random.default_rng(0).random((500, 64)) < 0.3).astype(np.float32)
    process = psutil.Process()
    for runtime in ("threads", "processes"):
        for number in range(times + 1):
            if number == times // 10:
                before = holdings(process)
            pretrain(X, layers=LAYERS, epochs=2, runtime=runtime, workers=2)
        after = holdings(process)
        check(after[:3] == before[:3], f"threads, children, descriptors: {before} {after}")
        grown = (after[3] - before[3]) / 2**20
        check(grown <= 5, f"{runtime}: {grown:.1f} MB more")
        print(f"{runtime}: {times} fits, nothing new, {grown:+.1f} MB")


def holdings(process: psutil.Process) -> tuple[int, int, int, int]:
    gc.collect()
    children = len(process.children())
    return process.num_threads(), children, process.num_fds(), process.memory_info().rss


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if folder.is_dir():
        folder.rmdir()


def check(holds: bool, complaint: str) -> None:
    if not holds:
        print()
        sys.exit(complaint)


if __name__ == "__main__":
    main()
