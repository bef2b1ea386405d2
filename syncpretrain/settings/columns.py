"""Convolutions in columns that do not see each other, but at one middle layer and at the top.

Krizhevsky et al. 2012 trained two columns on two devices, which is the model parallelism of Yadan
et al. 2013. All columns read the image; the layer in the middle and the dense layers read all
columns, every other convolution only its own. So a column is a group of filters of each of these,
and what is kept is the text of the layers with their groups: it is they that change what is
computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.settings.architecture import architecture_of, text_of
from syncpretrain.settings.architecture_text import layer_text, read_architecture
from syncpretrain.shapes import ConvolutionShape

__all__ = ["in_columns"]


def in_columns(layers: Any, columns: Any) -> Any:
    """Return layers with their convolutions in columns.

    Parameters
    ----------
    layers : str, or sequence of int, str, ImageShape, Conv and Pool
    columns : int
        1 for none, which returns the layers as they are.

    Raises
    ------
    SettingsError
        If there are no two convolutions, if they have groups already, or if the number does not
        divide the channels and filters of one that is to be in columns.
    """
    if isinstance(columns, bool) or not isinstance(columns, int) or columns < 1:
        raise SettingsError(f"columns: got {columns!r}, expected a whole number of at least 1")
    if columns == 1:
        return layers
    text = architecture_of(layers)[1]
    shapes = list(read_architecture(text)[1]) if text else []
    places = [i for i, shape in enumerate(shapes) if isinstance(shape, ConvolutionShape)]
    if len(places) < 2:
        raise SettingsError(
            f"columns: got {columns} with {len(places)} convolutions in the layers, expected two or"
            " more, such as 1x28x28,conv:20x5,pool:2,conv:50x5,pool:2,500; or leave it out"
        )
    for place in places[1:]:
        shape = shapes[place]
        assert isinstance(shape, ConvolutionShape)
        if shape.groups > 1:
            raise SettingsError(
                f"columns: got {columns} beside {layer_text(shape)}, which says itself what its"
                " filters read; leave one of the two out"
            )
        if place == places[(len(places) - 1) // 2]:
            continue
        if shape.channels % columns or shape.filters % columns:
            raise SettingsError(
                f"columns: got {columns} for {layer_text(shape)} on images of {shape.images},"
                f" expected a number that divides its {shape.channels} channels and its"
                f" {shape.filters} filters"
            )
        shapes[place] = replace(shape, groups=columns)
    return text_of(shapes)
