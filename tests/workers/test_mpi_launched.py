"""Jobs of a real mpiexec: their bits, their refusals, and ranks that are killed.

Also on several hosts, which are network namespaces, and with parameters behind windows.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from mpijobs import EMULATED_HOSTS, finished, job, layer_ranks, needs_mpiexec, start

from syncpretrain import pretrain

pytestmark = needs_mpiexec
TRAIN = ["-m", "syncpretrain", "train", "--batch-size", 20, "--quiet", "--data", "X.npy"]
TRAIN += ["--layers", "16,12,8,5"]
LONG = ["--epochs", 100_000, "--checkpoint-every", "1000s"]


STREAM, SHARED = ("--handoff", "minibatch"), ("--layers", "16,12", "--replicas", 2)
ASYNC = ("--layers", "16,12,8", "--schedule", "async")
WINDOWS = ("--exchange", "windows")


def lacking():
    spec = importlib.util.spec_from_file_location("emulated_hosts", EMULATED_HOSTS)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.missing()


LACKING = lacking()
needs_hosts = pytest.mark.skipif(LACKING is not None, reason=f"{LACKING}")


@pytest.fixture(autouse=True)
def data(bits, tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", bits)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMPI_MCA_osc", "^ucx")  # which reports that it is not there


def nobody_is_left(ranks):
    _, alive = psutil.wait_procs(list(ranks.values()), timeout=30)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


@pytest.mark.parametrize(
    ("ranks", "hosts", "options", "on_ranks"),
    [
        (2, 1, (), ()),
        (4, 1, STREAM, ()),
        (3, 1, ("--precision", "bfloat16"), ()),
        (3, 1, SHARED, ()),
        (3, 1, (*SHARED, *STREAM), ()),
        (3, 1, ASYNC, (*WINDOWS, "--servers", 2)),
        pytest.param(4, 2, (), (), marks=needs_hosts),
        pytest.param(4, 2, STREAM, (), marks=needs_hosts),
    ],
)
def test_bits_are_those_of_one_thread_and_only_rank_0_prints(call, ranks, hosts, options, on_ranks):
    command, own = [*TRAIN, "--epochs", 2, *options, "--json"], ("--runtime", "mpi", *on_ranks)
    status, out, err = finished(start(ranks, *command, *own, "--out", "there", hosts=hosts))
    assert (status, err) == (0, ""), "and MPI has nothing to warn of"
    report = json.loads(out)  # exactly one object
    assert report["runtime"] == "mpi"
    out, _ = call(*command[2:], "--runtime", "serial", "--out", "here")
    assert json.loads(out)["parameters_sha256"] == report["parameters_sha256"]


@pytest.mark.parametrize(
    ("ranks", "command", "told"),
    [
        (2, TRAIN, "--runtime: got threads on 2 ranks, which would be 2 runs in one folder"),
        (2, ["-m", "syncpretrain", "presets"], "presets: got 2 ranks, which would all do the"),
        (2, [*TRAIN, "--runtime", "mpi", "--batch-size", 500], "--batch-size: got 500"),
        (1, [*TRAIN, "--runtime", "mpi"], "--runtime: got mpi in a single process.*mpiexec -n"),
    ],
)
def test_refusals_are_printed_once(ranks, command, told):
    status, out, err = finished(start(ranks, *command))
    assert (status, out) == (2, "")
    assert re.search(f"Error: {told}", err)
    assert err.count("Error:") == 1


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


def test_a_script_gets_the_same_stack_on_every_rank(bits):
    Path("script.py").write_text(SCRIPT)
    status, out, err = finished(start(3, "script.py"))
    wanted = pretrain(bits, layers=(16, 12, 8, 5), epochs=2, batch_size=20).parameters_sha256
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [f"{rank} {wanted}" for rank in range(3)]


@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_in_a_script_on_one_rank_ends_all(rank):
    Path("script.py").write_text(SCRIPT)
    status, _, err = finished(start(3, "script.py", rank), 30)
    assert status not in (0, None)
    assert "ValueError: out of luck" in err


@pytest.mark.parametrize(("handoff", "killed"), [("minibatch", 1), ("epoch", 0)])
def test_a_killed_rank_ends_the_job_and_is_named(handoff, killed):
    command = [*TRAIN, *LONG, "--handoff", handoff, "--runtime", "mpi", "--out", "run"]
    with job(3, *command) as started:
        ranks = layer_ranks(started, 3)
        ranks[killed].kill()
        status, _, err = finished(started, 30)
    assert status not in (0, None)
    place = rf"rank {killed} on .* \(process {ranks[killed].pid}\) was killed"
    again = "resume with: mpiexec -n 3 syncpretrain train --resume run"
    assert re.search(rf"Error: (layer [123, ]+ failed: )?{place}.*; {again}", err), err
    assert nobody_is_left(ranks)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_mpiexec_stops_with_a_checkpoint(signum, status):
    command = [*TRAIN, "--runtime", "mpi", "--out", "run", "--handoff", "minibatch"]
    with job(3, *command, *LONG) as started:
        layer_ranks(started, 3)
        started.send_signal(signum)
        found, _, err = finished(started, 30)
    assert found == status, err
    again = "resume with: mpiexec -n 3 syncpretrain train --resume"
    assert re.search(f"Pretraining was stopped; .*{again}", err)


@needs_hosts
@pytest.mark.parametrize("killed", [1, 2])
def test_a_rank_that_is_killed_on_any_host_is_named(killed):
    """Rank 1 is on the second host, rank 2 beside rank 0."""
    with job(4, *TRAIN, *LONG, "--runtime", "mpi", "--out", "run", hosts=2) as started:
        ranks = layer_ranks(started, 4)
        ranks[killed].kill()
        status, _, err = finished(started, 30)
    assert status not in (0, None)
    place = rf"rank {killed} on \S+-{killed % 2 + 1} \(process {ranks[killed].pid}\) was killed"
    assert re.search(rf"Error: layer \d failed: {place}|Error: {place}", err), err
    # The launcher kills the others because of it: those that are named too are of that host.
    assert {*re.findall(r"rank \d on \S+-(\d) \(", err)} == {str(killed % 2 + 1)}, err
    assert nobody_is_left(ranks)


@needs_hosts
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


@needs_hosts
def test_the_status_is_that_of_the_command():
    command = [sys.executable, str(EMULATED_HOSTS), "--", "sh", "-c", "exit 7"]
    assert subprocess.run(command, check=False).returncode == 7


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


def test_whole_numbers_add_up_exactly_through_windows(monkeypatch):
    Path("add_up.py").write_text(ADD_UP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    status, out, err = finished(start(4, "add_up.py"))
    assert (status, out, err) == (0, "[True, True, True]\n", "")


def test_a_killed_rank_is_named_and_the_run_goes_on_without_windows(call):
    own = [*ASYNC, *WINDOWS, "--replicas", 2, "--epochs", "300,1", "--checkpoint-every", 50]
    with job(3, *TRAIN, *own, "--runtime", "mpi", "--out", "run") as started:
        ranks = layer_ranks(started, 3)
        ranks[2].send_signal(signal.SIGKILL)
        status, _, err = finished(started)
    assert status
    assert re.search(rf"rank 2 on .*\(process {ranks[2].pid}\) was killed", err)
    out, _ = call("train", "--resume", "run", "--runtime", "serial", "--quiet", "--json")
    assert json.loads(out)["runtime"] == "serial"
