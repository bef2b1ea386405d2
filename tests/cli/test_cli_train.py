"""``syncpretrain train``: what it prints and writes, and that runs are repeated bit for bit."""

import json
import re

import pytest

import syncpretrain
from syncpretrain.cli.output import print_errors, print_run
from syncpretrain.settings import read_settings

pytestmark = pytest.mark.usefixtures("folder_with_examples")
KEYS = (
    *("schedule", "pace", "handoff", "delay", "runtime", "backend"),
    *("workers", "seed", "data", "layers"),
    *("reconstruction_error", "mean_error", "accuracy", "majority", "verdict"),
    *("seconds", "parameters_sha256", "out"),
)
ROW = ["busy_seconds", "epochs", "hidden", "idle_seconds", "layer"]
ROW += ["mean_error", "reconstruction_error", "shape", "visible"]
FILES = [
    *("README.md", "config.toml", "events.jsonl", "metrics.json", "model.safetensors"),
    *("run.json", "trace.json"),
]


@pytest.fixture
def train_json(call):
    def train(*options):
        out, _ = call("train", *options, "--json")
        assert out.count("\n") == 1
        return json.loads(out)

    return train


SMALL = ("--data", "x.npy", "--layers", "16,9,4", "--epochs", 2, "--batch-size", 10)
TUNED = (*SMALL, "--finetune", "reconstruction", "--finetune-epochs", 1)
TUNED += ("--finetune-batch-size", 10)


class TestOutput:
    def test_json_is_one_object_and_progress_goes_to_stderr(self, call, tmp_path):
        out, err = call("train", *TUNED, "--out", "run", "--json", "--seed", 3)
        report = json.loads(out)
        assert tuple(report) == KEYS
        parts = ["train", "validation", "test"]
        assert list(report["data"]) == ["name", "source", *parts, "sha256"]
        assert (report["data"]["train"], report["data"]["validation"]) == (54, 6)
        assert [sorted(row) for row in report["layers"]] == [ROW] * 2
        assert [(row["visible"], row["hidden"]) for row in report["layers"]] == [(16, 9), (9, 4)]
        assert list(report["layers"][0]["reconstruction_error"]) == ["train", "validation"]
        assert list(report["reconstruction_error"]) == ["train", "validation", "test"]
        assert report["reconstruction_error"]["test"] is None
        assert list(report["seconds"]) == ["data", "pretrain", "finetune", "total"]
        assert (report["seed"], report["accuracy"], report["out"]) == (3, None, "run")
        assert re.fullmatch("[0-9a-f]{64}", report["parameters_sha256"])
        for line in ("data: x.npy, ", "run folder: run", "layer 1  epoch 1/2 ", "fine-tuning  e"):
            assert f"\n{line}" in f"\n{err}"

    def test_the_run_folder(self, tmp_path, train_json):
        report = train_json(*TUNED, "--out", "deep/down/run", "--quiet")
        run = tmp_path / "deep" / "down" / "run"
        assert sorted(path.name for path in run.iterdir()) == FILES
        assert json.loads((run / "metrics.json").read_text()) == report
        stack = syncpretrain.load(run)
        assert stack.parameters_sha256 == report["parameters_sha256"]
        assert stack.widths == (16, 9, 4)
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        names = {event["event"] for event in events}
        assert {"RunStarted", "EpochFinished", "FinetuneEpochFinished"} <= names
        assert json.loads((run / "trace.json").read_text())["traceEvents"]

    def test_without_out_every_run_gets_its_own_folder(self, tmp_path, train_json):
        outs = [train_json(*SMALL, "--quiet")["out"] for _ in range(3)]
        assert len(set(outs)) == 3
        for out in outs:
            assert re.match(r"runs/\d{8}-\d{6}-16-9-4(-\d+)?$", out)
            assert (tmp_path / out / "model.safetensors").is_file()

    def test_the_table_begins_with_the_data_and_ends_with_what_to_do_next(self, call, tmp_path):
        lines = call("train", *TUNED, "--out", "my run")[0].splitlines()
        assert lines[:2] == ["x.npy: the 60 examples of x.npy", "54 train, 6 validation, 0 test"]
        assert lines[2].split() == ["train", "validation", "of", "the", "busy", "asleep"]
        assert lines[5].split()[:2] == ["1", "16-9"]
        model = "model: my run/model.safetensors"
        assert lines[-2:] == [model, "next: syncpretrain report 'my run'"]

    @pytest.mark.parametrize(
        "shape", ["10000-10000", "3x32x32 conv 64x3 pad 1 pool 2 mean -> 64x16x16"]
    )
    def test_no_line_of_a_table_is_wider_than_80(self, capsys, shape):
        errors = dict.fromkeys(("train", "validation", "test"), 1234.5678)
        row = {"layer": 10, "visible": 10_000, "hidden": 10_000, "reconstruction_error": errors}
        row |= {"shape": shape, "mean_error": errors}
        times = {"epochs": 1000, "busy_seconds": 12345.6, "idle_seconds": 12345.6}
        sizes = {"train": 1_000_000, "validation": 10_000, "test": 10_000}
        report = {
            "data": {"name": "[b]x.npy", "source": "the examples of x.npy :smile:", **sizes},
            "layers": [row],
            "reconstruction_error": errors,
            "mean_error": errors,
            "verdict": [],
            "majority": {"train": 0.0, "validation": None, "test": 0.0},
            "accuracy": {"train": 0.0, "validation": None, "test": 0.0},
        }
        figures = dict.fromkeys(("dead_units", "saturated_units"), 10_000)
        names = ("free_energy_gap", "pseudo_likelihood", "log_likelihood")
        figures |= dict.fromkeys(names, -1234.5678)
        figures["log_z"] = {"value": 12345.678, "low": None, "high": 12399.123}
        print_errors({**report, "layers": [row | figures]}, finetuned=True)
        row["reconstruction_error"] = {"train": 1234.5678, "validation": None}
        seconds = dict.fromkeys(("data", "pretrain", "finetune", "total"), 12345.6)
        print_run({**report, "layers": [row | times], "seconds": seconds, "out": "runs/x"})
        text = capsys.readouterr().out
        lines = text.splitlines()
        assert lines[0] == "[b]x.npy: the examples of x.npy :smile:"
        assert max(map(len, lines)) <= 80
        assert shape.partition(" -> ")[0].split()[-1] in text
        assert "classifier, wrong: train 100.00 %, test 100.00 %" in lines
        assert "…" not in text
        assert "of the mean's error: train 100 %, validation 100 %, test 100 %" in lines
        nothing = dict.fromkeys(errors)  # of random weights
        row |= times | {"epochs": 0, "reconstruction_error": nothing}
        report |= {"layers": [row], "seconds": seconds, "reconstruction_error": nothing}
        print_run({**report, "out": "runs/x"})
        text = capsys.readouterr().out
        assert "of the mean's error" not in text
        assert "100 %" not in text


