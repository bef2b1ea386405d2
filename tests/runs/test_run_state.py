"""The state of a run: the shelf and the report say the same, whatever is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from trialruns import DieAt

from syncpretrain.errors import DivergedError, RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished
from syncpretrain.report.outcome import headline_of
from syncpretrain.runs.folder import LOCK_NAME, owned, owner_of
from syncpretrain.runs.record import read_run as read_record
from syncpretrain.runs.run import train_run
from syncpretrain.runs.shelf import read_run, remove_run, runs_in
from syncpretrain.settings import settings_from


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with a classifier, a run that failed and one that was stopped."""
    folder = tmp_path_factory.mktemp("states")
    X = np.random.default_rng(0).random((60, 6), dtype=np.float32)
    np.savez(folder / "x.npz", X=X, y=np.arange(60) % 2, X_test=X[:20], y_test=np.arange(20) % 2)
    tuned = {"objective": "classification", "epochs": 1, "batch_size": 10}
    data = {"name": str(folder / "x.npz")}
    settings = settings_from((6, 4), data=data, epochs=1, batch_size=10, finetune=tuned)
    train_run(settings, out=folder / "runs" / "whole")
    for name, error in (("failed", DivergedError("diverged")), ("stopped", RunInterrupted("so"))):
        with pytest.raises(type(error)):
            train_run(
                settings, out=folder / "runs" / name, observers=[DieAt(EpochFinished, error=error)]
            )
    return folder / "runs"


@pytest.fixture
def copied(shelf, tmp_path):
    return shutil.copytree(shelf, tmp_path / "runs")


def state_by_both(folder):
    """Return the state and the reason, once the shelf and the report agree."""
    run, record = read_run(folder), read_record(folder)
    assert record.state == (run.state, run.reason)
    return run.state


def test_sound_runs(shelf):
    found = {run.name: state_by_both(shelf / run.name) for run in runs_in(shelf)}
    assert found == {"whole": "finished", "failed": "failed", "stopped": "stopped"}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("metrics.json", None, ""),
        ("metrics.json", "{", "[" * 100_000),
        ("metrics.json", '"layers": [', '"layers": [3, '),
        ("metrics.json", '"accuracy": {', '"accuracy": 3, "other": {'),
        ("metrics.json", '"test": 20', '"test": NaN'),
        ("metrics.json", '"name": ', '"other": '),
        ("config.toml", None, "\0"),
    ],
)
def test_a_damaged_file(copied, name, old, new):
    path = copied / "whole" / name
    text = path.read_text()
    path.write_text(new if old is None else text.replace(old, new, 1))
    assert path.read_text() != text
    assert state_by_both(copied / "whole") == "damaged"
    found = headline_of(read_record(copied / "whole"))
    assert found.kind == "poor"
    assert name in found.reasons[0]
    with owned(copied / "whole", pytest.fail):
        assert state_by_both(copied / "whole") == "running"


@pytest.mark.parametrize(
    ("name", "state"), [("metrics.json", "stopped"), ("config.toml", "damaged")]
)
def test_a_file_that_is_gone_or_a_folder(copied, name, state):
    path = copied / "whole" / name
    path.unlink()
    assert state_by_both(copied / "whole") == state
    path.mkdir()
    assert state_by_both(copied / "whole") == "damaged"


def test_a_folder_in_place_of_the_lock_has_no_owner(copied):
    (copied / "stopped" / LOCK_NAME).mkdir()
    assert owner_of(copied / "stopped") is None
    assert state_by_both(copied / "stopped") == "stopped"


def test_a_closed_folder_is_listed_beside_the_others(copied, monkeypatch):
    def is_file(path, own=Path.is_file):
        if path.parent.name == "failed":
            raise PermissionError(13, "Permission denied")
        return own(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    found = {run.name: (run.state, run.reason) for run in runs_in(copied)}
    assert len(found) == 3
    assert found["failed"] == ("damaged", f"{copied / 'failed'}: Permission denied")
    with pytest.raises(SettingsError, match=r"^run: cannot read .*failed: Permission denied$"):
        remove_run(copied / "failed")


def test_a_run_that_cannot_be_removed_stays(copied, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != copied)
    with pytest.raises(SettingsError, match=f"^run: cannot remove .*: {copied} cannot be written"):
        remove_run(copied / "failed")
    assert state_by_both(copied / "failed") == "failed"


def test_a_run_that_is_named_twice_is_removed_once(copied, call):
    names = (copied / "failed", "failed", copied / "." / "stopped")
    out, _ = call("runs", "--folder", copied, "rm", *names, "--yes")
    assert out.count("removed ") == 2
    assert [path.name for path in copied.iterdir()] == ["whole"]
