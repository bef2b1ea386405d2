"""Commands on a finished run warn if its data is not what it was trained on."""

import json

import numpy as np
import pytest

COMMANDS = {
    "evaluate": ("evaluate", "run"),
    "encode": ("encode", "run", "--out", "z.npy"),
    "encode a part": ("encode", "run", "--part", "train", "--out", "z.npy"),
    "reconstruct": ("reconstruct", "run"),
}


@pytest.fixture
def folder(call, tmp_path, monkeypatch, bits):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", bits)
    np.save("other.npy", bits[:50])
    call("train", "--data", "x.npy", "--layers", "16,9,4", "--epochs", 1, "--out", "run", "--quiet")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_replaced_file_alone_is_told_with_both_sides(folder, call, command, bits):
    assert "trained on other data" not in call(*command)[1]
    np.save("x.npy", bits[::-1])
    _, reported = call(*command)
    words = "warning: run was trained on other data: the 200 examples of x.npy (180 train"
    assert words in reported
    assert "x.npy is now" in reported or f"{folder / 'x.npy'} is now" in reported
    assert reported.count("SHA-256") == 2


def test_json_names_both(folder, call, bits):
    np.save("x.npy", bits[::-1])
    found = json.loads(call("evaluate", "run", "--json")[0])
    assert found["data"]["sha256"] != found["trained_on"]["sha256"]


def test_another_file_on_purpose_is_nothing_to_tell(folder, call):
    assert "trained on other data" not in call("evaluate", "run", "--data", "other.npy")[1]


def test_a_run_with_few_labels_knows_its_data(tmp_path, monkeypatch, bits, call):
    """The labels that it left out count as data all the same."""
    monkeypatch.chdir(tmp_path)
    np.savez("xy.npz", X=bits, y=np.arange(200) % 2)
    train = ("train", "--data", "xy.npz", "--layers", "16,9", "--epochs", 1, "--labels", 20)
    tune = ("--finetune", "classification", "--finetune-epochs", 1, "--finetune-batch-size", 10)
    call(*train, *tune, "--out", "run", "--quiet")
    assert "trained on other data" not in call("evaluate", "run")[1]
