"""What the command line refuses: one sentence on stderr, status 2, no worker, no run folder."""

import os
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import syncpretrain.pretraining.runtimes
from syncpretrain.cli import main
from syncpretrain.models.stack import DenseLayer, Stack
from syncpretrain.runs.run import train_run
from syncpretrain.settings import settings_from

WIDTH = 16
TRAIN = ("train", "--out", "new")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with data in it, where no worker can start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNCPRETRAIN_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(syncpretrain.pretraining.runtimes, "RUNTIMES", {})
    X = np.random.default_rng(0).random((40, WIDTH), dtype=np.float32)
    np.save("x.npy", X)
    np.save("big.npy", X * 2)
    np.save("empty.npy", X[:0])
    X[7, 3] = np.inf
    np.save("inf.npy", X)
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "damaged.toml").write_text("[pretrain\n")
    (tmp_path / "wrong.toml").write_text("[pretrain]\nlayers = [16, 8]\nepochs = [0]\n")
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "x.npy", np.random.default_rng(0).random((40, WIDTH), dtype=np.float32))
    data = {"name": str(folder / "x.npy")}
    train_run(settings_from((WIDTH, 9, 4), epochs=1, batch_size=10, data=data), out=folder / "run")
    return folder / "run"


RUNTIMES = ("threads", "processes", "serial")
NO_TF32 = "got tf32 on the CPU, which does not multiply it; take float32"
LARGE = "1x4x4,conv:62500x1,1000000"
OPTIONS = [
    ("--layers 16", "--layers: got 16, expected two numbers or more"),
    ("--layers 16,0", "--layers: got 0, expected a whole number of at least 1"),
    ("--layers 16,-3", "--layers: got -3, expected a whole number of at least 1"),
    ("--layers 16,1000000,1000000", "--layers: 16,1000000,1000000 on 40 examples need about"),
    ("--layers 15,8", "--layers: the first number is 15, but an example has 16 values; begin wi"),
    (
        "--layers 1x8x8,conv:2x3",
        "--layers: images of 1x8x8 have 64 values, but an example has 16; begin with 1x4x4",
    ),
    (
        "--layers 3x8x8,conv:2x3",
        "--layers: images of 3x8x8 have 192 values, but an example has 16; begin with images of 16",
    ),
    ("--layers 16,conv:2x3", "--layers: got 16 before conv:2x3, expected the shape of the images"),
    (f"--layers {LARGE}", f"--layers: {LARGE} on 40 examples need about"),
    (
        "--layers 1x4x4,conv:2x3 --replicas 2 --split units",
        "--split: got units for layer 1, a convolution, expected filters, or examples; only de",
    ),
    (
        "--layers 1x4x4,conv:2x3 --early-stopping free-energy-gap",
        "--early-stopping: got free-energy-gap for layer 1, a convolution, expected none",
    ),
    (
        "--layers 1x4x4,conv:2x3 --backend cupy --handoff minibatch --shards 2",
        "--backend: got cupy with handoff minibatch and minibatches in shards, expected replicas",
    ),
    (
        "--backend numpy --precision tf32",
        f"--precision: {NO_TF32}, bfloat16 or auto, or --backend cupy on a GPU",
    ),
    ("--precision half", "--precision: 'half' is not one of 'float32', 'tf32', 'bfloat16', 'auto'"),
    ("--batch-size 41", "--batch-size: got 41, expected at most 36, the examples to train on"),
    ("--batch-size x", "--batch-size: 'x' is not a valid integer"),
    ("--epochs 1,2,3", "--epochs: got 3 values, expected one for all layers or 2"),
    ("--epochs 1.5", "--epochs: got '1.5', expected whole numbers"),
    ("--epochs 1000000000", "--epochs: got 1000000000, expected at most 1000000"),
    ("--refresh-epochs 1,2,3", "--refresh-epochs: got 3 values, expected one for all"),
    ("--refresh-epochs -1", "--refresh-epochs: got -1, expected a whole number of at least 0"),
    ("--learning-rate 0.1,0.1,0.1", "--learning-rate: got 3 values, expected one for all"),
    ("--learning-rate nan", "--learning-rate: got nan, expected a number above 0"),
    ("--learning-rate inf", "--learning-rate: got inf, expected a finite number"),
    ("--learning-rate high", "--learning-rate: got 'high', expected numbers separated by"),
    ("--weight-decay nan", "--weight-decay: got nan, expected a number of at least 0"),
    ("--weight-decay inf", "--weight-decay: got inf, expected a finite number"),
    ("--momentum 1", "--momentum: got 1, expected at least 0 and below 1"),
    ("--momentum 0.5:5", "--momentum: got '0.5:5', expected a number, or stages such as"),
    ("--seed -1", "--seed: got -1, expected a whole number of at least 0"),
    ("--replicas 2,2,2", "--replicas: got 3 values, expected one for all layers or 2"),
    ("--replicas 4 --shards 2", "--replicas: got 4 for layer 1, whose minibatches have 2 shards"),
    ("--replicas 11", "--shards: got 11 for layer 1, expected at most 10, the examples"),
    ("--replicas 9 --split units", "--shards: got 9 for layer 1, expected at most 8, the units"),
    ("--split x", "--split: 'x' is not one of 'examples', 'units'"),
    (
        "--model autoencoder --replicas 2 --split units",
        "--split: got units with model autoencoder, expected examples",
    ),
    ("--persistent --replicas 2 --split units", "--split: got units with persistent, expected ex"),
    ("--blas-threads 9999999999", "--blas-threads: got 9999999999, expected a whole number of at"),
    ("--workers 1000000", "--workers: got 1000000, expected a whole number of at most 1024"),
    ("--validation 1", "--validation: got 1.0, expected a number below 1"),
    ("--validation nan", "--validation: got nan, expected a number of at least 0"),
    ("--schedule x", "--schedule: 'x' is not one of 'synchronized', 'greedy', 'rounds'"),
    ("--pace x", "--pace: 'x' is not one of 'lockstep', 'free'"),
    ("--runtime x", "--runtime: 'x' is not one of 'threads', 'processes', 'serial'"),
    ("--finish x", "--finish: 'x' is not one of 'drain', 'first-layer'"),
    ("--finetune x", "--finetune: 'x' is not one of 'none', 'reconstruction'"),
    ("--finetune-optimizer x", "--finetune-optimizer: 'x' is not one of 'adam', 'sgd'"),
    ("--finetune-learning-rate inf", "--finetune-learning-rate: got inf, expected a finite"),
    ("--finetune-epochs 3", "--finetune-epochs: got 3 without fine-tuning; add --finetune"),
    ("--finetune-batch-size 0", "--finetune-batch-size: got 0, expected a whole number"),
    ("--schedule greedy --pace free", "--pace: got free with schedule greedy, where"),
    ("--out full", "--out: full is not empty; name a new folder"),
    ("--out x.npy", "--out: x.npy is a file; name a new folder"),
    ("--out x.npy/run", "--out: cannot write to x.npy/run: "),
    ("--out /proc/run", "--out: cannot write to /proc/run: "),
    ("--replay empty", "--replay: got empty, expected the folder of a run, with config.toml and"),
    ("--replay nowhere", "--replay: got nowhere, expected the folder of a run"),
    ("--config nowhere.toml", "nowhere.toml: cannot read these settings: No such file"),
    ("--config damaged.toml", "damaged.toml: these settings are no TOML: "),
    ("--config wrong.toml", "wrong.toml: epochs: got 0, expected a whole number of at least 1"),
    ("--checkpoint-every often", "--checkpoint-every: got 'often', expected a number of epochs"),
    ("--max-restarts -1", "--max-restarts: got -1, expected a whole number of at least 0"),
    ("--stall-timeout 0", "--stall-timeout: got 0.0, expected a number above 0"),
    ("--group-size 2", "--group-size: got 2 with schedule synchronized"),
    ("--resume full", "--out: cannot be combined with --resume; the stopped run's folder is used"),
    ("--seed", "Option '--seed' requires an argument; see syncpretrain train --help"),
    ("extra", "Got unexpected extra argument (extra); see syncpretrain train --help"),
]
TUNING = [
    ("finetune-batch-size 41", "batch-size: got 41, exp"),
    ("finetune-epochs 9999999", "epochs: got 9999999, expected a whole number of at most 1000000"),
    ("backend numpy --finetune-precision tf32", f"precision: {NO_TF32}"),
    (
        "finetune-optimizer cg --finetune-precision bfloat16",
        "precision: got bfloat16 with optimizer cg, whose searches need exact products",
    ),
    ("finetune-replicas 2000", "replicas: got 2000, exp"),
    ("finetune-shards 2000", "shards: got 2000, expected"),
    (
        "finetune-replicas 3 --finetune-shards 2",
        "replicas: got 3 for 2 shards, expected no more workers than shards",
    ),
]
COUNTS = ("batch-size", "epochs", "cd-steps", "workers", "replicas", "blas-threads", "keep")
OPTIONS += [(f"--{x} 0", f"--{x}: got 0, expected a whole number of at least 1") for x in COUNTS]
OPTIONS += [(f"--finetune reconstruction --{given}", f"--finetune-{m}") for given, m in TUNING]


