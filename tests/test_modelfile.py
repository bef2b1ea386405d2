from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from syncpretrain import Stack, load, pretrain
from syncpretrain.atomic import write_atomically
from syncpretrain.errors import ModelFileError
from syncpretrain.modelfile import MODEL_NAME
from syncpretrain.stack import Layer

INFO = {"epochs": [3, 2], "pretrain": {"layers": [4, 3, 2], "momentum": "0.5:5,0.9"}, "ü": None}


def make_stack(*, tied: bool = True, transposed: bool = False) -> Stack:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        values = rng.normal(size=shape[::-1] if transposed else shape).astype(np.float32)
        return values.T if transposed else values

    layers = [
        Layer(array(v, h), array(h), array(v), None if tied else array(h, v))
        for v, h in ((4, 3), (3, 2))
    ]
    return Stack(tuple(layers), INFO)


def assert_equal(found: Stack, expected: Stack) -> None:
    assert found.info == json.loads(json.dumps(expected.info))  # tuples come back as lists
    assert len(found.layers) == len(expected.layers)
    for have, want in zip(found.layers, expected.layers, strict=True):
        names = [name for name, _ in want.parameters()]
        assert [name for name, _ in have.parameters()] == names
        for (_, x), (_, y) in zip(have.parameters(), want.parameters(), strict=True):
            assert x.dtype == np.float32
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_a_stack_comes_back_bit_for_bit(tmp_path, tied, transposed):
    stack = make_stack(tied=tied, transposed=transposed)
    stack.save(tmp_path / "a.safetensors")
    found = load(tmp_path / "a.safetensors")
    assert_equal(found, stack)
    assert found.parameters_sha256 == stack.parameters_sha256


def test_a_mixed_stack_comes_back(tmp_path):
    stack = Stack((make_stack().layers[0], make_stack(tied=False).layers[1]))
    stack.save(tmp_path / MODEL_NAME)
    assert_equal(load(tmp_path), stack)


def test_a_trained_stack_comes_back_with_what_made_it(tmp_path, bits):
    stack = pretrain(bits, layers=[16, 8, 4], epochs=1, batch_size=20)
    stack.save(str(tmp_path / "b"))
    assert_equal(load(str(tmp_path / "b")), stack)
    codes = load(tmp_path / "b").encode(bits)
    np.testing.assert_array_equal(codes, stack.encode(bits))


