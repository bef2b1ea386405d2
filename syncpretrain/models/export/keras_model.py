"""Networks for Keras 3, made of its own layers and operations alone, with any backend.

A ``.keras`` file is an archive of JSON and arrays, which Keras loads in its safe mode. One more
member of it, ``syncpretrain.json``, holds the names and classes.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.export import steps as kinds
from syncpretrain.models.export.steps import Network

ABOUT = "syncpretrain.json"
CHANNELS_LAST = {"data_format": "channels_last"}  # whatever the user's configuration says


def build(network: Network) -> Any:
    """Return a ``keras.Model``, float32.

    Raises
    ------
    SettingsError
        If Keras or its backend cannot be imported.
    """
    try:
        import keras
    except (ImportError, ValueError) as error:  # ValueError: an unknown backend
        raise SettingsError(
            f"format: got keras, which cannot be imported ({error}); install keras and one of jax,"
            " torch and tensorflow, and name that in KERAS_BACKEND, or export to npz"
        ) from error
    x = inputs = keras.Input((network.width,), name=network.ends[0], dtype="float32")
    layers = _Layers(keras)
    for step in network.steps:
        x = getattr(layers, step.name)(x, step)
    return keras.Model(inputs, x, name=f"syncpretrain_{network.part}")


def contents(path: Path, network: Network) -> dict[Path, bytes]:
    """Return the content of a file.

    Raises
    ------
    SettingsError
        As :func:`build`.
    OSError
        If a temporary file cannot be written.
    """
    model = build(network)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.keras")
        model.save(file)
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(ABOUT, network.about)
        return {path: file.read_bytes()}


class _Layers:
    """Layers and operations of Keras; a method of a step's name returns the step's output."""

    def __init__(self, keras: Any) -> None:
        self.ops, self.layers = keras.ops, keras.layers

    def one_hot(self, x: Any, step: kinds.OneHot) -> Any:
        parts = []
        for place, (_, choices) in enumerate(step.columns):
            own = self.ops.take(x, [place], axis=1)
            if choices:  # NaN equals no choice, and becomes zeros
                numbers = np.arange(len(choices), dtype=np.float32)
                own = self.ops.cast(self.ops.equal(own, numbers), "float32")
            parts.append(own)
        return self.ops.concatenate(parts, axis=1)

    def standardize(self, x: Any, step: kinds.Standardize) -> Any:
        return self.ops.divide(self.ops.subtract(x, step.shift), step.scale)

    def restore(self, x: Any, step: kinds.Restore) -> Any:
        return self.ops.add(self.ops.multiply(x, step.scale), step.shift)

    def fill_missing(self, x: Any, step: kinds.FillMissing) -> Any:
        return self.ops.where(self.ops.isnan(x), self.ops.zeros_like(x), x)

    def dense(self, x: Any, step: kinds.Dense) -> Any:
        return _weighted(self.layers.Dense(len(step.bias)), x, step.weight, step.bias)

    def function(self, x: Any, function: str) -> Any:
        return x if function == "linear" else self.layers.Activation(function)(x)

    def activate_blocks(self, x: Any, step: kinds.ActivateBlocks) -> Any:
        parts = []
        for block in step.blocks:
            own = self.ops.take(x, list(range(block.start, block.stop)), axis=1)
            if block.groups:
                own = self.layers.Reshape((block.groups, block.choices))(own)
            own = self.function(own, block.function)
            if block.groups:
                own = self.layers.Reshape((block.stop - block.start,))(own)
            parts.append(own)
        return self.ops.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def to_images(self, x: Any, step: kinds.ToImages) -> Any:
        images = step.images
        if not step.channels_first:
            return self.layers.Reshape((images.height, images.width, images.channels))(x)
        lying = self.layers.Reshape((images.channels, images.height, images.width))(x)
        return self.layers.Permute((2, 3, 1))(lying)

    def to_rows(self, x: Any, step: kinds.ToRows) -> Any:
        x = self.layers.Permute((3, 1, 2))(x) if step.channels_first else x
        return self.layers.Reshape((step.images.values,))(x)

    def convolve(self, x: Any, step: kinds.Convolve) -> Any:
        size, filters, layers = len(step.weight), len(step.bias), self.layers
        if step.pad:
            x = layers.ZeroPadding2D(step.pad, **CHANNELS_LAST)(x)
        layer = layers.Conv2D(filters, size, groups=step.groups, **CHANNELS_LAST)
        return _weighted(layer, x, step.weight, step.bias)

    def convolve_back(self, x: Any, step: kinds.ConvolveBack) -> Any:
        layer = self.layers.Conv2DTranspose(len(step.bias), len(step.weight), **CHANNELS_LAST)
        x = _weighted(layer, x, _ungrouped(step), step.bias)
        return self.layers.Cropping2D(step.pad, **CHANNELS_LAST)(x) if step.pad else x

    def probabilistic_pool(self, x: Any, step: kinds.ProbabilisticPool) -> Any:
        size, images = step.size, step.images
        blocks = (images.height, size, images.width, size, images.channels)
        total = self.ops.logsumexp(self.layers.Reshape(blocks)(x), axis=(2, 4))
        return self.layers.Activation("sigmoid")(total)

    def spread(self, x: Any, step: kinds.Spread) -> Any:
        wide = self.layers.UpSampling2D(step.size, interpolation="nearest", **CHANNELS_LAST)(x)
        return self.ops.divide(wide, float(step.size**2))

    def activate(self, x: Any, step: kinds.Activate) -> Any:
        return self.function(x, step.function)

    def max_pool(self, x: Any, step: kinds.MaxPool) -> Any:
        return self.layers.MaxPooling2D(step.size, **CHANNELS_LAST)(x)

    def mean_pool(self, x: Any, step: kinds.MeanPool) -> Any:
        return self.layers.AveragePooling2D(step.size, **CHANNELS_LAST)(x)


def _weighted(layer: Any, x: Any, *arrays: Array) -> Any:
    """Return the output of a layer after setting its arrays."""
    found = layer(x)  # the call makes the layer's variables
    layer.set_weights(list(arrays))
    return found


def _ungrouped(step: kinds.ConvolveBack) -> Array:
    """Return filters over all channels, with zeros for channels outside of their group."""
    size, _, reads, filters = step.weight.shape
    whole = np.zeros((size, size, len(step.bias), filters), dtype=np.float32)
    share = filters // step.groups
    for group in range(step.groups):
        own, read = (slice(n * group, n * (group + 1)) for n in (share, reads))
        whole[:, :, read, own] = step.weight[..., own]
    return whole
