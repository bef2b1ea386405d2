"""Networks for Keras 3, made of its own layers and operations alone, with any backend.

A ``.keras`` file is an archive of JSON and arrays, which Keras loads in its safe mode. One more
member of it, ``syncpretrain.json``, holds the names and classes.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.export import steps as kinds
from syncpretrain.models.export.steps import Network
from syncpretrain.storage import write_atomically

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
    for step in network.steps:
        x = KERAS_LAYERS[type(step)](keras, x, step)
    return keras.Model(inputs, x, name=f"syncpretrain_{network.part}")


def write(path: Path, network: Network) -> list[Path]:
    """Write a file.

    Raises
    ------
    SettingsError
        As :func:`build`.
    OSError
        If it cannot be written.
    """
    model = build(network)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.keras")
        model.save(file)
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(ABOUT, network.about)
        write_atomically(path, file.read_bytes())
    return [path]


def _weighted(layer: Any, x: Any, *arrays: Array) -> Any:
    """Return the output of a layer after setting its arrays."""
    found = layer(x)  # the call makes the layer's variables
    layer.set_weights(list(arrays))
    return found


def _one_hot(keras: Any, x: Any, step: kinds.OneHot) -> Any:
    parts = []
    for place, (_, choices) in enumerate(step.columns):
        own = keras.ops.take(x, [place], axis=1)
        if choices:  # NaN equals no choice, and becomes zeros
            numbers = np.arange(len(choices), dtype=np.float32)
            own = keras.ops.cast(keras.ops.equal(own, numbers), "float32")
        parts.append(own)
    return keras.ops.concatenate(parts, axis=1)


def _standardize(keras: Any, x: Any, step: kinds.Standardize) -> Any:
    return keras.ops.divide(keras.ops.subtract(x, step.shift), step.scale)


def _restore(keras: Any, x: Any, step: kinds.Restore) -> Any:
    return keras.ops.add(keras.ops.multiply(x, step.scale), step.shift)


def _fill_missing(keras: Any, x: Any, step: kinds.FillMissing) -> Any:
    return keras.ops.where(keras.ops.isnan(x), keras.ops.zeros_like(x), x)


def _dense(keras: Any, x: Any, step: kinds.Dense) -> Any:
    return _weighted(keras.layers.Dense(len(step.bias)), x, step.weight, step.bias)


def _function(keras: Any, x: Any, function: str) -> Any:
    return x if function == "linear" else keras.layers.Activation(function)(x)


def _blocks(keras: Any, x: Any, step: kinds.ActivateBlocks) -> Any:
    parts = []
    for block in step.blocks:
        own = keras.ops.take(x, list(range(block.start, block.stop)), axis=1)
        if block.groups:
            own = keras.layers.Reshape((block.groups, block.choices))(own)
        own = _function(keras, own, block.function)
        if block.groups:
            own = keras.layers.Reshape((block.stop - block.start,))(own)
        parts.append(own)
    return keras.ops.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def _to_images(keras: Any, x: Any, step: kinds.ToImages) -> Any:
    images = step.images
    if not step.channels_first:
        return keras.layers.Reshape((images.height, images.width, images.channels))(x)
    lying = keras.layers.Reshape((images.channels, images.height, images.width))(x)
    return keras.layers.Permute((2, 3, 1))(lying)


def _to_rows(keras: Any, x: Any, step: kinds.ToRows) -> Any:
    x = keras.layers.Permute((3, 1, 2))(x) if step.channels_first else x
    return keras.layers.Reshape((step.images.values,))(x)


def _convolve(keras: Any, x: Any, step: kinds.Convolve) -> Any:
    size, filters, layers = len(step.weight), len(step.bias), keras.layers
    if step.pad:
        x = layers.ZeroPadding2D(step.pad, **CHANNELS_LAST)(x)
    layer = layers.Conv2D(filters, size, groups=step.groups, **CHANNELS_LAST)
    return _weighted(layer, x, step.weight, step.bias)


def _convolve_back(keras: Any, x: Any, step: kinds.ConvolveBack) -> Any:
    layer = keras.layers.Conv2DTranspose(len(step.bias), len(step.weight), **CHANNELS_LAST)
    x = _weighted(layer, x, _ungrouped(step), step.bias)
    return keras.layers.Cropping2D(step.pad, **CHANNELS_LAST)(x) if step.pad else x


def _ungrouped(step: kinds.ConvolveBack) -> Array:
    """Return filters over all channels, with zeros for channels outside of their group."""
    size, _, reads, filters = step.weight.shape
    whole = np.zeros((size, size, len(step.bias), filters), dtype=np.float32)
    share = filters // step.groups
    for group in range(step.groups):
        own, read = (slice(n * group, n * (group + 1)) for n in (share, reads))
        whole[:, :, read, own] = step.weight[..., own]
    return whole


def _probabilistic_pool(keras: Any, x: Any, step: kinds.ProbabilisticPool) -> Any:
    size, images = step.size, step.images
    blocks = (images.height, size, images.width, size, images.channels)
    total = keras.ops.logsumexp(keras.layers.Reshape(blocks)(x), axis=(2, 4))
    return keras.layers.Activation("sigmoid")(total)


def _spread(keras: Any, x: Any, step: kinds.Spread) -> Any:
    wide = keras.layers.UpSampling2D(step.size, interpolation="nearest", **CHANNELS_LAST)(x)
    return keras.ops.divide(wide, float(step.size**2))


KERAS_LAYERS: dict[type, Callable[[Any, Any, Any], Any]] = {
    kinds.OneHot: _one_hot,
    kinds.Standardize: _standardize,
    kinds.Restore: _restore,
    kinds.FillMissing: _fill_missing,
    kinds.Dense: _dense,
    kinds.Activate: lambda keras, x, step: _function(keras, x, step.function),
    kinds.ActivateBlocks: _blocks,
    kinds.ToImages: _to_images,
    kinds.ToRows: _to_rows,
    kinds.Convolve: _convolve,
    kinds.ConvolveBack: _convolve_back,
    kinds.MaxPool: lambda keras, x, step: keras.layers.MaxPooling2D(step.size, **CHANNELS_LAST)(x),
    kinds.MeanPool: lambda keras, x, step: keras.layers.AveragePooling2D(
        step.size, **CHANNELS_LAST
    )(x),
    kinds.ProbabilisticPool: _probabilistic_pool,
    kinds.Spread: _spread,
}