def test_the_umask_decides_who_may_read_it(tmp_path):
    before = os.umask(0o022)
    try:
        make_stack().save(tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def refused(path: Path, message: str | None = None) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_every_truncation_is_refused(tmp_path):
    file = tmp_path / "a"
    make_stack(tied=False).save(file)
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        refused(file)
    file.write_bytes(whole + b"\0")
    refused(file)


def test_a_damaged_file_is_refused_or_means_the_same(tmp_path):
    file, stack, rng = tmp_path / "a", make_stack(tied=False), np.random.default_rng(1)
    stack.save(file)
    whole = file.read_bytes()
    loaded = 0
    for _ in range(2500):
        damaged = bytearray(whole)
        for position in rng.integers(len(whole), size=rng.integers(1, 3)):
            damaged[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        try:
            assert_equal(load(file), stack)
            loaded += 1
        except ModelFileError:
            pass
    assert loaded < 25


def write_crafted(path: Path, header: dict, body: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def test_a_header_that_claims_too_much_is_refused_without_the_memory(tmp_path):
    for shape in ([10**6, 10**6], [2**40], [2**62, 4]):
        size = 4 * int(np.prod([float(n) for n in shape]))
        tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
        refused(write_crafted(tmp_path / "a", {"layers.1.weight": tensor}), "cannot be read")
    (tmp_path / "a").write_bytes(struct.pack("<Q", 10**12) + b"{}")
    refused(tmp_path / "a", "cannot be read")


@pytest.mark.parametrize(
    ("dtype", "size"), [("BF16", 2), ("F8_E4M3", 1), ("F64", 8), ("I32", 4), ("BOOL", 1)]
)
def test_other_types_of_numbers_are_refused(tmp_path, dtype, size):
    tensor = {"dtype": dtype, "shape": [2, 2], "data_offsets": [0, 4 * size]}
    metadata = {"format": "syncpretrain 1"}
    header = {"layers.1.weight": tensor, "__metadata__": metadata}
    refused(write_crafted(tmp_path / "a", header, b"\0" * 4 * size))


def arrays(**changed) -> dict[str, np.ndarray]:
    """The arrays of a file, with ``__`` for the dots; None leaves one out."""
    stack = make_stack()
    found = {
        f"layers.{number}.{name}": array
        for number, layer in enumerate(stack.layers, start=1)
        for name, array in layer.parameters()
    }
    found |= {name.replace("__", "."): array for name, array in changed.items()}
    return {name: array for name, array in found.items() if array is not None}


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


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
        (
            {"layers__2__weight": zeros(5, 2), "layers__2__visible_bias": zeros(5)},
            "layers 1 and 2 do not fit each other",
        ),
        ({"layers__1__hidden_bias": np.float32([0, np.nan, 0])}, "layer 1 holds NaN or infinite"),
        ({"layers__2__hidden_bias": np.float32([0, np.inf])}, "layer 2 holds NaN or infinite"),
        ({"layers__1__hidden_bias": np.float32([0, 0, 1])}, "do not match their checksum"),
    ],
)
def test_arrays_that_make_no_stack_are_refused(tmp_path, changed, message):
    info = json.dumps({})
    metadata = {
        "format": "syncpretrain 1",
        "sha256": make_stack().parameters_sha256,
        "info": info,
        "info_sha256": hashlib.sha256(info.encode()).hexdigest(),
    }
    (tmp_path / "a").write_bytes(safetensors.numpy.save(arrays(**changed), metadata))
    refused(tmp_path / "a", message)


@pytest.mark.parametrize(
    ("info", "message"),
    [("[1]", "expected a table"), ("{", "info is damaged"), ("[" * 100_000, "info is damaged")],
)
def test_an_info_that_is_no_table_is_refused(tmp_path, info, message):
    metadata = {
        "format": "syncpretrain 1",
        "sha256": make_stack().parameters_sha256,
        "info": info,
        "info_sha256": hashlib.sha256(info.encode()).hexdigest(),
    }
    (tmp_path / "a").write_bytes(safetensors.numpy.save(arrays(), metadata))
    refused(tmp_path / "a", message)


def test_a_file_without_any_array_or_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(safetensors.numpy.save(arrays(), None))
    refused(tmp_path / "a", "its format is None, expected 'syncpretrain 1'")
    (tmp_path / "a").write_bytes(safetensors.numpy.save({}, {"format": "syncpretrain 1"}))
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
    refused(tmp_path / "a.npy", "cannot be read as a model")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["missing", ".", "no/such/folder", "x" * 300, "a\0b"])
def test_where_there_is_no_model(tmp_path, name):
    refused(tmp_path / name)


def test_an_empty_file(tmp_path):
    (tmp_path / "a").touch()
    refused(tmp_path / "a", "cannot be read as a model")


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "holds no model")


@pytest.mark.parametrize(("owner", "failing"), [(Path, "replace"), (os, "fsync")])
@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch, owner, failing, error):
    old, new = make_stack(), make_stack(tied=False)
    old.save(tmp_path / "a")

    def fail(*args, **named) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, fail)
        with pytest.raises(type(error)):
            new.save(tmp_path / "a")
        with pytest.raises(type(error)):
            new.save(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert_equal(load(tmp_path / "a"), old)
    new.save(tmp_path / "a")
    assert_equal(load(tmp_path / "a"), new)


def test_a_folder_that_is_not_there_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        make_stack().save(tmp_path / "missing" / "a")


def test_write_atomically_replaces_the_whole_content(tmp_path):
    write_atomically(tmp_path / "a", b"a long content")
    write_atomically(tmp_path / "a", b"short")
    assert (tmp_path / "a").read_bytes() == b"short"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
