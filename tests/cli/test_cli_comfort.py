"""Comfort of the command line: completion, suggestions, settings and predictions without a run."""

import json
import subprocess
import sys

import fakecupy
import msgspec
import numpy as np
import pytest
from backends import backend_of

from syncpretrain.backends import rows as kept_rows
from syncpretrain.cli.program import COMMANDS
from syncpretrain.data import blocks

SECONDS = 60  # of every wait


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", X=rng.random((60, 6), dtype=np.float32), y=np.arange(60) % 3)
    monkeypatch.chdir(tmp_path)
    for name in ("MEASURED_SECONDS", "TUNED_SECONDS"):
        monkeypatch.setattr(f"syncpretrain.planning.dry_run.{name}", 0.0)
    return tmp_path


def completions(shell, words, monkeypatch, call):
    monkeypatch.setenv("_SYNCPRETRAIN_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["syncpretrain", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return call()[0].split()


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_the_script_asks_the_program(self, call, shell):
        assert f"_SYNCPRETRAIN_COMPLETE={shell}_complete" in call("completion", shell)[0]

    def test_an_unknown_shell(self, refusal):
        assert "'bash', 'zsh', 'fish'" in refusal("completion", "tcsh")

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["pre"], {"plain,predict", "plain,presets"}),
            (["runs", "s"], {"plain,show"}),
            (["train", "--print"], {"plain,--print-config"}),
            (["train", "--schedule", "gr"], {"plain,greedy"}),
        ],
    )
    def test_what_it_answers(self, monkeypatch, call, words, expected):
        assert {*completions("bash", words, monkeypatch, call)} == expected

    def test_no_command_is_imported_for_the_list_of_commands(self):
        code = (
            "import os, sys; from syncpretrain.cli import main\n"
            "os.environ |= {'_SYNCPRETRAIN_COMPLETE': 'bash_complete', 'COMP_CWORD': '1',"
            " 'COMP_WORDS': 'syncpretrain '}\n"
            "try: main(prog_name='syncpretrain')\n"
            "except SystemExit: pass\n"
            "sys.exit('syncpretrain.cli.train' in sys.modules or 'numpy' in sys.modules)"
        )
        run = {"capture_output": True, "text": True, "timeout": SECONDS, "check": False}
        found = subprocess.run([sys.executable, "-c", code], **run)
        assert found.returncode == 0
        assert [line.partition(",")[2] for line in found.stdout.split()] == list(COMMANDS)

    @pytest.mark.parametrize("shell", ["bash", "zsh"])
    def test_it_is_installed_once(self, call, monkeypatch, tmp_path, shell):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("ZDOTDIR", raising=False)
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        started = tmp_path / f".{shell}rc"
        started.write_text("alias x=y")  # without a line end
        call("completion", shell, "--install")
        out, _ = call("completion", shell, "--install")
        script = tmp_path / ".local/share/syncpretrain" / f"completion.{shell}"
        assert script.read_text() + "\n" == call("completion", shell)[0]
        first, line = started.read_text().splitlines()
        assert (first, line.split()[:2]) == ("alias x=y", [".", str(script)])
        assert "already in" in out

    def test_a_file_in_the_way_and_bytes_of_no_text(self, call, refusal, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        own = b"alias gr\xfcn=ls\n"  # Latin-1
        (tmp_path / ".bashrc").write_bytes(own)
        (tmp_path / ".local").write_text("")
        line = refusal("completion", "bash", "--install")
        assert line.startswith(f"Error: --install: cannot write {tmp_path / '.local'}")
        (tmp_path / ".local").unlink()
        call("completion", "bash", "--install")
        assert (tmp_path / ".bashrc").read_bytes().startswith(own + b". ")

    def test_fish_reads_a_folder_of_its_own(self, call, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        call("completion", "fish", "--install")
        assert [path.name for path in tmp_path.iterdir()] == ["fish"]
        assert (tmp_path / "fish/completions/syncpretrain.fish").is_file()

    def test_bash_reads_the_script(self, call, tmp_path):
        script = tmp_path / "script"
        script.write_text(call("completion", "bash")[0])
        command = ["bash", "--norc", "-c", f". {script}; complete -p syncpretrain"]
        found = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'; the nearest one is train; see syncpretrain --help"),
        (["train", "--layer", "3"], "No such option --layer; the nearest one is --layers; see"),
        (["train", "--lr", "3"], "No such option --lr; the nearest one is --learning-rate; see"),
        (["train", "--n-jobs", "3"], "No such option --n-jobs; the nearest one is --workers; see"),
        (["plan", "--data", "x"], "No such option --data; see syncpretrain plan --help"),
        (["runs", "--states", "x"], "No such option --states; the nearest one is --state; see"),
        (["runs", "shw"], "No such command 'shw'; the nearest one is show; see syncpretrain runs"),
        (["data", "zzz"], "No such command 'zzz'; see syncpretrain data --help"),
        (["train", "--xyzzy"], "No such option --xyzzy; see syncpretrain train --help"),
    ],
)
def test_a_typing_error_suggests_the_nearest(refusal, arguments, message):
    assert refusal(*arguments).startswith(f"Error: {message}")


