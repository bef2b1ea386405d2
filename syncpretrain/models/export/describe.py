"""Describe a part of a stack as a list of steps, from raw rows to the part's outputs.

Every format is made from this list (:mod:`syncpretrain.models.export.steps`) and its names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from syncpretrain.data.columns import columns_in
from syncpretrain.data.meaning import meaning_in
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.export import steps as kinds
from syncpretrain.models.export.formats import EXPORT_PARTS
from syncpretrain.models.export.steps import FUNCTIONS, Network
from syncpretrain.models.inputs import names_in
from syncpretrain.models.layer import Layer, units_of
from syncpretrain.models.model_file import Model
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of

PARTS_OF_HEADS = {"classification": "classifier", "regression": "regressor"}


def default_part(stack: Model) -> str:
    """Return the part that a stack was trained for: by its head, or the encoder."""
    return "encoder" if stack.head is None else PARTS_OF_HEADS[stack.head.kind]


def describe(stack: Model, part: str | None = None) -> Network:
    """Return a part of a stack as steps.

    Parameters
    ----------
    stack : Model
        The parts of a stack.
    part : str, optional
        ``encoder`` (rows to codes), ``decoder`` (codes to rows), ``autoencoder`` (rows to their
        reconstructions), ``classifier`` (rows to the probabilities of the classes), ``regressor``
        (rows to numbers); default the part that the stack was trained for.

    Raises
    ------
    SettingsError
        If the stack has no such part.
    """
    part = part or default_part(stack)
    _check_part(stack, part)
    meaning = meaning_in(stack.info)
    scale = () if stack.scaling is None else stack.scaling.scale
    origin = () if meaning is None else meaning.origin
    lost = [i for i, (x, own) in enumerate(zip(origin, scale, strict=False)) if x and own]
    if meaning is not None and lost:
        column = lost[0]
        raise SettingsError(
            f"part: got {part}, but column {column} (counted from 0) holds numbers around"
            f" {meaning.origin[column]:.12g}, and the rows of an export are float32, which would"
            " lose their differences; subtract the column's mean before training"
        )
    lowest, top, head = stack.layers[0], stack.layers[-1], stack.head
    found, table = _input_of(stack)
    up = [*found, *_encoder(stack.layers)]
    rows, codes = len(table) or lowest.shape.visible, top.shape.hidden
    names = tuple(names_in(stack.info, lowest.shape.visible))
    inputs = tuple(column.name for column in table) or names
    if part == "encoder":
        return Network(part, tuple(up), rows, codes, inputs)
    if part == "decoder":
        return Network(part, tuple(_decoder(stack)), codes, lowest.shape.visible, (), names)
    if part == "autoencoder":
        return Network(part, (*up, *_decoder(stack)), rows, lowest.shape.visible, inputs, names)
    assert head is not None
    up.append(kinds.Dense(_plain(head.weight), _plain(head.bias)))
    if part == "classifier":
        up.append(kinds.Activate("softmax"))
    columns = columns_in(stack.info)
    target = columns.target.name if columns and columns.target else ""
    outputs = len(head.bias)
    own = (target,) if target and part == "regressor" and outputs == 1 else ()
    return Network(part, tuple(up), rows, outputs, inputs, own, head.classes)


def _check_part(stack: Model, part: str) -> None:
    """Refuse a part that a stack does not have."""
    if part not in EXPORT_PARTS:
        raise SettingsError(f"part: got {part}, expected {', '.join(EXPORT_PARTS)}")
    own = None if stack.head is None else PARTS_OF_HEADS[stack.head.kind]
    if part in PARTS_OF_HEADS.values() and part != own:
        task = next(kind for kind, name in PARTS_OF_HEADS.items() if name == part)
        advice = f"fine-tune it for {task}, or take {own or 'encoder'}"
        raise SettingsError(f"part: got {part}, but the stack is no {part}; {advice}")
    if part in ("decoder", "autoencoder") and own is not None:
        reason = f"the stack was fine-tuned as a {own} and has no decoder"
        raise SettingsError(f"part: got {part}, but {reason}; take encoder or {own}")
    if part == "autoencoder" and kind_of(stack.layers[0].visible_units).counts:
        raise SettingsError(
            "part: got autoencoder, but a document's reconstruction has as many words as the"
            " document, which the code does not hold; take encoder and decoder, whose rows are the"
            " shares of the words"
        )


def _input_of(stack: Model) -> tuple[list[kinds.Step], tuple[kinds.ColumnChoices, ...]]:
    """Return the steps from a raw row to prepared values, and the columns of a row of a table."""
    lowest, scaling = stack.layers[0], stack.scaling
    found: list[kinds.Step] = []
    table: tuple[kinds.ColumnChoices, ...] = ()
    columns = columns_in(stack.info)
    own = [] if columns is None else [column for column in columns.features if column.width]
    is_table = columns is not None and columns.width == lowest.shape.visible
    if is_table and any(column.kind == "category" for column in own):
        table = tuple(kinds.ColumnChoices(column.name, column.values) for column in own)
        found.append(kinds.OneHot(table))
    if scaling is not None:
        found.append(kinds.Standardize(_plain(scaling.shift), _plain(scaling.divisor)))
    if not isinstance(lowest.shape, ConvolutionShape):  # no convolution leaves out a value
        found.append(kinds.FillMissing())
    return found, table


def _encoder(layers: Sequence[Layer]) -> Iterator[kinds.Step]:
    """Yield the steps from prepared values to codes."""
    maps: ConvolutionShape | None = None  # shape of the last step's maps, None for rows
    for layer in layers:
        shape, weight, bias = layer.shape, _plain(layer.weight), _plain(layer.hidden_bias)
        if not isinstance(shape, ConvolutionShape):
            if maps is not None:
                yield kinds.ToRows(maps.output, channels_first=False)
            maps = None
            yield kinds.Dense(weight, bias)
            yield from _activation(layer.hidden_units)
            continue
        if maps is None:
            yield kinds.ToImages(shape.images, shape.channels_first)
        maps = shape
        yield kinds.Convolve(weight, bias, shape.pad, shape.groups)
        if shape.pooling == "prob":
            yield kinds.ProbabilisticPool(shape.pool, shape.output)
            continue
        if shape.pool > 1:
            yield (kinds.MaxPool if shape.pooling == "max" else kinds.MeanPool)(shape.pool)
        yield from _activation(layer.hidden_units)
    if maps is not None:
        yield kinds.ToRows(maps.output, channels_first=False)


def _decoder(stack: Model) -> Iterator[kinds.Step]:
    """Yield the steps from codes to rows in the units of the data."""
    layers, units, images = stack.layers, units_of(stack.layers), False
    for number in reversed(range(len(layers))):
        layer, shape = layers[number], layers[number].shape
        weight, bias = _plain(layer.decoding), _plain(layer.visible_bias)
        if not isinstance(shape, ConvolutionShape):
            yield kinds.Dense(weight, bias)
            yield from _activation(units[number])
            continue
        if not images:
            yield kinds.ToImages(shape.output, channels_first=False)
        images = True
        if shape.pool > 1:
            yield kinds.Spread(shape.pool)
        yield kinds.ConvolveBack(weight, bias, shape.pad, shape.groups)
        yield from _activation(units[number])
        if number == 0:
            yield kinds.ToRows(shape.images, shape.channels_first)
    if stack.scaling is not None:
        yield kinds.Restore(_plain(stack.scaling.shift), _plain(stack.scaling.scale))


def _activation(units: str) -> Iterator[kinds.Step]:
    """Yield the function of units; nothing if they are linear."""
    kind = kind_of(units)
    if kind.blocks is not None:
        blocks = tuple(_block_functions(kind.blocks.parts))
        is_whole = len(blocks) == 1 and blocks[0].groups == 1
        yield kinds.Activate(blocks[0].function) if is_whole else kinds.ActivateBlocks(blocks)
    elif not kind.is_linear:
        yield kinds.Activate(_function(units))


def _block_functions(parts: Sequence[Any]) -> Iterator[kinds.BlockFunction]:
    for part in parts:
        function = "softmax" if part.groups else "linear"
        if not part.groups and not kind_of(part.kind).is_linear:
            function = _function(part.kind)
        yield kinds.BlockFunction(function, part.start, part.stop, part.groups)


def _function(units: str) -> str:
    if units not in FUNCTIONS:
        wanted = f"{', '.join(FUNCTIONS)} or linear units"
        raise SettingsError(f"units: got {units}, which no format has; expected {wanted}")
    return FUNCTIONS[units]


def _plain(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.float32)
