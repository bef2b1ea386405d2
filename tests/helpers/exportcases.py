"""Stacks to export, raw rows for them, and what each part is to return."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
from randomconvolutions import random_layer

from syncpretrain.data.scaling import Scaling
from syncpretrain.models.layer import DenseLayer, Head
from syncpretrain.models.stack import Stack
from syncpretrain.shapes import ConvolutionShape, DenseShape

ROWS = 7
COLUMNS = {
    "features": [
        {"name": "age", "kind": "number"},
        {"name": "colour", "kind": "category", "values": ["blue", "green", "red"]},
        {"name": "place", "kind": "constant", "values": ["here"]},
        {"name": "codes", "kind": "binary"},  # the name of an output, too
        {"name": "size", "kind": "category", "values": ["L", "S"]},
    ]
}
GROUPS = {"blocks": ((4, 7), (7, 10)), "table": ((1, 4), (5, 7)), "a choice": ((0, 5),)}  # columns
BLOCKS = "bernoulli:2,gaussian:2,softmax:2x3"
TABLE_UNITS = "gaussian:1,softmax:1x3,bernoulli:1,softmax:1x2"


def _layer(draws, shape, above="bernoulli", below="bernoulli", *, untied=False):
    kinds = {"hidden_units": above, "visible_units": below}
    return random_layer(shape, tied=not untied, seed=draws, **kinds)


def _dense(*widths, units, untied=False, scaled=None, never=slice(0), **others):
    """Return what draws a stack, some of whose columns are scaled."""

    def stack(draws):
        own = {"scaling": _scaling(draws, widths[0], only=scaled, never=never)} if scaled else {}
        kinds = zip(pairwise(widths), units[1:], units, strict=False)
        layers = (_layer(draws, DenseShape(*w), *kind, untied=untied) for w, *kind in kinds)
        return Stack(tuple(layers), **own, **others)

    return stack


def _scaling(draws, width, *, only=slice(None), never=slice(0)):
    shift, scale = np.zeros(width, "f4"), np.ones(width, "f4")
    shift[only] = 1000 * draws.normal(size=width)[only]
    scale[only] = draws.uniform(0.5, 20, size=width)[only]
    scale[never] = 0
    return Scaling(shift, scale)


def _lenet(draws):
    first = ConvolutionShape(2, 8, 6, 4, 3, 1, 2, "max", channels_first=True, groups=2)
    second = ConvolutionShape(4, 4, 3, 6, 2, 0, 1, "max", groups=2)
    layers = [_layer(draws, first, untied=True), _layer(draws, second, "relu")]
    return Stack((*layers, _layer(draws, DenseShape(second.hidden, 5), "tanh", "gaussian")))


def _maps(draws, pooling, gain=1):
    shape = ConvolutionShape(1, 7, 9, 3, 2, 0, 2, pooling, channels_first=True)
    layer = _layer(draws, shape, below="gaussian")
    layer = replace(layer, weight=np.float32(gain) * layer.weight)
    return Stack((layer,), scaling=_scaling(draws, shape.visible))


ALL = slice(None)
CASES = {
    "dense": _dense(12, 9, 5, units=("bernoulli",) * 3, untied=True),
    "linear code": _dense(12, 9, 3, units=("bernoulli", "bernoulli", "gaussian")),
    "standardized": _dense(6, 8, 4, units=("gaussian", "relu", "tanh"), scaled=ALL),
    "a constant": _dense(6, 8, 4, units=("gaussian", "relu", "relu"), scaled=ALL, never=2),
    "blocks": _dense(10, 8, units=(BLOCKS, "relu"), scaled=slice(2, 4)),
    "counts": _dense(8, 5, units=("counts:8", "bernoulli")),
    "table": _dense(
        *(7, 6, 4),
        units=(TABLE_UNITS, "bernoulli", "bernoulli"),
        scaled=slice(0, 1),
        info={"columns": COLUMNS},
    ),
    "convolutions": _lenet,
    "mean pooling": lambda draws: _maps(draws, "mean"),
    "probabilistic pooling": lambda draws: _maps(draws, "prob"),
    "saturated pooling": lambda draws: _maps(draws, "prob", gain=300),
    "a choice": _dense(5, 4, units=("softmax:1x5", "tanh")),
}
HEADS = {
    "none": None,
    "three": ("classification", ("b", "c", "a")),
    "two": ("classification", (7, -1)),
    "numbers": ("regression", ()),
}


@cache
def case(name: str, head: str = "none") -> Stack:
    """Return the stack of a case, with a head."""
    stack = CASES[name](np.random.default_rng(len(name)))
    if HEADS[head] is None:
        return stack
    draws = np.random.default_rng(1)
    kind, classes = HEADS[head]
    outputs = len(classes) or 2
    weight = draws.normal(size=(stack.widths[-1], outputs)).astype(np.float32)
    return replace(stack, head=Head(weight, np.arange(outputs, dtype=np.float32), kind, classes))


def parts_of_case(name: str, head: str) -> tuple[str, ...]:
    """Return the parts of a stack that can be exported; the encoder only without a head."""
    if head != "none":
        return ("regressor" if head == "numbers" else "classifier",)
    return ("encoder", "decoder") if name == "counts" else ("encoder", "decoder", "autoencoder")


def rows_of(name: str, *, missing: bool = True) -> np.ndarray:
    """Return rows as ``Stack.encode`` takes them."""
    stack, draws = case(name), np.random.default_rng(2)
    rows = draws.random((ROWS, stack.widths[0]), dtype=np.float32)
    if name == "counts":
        return draws.integers(0, 4, size=rows.shape).astype(np.float32)
    if name in GROUPS:
        groups = [slice(*ends) for ends in GROUPS[name]]
        for group in groups:
            choices = group.stop - group.start
            rows[:, group] = np.eye(choices, dtype=np.float32)[draws.integers(choices, size=ROWS)]
        if missing:
            rows[0, groups[0]] = np.nan
    if stack.scaling is not None:
        rows = np.where(stack.scaling.scale == 1, rows, stack.scaling.invert(4 * rows - 2))
    is_dense = isinstance(stack.layers[0], DenseLayer)
    if missing and is_dense and name != "a choice":  # all of a choice is missing, or nothing
        rows[1, 0] = np.nan
    return rows.astype(np.float32)


def columns_of(name: str, *, missing: bool = True) -> list[list]:
    """Return the columns of the table as a file has them: numbers, and texts or None."""
    rows = rows_of(name, missing=missing)

    def texts(part, values):
        return [None if np.isnan(row).any() else values[row.argmax()] for row in part]

    colours = texts(rows[:, 1:4], ["blue", "green", "red"])
    return [rows[:, 0].tolist(), colours, rows[:, 4].tolist(), texts(rows[:, 5:7], ["L", "S"])]


def numbered(name: str, *, missing: bool) -> np.ndarray:
    """Return the table with the place of each category in place of its text."""
    places = {"blue": 0, "green": 1, "red": 2, "L": 0, "S": 1, None: np.nan}
    columns = [[places.get(x, x) for x in own] for own in columns_of(name, missing=missing)]
    return np.array(columns, dtype=np.float32).T


def inputs_of(name: str, part: str, *, missing: bool = True) -> np.ndarray:
    """Return what goes into a part that takes rows of numbers."""
    if part == "decoder":
        return np.random.default_rng(3).random((ROWS, case(name).widths[-1]), dtype=np.float32)
    found = numbered if name == "table" else rows_of
    return found(name, missing=missing)


def expected(name: str, head: str, part: str, *, missing: bool = True) -> np.ndarray:
    """Return what the stack itself makes of the same."""
    stack, rows = case(name, head), rows_of(name, missing=missing)
    if part == "decoder":
        return stack.decode(inputs_of(name, part))
    methods = {"encoder": stack.encode, "autoencoder": stack.reconstruct}
    methods |= {"classifier": stack.predict_proba, "regressor": stack.predict}
    return methods[part](rows)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare with a tolerance of 1e-5, of large numbers in proportion."""
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5)
