import json
import os
import pickle
import struct
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import modelfiles
import numpy as np
import pytest
import safetensors.numpy
from modelfiles import arrays, assert_equal, make_stack, meaning_of, refused, write_file, zeros

from syncpretrain import Stack, load
from syncpretrain.data.scaling import Scaling
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Head
from syncpretrain.units.kinds import UNITS


def full_stack(kind: str = "classification") -> Stack:
    """A stack with everything that a file may hold."""
    rng = np.random.default_rng(1)
    layers = tuple(
        replace(layer, visible_units="gaussian", hidden_units=units, model="autoencoder")
        for layer, units in zip(make_stack(tied=False).layers, ("relu", "gaussian"), strict=True)
    )
    outputs, classes = (3, (7, -2, 10**12)) if kind == "classification" else (1, ())
    arrays = (rng.normal(size=size).astype(np.float32) for size in ((2, outputs), outputs))
    head = Head(*arrays, kind, classes)
    scaling = Scaling(rng.normal(size=4).astype("f4"), rng.random(4).astype("f4") + 1e-3)
    return Stack(layers, modelfiles.INFO, scaling, head)


NARROW = {"input__shift": zeros(1), "input__scale": zeros(1) + 1}
WIDER = {"layers__2__weight": zeros(5, 2), "layers__2__visible_bias": zeros(5)}
WIDER |= {"layers__2__decoder_weight": zeros(2, 5)}
MIXED = Stack((make_stack().layers[0], make_stack(tied=False).layers[1]))
STACKS = [make_stack(tied=tied, transposed=t) for tied in (True, False) for t in (True, False)]


@pytest.mark.parametrize("stack", [*STACKS, MIXED, full_stack(), full_stack("regression")])
def test_a_stack_comes_back_bit_for_bit(tmp_path, stack):
    stack.save(str(tmp_path / MODEL_NAME))
    found = load(str(tmp_path))
    assert_equal(found, stack)
    assert found.parameters_sha256 == stack.parameters_sha256


@pytest.mark.parametrize(("below", "above"), product(UNITS, UNITS))
@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_every_kind_of_layer_comes_back(tmp_path, below, above, model):
    layer = replace(make_stack().layers[0], visible_units=below, hidden_units=above, model=model)
    Stack((layer,)).save(tmp_path / "a")
    assert_equal(load(tmp_path / "a"), Stack((layer,)))


