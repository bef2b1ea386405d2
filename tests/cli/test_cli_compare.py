"""``syncpretrain compare``: its table, its files, and what it refuses."""

import json
import sys
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from folders import full, names_in
from PIL import Image

import syncpretrain.runs.compare as comparing
from syncpretrain.data.dataset import Dataset
from syncpretrain.plot.canvas import save_label_curve
from syncpretrain.settings import preset_path, read_settings, replaced

TINY = ("--layers", "64,8", "--data", "digits", "--epochs", 1, "--finetune-epochs", 1)
RANDOM = ("--finetune", "reconstruction", "--seeds", 1, "--starts", "random")
STARTS = ["greedy", "synchronized", "random"]

pytestmark = pytest.mark.usefixtures("fonts")


@pytest.fixture
def call(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "FEWEST_STEPS", 20)
    return partial(call, "compare")


class TestResults:
    def test_table_curve_and_files(self, call, tmp_path):
        given = ("--labels", "50,all", "--seeds", 2, "--out", "new/deep", "--seed", 5)
        out, err = call(*TINY, *given)
        lines = out.splitlines()
        assert lines[0].startswith("64-8 on the 1,797 digits")
        assert lines[0].endswith(", classification, on the test examples:")
        cells = [line.split()[:2] for line in lines]
        rows = [row for row in cells if row[1:] and row[1] in STARTS]
        assert rows == [[labels, start] for labels in ("50", "1,294") for start in STARTS]
        assert "means of 2 seeds; the gain is over random weights" in lines
        assert lines[-1] == "table and curve: new/deep"
        settings, *progress = err.splitlines()
        assert settings.startswith("settings for 1,294 rows of 64 numbers: batch size 12; fine-tu")
        assert len(progress) == 2 * 3 * 2
        assert progress[0].startswith("seed 5  greedy  50 labels  test ")
        assert progress[-1].startswith("seed 6  random  1,294 labels  test ")
        folder = tmp_path / "new" / "deep"
        assert names_in(folder) == ["compare.json", "config.toml", "label-budget.png"]
        with Image.open(folder / "label-budget.png") as image:
            image.load()
            assert (image.format, image.size) == ("PNG", (720, 480))
        settings = read_settings(folder / "config.toml")
        assert (settings.pretrain.layers, settings.pretrain.seed) == ((64, 8), 5)
        assert settings.finetune.objective == "classification", "--labels asks for classes"

    def test_json_is_one_object(self, call, tmp_path):
        given = ("--finetune", "classification", "--labels", "20,40", "--seeds", 1, "--json")
        out, err = call(*TINY, *given, "--starts", "random,greedy", "--out", "new")
        assert out.count("\n") == 1
        report = json.loads(out)
        assert json.loads((tmp_path / "new/compare.json").read_text()) == report
        assert " ".join(report) == "layers architecture objective data table runs out"
        assert report["data"]["train"] == 1294
        rows = [(row["labels"], row["start"]) for row in report["table"]]
        assert rows == [(20, "random"), (20, "greedy"), (40, "random"), (40, "greedy")]
        random, greedy = report["table"][:2]
        assert random["gain"] is None
        assert greedy["gain"] == pytest.approx(random["test"] - greedy["test"])
        assert [row["spread"] for row in report["table"]] == [None] * 4
        assert len(report["runs"]) == 4
        assert len(err.splitlines()) == 1 + 4

    def test_reconstruction_draws_no_curve(self, call, tmp_path):
        assert call(*TINY, *RANDOM, "--quiet") == ("", "")
        (folder,) = (tmp_path / "runs").iterdir()
        assert names_in(folder) == ["compare.json", "config.toml"]
        report = json.loads((folder / "compare.json").read_text())
        assert [(row["start"], row["labels"]) for row in report["table"]] == [("random", None)]

    def test_one_seed_has_no_means(self, call):
        assert "one seed; the gain is over random weights" in call(*TINY, *RANDOM)[0].splitlines()

    def test_a_share_of_nothing_wrong_can_be_drawn(self, tmp_path):
        save_label_curve({"random": [(10, 0.0, None), (20, 0.0, 0.0)]}, tmp_path / "x.png")
        with Image.open(tmp_path / "x.png") as image:
            image.load()


class TestUnfinished:
    def test_a_stopped_one_keeps_its_results(self, call, tmp_path, monkeypatch):
        tuned, seen = comparing._fine_tuned, []

        def stop_third(*arguments):
            seen.append(arguments)
            if len(seen) == 3:
                raise KeyboardInterrupt
            return tuned(*arguments)

        monkeypatch.setattr(comparing, "_fine_tuned", stop_third)
        _, err = call(*TINY, "--labels", "50", "--out", "new", status=130)
        assert err.splitlines()[-2:] == ["2 results so far are in new/compare.json", "Stopped"]
        table = json.loads((tmp_path / "new" / "compare.json").read_text())
        assert [run["start"] for run in table["runs"]] == ["greedy", "synchronized"]

    def test_one_that_cannot_be_written_is_printed(self, call, monkeypatch):
        monkeypatch.setattr("syncpretrain.cli.compare.write_atomically", full)
        out, err = call(*TINY, *RANDOM, "--json", status=1)
        assert json.loads(out)["runs"][0]["start"] == "random"
        assert err.endswith("Error: No space left on device\n")

    def test_a_full_log_does_not_end_it(self, call, monkeypatch):
        monkeypatch.setattr(sys.stderr, "write", full, raising=False)
        assert json.loads(call(*TINY, *RANDOM, "--json")[0])["runs"][0]["start"] == "random"


