"""The shelf of runs: states, as reports have them, names, damage, removal, and the model card."""

import fcntl
import json
import os
import re
import shutil
import socket
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commandline import exit_status
from doccommands import words_of
from folders import names_in
from trialruns import Abort, DieAt, settings_on

import syncpretrain
from syncpretrain.cli.runs import STATE_NAMES
from syncpretrain.errors import DivergedError, RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished
from syncpretrain.report.outcome import headline_of
from syncpretrain.runs.folder import LOCK_NAME, owned, owner_of
from syncpretrain.runs.record import read_run as read_record
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.runs.shelf import check_run, read_run, remove_run, runs_in
from syncpretrain.settings import settings_from

WRONG_TEXTS = ("", "{", "[]", '{"seconds": 3}', "\0", "\0\xff", "[" * 9999)
DEAD = 2**22 + 1  # above the highest process number of Linux


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with a finished run, a classifier, one that failed, one stopped and one killed."""
    folder = tmp_path_factory.mktemp("shelf")
    rng = np.random.default_rng(0)
    X = rng.random((60, 6), dtype=np.float32)
    np.savez(folder / "x.npz", X=X, y=np.arange(60) % 2, X_test=X[:20], y_test=np.arange(20) % 2)
    data = {"name": str(folder / "x.npz")}
    plain = settings_from((6, 4), data=data, epochs=2, batch_size=10)
    tuned = {"objective": "classification", "epochs": 1, "batch_size": 10}
    classifier = settings_from((6, 4, 3), data=data, epochs=1, batch_size=10, finetune=tuned)
    runs = folder / "runs"
    train_run(plain, out=runs / "20260102-030405-6-4")
    train_run(classifier, out=runs / "classifier")
    for name, error in (
        ("failed", DivergedError("layer 1 diverged")),
        ("stopped", RunInterrupted("the run was stopped")),
        ("killed", Abort()),
    ):
        with pytest.raises(type(error)):
            train_run(plain, out=runs / name, observers=[DieAt(EpochFinished, error=error)])
    log = runs / "killed" / "events.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # it gives no reason
    (runs / "notes").mkdir()
    (runs / "notes" / "config.toml").write_text("no run")
    (runs / "a-file").write_text("")
    return runs


@pytest.fixture
def copied(shelf, tmp_path):
    shutil.copytree(shelf, tmp_path / "runs")
    return tmp_path / "runs"


def state_of(folder):
    """Return the state of a run, of which the shelf and the report say the same."""
    run = read_run(folder)
    assert read_record(folder).state == (run.state, run.reason)
    return run.state


def states(folder):
    return {run.name: state_of(folder / run.name) for run in runs_in(folder)}


class TestStates:
    def test_each_run_and_nothing_else(self, shelf):
        assert states(shelf) == {
            "20260102-030405-6-4": "finished",
            "classifier": "finished",
            "failed": "failed",
            "stopped": "stopped",
            "killed": "stopped",
        }

    def test_the_figures_of_a_finished_run(self, shelf):
        run = read_run(shelf / "20260102-030405-6-4")
        metrics = json.loads((shelf / run.name / "metrics.json").read_text())
        assert run.when == "2026-01-02T03:04:05"
        assert (run.layers, run.schedule, run.objective) == ("6-4", "synchronized", "none")
        assert run.test == metrics["reconstruction_error"]["test"]
        assert run.validation == metrics["reconstruction_error"]["validation"]
        assert run.seconds == metrics["seconds"]["total"]

    def test_the_error_of_a_classifier_is_the_share_of_wrong_classes(self, shelf):
        run = read_run(shelf / "classifier")
        metrics = json.loads((shelf / "classifier" / "metrics.json").read_text())
        assert run.test == 1 - metrics["accuracy"]["test"]

    def test_the_reason_and_the_seconds_of_what_ended_early(self, shelf):
        failed = read_run(shelf / "failed")
        assert failed.reason.startswith("layer 1 diverged")
        assert failed.seconds > 0
        assert read_run(shelf / "stopped").reason.startswith("the run was stopped")
        assert read_run(shelf / "killed").reason.startswith("its process left no reason")

    def test_a_resumed_run_is_finished(self, copied):
        resume_run(copied / "stopped")
        assert states(copied)["stopped"] == "finished"

    def test_a_run_at_work(self, copied):
        with owned(copied / "killed", pytest.fail):
            run = read_run(copied / "killed")
            assert (run.state, run.reason) == ("running", owner_of(copied / "killed"))
            assert f"process {os.getpid()}" in run.reason
            with pytest.raises(SettingsError, match="at work"):
                remove_run(copied / "killed")
        assert state_of(copied / "killed") == "stopped"

    def test_the_lock_of_a_dead_owner_counts_for_nothing(self, copied):
        lock = copied / "killed" / LOCK_NAME
        lock.write_text(f"process {DEAD} on {socket.gethostname()}\n")
        assert owner_of(copied / "killed") is None
        lock.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")  # used again
        assert owner_of(copied / "killed") is None
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert owner_of(copied / "killed") is not None

    def test_a_folder_in_place_of_the_lock_has_no_owner(self, copied):
        (copied / "stopped" / LOCK_NAME).mkdir()
        assert owner_of(copied / "stopped") is None
        assert state_of(copied / "stopped") == "stopped"

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            *product(("metrics.json", "config.toml"), [None], WRONG_TEXTS),
            ("metrics.json", "{", "[" * 100_000),
            ("metrics.json", '"layers": [', '"layers": [3, '),
            ("metrics.json", '"accuracy": {', '"accuracy": 3, "other": {'),
            ("metrics.json", '"test": 20', '"test": NaN'),
            ("metrics.json", '"name": ', '"other": '),
        ],
    )
    def test_a_damaged_run_has_a_reason(self, copied, name, old, new):
        run = copied / "classifier"
        text = (run / name).read_text()
        damaged = new if old is None else text.replace(old, new, 1)
        assert damaged != text
        (run / name).write_bytes(damaged.encode("latin-1"))
        assert state_of(run) == "damaged"
        assert name in read_run(run).reason
        found = headline_of(read_record(run))
        assert found.kind == "poor"
        assert name in found.reasons[0]
        assert len(runs_in(copied)) == 5
        with owned(run, pytest.fail):
            assert state_of(run) == "running"

    @pytest.mark.parametrize(
        ("name", "state"), [("metrics.json", "stopped"), ("config.toml", "damaged")]
    )
    def test_a_file_that_is_gone_or_a_folder(self, copied, name, state):
        path = copied / "classifier" / name
        path.unlink()
        assert state_of(copied / "classifier") == state
        path.mkdir()
        assert state_of(copied / "classifier") == "damaged"

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"event": 1}', "\0" * 99])
    def test_damaged_events_only_cost_the_reason(self, copied, text):
        (copied / "failed" / "events.jsonl").write_text(text)
        run = read_run(copied / "failed")
        assert (run.state, run.seconds) == ("stopped", None)

    def test_a_closed_folder_is_listed_beside_the_others(self, copied, monkeypatch):
        def is_file(path, own=Path.is_file):
            if path.parent.name == "failed":
                raise PermissionError(13, "Permission denied")
            return own(path)

        monkeypatch.setattr(Path, "is_file", is_file)
        found = {run.name: (run.state, run.reason) for run in runs_in(copied)}
        assert len(found) == 5
        assert found["failed"] == ("damaged", f"{copied / 'failed'}: Permission denied")
        with pytest.raises(SettingsError, match=r"^run: cannot read .*failed: Permission denied$"):
            remove_run(copied / "failed")


class TestRemoval:
    def test_all_of_it_is_removed_and_nothing_else(self, copied):
        remove_run(copied / "failed")
        left = ["20260102-030405-6-4", "a-file", "classifier", "killed", "notes", "stopped"]
        assert names_in(copied) == left

    def test_a_run_that_cannot_be_removed_stays(self, copied, monkeypatch):
        monkeypatch.setattr("os.access", lambda path, mode: Path(path) != copied)
        message = f"^run: cannot remove .*: {copied} cannot be written"
        with pytest.raises(SettingsError, match=message):
            remove_run(copied / "failed")
        assert state_of(copied / "failed") == "failed"

    @pytest.mark.parametrize("name", ["notes", "a-file", "nowhere", ".", "..", "other people's"])
    def test_what_is_no_run_stays(self, copied, name):
        (copied / "other people's").mkdir()
        (copied / "other people's" / "run.json").write_text('{"scripts": {}}')
        before = sorted(copied.rglob("*"))
        with pytest.raises(SettingsError, match="expected the folder of a run"):
            remove_run(copied / name)
        assert sorted(copied.rglob("*")) == before

    def test_a_link_to_a_run_is_refused(self, copied):
        (copied / "link").symlink_to(copied / "failed")
        with pytest.raises(SettingsError, match="a link"):
            remove_run(copied / "link")
        assert check_run(copied / "failed").state == "failed"


class TestCommands:
    def test_the_table(self, call, shelf):
        out, _ = call("runs", "--folder", shelf)
        rows = {row.split()[2]: row for row in out.splitlines() if row[:3] == " 20"}
        assert rows["failed"].split()[3:7] == ["6-4", "synchronized", "x.npz", "failed"]
        assert "%" in rows["classifier"]
        assert "failed: failed: layer 1 diverged" in out

    def test_sorted_and_filtered(self, call, shelf):
        def names(*options):
            out, _ = call("runs", "--folder", shelf, "--json", *options)
            return [run["name"] for run in json.loads(out)["runs"]]

        finished = ["20260102-030405-6-4", "classifier"]
        assert names()[-1] == finished[0]  # the oldest
        assert sorted(names("--state", "finished")) == finished
        ended_early = {"failed", "killed", "stopped"}
        assert set(names("--state", "failed", "--state", "stopped")) == ended_early
        assert names("--sort", "name") == sorted(names())
        assert names("--sort", "name", "--reverse") == sorted(names(), reverse=True)
        by_error = names("--sort", "test")
        assert set(by_error[:2]) == set(finished), "those without an error come last"
        assert names("--schedule", "greedy") == names("--data", "other.npz") == []
        assert len(names("--data", "x.npz", "--schedule", "synch")) == 5

    def test_the_states_to_filter_by_are_all(self, copied):
        (copied / "classifier" / "config.toml").unlink()
        with owned(copied / "killed", pytest.fail):
            assert set(states(copied).values()) == set(STATE_NAMES)

    def test_a_folder_without_runs(self, call, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        out, _ = call("runs")
        assert out == "no runs in runs that are asked for\n"
        _, err = call("runs", "--folder", "nowhere", status=2)
        assert err.startswith("Error: folder: cannot read nowhere: ") or "--folder" in err

    def test_show(self, call, shelf):
        out, _ = call("runs", "--folder", shelf, "show", "classifier")
        assert out.splitlines()[0] == f"{shelf / 'classifier'}: finished"
        assert "classifier, wrong:" in out
        assert "model.safetensors (" in out
        out, _ = call("runs", "show", shelf / "failed")
        assert f"settings: syncpretrain train --config {shelf / 'failed/config.toml'} ..." in out
        assert f"resume it: syncpretrain train --resume {shelf / 'failed'}" in out
        shown = json.loads(call("runs", "show", shelf / "classifier", "--json")[0])
        assert shown["metrics"]["accuracy"]["test"] == 1 - shown["test"]

    def test_show_of_figures_of_another_version(self, call, copied):
        path = copied / "classifier" / "metrics.json"
        old = {"reconstruction_error": {"test": 1.0}, "seconds": {"total": 2.0}}
        path.write_text(json.dumps(old))
        out, _ = call("runs", "show", copied / "classifier")
        assert "cannot be shown: metrics.json lacks 'data'" in out
        assert read_run(copied / "classifier").test == 1.0

    def test_rm_asks_first(self, copied, monkeypatch, capsys):
        arguments = ("runs", "--folder", copied, "rm", "failed", copied / "killed")
        assert exit_status(*arguments) == 1  # nobody answers
        assert len(runs_in(copied)) == 5
        assert exit_status(*arguments, "--yes") == 0
        assert len(runs_in(copied)) == 3
        assert "removed" in capsys.readouterr().out

    def test_rm_removes_a_run_that_is_named_twice_once(self, copied, call):
        names = (copied / "failed", "failed", copied / "." / "stopped")
        out, _ = call("runs", "--folder", copied, "rm", *names, "--yes")
        assert out.count("removed ") == 2
        assert states(copied).keys() == {"20260102-030405-6-4", "classifier", "killed"}

    def test_rm_removes_none_if_one_is_no_run(self, call, copied):
        _, err = call("runs", "--folder", copied, "rm", "failed", "notes", "--yes", status=2)
        assert "notes, expected the folder of a run" in err
        assert len(runs_in(copied)) == 5

    def test_rm_spares_a_run_at_work(self, call, copied):
        with owned(copied / "failed", pytest.fail):
            _, err = call("runs", "--folder", copied, "rm", "failed", "--yes", status=2)
        assert "is at work in process" in err
        assert check_run(copied / "failed").state == "failed"


class TestCard:
    def test_it_has_figures_and_a_way_to_repeat_the_run(self, call, shelf, tmp_path, monkeypatch):
        folder = shelf / "classifier"
        card = (folder / "README.md").read_text()
        metrics = json.loads((folder / "metrics.json").read_text())
        wrong = 100 * (1 - metrics["accuracy"]["test"])
        assert "| wrong classes, % | " in card
        assert f" {wrong:.4g} |" in card
        assert metrics["parameters_sha256"] in card
        command = re.search(r"```shell\n(.*)\n```", card)[1]
        monkeypatch.chdir(tmp_path)
        report = json.loads(call(*words_of(command)[1:], "--out", "again", "--json")[0])
        assert report["parameters_sha256"] == metrics["parameters_sha256"]

    def test_the_use_that_it_shows_works(self, shelf):
        code = re.search(r"```python\n(.*?)```", (shelf / "classifier/README.md").read_text(), re.S)
        scope = {"X": np.zeros((2, 6), np.float32), "load": syncpretrain.load}
        line = code[1].splitlines()[-1].removeprefix("result = ")
        name, method = re.fullmatch(r'load\("(.*)"\)\.(\w+)\(X\)', line).groups()
        assert len(getattr(scope["load"](name), method)(scope["X"])) == 2

    def test_a_fine_tuned_run_names_its_command_and_its_start(self, call, shelf, tmp_path):
        out = tmp_path / "tuned"
        start = shelf / "20260102-030405-6-4"
        arguments = ["finetune", start, "--data", shelf.parent / "x.npz", "--out", out]
        call(*arguments, "--finetune-batch-size", 10, "--finetune-epochs", 1, "--quiet")
        card = (out / "README.md").read_text()
        assert f"syncpretrain finetune {start} --data " in card
        assert syncpretrain.load(start).parameters_sha256 in card


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a [name] & <b>", "a [name] & <b>"),
        ("[bold]x", "[bold]x"),
        ("new\nline", "new\\nline"),
        ("red\x1b[31m", "red\\x1b[31m"),
        ("日本 é", "日本 é"),
    ],
)
def test_a_name_stands_in_one_line(call, tmp_path, bits, name, shown):
    settings = settings_on(tmp_path, bits, (16, 4), epochs=1, finetune={})
    train_run(settings, out=tmp_path / "runs" / name)
    out, _ = call("runs", "--folder", tmp_path / "runs")
    row = out.splitlines()[2]
    assert f"  {shown}  " in row
    assert "finished" in row
    (tmp_path / "runs" / name / "metrics.json").write_text("[]")
    out, _ = call("runs", "--folder", tmp_path / "runs")
    assert f"\n{shown}: damaged: " in out


def test_a_name_of_a_file_of_data_stands_in_one_line(call, tmp_path, bits):
    settings = settings_on(tmp_path, bits, (16, 4), epochs=1, finetune={})
    train_run(settings, out=tmp_path / "runs" / "one")
    config = tmp_path / "runs" / "one" / "config.toml"
    name = settings.data.name
    config.write_text(config.read_text().replace(name, name.replace("bits", "red\\u001b[31m")))
    out, _ = call("runs", "--folder", tmp_path / "runs")
    assert "  red\\x1b[31m" in out
