"""What the disk refuses: it is told, training goes on, and nothing is lost."""

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from folders import full
from moments import At, told_by
from trialruns import Abort, DieAt, died, notices_of, settings_on

from syncpretrain import load, storage
from syncpretrain.errors import RunInterrupted, SaveError, SettingsError
from syncpretrain.events import EpochFinished, FinetuneEpochFinished, Notice
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack
from syncpretrain.observers.event_log import EventLog, read_reads
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.runs.checkpoints import CHECKPOINTS_NAME, PRETRAINED_NAME, Checkpoints
from syncpretrain.runs.folder import (
    CARD_NAME,
    EVENTS_NAME,
    IDENTITY_NAME,
    METRICS_NAME,
    TRACE_NAME,
    FinalFiles,
)
from syncpretrain.runs.run import Run, resume_run, train_run

LAYERS = (16, 10, 6, 4)
LAST_STEPS = ["measure", "write_trace", "report_of", "card_of"]


@pytest.fixture
def settings(tmp_path, bits):
    return settings_on(tmp_path, bits, LAYERS, tuning=2)


@pytest.fixture
def rescue(tmp_path, monkeypatch):
    folder = tmp_path / "rescue"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def whole(settings, tmp_path):
    return train_run(settings, out=tmp_path / "whole")["parameters_sha256"]


class Disk:
    """Refuses every write below a folder while it is full: from the n-th end of an epoch on."""

    def __init__(self, monkeypatch, folder, n=1):
        self.is_full, self._left = False, n
        write = storage.write_atomically

        def write_atomically(path, content, **options):
            if self.is_full and folder in Path(path).parents:
                full()
            return write(path, content, **options)

        for module in ("array_files", "runs.run"):
            monkeypatch.setattr(f"syncpretrain.{module}.write_atomically", write_atomically)

    def __call__(self, event):
        self._left -= isinstance(event, EpochFinished)
        self.is_full |= self._left == 0


class TestFinalFiles:
    @pytest.mark.parametrize("n", [1, 6])
    def test_they_are_kept_elsewhere_and_with_room_again_the_run_comes_to_the_same_end(
        self, settings, whole, tmp_path, monkeypatch, rescue, n
    ):
        disk, events = Disk(monkeypatch, tmp_path / "run", n), []
        with pytest.raises(SaveError, match=r"The run is complete, and .* is in") as caught:
            train_run(settings, out=tmp_path / "run", observers=[disk, events.append])
        (kept,) = rescue.iterdir()
        assert str(kept) in str(caught.value)
        assert load(kept).parameters_sha256 == whole
        assert (kept / METRICS_NAME).is_file()
        notices = notices_of(events)
        assert any("No space left on device; it is in" in notice for notice in notices)
        message = "no checkpoint could be written to .*No space left on device; those before"
        assert any(re.search(message, notice) for notice in notices)
        disk.is_full = False
        assert resume_run(tmp_path / "run")["parameters_sha256"] == whole
        assert not (tmp_path / "run" / CHECKPOINTS_NAME).exists()

    def test_a_stopped_run_keeps_its_model_elsewhere(self, settings, tmp_path, monkeypatch, rescue):
        disk = Disk(monkeypatch, tmp_path / "run")

        fill = At(EpochFinished, partial(setattr, disk, "is_full", True), layer=2)
        stop = At(EpochFinished, partial(signal.raise_signal, signal.SIGINT), layer=2)
        with pytest.raises(RunInterrupted, match="What was learned so far is in") as caught:
            train_run(settings, out=tmp_path / "run", observers=[fill, stop])
        (kept,) = rescue.iterdir()
        assert str(kept / MODEL_NAME) in str(caught.value)
        assert load(kept).widths == LAYERS

    def test_where_no_folder_takes_temporary_files_it_says_so(self, tmp_path, monkeypatch):
        def none():
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in [...]")

        monkeypatch.setattr(tempfile, "gettempdir", none)
        monkeypatch.setattr(tempfile, "_get_default_tempdir", none)
        monkeypatch.setattr(tempfile, "tempdir", None)
        with pytest.raises(SaveError, match=r"kept in a temporary folder: No usable .* make room"):
            FinalFiles(tmp_path / "run", print).write("model.safetensors", full)

    def test_a_run_whose_model_is_elsewhere_does_not_look_complete(
        self, settings, whole, tmp_path, monkeypatch, rescue
    ):
        """A disk that refuses the model may have room for the metrics."""
        save = Stack.save

        def refuse(stack, path):
            if "finetune" in stack.info and Path(path).parent == tmp_path / "run":
                full()
            save(stack, path)

        with monkeypatch.context() as patch:
            patch.setattr(Stack, "save", refuse)
            with pytest.raises(SaveError, match="or repeat the last steps with --resume"):
                train_run(settings, out=tmp_path / "run")
        (kept,) = rescue.iterdir()
        assert sorted(x.name for x in kept.iterdir()) == [CARD_NAME, METRICS_NAME, MODEL_NAME]
        assert resume_run(tmp_path / "run")["parameters_sha256"] == whole
        assert load(tmp_path / "run").parameters_sha256 == whole

    def test_a_folder_that_takes_nothing_is_not_left(self, tmp_path, monkeypatch, rescue):
        files = FinalFiles(tmp_path / "run", print)
        with pytest.raises(SaveError, match="nor could it be kept in a temporary folder"):
            files.write("model.safetensors", full)
        assert not any(rescue.iterdir())
        with pytest.raises(SaveError, match="nor could it be kept in a temporary folder"):
            files.write("metrics.json", full)

    def test_a_trace_that_cannot_be_written_is_told(self, settings, tmp_path, monkeypatch):
        monkeypatch.setattr("syncpretrain.runs.run.write_trace", full)
        _, notices = told_by(train_run, settings, out=tmp_path / "run")
        assert any("trace.json could not be written" in notice for notice in notices)


