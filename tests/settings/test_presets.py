"""The presets: what comes with the library, ``presets`` and ``train --preset``."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from syncpretrain.errors import SettingsError
from syncpretrain.settings import preset_names, preset_path, read_settings

NAMES = preset_names()
TINY = ("--data", "digits", "--layers", "64,8", "--epochs", 1)


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_there_are_those_of_the_papers():
    assert {"fast", "hinton2006", "label-budget", "santara2016", "santara2016-greedy"} <= set(NAMES)
    assert sorted(NAMES) == NAMES


@pytest.mark.parametrize("name", NAMES)
class TestEach:
    def test_it_is_valid(self, name):
        settings = read_settings(preset_path(name))
        assert (settings.data.name, settings.pretrain.layers[0]) == ("mnist", 784)
        assert settings.finetune.objective in ("reconstruction", "classification")

    def test_it_begins_with_its_source(self, name):
        head = preset_path(name).read_text(encoding="utf-8").partition("\n\n")[0]
        assert all(line.startswith("#") for line in head.splitlines())
        assert re.search(r"\b(19|20)\d\d\b", head), "a year"

    def test_it_is_printed_as_it_is(self, name, call):
        out, err = call("presets", name)
        assert (out, err) == (preset_path(name).read_text(encoding="utf-8"), "")


def test_setup_packs_them():
    setup = (Path(__file__).parents[2] / "setup.py").read_text(encoding="utf-8")
    assert '"settings/presets/*.toml"' in setup


def test_all_are_listed_with_their_first_line(call):
    lines = call("presets")[0].splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    for line, name in zip(lines, NAMES, strict=True):
        first = preset_path(name).read_text(encoding="utf-8").splitlines()[0]
        assert line.split(maxsplit=1)[1] == first.removeprefix("# ").rstrip(",")


@pytest.mark.parametrize("arguments", [("presets", "x"), ("train", "--preset", "x")])
def test_an_unknown_one_is_refused(call, arguments):
    _, err = call(*arguments, status=2)
    words = f"preset: got 'x', expected one of {', '.join(NAMES)}\n"
    assert err.removeprefix("Error: ").removeprefix("--") == words


@pytest.mark.parametrize("name", ["../fast", "fast.toml", ""])
def test_a_path_is_no_name(name):
    with pytest.raises(SettingsError, match=r"^preset: got "):
        preset_path(name)


class TestTrain:
    def test_options_win_over_the_preset(self, call, tmp_path):
        out, _ = call("train", "--preset", "fast", *TINY, "--seed", 4, "--out", "run", "--json")
        assert json.loads(out)["seed"] == 4
        settings, preset = read_settings(tmp_path / "run/config.toml"), preset_path("fast")
        assert (settings.pretrain.layers, settings.data.name) == ((64, 8), "digits")
        taken = settings.finetune.precision
        assert taken in ("float32", "bfloat16")
        assert settings.finetune == replace(read_settings(preset).finetune, precision=taken)
        assert settings.pretrain.momentum == ("0.5",)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (("hinton2006", *TINY), "--[a-z-]+: got 4 values, expected one for all layers or 1"),
            (("sdae-classifier", "--model", "rbm"), "--corruption: got masking:0.1 with model rbm"),
            (("x", "--config", "x"), "--preset: got one beside --config, expected one of the two"),
        ],
    )
    def test_what_does_not_go_with_a_preset_is_refused(self, call, tmp_path, given, message):
        assert re.match(f"Error: {message}", call("train", "--preset", *given, status=2)[1])
        assert list(tmp_path.iterdir()) == []

    def test_another_model_takes_its_own_default(self, call, tmp_path):
        given = ("--model", "denoising", "--finetune", "none", "--out", "run", "--quiet")
        preset = tmp_path / "own.toml"
        preset.write_text("[pretrain]\nlayers = [64, 16]\n")
        call("train", "--config", preset, *TINY, *given)
        assert read_settings(tmp_path / "run/config.toml").pretrain.corruption == ("masking:0.25",)

    def test_a_preset_beside_a_replay_is_refused(self, call, tmp_path):
        call("train", *TINY, "--out", "run", "--quiet")
        _, err = call("train", "--preset", "fast", "--replay", "run", status=2)
        assert re.match(r"Error: --(config|preset): cannot be combined with --replay", err)