class TestRepeating:
    def test_another_model_and_other_layers_keep_other_settings(self, tmp_path, train_json):
        train_json(*SMALL, "--out", "a")
        other = ("--layers", "16,8,4,2", "--model", "contractive")
        report = train_json("--config", "a/config.toml", *other, "--out", "b")
        rows = [(row["hidden"], row["epochs"]) for row in report["layers"]]
        assert rows == [(8, 2), (4, 2), (2, 2)]
        assert read_settings(tmp_path / "b" / "config.toml").pretrain.contraction == (0.1,) * 3

    def test_replay_repeats_a_run_at_free_pace(self, train_json):
        free = ("--pace", "free", "--epochs", 20, "--refresh-epochs", 2)
        first = train_json(*SMALL, *free, "--out", "a")
        again = train_json("--replay", "a", "--out", "b", "--workers", 1)
        twice = train_json("--replay", "b", "--out", "c", "--runtime", "serial")
        assert again["parameters_sha256"] == first["parameters_sha256"]
        assert twice["parameters_sha256"] == first["parameters_sha256"]
        assert [x["epochs"] for x in again["layers"]] == [x["epochs"] for x in first["layers"]]


class TestDivergence:
    def test_the_layer_is_named_and_the_last_finite_model_kept(self, call, tmp_path):
        out, err = call("train", *SMALL, "--learning-rate", "0.1,1e38", "--out", "run", status=1)
        assert out == ""
        message = err.splitlines()[-1]
        assert message.startswith("Error: layer 2 diverged in epoch ")
        assert message.endswith("What was learned so far is in run/model.safetensors")
        stack = syncpretrain.load(tmp_path / "run")  # refuses what is not finite
        assert stack.widths == (16, 9, 4)
        assert (tmp_path / "run" / "trace.json").is_file()
        assert not (tmp_path / "run" / "metrics.json").exists()