def test_the_umask_decides_who_may_read_it(tmp_path):
    before = os.umask(0o022)
    try:
        make_stack().save(tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_every_truncation_is_refused(tmp_path):
    file = tmp_path / "a"
    full_stack().save(file)
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        refused(file, "cannot be read as a model")
    file.write_bytes(whole + b"\0")
    refused(file)


def test_a_damaged_file_is_refused_or_means_the_same(tmp_path):
    assert modelfiles.loaded_though_damaged(full_stack(), tmp_path / "a", times=3_000) < 30


def test_a_header_that_claims_too_much_is_refused_without_the_memory(tmp_path):
    for shape in ([10**6, 10**6], [2**40], [2**62, 4]):
        size = 4 * int(np.prod([float(n) for n in shape]))
        tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
        file = modelfiles.write_crafted(tmp_path / "a", {"layers.1.weight": tensor})
        refused(file, "cannot be read")
    (tmp_path / "a").write_bytes(struct.pack("<Q", 10**12) + b"{}")
    refused(tmp_path / "a", "cannot be read")


@pytest.mark.parametrize(
    ("dtype", "size"), [("BF16", 2), ("F8_E4M3", 1), ("F64", 8), ("I32", 4), ("BOOL", 1)]
)
def test_other_types_of_numbers_are_refused(tmp_path, dtype, size):
    tensor = {"dtype": dtype, "shape": [2, 2], "data_offsets": [0, 4 * size]}
    header = {"layers.1.weight": tensor, "__metadata__": {"format": "syncpretrain 2"}}
    refused(modelfiles.write_crafted(tmp_path / "a", header, b"\0" * 4 * size))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers__1__hidden_bias": None}, "lacks an array of a layer"),
        ({"layers__3__weight": zeros(2, 2)}, "lacks an array of a layer"),
        ({"layers__1__gain": zeros(3)}, "holds arrays of no layer: layers.1.gain"),
        ({"layers__x__weight": zeros(3)}, "lacks an array"),
        ({"weight": zeros(3)}, "lacks an array"),
        ({"layers__999999999__weight": zeros(3)}, "lacks an array"),
        ({"layers__1__hidden_bias": zeros(4)}, "arrays of layer 1 do not fit each other"),
        ({"layers__2__visible_bias": zeros(2)}, "arrays of layer 2 do not fit each other"),
        ({"layers__2__weight": zeros(6)}, "arrays of layer 2 do not fit each other"),
        ({"layers__1__decoder_weight": zeros(4, 3)}, "arrays of layer 1 do not fit each other"),
        (WIDER, "layers 1 and 2 do not fit each other"),
        ({"layers__1__hidden_bias": np.float32([0, np.nan, 0])}, "layer 1 holds NaN or infinite"),
        ({"layers__2__hidden_bias": np.float32([0, np.inf])}, "layer 2 holds NaN or infinite"),
        ({"layers__1__hidden_bias": np.float32([0, 0, 1])}, "do not match their checksum"),
        ({"input__shift": None}, "lacks half of the input's scaling"),
        ({"input__scale": None}, "lacks half of the input's scaling"),
        ({"input__shift": zeros(3)}, "the input's scaling is damaged"),
        ({"input__scale": -1 - zeros(4)}, "the input's scaling is damaged"),
        ({"input__scale": np.inf + zeros(4)}, "the input's scaling is damaged"),
        ({"input__shift": np.nan + zeros(4)}, "the input's scaling is damaged"),
        (NARROW, "the input's scaling does not fit layer 1"),
        ({"input__shift": zeros(4)}, "do not match their checksum"),
        ({"head__weight": None}, "lacks a part of its head"),
        ({"head__bias": None}, "lacks a part of its head"),
        ({"head__weight": None, "head__bias": None}, "lacks a part of its head"),
        ({"head__weight": zeros(2, 2)}, "its arrays do not fit each other"),
        ({"head__weight": zeros(6)}, "its arrays do not fit each other"),
        ({"head__bias": zeros(3, 1)}, "its arrays do not fit each other"),
        ({"head__bias": zeros(2), "head__weight": zeros(2, 2)}, "do not fit each other"),
        ({"head__bias": zeros(0), "head__weight": zeros(2, 0)}, "do not fit each other"),
        ({"head__weight": zeros(5, 3)}, "the head does not fit the top layer"),
        ({"head__weight": np.nan + zeros(2, 3)}, "its head holds NaN or infinite"),
        ({"head__bias": np.inf + zeros(3)}, "its head holds NaN or infinite"),
        ({"head__bias": zeros(3)}, "do not match their checksum"),
        ({"head__gain": zeros(3)}, "lacks an array|holds arrays of no layer"),
        ({"input__gain": zeros(3)}, "lacks an array|holds arrays of no layer"),
        ({"layers__2__decoder_weight": None}, "do not match their checksum"),
        ({"layers__2__decoder_weight": np.nan + zeros(2, 3)}, "layer 2 holds NaN or infinite"),
    ],
)
def test_arrays_that_make_no_stack_are_refused(tmp_path, changed, message):
    stack = full_stack()
    write_file(tmp_path / "a", arrays(stack, **changed), stack)
    refused(tmp_path / "a", message)


def test_the_helpers_of_these_tests_write_what_is_read(tmp_path):
    for stack in (make_stack(), full_stack(), full_stack("regression")):
        write_file(tmp_path / "a", arrays(stack), stack, info=json.dumps(modelfiles.INFO))
        assert_equal(load(tmp_path / "a"), stack)


