"""One run: what is kept when it stops between its stages, and what decides its figures."""

import json
from datetime import datetime
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from trialruns import DieAt

import syncpretrain.runs.folder
import syncpretrain.runs.run as run_module
from syncpretrain.data import load_dataset
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.events import EpochFinished, FinetuneStarted
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.models.stack import load
from syncpretrain.runs.folder import CONFIG_NAME
from syncpretrain.runs.metrics import measure
from syncpretrain.runs.run import train_run
from syncpretrain.settings import read_settings, settings_from


@pytest.fixture
def settings(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((60, 16), dtype=np.float32))
    own, data = {"epochs": 1, "batch_size": 10}, {"name": str(tmp_path / "x.npy")}
    finetune = {"objective": "reconstruction", **own}
    return settings_from((16, 9, 4), data=data, finetune=finetune, **own)


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


def test_the_time_for_a_stall_reaches_both_stages(settings, tmp_path, monkeypatch):
    reported = []

    def record(*arguments, stall_seconds, **options):
        reported.append(stall_seconds)
        return tune(*arguments, stall_seconds=stall_seconds, **options)

    tune, pretraining = Finetuning.run, run_module.driver_for

    def started(*arguments, times, **options):
        reported.append(times.stall)
        return pretraining(*arguments, times=times, **options)

    monkeypatch.setattr(Finetuning, "run", record)
    monkeypatch.setattr(run_module, "driver_for", started)
    own = msgspec.structs.replace(settings.run, stall_timeout=123.0)
    train_run(msgspec.structs.replace(settings, run=own), out=tmp_path / "run")
    assert reported == [123.0, 123.0]


class TestStopped:
    @pytest.mark.parametrize(
        ("kind", "error"),
        [(EpochFinished, OSError("the disk is full")), (FinetuneStarted, MemoryError("no room"))],
    )
    def test_an_error_leaves_the_pretrained_stack(self, settings, tmp_path, kind, error):
        with pytest.raises(type(error), match=str(error)):
            train_run(settings, out=tmp_path / "run", observers=[DieAt(kind, error=error)])
        assert load(tmp_path / "run").widths == (16, 9, 4)
        assert (tmp_path / "run" / "trace.json").is_file()


class TestFolder:
    def test_it_is_looked_at_before_the_data(self, settings, tmp_path, monkeypatch):
        monkeypatch.setattr("syncpretrain.runs.prepare.load_data", interrupted)
        with pytest.raises(SettingsError, match="is not empty"):
            train_run(settings, out=tmp_path)

    def test_it_is_not_made_for_data_that_is_refused(self, settings, tmp_path):
        (tmp_path / "x.npy").write_bytes(b"")
        with pytest.raises(DataError):
            train_run(settings, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_runs_of_one_second_have_folders_of_their_own(self, settings, tmp_path, monkeypatch):
        clock = SimpleNamespace(now=lambda: datetime(2026, 1, 2, 3, 4, 5))
        monkeypatch.setattr(syncpretrain.runs.folder, "datetime", clock)
        monkeypatch.chdir(tmp_path)
        outs = [train_run(settings)["out"] for _ in range(2)]
        assert outs == ["runs/20260102-030405-16-9-4", "runs/20260102-030405-16-9-4-2"]

    def test_its_settings_are_resolved_and_its_numbers_are_json(self, settings, tmp_path):
        report = train_run(settings, out=tmp_path / "run")
        written = read_settings(tmp_path / "run" / CONFIG_NAME)
        assert written.pretrain.blas_threads >= 1
        assert written.data == settings.data
        assert written.finetune == settings.finetune
        text = (tmp_path / "run" / "metrics.json").read_text()
        assert json.loads(text) == report
        json.dumps(report, allow_nan=False)
        files = {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()}
        assert len(files) == 1  # whoever may read one may read all


class TestFigures:
    def test_the_times_add_up(self, settings, tmp_path):
        report = train_run(settings, out=tmp_path / "run")
        seconds = report["seconds"]
        parts = seconds["data"] + seconds["pretrain"] + seconds["finetune"]
        assert 0 < parts <= seconds["total"]
        for row in report["layers"]:
            assert 0 < row["busy_seconds"] <= seconds["pretrain"]

    def test_errors_are_measured_on_the_parts_asked_for(self, settings, tmp_path):
        train_run(settings, out=tmp_path / "run")
        stack = load(tmp_path / "run")
        data = load_dataset(settings.data.name)
        rows = measure(stack, data, layer_parts=("train",))["layers"]
        X = data.train
        for row, layer in zip(rows, stack.layers, strict=True):
            up = 1 / (1 + np.exp(-(X @ layer.weight + layer.hidden_bias)))
            down = 1 / (1 + np.exp(-(up @ layer.decoding + layer.visible_bias)))
            expected = {"train": np.square(X - down).sum(axis=1).mean()}
            assert row["reconstruction_error"] == pytest.approx(expected, rel=1e-4)
            X = up
