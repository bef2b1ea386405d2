"""A signal ends a run soon, with one message and what was learned so far on disk."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import contextmanager

import numpy as np
import pytest

import syncpretrain

TRAIN = [sys.executable, "-m", "syncpretrain", "train", "--data", "x.npy", "--out", "run"]
LONG = 100_000
START_SECONDS = 60.0  # of a busy machine
END_SECONDS = 30.0


class Run:
    """A running command, whose stderr goes to a file."""

    def __init__(self, process, log):
        self.process, self.log = process, log

    def lines(self):
        return self.log.read_text().splitlines()

    def wait_for(self, start):
        deadline = time.monotonic() + START_SECONDS
        while not any(line.startswith(start) for line in self.lines()):
            assert self.process.poll() is None, f"ended before {start!r}: {self.lines()}"
            assert time.monotonic() < deadline, f"no {start!r}: {self.lines()}"
            time.sleep(0.02)

    def stop(self, signum):
        """Send a signal; return the status, the seconds until the end, and the last line."""
        sent = time.monotonic()
        self.process.send_signal(signum)
        status = self.process.wait(timeout=START_SECONDS)
        return status, time.monotonic() - sent, self.lines()[-1]


@pytest.fixture(autouse=True)
def hangups():
    """Let SIGHUP end what a test starts: below nohup it is ignored."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@contextmanager
def running(folder, *options):
    np.save(folder / "x.npy", np.random.default_rng(0).random((2000, 64), dtype=np.float32))
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [*TRAIN, "--layers", "64,32,8", *map(str, options)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
    try:
        yield Run(process, folder / "stderr")
    finally:
        process.kill()
        process.wait(timeout=10)
        process.stdout.close()


INTERRUPT, END, HANG_UP = (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)
PRETRAIN = ("--epochs", LONG)
FINETUNE = ("--epochs", 1, "--finetune", "reconstruction", "--finetune-epochs", LONG)
RUNS = [
    (INTERRUPT, PRETRAIN, "layer 1", "Pretraining was stopped"),
    (END, (*PRETRAIN, "--pace", "free"), "layer 2", "Pretraining was stopped"),
    (END, (*PRETRAIN, "--runtime", "serial"), "layer 1", "Pretraining was stopped"),
    (INTERRUPT, FINETUNE, "fine-tuning", "Fine-tuning was stopped in epoch"),
    (END, FINETUNE, "fine-tuning", "Fine-tuning was stopped in epoch"),
    (HANG_UP, (*PRETRAIN, "--runtime", "processes"), "layer 1", "Pretraining was stopped"),
    (HANG_UP, FINETUNE, "fine-tuning", "Fine-tuning was stopped in epoch"),
]


@pytest.mark.parametrize(("sent", "options", "line", "message"), RUNS)
def test_a_signal_ends_a_run_with_its_model(tmp_path, sent, options, line, message):
    signum, expected = sent
    with running(tmp_path, *options) as run:
        run.wait_for(line)
        status, seconds, last = run.stop(signum)
        assert run.process.stdout.read() == ""
    assert status == expected
    assert seconds < END_SECONDS
    assert last.startswith(message)
    learned = "What was learned so far is in run/model.safetensors"
    assert last.endswith(f"{learned}; resume with: syncpretrain train --resume run")
    assert not [text for text in run.lines() if "Traceback" in text or "Error" in text]
    assert syncpretrain.load(tmp_path / "run").widths == (64, 32, 8)
    assert (tmp_path / "run" / "trace.json").is_file()


def test_a_terminal_that_closes_leaves_a_model_and_a_checkpoint(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((2000, 64), dtype=np.float32))
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [*TRAIN, "--layers", "64,32", "--epochs", str(LONG)],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        shown = b""
        while b"layer 1" not in shown:
            assert select.select([terminal], [], [], START_SECONDS)[0], shown
            shown += os.read(terminal, 4096)
        os.close(terminal)
        process.wait(timeout=END_SECONDS)
    finally:
        process.kill()
        process.wait(timeout=10)
    assert syncpretrain.load(tmp_path / "run").widths == (64, 32)
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_run_whose_reader_has_ended_says_so(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((100, 6), dtype=np.float32))
    read, written = os.pipe()
    os.close(read)
    command = [*TRAIN, "--layers", "6,3", "--epochs", "1"]
    try:
        ended = subprocess.run(command, cwd=tmp_path, stderr=written, timeout=60, check=False)
    finally:
        os.close(written)
    assert ended.returncode == 1
    last = (tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1]
    assert '"reason":"the program that read its output has ended"' in last
