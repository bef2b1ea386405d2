"""The MPI runtime on several hosts, which are network namespaces: ranks share no memory there."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mpijobs import EMULATED_HOSTS, finished, job, needs_mpiexec, ranks_of, start

EVENTS = Path("run", "events.jsonl")
TRAIN = ["-m", "syncpretrain", "train", "--layers", "16,12,8,5", "--batch-size", 20, "--quiet"]
LONG = ["--epochs", 100_000, "--checkpoint-every", "1000s"]


def lacking() -> str | None:
    """Return what emulated hosts lack here."""
    spec = importlib.util.spec_from_file_location("emulated_hosts", EMULATED_HOSTS)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.missing()


reason = lacking()
pytestmark = [needs_mpiexec, pytest.mark.skipif(reason is not None, reason=f"{reason}")]


@pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
def test_ranks_of_two_hosts_have_the_bits_of_one_thread(data, call, handoff):
    command = [*TRAIN, *data, "--epochs", 2, "--handoff", handoff, "--json"]
    there = start(4, *command, "--runtime", "mpi", "--out", "there", hosts=2)
    status, out, err = finished(there)
    assert (status, err) == (0, ""), "and MPI has nothing to warn of"
    here, _ = call(*command[2:], "--runtime", "serial", "--out", "here")
    assert json.loads(out)["parameters_sha256"] == json.loads(here)["parameters_sha256"]


@pytest.mark.parametrize("killed", [1, 2])
def test_a_rank_that_is_killed_on_any_host_is_named(data, killed):
    """Rank 1 is on the second host, rank 2 beside rank 0."""
    with job(4, *TRAIN, *data, *LONG, "--runtime", "mpi", "--out", "run", hosts=2) as started:
        ranks = ranks_of(started, 4, lambda: EVENTS.exists() and "Finished" in EVENTS.read_text())
        ranks[killed].kill()
        status, _, err = finished(started, 30)
    assert status not in (0, None)
    place = rf"rank {killed} on \S+-{killed % 2 + 1} \(process {ranks[killed].pid}\) was killed"
    assert re.search(rf"Error: layer \d failed: {place}|Error: {place}", err), err
    # The launcher kills the others because of it: those that are named too are of that host.
    assert {*re.findall(r"rank \d on \S+-(\d) \(", err)} == {str(killed % 2 + 1)}, err
    _, alive = psutil.wait_procs(list(ranks.values()), timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_hosts_are_taken_away_with_the_command():
    command = [sys.executable, str(EMULATED_HOSTS), "--hosts", "2", "--rate", "1gbit", "--"]
    with subprocess.Popen(
        [*command, "sh", "-c", "ip netns list; echo; exec sleep 60"],
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        names = [line.split()[0] for line in iter(running.stdout.readline, "\n")]
        own = [name for name in names if name.startswith(f"sph{running.pid}-")]
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 143
    assert len(own) == 2
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert not set(own) & set(left.stdout.split())
    assert not [name for name in own if Path("/etc/netns", name).exists()]


def test_the_status_is_that_of_the_command():
    command = [sys.executable, str(EMULATED_HOSTS), "--", "sh", "-c", "exit 7"]
    assert subprocess.run(command, check=False).returncode == 7