class TestTrain:
    @pytest.mark.parametrize("runtime", RUNTIMES)
    @pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[row[0] for row in OPTIONS])
    def test_an_option(self, folder, refusal, options, message, runtime):
        given = (*TRAIN, "--data", "x.npy", "--layers", "16,8,4", "--batch-size", 10)
        given += ("--runtime", runtime)
        before = sorted(folder.rglob("*"))
        assert refusal(*given, *options.split()).startswith(f"Error: {message}")
        assert sorted(folder.rglob("*")) == before

    @pytest.mark.parametrize("runtime", RUNTIMES)
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("nowhere.npy", "--data: got 'nowhere.npy', which is neither a data set nor a file"),
            ("broken.npy", "broken.npy: got no .npy file that can be read"),
            ("text.npy", "text.npy: got no .npy file that can be read"),
            ("inf.npy", "inf.npy: got inf at row 7, column 3 (counted from 0), expected finite"),
            ("big.npy", "big.npy: got 1."),
            ("empty.npy", "empty.npy: got no values, shape (0, 16); expected one example or more"),
            ("full", "full: got a folder, expected a file"),
            ("mnist", "mnist: SYNCPRETRAIN_DATA is set to"),
        ],
    )
    def test_data(self, folder, refusal, data, message, runtime):
        given = ("--layers", "16,8", "--batch-size", 10, "--runtime", runtime)
        given += ("--visible-units", "bernoulli")
        assert refusal(*TRAIN, "--data", data, *given).startswith(f"Error: {message}")
        assert not (folder / "new").exists()
        assert not (folder / "runs").exists()

    def test_no_layers(self, folder, refusal):
        words = "Error: --layers: got nothing, expected the units of the input"
        assert refusal("train").startswith(words)

    def test_runs_is_a_file(self, folder, refusal):
        (folder / "runs").touch()
        line = refusal("train", "--data", "x.npy", "--layers", "16,8", "--batch-size", 10)
        assert line.startswith("Error: --out: cannot write to runs/")

    @pytest.mark.parametrize(
        "option",
        ["--layers=16,9", "--epochs=2", "--pace=free", "--config=x.toml", "--schedule=greedy"],
    )
    def test_what_a_replay_decides(self, folder, refusal, trained, option):
        line = refusal(*TRAIN, "--replay", trained, option)
        name = option.partition("=")[0]
        assert line.startswith(f"Error: {name}: cannot be combined with --replay")

    def test_a_replay_of_damaged_events(self, folder, refusal, trained):
        for name in ("config.toml", "events.jsonl"):
            content = (trained / name).read_bytes()
            (folder / "empty" / name).write_bytes(content[: len(content) // 2 * 2 - 4])
        assert "empty/" in refusal(*TRAIN, "--replay", "empty")

    def test_debug_adds_the_traceback_and_keeps_the_status(self, folder, capsys):
        with pytest.raises(SystemExit) as ended:
            main(["--debug", *TRAIN, "--data", "x.npy", "--layers", "16"])
        err = capsys.readouterr().err
        assert ended.value.code == 2
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("Error: --layers: got 16")


NO_MODEL = "empty: holds no model; expected a .safetensors file, or"
COMMANDS = [
    ("encode RUN", "Missing option '--out'; see syncpretrain encode --help"),
    ("evaluate empty", NO_MODEL),
    ("encode empty --out z.npy", NO_MODEL),
    ("reconstruct empty", NO_MODEL),
    ("encode RUN --out empty", "--out: empty is a folder; name a file"),
    ("encode RUN --out no/z.npy", "--out: the folder no does not exist"),
    ("encode RUN --out z.npy --layer 0", "--layer: got 0, expected 1 to 2"),
    ("encode RUN --out z.npy --layer 3", "--layer: got 3, expected 1 to 2"),
    ("encode RUN --out z.npy --data inf.npy", "inf.npy: got inf at row 7, column 3"),
    ("encode RUN --out z.npy --data no.npy", "--data: got 'no.npy', which is neither"),
    ("encode RUN --out z.npy --part x", "--part: 'x' is not one of 'train'"),
    ("encode RUN --out z.npy --part test", "--part: got test, but "),
    ("evaluate RUN --data narrow.npy", "--data: narrow.npy has 3 values an example, but"),
    ("evaluate RUN --data big.npy", "big.npy: got 1."),
    ("evaluate RUN/model.safetensors --data no", "--data: got 'no', which is neither"),
    ("report empty", "run: got empty, expected the folder of a run"),
    ("report RUN --part test", "--part: got test"),
    ("reconstruct RUN --shape 5x5", "--shape: got '5x5', expected HxW with a product of 16"),
    ("reconstruct RUN --shape wide", "--shape: got 'wide', expected HxW with a product"),
    ("reconstruct RUN --count 0", "--count: got 0, expected a whole number of at least 1"),
    ("reconstruct RUN --seed -1", "--seed: got -1, expected a whole number of at least 0"),
    ("reconstruct RUN --out no/x.png", "--out: the folder no does not exist"),
    ("reconstruct RUN --out x.jpg", "--out: got x.jpg, expected a name that ends with .png"),
    ("filters RUN --out x", "--out: got x, expected a name that ends with .png"),
    ("sample RUN --save z.npy --out z.ps", "--out: got z.ps, expected a name that ends with .png"),
    ("--nonsense", "No such option"),
]


class TestOthers:
    @pytest.mark.parametrize("command", ["evaluate", "encode", "reconstruct"])
    def test_no_argument(self, folder, refusal, command):
        line = refusal(command, *(("--out", "z") if command == "encode" else ()))
        assert line == f"Error: Missing argument 'RUN'; see syncpretrain {command} --help"

    @pytest.mark.parametrize(("arguments", "message"), COMMANDS, ids=[row[0] for row in COMMANDS])
    def test_an_option(self, folder, refusal, trained, arguments, message):
        np.save("narrow.npy", np.zeros((4, 3), np.float32))
        before = sorted(folder.rglob("*"))
        line = refusal(*arguments.replace("RUN", str(trained)).split())
        assert line.startswith(f"Error: {message}")
        assert sorted(folder.rglob("*")) == before

    @pytest.mark.parametrize(
        ("command", "name"),
        [("export", "model.safetensors"), ("report", "config.toml"), ("reconstruct", "README.md")],
    )
    def test_a_file_of_the_run(self, folder, refusal, trained, command, name):
        before = (trained / name).read_bytes()
        line = refusal(command, trained, "--out", trained / name)
        words = f"{trained / name} is a file of the run in {trained}; name another file"
        assert line == f"Error: --out: {words}"
        assert (trained / name).read_bytes() == before

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ("encode RUN --data x.npy", "x.npy"),
            ("encode RUN --data ~/x.npy", "x.npy"),
            ("export net.safetensors", "net.safetensors"),
            *((f"{name} RUN", "RUN/../x.npy") for name in ("encode", "score", "reconstruct")),
            ("report RUN", "RUN/../x.npy"),
        ],
    )
    def test_a_file_that_is_read(self, folder, refusal, trained, arguments, name, monkeypatch):
        monkeypatch.setenv("HOME", str(folder))
        shutil.copy(trained / "model.safetensors", folder / "net.safetensors")
        path = Path(name.replace("RUN/..", str(trained.parent)))
        before = path.read_bytes()
        line = refusal(*arguments.replace("RUN", str(trained)).split(), "--out", path)
        assert line == f"Error: --out: {path} is a file that is read; name another one"
        assert path.read_bytes() == before

    def test_a_model_without_a_run_asks_for_data_and_may_be_damaged(self, folder, refusal, trained):
        content = bytearray((trained / "model.safetensors").read_bytes())
        Path("m.safetensors").write_bytes(content)
        line = refusal("evaluate", "m.safetensors")
        assert line.startswith("Error: --data: got nothing, and m.safetensors names no data")
        content[-5] ^= 1
        Path("m.safetensors").write_bytes(content)
        line = refusal("evaluate", "m.safetensors", "--data", "x.npy")
        assert line.startswith("Error: m.safetensors: is damaged")

    def test_no_shape_that_is_square(self, folder, refusal, tmp_path):
        np.save("narrow.npy", np.zeros((20, 3), np.float32))
        (tmp_path / "run").mkdir()
        zeros = (np.zeros((3, 2), np.float32), np.zeros(2, np.float32), np.zeros(3, np.float32))
        Stack((DenseLayer(*zeros),)).save("run/model.safetensors")
        line = refusal("reconstruct", "run", "--data", "narrow.npy")
        assert line.startswith("Error: --shape: got none, and 3 values make no square")
        line = refusal("sample", "run")
        assert line.endswith("or 3xHxW in colour; or add --save FILE.npy, without --shape")

    def test_json_says_nothing_on_stdout(self, folder, refusal):
        refusal(*TRAIN, "--data", "x.npy", "--layers", "16", "--json")
        refusal("evaluate", "empty", "--json")

    def test_a_full_disk_is_no_traceback(self, folder, capsys, trained, monkeypatch):
        full = Mock(side_effect=OSError(28, "No space left on device", "z.npy"))
        monkeypatch.setattr("syncpretrain.data.output_file.write_atomically", full)
        with pytest.raises(SystemExit) as ended:
            main(["encode", str(trained), "--out", "z.npy", "--data", "x.npy"])
        assert ended.value.code == 1
        assert capsys.readouterr().err == "Error: z.npy: No space left on device\n"


class TestPaths:
    @pytest.mark.skipif(sys.platform != "linux", reason="names are always text there")
    @pytest.mark.parametrize("option", ["out", "data", "resume"])
    def test_a_name_that_is_no_text(self, folder, refusal, option):
        name = os.fsdecode(b"bad\xff.npy")
        np.save(name, np.zeros((60, 16), np.float32))
        given = {
            "out": ("--layers=16,4", "--data=x.npy", f"--out={name}x"),
            "data": ("--layers=16,4", f"--data={name}", "--out=run"),
            "resume": ("--resume", name),
        }
        line = refusal("train", *given[option])
        assert line.startswith(f"Error: --{option}: got ")
        assert line.endswith("whose bytes are no UTF-8 text; rename it, or take another")

    def test_a_run_in_a_folder_that_cannot_be_read(self, folder, refusal, monkeypatch):
        denied = PermissionError(13, "Permission denied")
        monkeypatch.setattr(Path, "is_dir", Mock(side_effect=denied))
        line = refusal("train", "--resume", "secret/run")
        assert line == "Error: --resume: cannot read secret/run: Permission denied"