class TestCheckpointsFolder:
    @pytest.mark.parametrize("name", [".DS_Store", "notes.txt", ".nfs0001"])
    def test_a_stray_file_does_not_end_a_complete_run(self, settings, tmp_path, name):
        def litter(event):
            folder = tmp_path / "run" / CHECKPOINTS_NAME
            if folder.is_dir():
                (folder / name).write_text("mine")

        train_run(settings, out=tmp_path / "run", observers=[litter])
        assert [x.name for x in (tmp_path / "run" / CHECKPOINTS_NAME).iterdir()] == [name]
        assert (tmp_path / "run" / METRICS_NAME).is_file()

    def test_temporary_files_of_a_killed_writer_are_removed(self, settings, tmp_path):
        folder = died(settings, tmp_path / "run") / CHECKPOINTS_NAME
        (folder / ".pretrain-00000003.safetensors.0123456789abcdef").write_bytes(b"half")
        for name in (MODEL_NAME, METRICS_NAME, TRACE_NAME):
            (tmp_path / "run" / f".{name}.0123456789abcdef").write_bytes(b"half")
        (tmp_path / "run" / ".mine").write_text("a user's")
        resume_run(tmp_path / "run")
        assert not folder.exists()
        assert [path.name for path in (tmp_path / "run").glob(".*")] == [".mine"]

    def test_a_folder_that_cannot_be_deleted_is_told(self, settings, tmp_path, monkeypatch):
        monkeypatch.setattr("syncpretrain.runs.checkpoints.prune_checkpoints", full)
        _, notices = told_by(train_run, settings, out=tmp_path / "run")
        assert any("could not be deleted" in notice for notice in notices)

    @pytest.mark.parametrize("pace", ["lockstep", "free"])
    def test_fine_tuning_of_a_lost_pretraining_is_not_gone_on_with(self, tmp_path, bits, pace):
        """A repeated free pretraining comes to another stack than the lost one."""
        settings = settings_on(tmp_path, bits, LAYERS, tuning=8, epochs=2, pace=pace)
        folder = died(settings, tmp_path / "run", FinetuneEpochFinished, 6) / CHECKPOINTS_NAME
        (folder / PRETRAINED_NAME).write_bytes(b"damaged")
        with pytest.raises(Abort):
            resume_run(tmp_path / "run", observers=[DieAt(FinetuneEpochFinished, epoch=3)])
        assert [x.name[:17] for x in sorted(folder.glob("finetune-*"))] == [
            "finetune-00000002",
            "finetune-00000003",
        ]
        report = resume_run(tmp_path / "run")
        reads = read_reads(tmp_path / "run" / EVENTS_NAME)
        again = train_run(settings, out=tmp_path / "again", replay=reads)
        assert again["parameters_sha256"] == report["parameters_sha256"]