class TestPrintConfig:
    def test_it_is_that_of_the_run(self, call, folder):
        own = ("--layers", "6,4", "--data", "x.npz", "--finetune", "classification", "--epochs", 2)
        printed = msgspec.toml.decode(call("train", *own, "--print-config")[0])
        assert [path.name for path in folder.iterdir()] == ["x.npz"]
        call("train", *own, "--out", "run", "--quiet")
        assert msgspec.toml.decode((folder / "run/config.toml").read_text()) == printed

    def test_a_wrong_run_is_refused(self, refusal, folder):
        assert "7" in refusal("train", "--layers", "7,4", "--data", "x.npz", "--print-config")
        line = refusal("train", "--resume", "run", "--print-config")
        assert line.startswith("Error: --print-config: cannot be combined with --resume")


class TestDryRun:
    def predicted(self, call, *options):
        own = ("--data", "x.npz", "--batch-size", 10, "--dry-run", "--json")
        return json.loads(call("train", *own, *options)[0])

    @pytest.mark.parametrize(
        "options",
        [
            ("--layers", "6,4,3"),
            ("--layers", "6,4,3", "--schedule", "greedy", "--finetune", "classification"),
            ("--layers", "6,4,3", "--handoff", "minibatch", "--finetune", "reconstruction"),
            ("--hidden", "4", "--schedule", "none", "--finetune", "classification"),
            ("--layers", "6,4,3", "--schedule", "async", "--replicas", "2,1"),
            ("--layers", "1x2x3,conv:2x2,3", "--replicas", 2, "--workers", 2, "--split", "filters"),
            (
                *("--layers", "6,4", "--schedule", "async", "--runtime", "serial"),
                *("--finetune", "reconstruction", "--finetune-schedule", "async"),
            ),
        ],
    )
    def test_memory_and_time_without_a_run(self, call, folder, options):
        report = self.predicted(call, *options)
        seconds = report["seconds"]
        parts = (seconds["data"], seconds["pretrain"], seconds["finetune"])
        assert seconds["total"] == pytest.approx(sum(parts))
        assert (seconds["pretrain"] > 0) == ("none" not in options)
        assert (seconds["finetune"] > 0) == ("--finetune" in options)
        assert report["reason"] == ""
        assert report["bytes"]["data"] == 60 * 6 * 4
        assert 0 < report["bytes"]["run"] < report["bytes"]["free"]
        assert [path.name for path in folder.iterdir()] == ["x.npz"]

    def test_the_memory_of_chains(self, call, folder):
        own = ("--layers", "6,4", "--persistent")
        found = [self.predicted(call, *own, "--chains", n)["bytes"]["run"] for n in (0, 1000)]
        assert found[1] - found[0] == 4 * 1000 * (3 * 6 + 4 * 4)

    def test_the_memory_of_replicas(self, call, folder):
        own = ("--layers", "6,4", "--schedule", "async", "--replicas")
        few, many = (self.predicted(call, *own, n)["bytes"]["run"] for n in (1, 5))
        assert many - few == 4 * 6 * 4 * (6 * 4 + 6 + 4)

    def test_what_is_not_predicted_is_named(self, call, folder):
        pytest.importorskip("scipy", reason="cg is SciPy's")
        own = ("--finetune", "reconstruction", "--finetune-optimizer", "cg")
        own += ("--finetune-batch-size", 10)
        report = self.predicted(call, "--layers", "6,4,3", *own)
        assert report["seconds"]["finetune"] is report["seconds"]["total"] is None
        assert report["reason"] == "fine-tuning by cg or lbfgs"

    def test_the_memory_of_a_gpu(self, call, folder, monkeypatch):
        monkeypatch.setattr("syncpretrain.backends.cupy_backend.STEPS_AT_ONCE", 4)
        backend_of("double", monkeypatch)
        own = ("--layers", "6,4,3", "--backend", "cupy:0", "--finetune", "reconstruction")
        report = self.predicted(call, *own)
        assert report["reason"] == "" and report["seconds"]["pretrain"] > 0
        found = report["gpu_bytes"]
        assert found["data"] == 60 * 6 * 4 and not found["data_on_host"]
        assert found["free"] == fakecupy.MEMORY
        monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
        pixels = np.arange(360, dtype=np.uint16).astype(np.uint8).reshape(60, 6)
        np.savez(folder / "x.npz", X=pixels)
        assert self.predicted(call, *own)["gpu_bytes"]["data"] == 60 * 6
        monkeypatch.setattr(fakecupy, "MEMORY", found["run"] + 200)
        monkeypatch.setattr(kept_rows, "BLOCK_BYTES", 3 * 6 * 4)
        found = self.predicted(call, *own)["gpu_bytes"]
        assert found["data_on_host"]
        assert 2 * 3 * 6 * 4 <= found["data"] <= 200, "two buffers, and what is held out"
        given = ("--data", "x.npz", "--batch-size", 10, *own)
        assert "the data stay on the host" in call("train", *given, "--dry-run")[0]

    def test_text(self, call, folder):
        own = ("--data", "x.npz", "--layers", "6,4", "--finetune", "classification")
        lines = call("train", *own, "--batch-size", 10, "--dry-run")[0].splitlines()
        heads = [line.partition(":")[0] for line in lines]
        assert heads.pop(4).startswith("fine-tuning, ")
        nothing = "nothing was trained, and no folder was made"
        assert heads == ["data", "stack", "memory", "pretraining", "the whole run", nothing]

    def test_a_run_that_would_be_refused(self, refusal, folder):
        own = ("--layers", "6,4", "--data", "x.npz", "--dry-run", "--replicas", 0)
        assert refusal("train", *own).startswith("Error: --replicas")
