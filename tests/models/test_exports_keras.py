"""Exported parts in Keras, and stacks of its layers."""

import json
import os
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
from exportcases import CASES, case, close, expected, inputs_of, parts_of_case

from syncpretrain import Stack
from syncpretrain.errors import DataError
from syncpretrain.models.export.keras_model import ABOUT

BACKENDS = [name for name in ("torch", "jax", "tensorflow") if find_spec(name)]
if not BACKENDS:
    pytest.skip("Keras needs jax, torch or tensorflow", allow_module_level=True)
os.environ.setdefault("KERAS_BACKEND", BACKENDS[0])
keras = pytest.importorskip("keras", reason="exports are opened by Keras")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras itself
X = np.random.default_rng(0).random((5, 6), dtype=np.float32)


def output(model, rows):
    return keras.ops.convert_to_numpy(model(rows))


@pytest.mark.parametrize("name", CASES)
def test_the_outputs_are_those_of_the_stack(name):
    for head in ("none", "numbers"):  # the file of a classifier is below
        for part in parts_of_case(name, head):
            wanted = expected(name, head, part)
            close(output(case(name, head).to_keras(part), inputs_of(name, part)), wanted)


@pytest.mark.parametrize("name", CASES)
def test_the_file_loads_in_the_safe_mode(name, tmp_path, call):
    case(name, "three").save(tmp_path / "model.safetensors")
    call("export", tmp_path, "--out", tmp_path / "c.keras")
    model = keras.saving.load_model(tmp_path / "c.keras", safe_mode=True)
    close(output(model, inputs_of(name, "classifier")), expected(name, "three", "classifier"))
    about = json.loads(zipfile.ZipFile(tmp_path / "c.keras").read(ABOUT))
    assert about["classes"] == ["b", "c", "a"]


class TestFromKeras:
    def test_codes_are_the_networks(self):
        layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dense(4), keras.layers.ReLU()]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(2)])
        stack = Stack.from_keras(model)
        assert stack.units == ("gaussian", "tanh", "relu", "gaussian")
        close(stack.encode(X), output(model, X))

    def test_a_classifier_with_a_softmax(self):
        layers = [keras.layers.Dense(5, "sigmoid"), keras.layers.Dense(3, "softmax")]
        model = keras.Sequential([keras.Input((6,)), *layers])
        close(Stack.from_keras(model, classes=[2, 1, 0]).predict_proba(X), output(model, X))

    def test_what_is_no_stack(self):
        gelu = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, "gelu")])
        with pytest.raises(DataError, match=r"^network: got a dense layer with gelu, expected"):
            Stack.from_keras(gelu)
        spread = keras.Sequential([keras.Input((6,)), keras.layers.Reshape((2, 3))])
        with pytest.raises(DataError, match=r"^network: got Reshape at place 0"):
            Stack.from_keras(spread)
