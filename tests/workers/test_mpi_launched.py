"""The MPI runtime in jobs of a real mpiexec: its bits, its refusals, and ranks that are killed."""

from __future__ import annotations

import json
import re
import signal

import psutil
import pytest
from mpijobs import finished, job, layer_ranks, needs_mpiexec, start

from syncpretrain import pretrain

pytestmark = needs_mpiexec
TRAIN = ["-m", "syncpretrain", "train", "--batch-size", 20, "--quiet", "--layers", "16,12,8,5"]
LONG = ["--epochs", 100_000, "--checkpoint-every", "1000s"]


SHARED = ("--layers", "16,12", "--replicas", 2)  # by two ranks


@pytest.mark.parametrize(
    ("ranks", "handoff", "more"),
    [
        (2, "epoch", ()),
        (4, "minibatch", ()),
        (3, "epoch", ("--precision", "bfloat16")),
        (3, "epoch", SHARED),
        (3, "minibatch", SHARED),
    ],
)
def test_train_has_the_bits_of_one_thread_and_only_rank_0_prints(data, call, ranks, handoff, more):
    command = [*TRAIN, *data, "--epochs", 2, "--handoff", handoff, *more, "--json"]
    status, out, err = finished(start(ranks, *command, "--runtime", "mpi", "--out", "there"))
    assert (status, err) == (0, "")
    report = json.loads(out)  # exactly one object
    assert report["runtime"] == "mpi"
    out, _ = call(*command[2:], "--runtime", "serial", "--out", "here")
    assert json.loads(out)["parameters_sha256"] == report["parameters_sha256"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (TRAIN, "Error: --runtime: got threads on 2 ranks, which would be 2 runs in one folder"),
        (["-m", "syncpretrain", "presets"], "Error: presets: got 2 ranks, which would all do the"),
        ([*TRAIN, "--runtime", "mpi", "--batch-size", 500], "Error: --batch-size: got 500"),
    ],
)
def test_refusals_are_printed_once(data, command, told):
    more = data if command[2] == "train" else []
    status, out, err = finished(start(2, *command, *more))
    assert (status, out) == (2, "")
    assert told in err
    assert err.count("Error:") == 1


def test_a_single_rank_is_told_how_to_start_more(data):
    status, _, err = finished(start(1, *TRAIN, *data, "--runtime", "mpi"))
    assert status == 2
    assert "--runtime: got mpi in a single process" in err
    assert "mpiexec -n" in err


SCRIPT = """
import sys, numpy as np
from syncpretrain import pretrain
X = np.load("X.npy")
stack = pretrain(X, layers=(16, 12, 8, 5), epochs=2, batch_size=20, runtime="mpi", warn=False)
again = pretrain(X, layers=(16, 8), epochs=1, runtime="mpi", handoff="minibatch", warn=False)
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
if len(sys.argv) > 1 and rank == int(sys.argv[1]):
    raise ValueError("out of luck")
if len(sys.argv) > 1:
    pretrain(X, layers=(16, 8), epochs=1, runtime="mpi")
sys.stdout.write(f"{rank} {stack.parameters_sha256}\\n")  # at once, or ranks mix their lines
sys.stdout.flush()
"""


def test_a_script_gets_the_same_stack_on_every_rank(bits, data, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    status, out, err = finished(start(3, "script.py"))
    wanted = pretrain(bits, layers=(16, 12, 8, 5), epochs=2, batch_size=20).parameters_sha256
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [f"{rank} {wanted}" for rank in range(3)]


@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_in_a_script_on_one_rank_ends_all(data, tmp_path, rank):
    (tmp_path / "script.py").write_text(SCRIPT)
    status, _, err = finished(start(3, "script.py", rank), 30)
    assert status not in (0, None)
    assert "ValueError: out of luck" in err


@pytest.mark.parametrize(("handoff", "killed"), [("minibatch", 1), ("epoch", 0)])
def test_a_killed_rank_ends_the_job_and_is_named(data, handoff, killed):
    command = [*TRAIN, *data, *LONG, "--handoff", handoff, "--runtime", "mpi", "--out", "run"]
    with job(3, *command) as started:
        ranks = layer_ranks(started, 3)
        ranks[killed].kill()
        status, _, err = finished(started, 30)
    assert status not in (0, None)
    place = rf"rank {killed} on .* \(process {ranks[killed].pid}\) was killed"
    again = "resume with: mpiexec -n 3 syncpretrain train --resume run"
    assert re.search(rf"Error: (layer [123, ]+ failed: )?{place}.*; {again}", err), err
    _, alive = psutil.wait_procs(list(ranks.values()), timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_mpiexec_stops_with_a_checkpoint(data, signum, status):
    command = [*TRAIN, *data, "--runtime", "mpi", "--out", "run", "--handoff", "minibatch"]
    with job(3, *command, *LONG) as started:
        layer_ranks(started, 3)
        started.send_signal(signum)
        found, _, err = finished(started, 30)
    assert found == status, err
    again = "resume with: mpiexec -n 3 syncpretrain train --resume"
    assert re.search(f"Pretraining was stopped; .*{again}", err)