def end(*arguments, **options):
    signal.raise_signal(signal.SIGTERM)


class TestSigterm:
    """Between the stages, where nobody asks whether to stop."""

    @pytest.mark.parametrize(
        "name",
        ["finetuning.prepared.Finetuning.run", *map("runs.run.{}".format, LAST_STEPS)],
    )
    def test_it_tells_where_the_model_is(self, settings, whole, tmp_path, monkeypatch, name):
        with monkeypatch.context() as patch:
            patch.setattr(f"syncpretrain.{name}", end)
            with pytest.raises(RunInterrupted, match=r"stopped\. What was learned") as caught:
                train_run(settings, out=tmp_path / "run")
        assert caught.value.signum == signal.SIGTERM
        assert f"{tmp_path / 'run' / MODEL_NAME}; resume with" in str(caught.value)
        is_tuned = load(tmp_path / "run").layers[0].decoder_weight is not None
        assert is_tuned == (name != "finetuning.prepared.Finetuning.run")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert resume_run(tmp_path / "run")["parameters_sha256"] == whole

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_after_the_metrics_nothing_is_to_resume(self, settings, tmp_path, monkeypatch, signum):
        monkeypatch.setattr(Checkpoints, "delete", lambda *_: signal.raise_signal(signum))
        with pytest.raises(RunInterrupted) as caught:
            train_run(settings, out=tmp_path / "run")
        model = tmp_path / "run" / MODEL_NAME
        assert str(caught.value) == f"the run was stopped. What was learned so far is in {model}"
        assert caught.value.signum == signum

    @pytest.mark.parametrize("name", ["measure", "card_of"])
    def test_a_model_kept_elsewhere_stays_as_it_is(
        self, settings, whole, tmp_path, monkeypatch, rescue, name
    ):
        disk = Disk(monkeypatch, tmp_path / "run")
        monkeypatch.setattr(f"syncpretrain.runs.run.{name}", end)
        with pytest.raises(RunInterrupted, match="What was learned so far is in") as caught:
            train_run(settings, out=tmp_path / "run", observers=[disk])
        (kept,) = rescue.iterdir()
        assert f"{kept / MODEL_NAME}; resume with" in str(caught.value)
        assert load(kept).parameters_sha256 == whole

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_a_stop_saves_the_pretrained_stack_first(self, settings, tmp_path, monkeypatch, signum):
        stop = At(EpochFinished, end, layer=1)
        with pytest.raises(RunInterrupted):
            train_run(settings, out=tmp_path / "run", observers=[stop])
        early = load(tmp_path / "run").parameters_sha256
        with monkeypatch.context() as patch:
            patch.setattr(Run, "save_early", lambda *_: signal.raise_signal(signum))
            with pytest.raises(RunInterrupted, match=r"stopped\. What was learned") as caught:
                resume_run(tmp_path / "run")
        assert caught.value.signum == signum
        assert load(tmp_path / "run").parameters_sha256 != early

    def test_a_handler_of_the_callers_own_stays(self, settings, tmp_path, monkeypatch):
        own = Mock()
        former = signal.signal(signal.SIGTERM, own)
        try:
            monkeypatch.setattr(Run, "save_early", end)
            train_run(settings, out=tmp_path / "run")
            assert own.called and signal.getsignal(signal.SIGTERM) is own
        finally:
            signal.signal(signal.SIGTERM, former)


