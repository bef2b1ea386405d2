"""Windows in jobs of a real mpiexec: nothing lost, the bits of one thread, a rank is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from mpijobs import finished, job, layer_ranks, needs_mpiexec, start

pytestmark = needs_mpiexec
TRAIN = ["-m", "syncpretrain", "train", "--layers", "16,12,8", "--batch-size", 20, "--quiet"]
TRAIN += ["--data", "X.npy", "--schedule", "async"]
WINDOWS = ["--runtime", "mpi", "--exchange", "windows"]
ADD_UP = """
from functools import partial
from asyncreplicas import Fleet
from syncpretrain.pretraining.on_ranks import on_every_rank

def add_up(servers, bound):
    run = Fleet("windows", servers=servers, max_staleness=bound)
    run.train(200)
    run.assert_adds_up(200)
    return run.server.clock == 200 and not run.told

found = [on_every_rank(partial(add_up, *own)) for own in ((1, None), (3, None), (2, 0))]
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 0:
    print(found)
"""


@pytest.fixture(autouse=True)
def without_ucx(data, monkeypatch):
    """It reports that it is not there."""
    monkeypatch.setenv("OMPI_MCA_osc", "^ucx")


def test_whole_numbers_add_up_exactly(monkeypatch):
    Path("add_up.py").write_text(ADD_UP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    status, out, err = finished(start(4, "add_up.py"))
    assert (status, out, err) == (0, "[True, True, True]\n", "")


def test_one_replica_has_the_bits_of_one_thread(call):
    command = [*TRAIN, "--epochs", 2, "--json"]
    status, out, err = finished(start(3, *command, *WINDOWS, "--servers", 2, "--out", "windows"))
    assert (status, err) == (0, "")
    alone, _ = call(*command[2:], "--runtime", "serial", "--out", "alone")
    assert json.loads(out)["parameters_sha256"] == json.loads(alone)["parameters_sha256"]


def test_a_killed_rank_is_named_and_the_run_goes_on_without_windows(call):
    command = [*TRAIN, *WINDOWS, "--replicas", 2, "--epochs", "300,1", "--checkpoint-every", 50]
    with job(3, *command, "--out", "run") as started:
        ranks = layer_ranks(started, 3)
        ranks[2].send_signal(signal.SIGKILL)
        status, _, err = finished(started)
    assert status
    assert re.search(rf"rank 2 on .*\(process {ranks[2].pid}\) was killed", err)
    out, _ = call("train", "--resume", "run", "--runtime", "serial", "--quiet", "--json")
    assert json.loads(out)["runtime"] == "serial"
