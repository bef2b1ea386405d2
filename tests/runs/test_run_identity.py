"""A run goes on only with what it was begun with: data, labels, settings, kernels, reads."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pytest
import tomli_w
from moments import told_by
from trialruns import Abort, DieAt, died

from syncpretrain import load
from syncpretrain.array_files import read_arrays
from syncpretrain.data.dataset import Dataset, record_of
from syncpretrain.errors import CheckpointError, DataError, SettingsError
from syncpretrain.events import EpochFinished, FinetuneEpochFinished, Notice, RunStarted
from syncpretrain.observers.event_log import read_reads
from syncpretrain.runs import identity
from syncpretrain.runs.checkpoints import CHECKPOINTS_NAME, PRETRAINED_NAME
from syncpretrain.runs.folder import CONFIG_NAME, EVENTS_NAME, IDENTITY_NAME, LOCK_NAME, owned
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import settings_from, write_settings

LAYERS = (16, 10, 6, 4)


def saved_data(folder, X, y=None):
    path = folder / "data.npz"
    np.savez(path, X=X) if y is None else np.savez(path, X=X, y=y)
    return str(path)


def settings_of(folder, bits, y=None, *, objective="reconstruction", **changed):
    usual = {"blas_threads": 1, "epochs": 3, "batch_size": 40, "seed": 3}
    usual |= {"data": {"name": saved_data(folder, bits, y), "validation": 0.0}}
    usual |= {"finetune": {"objective": objective, "epochs": 3, "batch_size": 40}}
    return settings_from(LAYERS, **usual | {"run": {"checkpoint_every": "1"}} | changed)


def labels_for(bits):
    return (bits[:, 0] > 0.5).astype(np.int64)


def with_others(bits, *at):
    changed = bits.copy()
    changed[at] = 1 - changed[at]
    return changed


@pytest.fixture
def folder(tmp_path, bits):
    """The folder of a run that died."""
    return died(settings_of(tmp_path, bits), tmp_path / "run")


class TestData:
    CHANGES: ClassVar = {
        "one value": lambda bits, y: (with_others(bits, 101, 3), y),
        "most rows": lambda bits, y: (with_others(bits, slice(40, None)), y),
        "labels": lambda bits, y: (bits, 1 - y),
        "fewer rows than a minibatch": lambda bits, y: (bits[:30], y[:30]),
    }

    def test_a_run_of_a_version_that_kept_no_meaning_names_it(self, tmp_path, bits):
        settings = settings_of(tmp_path, bits, labels_for(bits), objective="classification")
        folder = died(settings, tmp_path / "run", EpochFinished, 6)
        path = folder / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "meaning": None}))
        saved_data(tmp_path, 1 - bits, labels_for(bits))
        with pytest.raises(SettingsError, match="resume with the version that began the run"):
            resume_run(folder)

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("kind", [EpochFinished, FinetuneEpochFinished])
    def test_changed_data_is_refused_with_both_sides(self, tmp_path, bits, kind, change):
        settings = settings_of(tmp_path, bits, labels_for(bits), objective="classification")
        n = 6 if kind is EpochFinished else 2
        folder = died(settings, tmp_path / "run", kind, n)
        before = sorted(path.name for path in folder.rglob("*"))
        saved_data(tmp_path, *self.CHANGES[change](bits, labels_for(bits)))
        message = r"its data was the 200 examples .*is now"
        with pytest.raises(SettingsError, match=message) as caught:
            resume_run(folder)
        digests = [w for w in str(caught.value).replace(")", " ").split() if len(w) == 12]
        assert len(set(digests)) == 2, "both sides are named"
        assert sorted(path.name for path in folder.rglob("*")) == before, "nothing is touched"
        saved_data(tmp_path, bits, labels_for(bits))
        whole = train_run(settings, out=tmp_path / "whole")
        assert resume_run(folder)["parameters_sha256"] == whole["parameters_sha256"], "put back"

    @pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
    def test_data_of_another_width_is_told_by_its_width(self, tmp_path, bits, handoff):
        folder = died(settings_of(tmp_path, bits, handoff=handoff), tmp_path / "run")
        saved_data(tmp_path, bits[:, :15])
        message = (
            r"resume: the run in .*run was begun with examples of 16 values, and .*data\.npz now"
            r" has 15; put the file back that it was begun with, or correct name under \[data\] in "
        )
        with pytest.raises(SettingsError, match=message):
            resume_run(folder)

    def test_the_hash_is_of_all_values_and_labels(self, bits):
        y = labels_for(bits)
        parts = (bits[:100], bits[100:150], bits[150:])

        def digest(parts=parts, train_labels=y[:100], **others):
            data = Dataset("x", "here", *parts, train_labels=train_labels, **others)
            return record_of(data).sha256

        other = with_others(bits[150:], -1, -1)
        found = {
            digest(),
            digest(train_labels=None),
            digest(train_labels=1 - y[:100]),
            digest(test_labels=y[150:]),
            digest((bits[:100], bits[100:150], other)),
            digest((bits[:100], bits[100:160], bits[160:])),
            digest((bits[:100].reshape(50, 32), bits[100:150], bits[150:])),
        }
        assert len(found) == 7
        assert digest() == digest()

    def test_left_out_labels_do_not_change_it(self, bits):
        data = Dataset("x", "here", bits[:100], bits[100:150], bits[150:], labels_for(bits)[:100])
        assert data.with_labels(10).sha256 == data.sha256

    def test_moved_data_is_found_where_the_settings_say(self, folder, tmp_path, bits):
        (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
        with pytest.raises(DataError, match=r"correct name under \[data\] in .*config\.toml"):
            resume_run(folder)
        config = (folder / CONFIG_NAME).read_text()
        (folder / CONFIG_NAME).write_text(config.replace("data.npz", "moved.npz"))
        whole = train_run(settings_of(tmp_path, bits), out=tmp_path / "whole")
        assert resume_run(folder)["parameters_sha256"] == whole["parameters_sha256"]


def change_settings(folder, section, **values):
    config = msgspec.toml.decode((folder / CONFIG_NAME).read_text())
    config[section] |= values
    (folder / CONFIG_NAME).write_text(tomli_w.dumps(config))


class TestSettings:
    def test_a_changed_setting_is_refused_and_named(self, folder):
        change_settings(folder, "pretrain", epochs=[6, 6, 6])
        with pytest.raises(SettingsError, match=r"pretrain\.epochs \[3, 3, 3\].*\[6, 6, 6\]"):
            resume_run(folder)

    def test_how_it_keeps_itself_safe_may_change(self, folder, tmp_path, bits):
        change_settings(folder, "run", keep=5, checkpoint_every="2")
        whole = train_run(settings_of(tmp_path, bits), out=tmp_path / "whole")
        assert resume_run(folder)["parameters_sha256"] == whole["parameters_sha256"]

    @pytest.mark.parametrize(
        ("elsewhere", "reported"),
        [
            ({"runtime": "bogus"}, "runtime: got 'bogus', expected threads or"),
            ({"workers": 0}, "workers: got 0"),
            ({"backend": "abacus"}, "backend: got 'abacus'"),
            ({"seed": 4}, "seed: got a value for a run that goes on"),
        ],
    )
    def test_wrong_arguments_are_refused(self, folder, elsewhere, reported):
        with pytest.raises(SettingsError, match=reported):
            resume_run(folder, **elsewhere)
        assert not (folder / LOCK_NAME).exists()


class TestKernels:
    def test_another_kind_is_refused_unless_it_is_accepted(self, folder, monkeypatch):
        kinds = ["compiled", "numpy"] if identity.available() else ["numpy", "compiled"]
        monkeypatch.setattr(identity, "available", lambda: kinds[0] == "numpy")
        reported = f"its kernels was {kinds[0]}, and is now {kinds[1]}"
        with pytest.raises(SettingsError, match=f"{reported}.*--inexact"):
            resume_run(folder)
        report, notices = told_by(resume_run, folder, inexact=True)
        assert report["parameters_sha256"]
        assert any("its last bits differ" in notice for notice in notices)

    def test_another_blas_is_told(self, folder, monkeypatch):
        monkeypatch.setattr(identity, "_arithmetic", lambda: {"numpy": "0.1", "blas": "other"})
        _, notices = told_by(resume_run, folder)
        assert any("now 0.1" in notice and "may differ" in notice for notice in notices)

    @pytest.mark.parametrize(
        ("was", "now", "remedy"),
        [
            ("pairs", "tiles", "; SYNCPRETRAIN_BFLOAT16=pairs keeps the former sums"),
            ("tiles", "pairs", "; SYNCPRETRAIN_BFLOAT16=tiles keeps the former sums"),
            ("numpy", "pairs", "was not stopped"),
            ("pairs", "numpy", "was not stopped"),
        ],
    )
    def test_another_order_of_sums_is_told(self, tmp_path, bits, monkeypatch, was, now, remedy):
        monkeypatch.setattr(identity, "bfloat16_order", lambda: was)
        folder = died(settings_of(tmp_path, bits, precision="bfloat16"), tmp_path / "run")
        again = tmp_path / "again"
        shutil.copytree(folder, again)
        _, notices = told_by(resume_run, folder)
        assert not any("may differ" in notice for notice in notices), "it is the same"
        monkeypatch.setattr(identity, "bfloat16_order", lambda: now)
        _, notices = told_by(resume_run, again)
        (notice,) = (notice for notice in notices if "may differ" in notice)
        assert f"begun with bfloat16 sums by {was}, now by {now}: its last bits" in notice
        assert notice.endswith(remedy)

    def test_runs_of_float32_have_no_order_of_sums_of_bfloat16(self, tmp_path, bits):
        data = Dataset("x", "here", bits, bits[:0], bits[:0])
        exact = settings_of(tmp_path, bits)
        finetune = msgspec.structs.replace(exact.finetune, precision="bfloat16")
        tuned = msgspec.structs.replace(exact, finetune=finetune)
        assert set(identity.identity_of(exact, data).arithmetic) == {"numpy", "blas"}
        found = identity.identity_of(tuned, data).arithmetic["bfloat16 sums"]
        assert found == f"by {identity.bfloat16_order()}"


class TestReplay:
    FREE: ClassVar = {"pace": "free", "epochs": (6, 4, 3), "refresh_epochs": (0, 1, 1)}
    READS = ((0, 0, 0, 0, 0, 0), (2, 2, 4, 5), (1, 3, 4))

    @pytest.fixture
    def settings(self, tmp_path, bits):
        return settings_of(tmp_path, bits, **self.FREE)

    @pytest.fixture
    def whole(self, settings, tmp_path):
        report = train_run(settings, out=tmp_path / "whole", replay=self.READS)
        return report["parameters_sha256"]

    @pytest.mark.parametrize("n", [1, 3, 5, 8, 11])
    def test_a_resumed_replay_is_still_one(self, settings, whole, tmp_path, n):
        folder = died(settings, tmp_path / "run", n=n, replay=self.READS)
        assert resume_run(folder, workers=3)["parameters_sha256"] == whole
        assert read_reads(folder / EVENTS_NAME) == self.READS

    def test_it_goes_on_as_one_without_any_checkpoint(self, settings, whole, tmp_path):
        folder = died(settings, tmp_path / "run", n=5, replay=self.READS)
        shutil.rmtree(folder / CHECKPOINTS_NAME)
        assert resume_run(folder)["parameters_sha256"] == whole

    @pytest.mark.parametrize("kind", [EpochFinished, FinetuneEpochFinished])
    def test_it_goes_on_as_one_without_run_json(self, settings, whole, tmp_path, kind):
        """Its checkpoints know it as well."""
        folder = died(settings, tmp_path / "run", kind, 3, replay=self.READS)
        written = (folder / IDENTITY_NAME).read_bytes()
        (folder / IDENTITY_NAME).unlink()
        with pytest.raises(Abort):
            resume_run(folder, observers=[DieAt(Notice, 1)])
        assert (folder / IDENTITY_NAME).read_bytes() == written
        assert resume_run(folder)["parameters_sha256"] == whole

    @pytest.mark.parametrize("finish", ["drain", "first-layer"])
    @pytest.mark.parametrize("n", [2, 5, 7, 9, 12])
    def test_a_killed_and_resumed_free_run_repeats_from_its_log(self, tmp_path, bits, finish, n):
        """What the dead run reported of epochs after its checkpoint is void."""
        own = self.FREE | {"finish": finish, "run": {"checkpoint_every": "2"}}
        settings = settings_of(tmp_path, bits, **own)
        folder = died(settings, tmp_path / "run", n=n)
        report = resume_run(folder)
        again = train_run(settings, out=tmp_path / "again", replay=read_reads(folder / EVENTS_NAME))
        assert again["parameters_sha256"] == report["parameters_sha256"]

    def test_the_log_of_a_resumed_run_needs_no_line_from_before(self, settings, tmp_path):
        """A machine that dies loses lines that were not on its disk yet."""
        folder = died(settings, tmp_path / "run", n=7)
        log = folder / EVENTS_NAME
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:-4]) + lines[-4][:20])
        report = resume_run(folder)
        again = train_run(settings, out=tmp_path / "again", replay=read_reads(log))
        assert again["parameters_sha256"] == report["parameters_sha256"]

    def test_a_restarted_run_tells_what_it_has_behind_it(self, tmp_path, bits):
        events = []
        folder = died(settings_of(tmp_path, bits), tmp_path / "run", n=5)
        resume_run(folder, observers=[events.append])
        started = next(event for event in events if isinstance(event, RunStarted))
        assert sum(map(len, started.past_reads)) >= 3


class TestFiles:
    def test_every_checkpoint_and_the_pretrained_stack_tell_their_run(self, tmp_path, bits):
        folder = died(settings_of(tmp_path, bits), tmp_path / "run", FinetuneEpochFinished, 3)
        written = json.loads((folder / IDENTITY_NAME).read_text())
        assert written["data"]["train"] == 200
        assert written["settings"]["pretrain"]["epochs"] == [3, 3, 3]
        states = list((folder / CHECKPOINTS_NAME).glob("finetune-*"))
        assert len(states) == 2
        for path in states:
            assert read_arrays(path)[0]["run"] == written
        assert load(folder / CHECKPOINTS_NAME / PRETRAINED_NAME).info["run"] == written

    def test_a_pretrained_stack_of_another_run_is_not_used(self, tmp_path, bits):
        settings = settings_of(tmp_path, bits)
        others = settings_of(tmp_path, bits, seed=8)
        folder, other = (
            died(own, tmp_path / name, FinetuneEpochFinished, 1)
            for name, own in (("run", settings), ("other", others))
        )
        name = Path(CHECKPOINTS_NAME) / PRETRAINED_NAME
        shutil.copy(other / name, folder / name)
        for path in (folder / CHECKPOINTS_NAME).glob("finetune-*"):
            path.unlink()
        whole = train_run(settings, out=tmp_path / "whole")
        report, notices = told_by(resume_run, folder)
        assert report["parameters_sha256"] == whole["parameters_sha256"]
        assert any("pretrain.seed 8" in notice and "repeated" in notice for notice in notices)

    def test_a_pretrained_stack_of_no_run_is_not_used(self, tmp_path, bits):
        settings = settings_of(tmp_path, bits)
        folder = died(settings, tmp_path / "run", FinetuneEpochFinished, 1)
        path = folder / CHECKPOINTS_NAME / PRETRAINED_NAME
        stack = load(path)
        info = {name: value for name, value in stack.info.items() if name != "run"}
        replace(stack, info=info).save(path)
        (folder / IDENTITY_NAME).unlink()
        whole = train_run(settings, out=tmp_path / "whole")
        assert resume_run(folder)["parameters_sha256"] == whole["parameters_sha256"]

    def test_the_model_remembers_its_data(self, tmp_path, bits):
        train_run(settings_of(tmp_path, bits), out=tmp_path / "run")
        stack = load(tmp_path / "run")
        assert stack.info["data"]["train"] == 200
        assert "run" not in stack.info

    @pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff"])
    def test_a_damaged_identity_is_refused(self, folder, content):
        (folder / IDENTITY_NAME).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"run\.json: cannot be read"):
            resume_run(folder)

    @pytest.mark.parametrize("kind", [EpochFinished, FinetuneEpochFinished])
    def test_other_data_is_refused_also_without_run_json(self, tmp_path, bits, kind):
        folder = died(settings_of(tmp_path, bits), tmp_path / "run", kind, 3)
        (folder / IDENTITY_NAME).unlink()
        saved_data(tmp_path, 1 - bits)
        with pytest.raises(SettingsError, match=r"its data was .*, and is now "):
            resume_run(folder)
        saved_data(tmp_path, bits)
        assert resume_run(folder)["seed"] == 3

    def test_settings_alone_are_no_run(self, tmp_path, bits):
        """As in the folder of a comparison."""
        folder = tmp_path / "compared"
        folder.mkdir()
        write_settings(settings_of(tmp_path, bits), folder / CONFIG_NAME)
        with pytest.raises(SettingsError, match=r"with run\.json in it; .* take --config"):
            resume_run(folder)


class TestOwner:
    def test_a_run_owns_its_folder_from_its_first_event_to_its_last(self, tmp_path, bits):
        refused = []

        def second(event):
            if isinstance(event, (RunStarted, FinetuneEpochFinished)):
                message = rf"is at work in process {os.getpid()} on "
                with pytest.raises(SettingsError, match=message):
                    resume_run(tmp_path / "run")
                refused.append(event)

        train_run(settings_of(tmp_path, bits), out=tmp_path / "run", observers=[second])
        assert len(refused) == 4

    def test_the_file_of_a_killed_owner_is_taken_over(self, folder):
        (folder / LOCK_NAME).write_text("process 1 on somewhere\n")
        resume_run(folder)
        assert not (folder / LOCK_NAME).exists()

    def test_a_file_system_without_locks_is_told(self, tmp_path, monkeypatch):
        def refuse(*arguments):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("syncpretrain.runs.folder.fcntl.flock", refuse)
        reported = []
        with owned(tmp_path, reported.append):
            assert (tmp_path / LOCK_NAME).is_file()
        assert "cannot be locked (No locks available)" in reported[0]