class TestRefusedFolder:
    @pytest.mark.parametrize("name", ["run.json", "config.toml"])
    def test_a_refused_run_leaves_nothing_behind(self, settings, tmp_path, monkeypatch, name):
        """So that the same command works once there is room."""

        def half(path, content):
            path.write_bytes(content[:100])
            full()

        with monkeypatch.context() as patch:
            module = "array_files" if name == "run.json" else "settings.sections"
            patch.setattr(f"syncpretrain.{module}.write_atomically", half)
            with pytest.raises(SettingsError, match="No space left on device; name another"):
                train_run(settings, out=tmp_path / "run")
        assert not any((tmp_path / "run").iterdir())
        train_run(settings, out=tmp_path / "run")


def test_a_run_killed_before_its_settings_were_written_is_not_in_the_way(settings, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / IDENTITY_NAME).write_text("{}")
    assert train_run(settings, out=tmp_path / "run")["parameters_sha256"]


class TestDue:
    """A checkpoint is due by the epochs of any layer, or by time, in every schedule."""

    @pytest.fixture
    def saved(self, tmp_path, bits, monkeypatch):
        """Return a function that trains, and returns the epochs done at each checkpoint."""
        written, write = [], Checkpoints._write

        def note(self, *given):
            written.append(tuple(given[-1]))
            write(self, *given)

        def saved(every, **pretrain):
            own = {"tuning": 5, "run": {"checkpoint_every": every}, **pretrain}
            train_run(settings_on(tmp_path, bits, LAYERS, **own), out=tmp_path / "run")
            return written

        monkeypatch.setattr(Checkpoints, "_write", note)
        return saved

    def test_greedy_layers_above_the_first_count(self, saved):
        assert [x for x in saved("1", schedule="greedy") if len(x) == 3] == [
            *((1, 0, 0), (2, 0, 0), (3, 0, 0), (3, 1, 0), (3, 2, 0), (3, 3, 0)),
            *((3, 3, 1), (3, 3, 2)),
        ]

    def test_every_second_epoch_of_any_layer_and_of_fine_tuning(self, saved):
        done = saved("2", schedule="greedy")
        assert done == [(2, 0, 0), (3, 2, 0), (3, 3, 2), (2,), (4,)]

    def test_refreshes_count(self, saved):
        own = {"epochs": (3, 1, 1), "refresh_epochs": (0, 2, 2), "runtime": "serial"}
        done = [x for x in saved("1", **own) if len(x) == 3]
        assert any(x[1] > 1 for x in done) and any(x[2] > 1 for x in done)
        assert all(sum(b) == sum(a) + 1 for a, b in itertools.pairwise(done))

    def test_by_time(self, saved, monkeypatch):
        now = iter(range(0, 10**6, 20))
        monkeypatch.setattr("syncpretrain.runs.checkpoints.time.monotonic", lambda: next(now))
        done = saved("1s", runtime="serial")
        assert len([x for x in done if len(x) == 3]) == 8
        assert len([x for x in done if len(x) == 1]) == 4

    def test_no_cut_is_made_that_is_not_written(self, saved, monkeypatch):
        made, state = [], Pretraining.state
        monkeypatch.setattr(Pretraining, "state", lambda self: made.append(1) or state(self))
        done = saved("3")
        assert len(made) == len([x for x in done if len(x) == 3])


