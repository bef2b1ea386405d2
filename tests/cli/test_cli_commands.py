"""``evaluate``, ``encode``, ``reconstruct``, ``doctor`` and ``--help``."""

import json
import subprocess
import sys

import click
import numpy as np
import pytest
from commandline import exit_status
from PIL import Image

import syncpretrain
from syncpretrain.cli import main
from syncpretrain.cli.program import COMMANDS
from syncpretrain.cli.setting_options import HEADINGS, OPTIONS
from syncpretrain.data import load_dataset
from syncpretrain.runs.run import train_run
from syncpretrain.settings import FinetuneSettings, PretrainSettings, settings_from

WIDTH, TOP, EXAMPLES = 64, 5, 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with x.npy, a run on it, and a fine-tuned run on digits."""
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.random((EXAMPLES, WIDTH), dtype=np.float32))
    np.save(folder / "bytes.npy", rng.integers(0, 256, (7, WIDTH), dtype=np.uint8))
    small = {"epochs": 1, "batch_size": 10}
    on_file = settings_from((WIDTH, 9, TOP), data={"name": str(folder / "x.npy")}, **small)
    train_run(on_file, out=folder / "on-file")
    tuned = {"objective": "reconstruction", "epochs": 1}
    on_digits = settings_from((WIDTH, 9, TOP), data={"name": "digits"}, finetune=tuned, **small)
    train_run(on_digits, out=folder / "on-digits")
    return folder


@pytest.fixture
def call(call, folder, monkeypatch):
    monkeypatch.chdir(folder)

    def run(*arguments):
        out, err = call(*arguments)
        assert err == ""
        return out

    return run


class TestEvaluate:
    def test_json_says_what_training_said(self, call, folder):
        report = json.loads(call("evaluate", "on-file", "--json"))
        metrics = json.loads((folder / "on-file" / "metrics.json").read_text())
        figures = ["data", "layers", "reconstruction_error", "mean_error"]
        figures += ["accuracy", "majority", "trained_on"]
        assert list(report) == figures
        assert report["accuracy"] is None
        assert report["data"] == metrics["data"]
        assert report["reconstruction_error"] == pytest.approx(metrics["reconstruction_error"])
        for now, then in zip(report["layers"], metrics["layers"], strict=True):
            errors = now["reconstruction_error"]
            assert errors.pop("test") is None
            assert errors == pytest.approx(then["reconstruction_error"])

    def test_the_error_is_that_of_the_stack(self, call, folder):
        report = json.loads(call("evaluate", "on-digits", "--json"))
        test = load_dataset("digits").test
        down = syncpretrain.load(folder / "on-digits").reconstruct(test)
        expected = np.square(test - down).sum(axis=1).mean()
        assert report["reconstruction_error"]["test"] == pytest.approx(expected, rel=1e-5)

    def test_another_file_is_all_test_data(self, call):
        report = json.loads(call("evaluate", "on-digits", "--data", "x.npy", "--json"))
        sizes = [report["data"][part] for part in ("train", "validation", "test")]
        assert sizes == [0, 0, EXAMPLES]
        assert report["reconstruction_error"]["train"] is None
        assert report["layers"][1]["reconstruction_error"]["test"] > 0

    def test_text(self, call):
        lines = call("evaluate", "on-digits").splitlines()
        assert lines[0].startswith("digits: the 1,797 digits")
        assert lines[1] == "1,294 train, 144 validation, 359 test"
        assert [line.split()[:2] for line in lines[5:7]] == [["1", "64-9"], ["2", "9-5"]]
        assert "after fine-tuning" in lines[7]
        assert lines[9].startswith("whole stack: train ")
        assert lines[-1].split()[:3] == ["2", "-", "-"], "fine-tuned layers are no RBMs"
        assert max(map(len, lines)) <= 80

    def test_log_z(self, call):
        lines = call("evaluate", "on-file", "--log-z").splitlines()
        assert lines[-4].split()[-3:] == ["log", "Z", "likelihood"]
        assert max(map(len, lines[2:])) <= 80
        report = json.loads(call("evaluate", "on-file", "--log-z", "--json"))
        for row in report["layers"]:
            estimate = row["log_z"]
            assert estimate["low"] == estimate["value"] == estimate["high"], "enumerated"
            assert row["log_likelihood"] < 0

    def test_a_model_file_stands_for_its_run(self, call):
        by_file = call("evaluate", "on-file/model.safetensors")
        assert by_file == call("evaluate", "on-file")
        assert "fine-tuning" not in by_file


CODES = {  # what is said of them, the rows, and the layer
    "on-digits --data x.npy": ("50 codes of 5 units, of x.npy", "x.npy", None),
    "on-digits --data bytes.npy": ("7 codes of 5 units, of bytes.npy", "bytes.npy", None),
    "on-file --layer 1": ("50 codes of 9 units, of {}/x.npy", "x.npy", 1),
    "on-file --data digits": ("359 codes of 5 units, of the test part of digits", "test", None),
}
for part, count in {"train": "1,294", "validation": 144, "test": 359}.items():
    text = f"{count} codes of 5 units, of the {part} part of digits"
    CODES[f"on-digits --part {part}"] = (text, part, None)


@pytest.mark.parametrize("arguments", CODES)
def test_codes_of_every_row_in_order(call, folder, arguments):
    text, rows, layer = CODES[arguments]
    said = call("encode", *arguments.split(), "--out", "z.npy")
    assert said == f"z.npy: {text.format(folder)}\n"
    X = np.load(rows) if rows.endswith(".npy") else getattr(load_dataset("digits"), rows)
    codes = np.load("z.npy")
    assert codes.dtype == np.float32
    stack = syncpretrain.load(arguments.split()[0])
    np.testing.assert_array_equal(codes, stack.encode(X, layer=layer))


def test_codes_of_the_held_out_part_of_the_runs_own_file(call, folder):
    said = call("encode", "on-file", "--part", "validation", "--out", "z.npy")
    assert said.startswith("z.npy: 5 codes of 5 units, of the validation part of ")
    expected = syncpretrain.load("on-file").encode(load_dataset(folder / "x.npy").validation)
    np.testing.assert_array_equal(np.load("z.npy"), expected)


def form_of(path):
    with Image.open(path) as image:
        return image.format, image.mode, image.size


class TestReconstruct:
    def test_a_png_of_20_pairs_in_the_run_folder(self, call, folder):
        said = call("reconstruct", "on-digits")
        words = "20 examples of the test part of digits above their reconstructions"
        assert said == f"on-digits/reconstructions.png: {words}\n"
        # 10 images of 8 pixels with margins of 2; 2 rows of pairs; 3 times enlarged
        size = (3 * (10 * (8 + 2) + 2), 3 * (2 * (2 * 8 + 6) + 2))
        assert form_of(folder / "on-digits" / "reconstructions.png") == ("PNG", "L", size)

    def test_shape_count_and_seed(self, call, folder):
        contents = []
        for seed in (0, 0, 1):
            options = ("--shape", "4x16", "--count", 3, "--seed", seed, "--out", "p.png")
            call("reconstruct", "on-file", "--data", "x.npy", *options)
            contents.append((folder / "p.png").read_bytes())
            assert form_of("p.png")[2] == (3 * (3 * (16 + 2) + 2), 3 * (2 * 4 + 6 + 2))
        assert contents[0] == contents[1] != contents[2]

    def test_no_more_than_there_are(self, call):
        said = call("reconstruct", "on-file", "--data", "bytes.npy", "--out", "p.png")
        assert said == "p.png: 7 examples of bytes.npy above their reconstructions\n"


MODEL = "on-file/model.safetensors"
NO_CHAINS = "layer 1 keeps no chains; pretrain with --persistent and --chains 500, say,"
UPPER, NO_IMAGES = "on-file --level 2 --save y.npy", "for samples that are no images"


class TestSample:
    def test_a_png_of_20_samples_in_the_run_folder(self, call, folder):
        said = call("sample", "on-file", "--steps", 3)
        assert said == "on-file/samples.png: 20 samples after 3 steps from noise\n"
        assert form_of("on-file/samples.png")[2] == (3 * (10 * (8 + 2) + 2), 3 * (2 * (8 + 5) + 2))

    def test_from_data_and_seed(self, call, folder):
        contents = []
        for seed in (0, 0, 1):
            options = ("--count", 3, "--steps", 2, "--seed", seed, "--out", "p.png")
            said = call("sample", "on-file", "--start", "data", *options)
            assert said == "p.png: 3 samples after 2 steps from data\n"
            contents.append((folder / "p.png").read_bytes())
            assert form_of("p.png")[2] == (3 * (3 * (8 + 2) + 2), 3 * (2 * 8 + 6 + 2))
        assert contents[0] == contents[1] != contents[2]

    def test_stacked_samples_are_saved_with_the_acceptance_and_the_mixing(self, call, folder):
        options = ("--method", "stacked", "--steps", 200, "--count", 3, "--save", "s.npy")
        said = call("sample", "on-file", "--out", "p.png", *options).splitlines()
        assert said[0] == "p.png, s.npy: 3 samples of level 1 after 200 steps from noise"
        assert said[1] == "level 1, stacked: 50 chains from each start, 200 steps"
        assert said[2].split() == ["region", "data", "from", "data", "from", "noise", "AIS"]
        assert said[3].split()[0] == "A"
        assert said[-2].startswith("swaps of levels 1 and 2: ")
        assert said[-1].startswith("these chains have mixed")
        X = np.load(folder / "s.npy")
        assert X.shape == (3, WIDTH)
        assert set(np.unique(X)) == {0, 1}
        expected = syncpretrain.load(folder / "on-file").sample(3, method="stacked", steps=200)
        np.testing.assert_array_equal(X, expected)

    def test_a_higher_level_is_only_saved(self, call, folder):
        said = call("sample", "on-file", "--level", 2, "--steps", 3, "--save", "h.npy")
        assert said == "h.npy: 20 samples of level 2 after 3 steps from noise\n"
        assert np.load(folder / "h.npy").shape == (20, 9)

    def test_chains_of_training_are_judged_at_level_1(self, call, folder):
        how = ("--hidden", "6,4", "--epochs", 2, "--persistent", "--chains", 12, "--quiet")
        call("train", "--data", "x.npy", *how, "--out", "with-chains")
        options = ("--start", "chains", "--steps", 8, "--count", 12, "--save", "c.npy")
        said = call("sample", "with-chains", *options).splitlines()
        assert said[0].endswith("12 samples of level 1 after 8 steps from chains")
        assert said[1].startswith("level 1, gibbs: ")
        assert np.load(folder / "c.npy").shape == (12, WIDTH)

    def test_the_mixing_of_a_run_has_the_weights_of_its_rows(self, call, folder):
        X = np.repeat([[0] * 6, [1] * 6], 100, axis=0)
        lines = [",".join(map(str, [*row, 9 if row[0] else 1])) for row in X]
        (folder / "w.csv").write_text("\n".join(["a,b,c,d,e,f,w", *lines]) + "\n")
        how = ("--hidden", 3, "--epochs", 1, "--weights", "w", "--visible-units", "bernoulli")
        call("train", "--data", "w.csv", *how, "--quiet", "--out", "weighted")
        options = ("--steps", 40, "--save", "s.npy")
        said = call("sample", "weighted", *options).splitlines()
        shares = sorted(float(x.split()[1]) for x in said[3:5])
        assert shares == [pytest.approx(10, abs=1), pytest.approx(90, abs=1)]
        said = call("sample", "weighted", "--part", "validation", *options)
        assert said.rstrip().endswith("they do not judge the model")

    def test_without_the_data_the_mixing_says_so(self, call, folder):
        syncpretrain.load(folder / "on-file").save(folder / "alone.safetensors")
        said = call("sample", "alone.safetensors", "--steps", 4, "--out", "p.png")
        assert said.splitlines()[1].startswith("mixing: not measured: data: got nothing")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("on-digits", "the top layer is an autoencoder, or was fine-tuned, and is no RBM"),
            ("on-file --level 2", "--save: got none for level 2"),
            ("on-file --level 9", "--level: got 9, expected 1 to 2"),
            ("on-file --level 9 --save y.npy", "--level: got 9, expected 1 to"),
            ("on-file --save x.txt", "--save: got x.txt, expected a file that ends"),
            ("on-file --steps 0", "--steps: got 0"),
            (f"{UPPER} --out z.png", f"--out: got z.png {NO_IMAGES}; leave it out"),
            (f"{UPPER} --shape 8x8", f"--shape: got 8x8 {NO_IMAGES}; leave it out"),
            ("on-file --start chains", NO_CHAINS),
            ("on-file --save no/x.npy", "--save: the folder no does not exist"),
            (f"on-file --save {MODEL}", f"--save: {MODEL} is a file of the run"),
        ],
    )
    def test_refusals(self, folder, monkeypatch, capsys, arguments, message):
        monkeypatch.chdir(folder)
        status = exit_status("sample", *arguments.split())
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"Error: {message}")


class TestDoctor:
    # In a process of its own: what it finds depends on the cores, and not on other tests.
    def test_text_and_status(self):
        found = program("doctor")
        assert found.returncode == 0, found.stdout
        topics = [line.split()[1] for line in found.stdout.splitlines() if line[0] != " "]
        names = (
            "versions: platform: cores: blas: kernels: float32: products: speed: precision: gpu:"
        )
        assert " ".join(topics) == names

    def test_json_is_one_object(self):
        found = program("doctor", "--json")
        findings = json.loads(found.stdout)["findings"]
        assert {finding["status"] for finding in findings} <= {"ok", "warning"}
        assert found.returncode == 0


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_examples(self, call, command):
        text = call(command, "--help")
        assert text.startswith(f"Usage: syncpretrain {command} ")
        assert f"  Examples:\n    syncpretrain {command}" in text
        assert "RANGE" not in text

    def test_the_program_lists_its_commands(self, call):
        text = call("--help")
        for command in COMMANDS:
            assert f"\n  {command} " in text

    @pytest.mark.parametrize("has_fields", [False, True])
    def test_nothing_heavy_is_imported_for_it(self, has_fields):
        heavy = {"numpy", "rich", "sklearn", "safetensors", "scipy"}
        with_fields = {"train", "finetune", "compare", "plan", "simulate"}  # of the settings
        commands = [[name] for name in COMMANDS if (name in with_fields) == has_fields]
        if not has_fields:
            heavy |= {"msgspec"}
            commands.append([])
        code = (
            "import sys; from syncpretrain.cli import main\n"
            f"for command in {commands!r}:\n"
            "    try: main([*command, '--help'])\n"
            "    except SystemExit as ended: assert not ended.code\n"
            f"    heavy = {heavy} & sys.modules.keys()\n"
            "    assert not heavy, f'for {command}: {heavy}'\n"
        )
        found = python("-c", code)
        assert (found.returncode, found.stderr) == (0, "")

    @pytest.mark.parametrize("command", ["train", "compare"])
    def test_each_section_fits_a_screen(self, monkeypatch, call, command):
        monkeypatch.setenv("COLUMNS", "80")
        blocks = call(command, "--help").split("\n\n")
        sections = {block.partition(":")[0]: block.splitlines() for block in blocks[1:]}
        assert ", ".join(list(sections)[-12:]) == (
            "Data and settings, Model, Learning, RBMs, Autoencoders, Schedule, Workers, Fine-tuning"
            ", Regularization of fine-tuning, Workers of fine-tuning, Asynchronous, Run folder and"
            " output"
        )
        for lines in list(sections.values())[-10:]:
            assert len(lines) <= 24
            assert max(map(len, lines)) <= 80
        monkeypatch.setenv("COLUMNS", "200")
        assert max(map(len, call(command, "--help").splitlines())) <= 100

    def test_every_setting_has_an_option_in_a_section_of_the_help(self):
        derived = {"architecture", "missing", "sparse", "marks"}
        for section, kind in {"pretrain": PretrainSettings, "finetune": FinetuneSettings}.items():
            offered = {own.field for own in OPTIONS.values() if own.section == section}
            assert set(kind.__struct_fields__) - offered == (derived & set(kind.__struct_fields__))
        assert {own.setting.section for own in OPTIONS.values()} <= set(HEADINGS)
        command = main.get_command(click.Context(main), "train")
        assert OPTIONS.keys() <= {param.name for param in command.params}

    def test_the_version(self):
        assert program("--version").stdout == f"syncpretrain {syncpretrain.__version__}\n"


def program(*arguments):
    return python("-W", "error", "-m", "syncpretrain", *arguments)


def python(*arguments):
    run = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    return subprocess.run([sys.executable, *arguments], **run)