def rbm(**changed) -> dict:
    return {"hidden_units": "bernoulli", "visible_units": "bernoulli", "model": "rbm"} | changed


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (None, "lacks an array of a layer"),
        ({}, "lacks an array of a layer"),
        ("rbm", "lacks an array of a layer"),
        ([], "lacks an array of a layer"),
        ([rbm()], "lacks an array of a layer"),
        ([rbm(), None], "lacks an array of a layer"),
        ([rbm(), []], "lacks an array of a layer"),
        ([rbm(), {}], "hidden_units"),
        ([rbm(), rbm(hidden_units="softmax")], "hidden_units 'softmax' is unknown"),
        ([rbm(visible_units="x"), rbm()], "visible_units 'x' is unknown"),
        ([rbm(model="x"), rbm()], "model 'x' is unknown"),
        ([rbm(), rbm(model=["rbm"])], "is unknown"),
    ],
)
def test_layers_of_unknown_units_are_refused(tmp_path, layers, message):
    meaning = json.dumps({"layers": layers, "head": None})
    write_file(tmp_path / "a", arrays(), make_stack(), meaning=meaning)
    refused(tmp_path / "a", message)


@pytest.mark.parametrize(
    "head",
    [
        None,
        3,
        [],
        {},
        "classification",
        {"kind": "classification"},
        {"kind": "classification", "classes": None},
        {"kind": "classification", "classes": [1, 2]},
        *({"kind": "classification", "classes": [1, 2, x]} for x in (None, "x", np.nan, np.inf)),
        {"kind": "ranking", "classes": [1, 2, 3]},
    ],
)
def test_a_damaged_head_is_refused(tmp_path, head):
    stack = full_stack()
    meaning = json.dumps(meaning_of(stack) | {"head": head})
    write_file(tmp_path / "a", arrays(stack), stack, meaning=meaning)
    refused(tmp_path / "a", "head")


@pytest.mark.parametrize("name", ["info", "meaning"])
def test_a_text_that_was_tampered_with_is_refused(tmp_path, name):
    full_stack().save(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    old, new = {"info": (b"epochs", b"epochz"), "meaning": (b"relu", b"gelu")}[name]
    assert whole.count(old) == 1
    (tmp_path / "a").write_bytes(whole.replace(old, new))
    refused(tmp_path / "a", f"is damaged: its {name} does not match its checksum")


def test_a_file_of_the_former_format_is_refused(tmp_path):
    full_stack().save(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(whole.replace(b"syncpretrain 2", b"syncpretrain 1"))
    refused(tmp_path / "a", "its format is 'syncpretrain 1', expected 'syncpretrain 2'")


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", "expected a table"), ("{", "is damaged"), ("[" * 100_000, "is damaged")],
)
@pytest.mark.parametrize("name", ["info", "meaning"])
def test_a_text_that_is_no_table_is_refused(tmp_path, name, text, message):
    write_file(tmp_path / "a", arrays(), make_stack(), **{name: text})
    refused(tmp_path / "a", f"its {name} .*{message}")


def test_a_file_without_any_array_or_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(safetensors.numpy.save(arrays(), None))
    refused(tmp_path / "a", "its format is None, expected 'syncpretrain 2'")
    (tmp_path / "a").write_bytes(safetensors.numpy.save({}, {"format": "syncpretrain 2"}))
    refused(tmp_path / "a")


class Dangerous:
    """A pickle that makes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_is_never_opened(tmp_path):
    (tmp_path / MODEL_NAME).write_bytes(pickle.dumps(Dangerous(tmp_path / "harm")))
    refused(tmp_path, "cannot be read as a model")
    np.save(tmp_path / "a.npy", np.array([Dangerous(tmp_path / "harm")]), allow_pickle=True)
    refused(tmp_path / "a.npy", "cannot be read as a model of syncpretrain, a .safetensors file: ")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["missing", ".", "no/such/folder", "x" * 300, "a\0b"])
def test_where_there_is_no_model(tmp_path, name):
    refused(tmp_path / name)


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "holds no model")


@pytest.mark.parametrize(("owner", "failing"), [(Path, "replace"), (os, "fsync")])
@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch, owner, failing, error):
    old, new = make_stack(), make_stack(tied=False)
    old.save(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, Mock(side_effect=error))
        with pytest.raises(type(error)):
            new.save(tmp_path / "a")
        if failing != "replace":  # which a new file can do without
            with pytest.raises(type(error)):
                new.save(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert_equal(load(tmp_path / "a"), old)
    new.save(tmp_path / "a")
    assert_equal(load(tmp_path / "a"), new)


def test_a_folder_that_is_not_there_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        make_stack().save(tmp_path / "missing" / "a")