class TestPreset:
    @pytest.fixture
    def asked(self, monkeypatch):
        """Record the settings that would be compared, instead of comparing."""
        none = np.zeros((1, 784), np.float32)
        data = Dataset("mnist", "nothing", none, none, none)
        monkeypatch.setattr("syncpretrain.data.load_dataset", lambda *a, **b: data)
        asked = Mock(side_effect=KeyboardInterrupt)
        monkeypatch.setattr(comparing, "compare", asked)
        return asked

    def test_the_default_is_label_budget(self, call, asked):
        call(status=130)
        (settings, _), options = asked.call_args
        assert settings == read_settings(preset_path("label-budget"))
        assert (options["starts"], options["labels"]) == (tuple(STARTS), (None,))
        assert list(options["seeds"]) == [0, 1, 2]

    @pytest.mark.parametrize(
        ("given", "preset", "labels"),
        [
            (("--labels", "100,1000"), "few-labels", (100, 1000)),
            (("--labels", "100,2000"), "label-budget", (100, 2000)),
            (("--labels", "100,all"), "label-budget", (100, None)),
            (("--preset", "few-labels"), "few-labels", (100,)),
            (("--preset", "few-labels", "--labels", "2000"), "few-labels", (2000,)),
            (("--preset", "fast"), "fast", (None,)),
        ],
    )
    def test_few_labels_take_their_preset(self, call, asked, given, preset, labels):
        call(*given, status=130)
        (settings, _), options = asked.call_args
        wanted = read_settings(preset_path(preset))
        assert settings == replaced(wanted, data=replaced(wanted.data, labels=None))
        assert options["labels"] == labels

    def test_options_win(self, call, asked):
        call("--labels", "100,all", "--seeds", 2, "--seed", 7, "--epochs", 3, status=130)
        (settings, _), options = asked.call_args
        assert settings.pretrain.epochs == (3, 3, 3)
        assert (options["labels"], list(options["seeds"])) == ((100, None), [7, 8])


def test_a_curve_that_could_not_be_drawn(refusal, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refusal(*TINY, "--labels", "50")
    assert line == 'Error: a curve needs Matplotlib: pip install "syncpretrain[plot]"'
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(refusal, tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "random_stack", None)
    (tmp_path / "file").touch()
    given = ("--starts", "random", "--finetune", "reconstruction", "--out", "file/deep")
    assert refusal(*TINY, *given).startswith("Error: --out: cannot write to ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--schedule greedy", "--schedule: got one, expected none; --starts says"),
        ("--starts x", "--starts: got 'x', expected greedy or synchronized or rounds or random"),
        ("--starts greedy,", "--starts: got '', expected greedy or"),
        ("--labels many", "--labels: got 'many', expected whole numbers or all, separated"),
        ("--labels 10,1.5", "--labels: got '10,1.5', expected whole numbers or all"),
        ("--labels 0", "--labels: got 0, expected 1 to 1294, those there are"),
        ("--labels 10,1295", "--labels: got 1295, expected 1 to 1294, those there are"),
        ("--labels 10 --data x.npy", "--data: x.npy has no"),
        ("--finetune reconstruction --data x.npy", "--data: x.npy has no test examples"),
        ("--seeds 0", "--seeds: got 0, expected a whole number of at least 1"),
        ("--finetune none", "--finetune: got none, expected reconstruction or classification"),
        ("--labels 10 --finetune-patience 2", "--finetune-patience: got a number, expected none"),
        ("--labels 10 --out full", "--out: full is not empty; name a new folder"),
        ("--labels 10 --preset x", "--preset: got 'x', expected one of "),
    ],
)
def test_refused(refusal, tmp_path, arguments, message):
    np.save("x.npy", np.zeros((40, 64), np.float32))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    given = ("--layers", "64,8", "--data", "digits", *arguments.split())
    assert refusal(*given).startswith(f"Error: {message}")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_group_size_belongs_to_rounds(call, refusal):
    stack = ("--data", "digits", "--layers", "64,12,8", "--epochs", 1, "--finetune-epochs", 1)
    common = (*stack, "--labels", 50, "--seeds", 1, "--quiet", "--group-size", 1)
    call(*common, "--starts", "rounds,greedy")
    line = refusal(*common, "--starts", "greedy")
    assert "--group-size: got 1, but no start trains groups of layers; add rounds" in line
