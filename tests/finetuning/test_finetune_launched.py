"""Fine-tuning on the ranks of a real mpiexec: its bits, its ends, a rank that is killed."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from mpijobs import finished, job, needs_mpiexec, ranks_of, start

pytestmark = needs_mpiexec
DENSE, CONVOLUTIONS = "16,12,5", "1x4x4,conv:3x3:same,pool:2,conv:4x2,6"
TUNE = ["-m", "syncpretrain", "train", "--layers", DENSE, "--epochs", 1]
TUNE += ["--batch-size", 20, "--finetune", "reconstruction", "--finetune-batch-size", 30]
TUNE += ["--finetune-replicas", 3, "--finetune-split", "examples", "--data", "X.npy", "--json"]
TUNE += ["--quiet", "--out", "run"]
ON_RANKS = ["--finetune-runtime", "mpi"]
SHORT = ["--finetune-epochs", 2]
LONG = ["--finetune-epochs", 1_000_000, "--checkpoint-every", "1000s"]
EVENTS = Path("run", "events.jsonl")


@pytest.fixture(autouse=True)
def folder(bits, tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", bits)
    monkeypatch.chdir(tmp_path)


def epochs_done() -> int:
    return EVENTS.read_text().count("FinetuneEpochFinished") if EVENTS.exists() else 0


def tuned_ranks(started, number) -> dict[int, psutil.Process]:
    """Return the processes of a job by rank, once it fine-tunes."""
    before = epochs_done()
    return ranks_of(started, number, lambda: epochs_done() > before)


def test_a_run_and_its_further_tuning_have_the_bits_of_one_process(call):
    tune = [CONVOLUTIONS if part == DENSE else part for part in TUNE]
    status, out, err = finished(start(3, *tune, *ON_RANKS, *SHORT, "--runtime", "mpi"))
    assert (status, err) == (0, "")
    found = json.loads(out)["parameters_sha256"]  # exactly one object
    again = ["finetune", "run", "--finetune-epochs", 1, "--json", "--quiet", "--out"]
    status, out, err = finished(start(2, "-m", "syncpretrain", *again, "again", *ON_RANKS))
    assert (status, err) == (0, "")
    alone, _ = call(*again, "alone")
    assert json.loads(alone)["parameters_sha256"] == json.loads(out)["parameters_sha256"]
    Path("run").rename("first")
    alone, _ = call(*tune[2:], *SHORT)
    assert json.loads(alone)["parameters_sha256"] == found


def test_a_stopped_run_goes_on_with_another_number_of_ranks():
    resume = ["-m", "syncpretrain", "train", "--resume", "run", "--quiet"]
    for ranks, command in ((3, [*TUNE, *ON_RANKS, *LONG]), (2, resume)):
        with job(ranks, *command) as started:
            tuned_ranks(started, ranks)
            started.send_signal(signal.SIGINT)
            status, _, err = finished(started, 30)
        assert status == 130, err
        assert re.search(r"Fine-tuning was stopped in epoch \d+ of 1000000", err), err


@pytest.mark.parametrize("killed", [0, 2])
def test_a_killed_rank_ends_the_job_and_is_named(killed):
    with job(3, *TUNE, *ON_RANKS, *LONG) as started:
        ranks = tuned_ranks(started, 3)
        ranks[killed].kill()
        status, _, err = finished(started, 30)
    assert status not in (0, None)
    place = rf"rank {killed} on .* \(process {ranks[killed].pid}\) was killed"
    assert re.search(rf"Error: (fine-tuning failed: )?{place}", err), err
    _, alive = psutil.wait_procs(list(ranks.values()), timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
