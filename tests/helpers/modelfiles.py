"""Model files as tests write them, and what is equal to what was saved."""

import hashlib
import json
import struct
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from randomstacks import normal_stack

from syncpretrain import Stack, load
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import ModelFileError
from syncpretrain.models.layer import Head, Layer

INFO = {"epochs": [3, 2], "pretrain": {"layers": [4, 3, 2], "momentum": "0.5:5,0.9"}, "ü": None}
Part = Scaling | Head | Layer | None
make_stack = partial(normal_stack, (4, 3, 2), info=INFO)


def assert_equal(found: Stack, expected: Stack) -> None:
    assert found.info == json.loads(json.dumps(expected.info))  # tuples come back as lists
    parts = [(stack.scaling, stack.head, *stack.layers) for stack in (found, expected)]
    for have, want in zip(*parts, strict=True):
        assert_same_parts(have, want)


def assert_same_parts(found: Part, expected: Part) -> None:
    assert type(found) is type(expected)
    for field in () if expected is None else fields(expected):
        have, want = getattr(found, field.name), getattr(expected, field.name)
        np.testing.assert_array_equal(have, want)
        assert getattr(have, "dtype", None) == getattr(want, "dtype", None)


def refused(path: Path, message: str | None = None) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(path)


def arrays(stack: Stack | None = None, **changed) -> dict[str, np.ndarray]:
    """The arrays of a file, with ``__`` for the dots; None leaves one out."""
    stack = stack or make_stack()
    found = {
        f"layers.{number}.{name}": array
        for number, layer in enumerate(stack.layers, start=1)
        for name, array in layer.parameters()
    }
    if stack.scaling is not None:
        found |= {"input.shift": stack.scaling.shift, "input.scale": stack.scaling.scale}
    if stack.head is not None:
        found |= {"head.weight": stack.head.weight, "head.bias": stack.head.bias}
    found |= {name.replace("__", "."): array for name, array in changed.items()}
    return {name: array for name, array in found.items() if array is not None}


def meaning_of(stack: Stack) -> dict:
    kinds = ("hidden_units", "visible_units", "model")
    head = stack.head
    return {
        "layers": [{name: getattr(layer, name) for name in kinds} for layer in stack.layers],
        "head": None if head is None else {"kind": head.kind, "classes": list(head.classes)},
    }


def write_file(path: Path, tensors: dict[str, np.ndarray], stack: Stack, **texts: str) -> None:
    """Write tensors with the checksum of a stack, and texts with checksums of their own."""
    texts = {"info": "{}", "meaning": json.dumps(meaning_of(stack))} | texts
    sums = {
        f"{name}_sha256": hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()
    }
    metadata = {"format": "syncpretrain 2", "sha256": stack.parameters_sha256, **texts, **sums}
    path.write_bytes(safetensors.numpy.save(tensors, metadata))


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


def loaded_though_damaged(stack: Stack, file: Path, times: int) -> int:
    """Save a stack, and flip bits of the file; return how often it is loaded, as the same stack.

    Any other error than the one of model files is raised.
    """
    rng = np.random.default_rng(1)
    stack.save(file)
    whole, loaded = file.read_bytes(), 0
    for _ in range(times):
        damaged = bytearray(whole)
        for position in rng.integers(len(whole), size=rng.integers(1, 3)):
            damaged[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        try:
            found = load(file)
        except ModelFileError:
            continue
        assert_equal(found, stack)
        loaded += 1
    return loaded


def write_crafted(path: Path, header: dict[str, object], body: bytes = b"") -> Path:
    """Write a file of safetensors with this header, whatever it claims."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path
