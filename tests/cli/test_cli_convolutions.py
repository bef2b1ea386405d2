"""The commands on convolutional stacks, from ``train`` to pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from commandline import exit_status
from PIL import Image

import syncpretrain
from syncpretrain.settings import read_settings

pytestmark = pytest.mark.usefixtures("measures_anew")

TEXT = "3x8x6,conv:4x3,pool:2,conv:5x2,6"
TRAIN = ("--data", "colours.npy", "--batch-size", 10, "--epochs", 2, "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with examples in colour, and two runs on them."""
    folder = tmp_path_factory.mktemp("convolutions")
    np.save(folder / "colours.npy", np.random.default_rng(0).random((60, 144), dtype=np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for model in ("rbm", "denoising"):
            given = ("--layers", TEXT, "--model", model, "--out", model)
            assert exit_status("train", *TRAIN, *given) == 0
    return folder


@pytest.fixture
def call(call, folder, monkeypatch):
    monkeypatch.chdir(folder)
    return call


def test_the_run_says_what_it_was(folder):
    assert read_settings(folder / "rbm" / "config.toml").pretrain.architecture == TEXT
    rows = json.loads((folder / "rbm" / "metrics.json").read_text())["layers"]
    assert ", ".join(row["shape"] for row in rows) == (
        "3x8x6 conv 4x3 pool 2 -> 4x3x2, 4x3x2 conv 5x2 -> 5x2x1, 10-6"
    )
    assert str(syncpretrain.load(folder / "rbm").layers[1].shape) == rows[1]["shape"]


def test_the_table_names_the_convolutions(call, tmp_path):
    lines = call("train", *TRAIN[:-1], "--layers", TEXT, "--out", tmp_path / "run")[0].splitlines()
    words = " ".join(lines[5:]).split()
    assert words[:3] == ["1", "conv", "4x3"]
    places = [words.index(word) for word in ("pool", "5x2", "10-6")]
    assert places == sorted(places)
    assert lines[-1] == f"next: syncpretrain report {tmp_path / 'run'}"


def test_reconstructions_are_in_colour_without_a_shape(call, tmp_path):
    call("reconstruct", "denoising", "--count", 3, "--out", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "RGB"
        assert image.size == (3 * (3 * 8 + 2), 3 * (2 * 9 + 4 + 2))


def test_filters(call, folder, tmp_path):
    assert call("filters", "denoising")[0] == "denoising/filters.png: 4 of 4 units of layer 1\n"
    with Image.open(folder / "denoising" / "filters.png") as image:
        assert (image.mode, image.size) == ("RGB", (12 * (4 * 5 + 2), 12 * (4 + 4 + 2)))
    call("filters", "rbm", "--layer", 2, "--count", 2, "--out", tmp_path / "b.png")
    with Image.open(tmp_path / "b.png") as image:
        assert (image.mode, image.size) == ("L", (18 * (2 * 4 + 2), 18 * (4 * 3 + 4 + 2)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--layer", 3), "--layer: got 3, a dense layer that reads no pixels, expected 1 or a con"),
        (("--layer", 4), "--layer: got 4, expected 1 to 3"),
        (("--out", "no/a.png"), "--out: the folder no does not exist"),
    ],
)
def test_filters_that_there_are_not(refusal, given, message):
    assert refusal("filters", "rbm", *given).startswith(f"Error: {message}")


def test_samples_and_codes(call, refusal, tmp_path):
    call("sample", "rbm", "--count", 2, "--steps", 3, "--out", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "RGB"
    assert refusal("sample", "denoising").startswith("Error: the top layer is an autoencoder")
    call("encode", "rbm", "--layer", 1, "--part", "train", "--out", tmp_path / "z.npy")
    codes = np.load(tmp_path / "z.npy")
    assert codes.shape[1] == 24
    stack = syncpretrain.load("rbm")
    X = np.load("colours.npy")
    assert any(np.array_equal(codes[0], code) for code in stack.encode(X, layer=1))


def test_another_stack_on_top_of_the_settings(call, tmp_path):
    given = ("--config", "rbm/config.toml", "--quiet", "--out")
    call("train", *given, tmp_path / "b", "--layers", "144,8,7,6")
    assert read_settings(tmp_path / "b" / "config.toml").pretrain.architecture == ""
    call("train", *given, tmp_path / "c", "--layers", "3x8x6,conv:2x3")
    assert syncpretrain.load(tmp_path / "c").widths == (144, 48)


def test_a_plan_names_the_text(call):
    given = ("--layers", TEXT, "--examples", 30, "--batch-size", 10, "--seconds", 0)
    report = json.loads(call("plan", *given, "--json")[0])
    assert (report["layers"], report["architecture"]) == ([144, 24, 10, 6], TEXT)
    assert f"--layers {TEXT} " in report["command"]
    for row in report["candidates"]:
        if row["settings"].get("split") == "units":
            assert set(row["settings"]["replicas"][:2]) == {1}, "only the dense layer is shared"
    assert call("plan", *given)[0].startswith(TEXT)


@pytest.mark.parametrize("change", [("--model", "denoising"), ("--layers", "144,10")])
def test_a_usual_sparsity_cost_goes_with_the_layers_of_its_file(call, tmp_path, change):
    assert read_settings(Path("rbm/config.toml")).pretrain.sparsity_cost == (1.0, 1.0, 0.0)
    call("train", *TRAIN, "--config", "rbm/config.toml", *change, "--out", tmp_path / "run")
    assert set(read_settings(tmp_path / "run" / "config.toml").pretrain.sparsity_cost) == {0.0}


def test_a_sparsity_cost_that_was_asked_for_stays(call, tmp_path):
    call("train", *TRAIN, "--layers", TEXT, "--sparsity-cost", "2,1,0", "--out", tmp_path / "a")
    call("train", *TRAIN, "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")
    assert read_settings(tmp_path / "b" / "config.toml").pretrain.sparsity_cost == (2.0, 1.0, 0.0)


def test_a_file_of_other_axes_is_refused_by_all_commands(refusal):
    np.save("turned.npy", np.load("colours.npy").reshape(-1, 3, 6, 8))
    given = ("--data", "turned.npy")
    for command in (
        ("train", "--layers", TEXT, "--out", "turned", *given),
        ("encode", "rbm", "--out", "codes.npy", *given),
        ("finetune", "rbm", "--finetune", "reconstruction", "--out", "turned", *given),
    ):
        words = "turned.npy: got examples of 3x6x8, expected images of 3x8x6"
        assert words in refusal(*command)


def test_a_comparison_names_the_text(call, tmp_path):
    given = ("--layers", TEXT, "--model", "denoising", "--epochs", 1, "--batch-size", 10)
    tuned = ("--finetune", "reconstruction", "--finetune-epochs", 1, "--seeds", 1)
    data = ("--data", "colours.npy", "--test", 0.2, "--starts", "random")
    out, _ = call("compare", *data, *given, *tuned, "--out", tmp_path / "compared")
    assert f"\n{TEXT} on " in f"\n{out}"