class TestEventLog:
    EVENT = Notice(1.0, "x" * 100)

    def test_what_the_disk_refuses_waits_for_it(self, tmp_path, monkeypatch):
        reported, path = [], tmp_path / "events.jsonl"
        with EventLog(path, report=reported.append) as log:
            log(self.EVENT)
            whole = log._file

            def write(line):  # the disk has room for half a line
                return whole.write(line[:50]) if len(line) > 50 else full()

            log._file = SimpleNamespace(write=write, seek=whole.seek, truncate=whole.truncate)
            log(self.EVENT)
            log(self.EVENT)
            assert path.read_bytes().count(b"\n") == 1 and path.read_bytes().endswith(b"\n")
            log._file = whole
            log(self.EVENT)
        lines = path.read_bytes().splitlines()
        assert [json.loads(line)["event"] for line in lines] == ["Notice"] * 4
        assert len(reported) == 1 and "No space left on device" in reported[0]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    def test_a_full_disk_does_not_stop_a_run(self, settings, whole, tmp_path, monkeypatch):
        enter = EventLog.__enter__

        def opened(self):
            self._path.symlink_to("/dev/full")
            return enter(self)

        monkeypatch.setattr(EventLog, "__enter__", opened)
        (tmp_path / "run").mkdir()
        report, notices = told_by(train_run, settings, out=tmp_path / "run")
        assert report["parameters_sha256"] == whole
        assert any("lacks the last" in notice for notice in notices)

    def test_it_is_on_the_disk_before_the_pretrained_stack(self, settings, tmp_path, monkeypatch):
        """A lost machine loses the end of a log that was not flushed; a replay needs it."""
        log, pretrained = tmp_path / "run" / EVENTS_NAME, tmp_path / "run" / CHECKPOINTS_NAME
        pretrained /= PRETRAINED_NAME
        fsync, flushed = os.fsync, []

        def note(descriptor):
            if log.exists() and os.path.samestat(os.fstat(descriptor), log.stat()):
                flushed.append((log.read_bytes().count(b"EpochFinished"), pretrained.exists()))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", note)
        train_run(settings, out=tmp_path / "run")
        assert flushed == [(9, False)]

    def test_a_file_that_cannot_be_opened_is_written_once_it_can(self, tmp_path):
        reported, path = [], tmp_path / "missing" / "events.jsonl"
        with EventLog(path, report=reported.append) as log:
            log(self.EVENT)
            path.parent.mkdir()
            log(self.EVENT)
        assert path.read_bytes().count(b"\n") == 2
        assert len(reported) == 1 and "could not be written: No such file" in reported[0]

    @pytest.mark.parametrize("begin", [b'{"event":"RunStarted","layers":[4,3,2]}\n', b""])
    @pytest.mark.parametrize("tail", [b'{"event":"EpochFin', b"\0" * 200_000, b"\xff"])
    def test_half_a_line_is_dropped_when_a_file_is_added_to(self, tmp_path, begin, tail):
        path = tmp_path / "events.jsonl"
        path.write_bytes(begin + tail)
        with EventLog(path, append=True) as log:
            log(self.EVENT)
        written = path.read_bytes()
        assert written.startswith(begin + b'{"event":"Notice"') and b"\0" not in written
        assert written.count(b"\n") == bool(begin) + 1
        assert not begin or read_reads(path) == ((), ())


SMALL_FILES = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from syncpretrain.cli import main
main(sys.argv[2:], prog_name="syncpretrain")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes here")
@pytest.mark.parametrize("limit", [0, 6000])
def test_a_limit_of_file_sizes_ends_in_one_sentence(tmp_path, bits, limit):
    """Checkpoints and model are too large to be written, here and in the temporary folder."""
    np.save(tmp_path / "x.npy", bits)
    train = ["train", "--layers", "16,60,40", "--data", str(tmp_path / "x.npy"), "--epochs", "2"]
    train += ["--batch-size", "40", "--checkpoint-every", "1", "--out", str(tmp_path / "run")]
    # -B: the code of a module that is compiled here would be cut off for all later processes.
    command = [sys.executable, "-B", "-c", SMALL_FILES, str(limit), *train]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == (2 if limit == 0 else 1), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "File too large" in ended.stderr
