"""The methods of a stack that export it to other libraries, and that import their networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from syncpretrain.models.export.describe import Trained, describe
from syncpretrain.models.export.foreign import Dense, layers_of_keras, layers_of_torch, parts_of
from syncpretrain.models.export.formats import check_installed, format_for, write_export

__all__ = ["Exports"]

S = TypeVar("S", bound="Exports")


class Exports:
    """Exports to other libraries, and imports from them; the libraries are imported on use.

    ``part`` is ``encoder`` (rows to codes), ``decoder`` (codes to rows), ``autoencoder`` (rows to
    reconstructions), ``classifier`` (rows to probabilities), ``regressor`` (rows to numbers), or
    None for the part that the stack was trained for. The network takes raw rows, as
    :meth:`Stack.encode` does: it contains the standardization and the categories of a table.
    Bytes are divided by 255 beforehand.
    """

    def export(
        self: Trained, path: str | Path, part: str | None = None, *, file_format: str | None = None
    ) -> list[Path]:
        """Write a part to a file, without a pickle; return the files.

        Parameters
        ----------
        path : str or Path
            Path of the file; PyTorch's parameters get a Python file of the same name too.
        part : str, optional
        file_format : str, optional
            ``onnx``, ``torch``, ``keras``, ``sklearn`` or ``npz``; default by the suffix,
            ``.onnx``, ``.safetensors``, ``.keras``, ``.skops`` or ``.npz``.

        Raises
        ------
        SettingsError
            If the stack has no such part, the format cannot hold it, or a package is missing.
        OSError
            If the file cannot be written.
        """
        chosen = format_for(file_format, Path(path))
        check_installed(chosen)
        return write_export(Path(path), chosen, describe(self, part))

    def to_torch(self: Trained, part: str | None = None) -> Any:
        """Return a part as an ``nn.Sequential`` of PyTorch, float32, on the CPU.

        For a table with categories, a row has a number for each column: a category is given by its
        place among the texts in ``stack.info["columns"]``, or NaN if it is missing.

        Raises
        ------
        SettingsError
            If the stack has no such part, or PyTorch is not installed.
        """
        from syncpretrain.models.export.torch_model import build

        return build(describe(self, part))

    def to_onnx(self: Trained, part: str | None = None) -> Any:
        """Return a part as an ``onnx.ModelProto``, of operator set 17.

        For a table with categories, each column is an input of shape (n, 1), texts as texts. A
        classifier has a second output, ``label``.

        Raises
        ------
        SettingsError
            If the stack has no such part, or the package onnx is not installed.
        """
        from syncpretrain.models.export.onnx_model import build

        return build(describe(self, part))

    def to_keras(self: Trained, part: str | None = None) -> Any:
        """Return a part as a ``keras.Model`` of Keras 3; rows are as for :meth:`to_torch`.

        Raises
        ------
        SettingsError
            If the stack has no such part, or Keras and a backend are not installed.
        """
        from syncpretrain.models.export.keras_model import build

        return build(describe(self, part))

    def to_sklearn(self: Trained, part: str | None = None) -> Any:
        """Return a part as a fitted ``MLPClassifier`` or ``MLPRegressor`` of scikit-learn.

        ``predict`` of an encoder returns codes. For a table with categories the result is a
        ``Pipeline``; its rows are arrays of objects with the texts in them.

        Raises
        ------
        SettingsError
            If the stack has no such part, the part does not fit a perceptron, or scikit-learn is
            not installed.
        """
        from syncpretrain.models.export.sklearn_model import build

        return build(describe(self, part))

    @classmethod
    def from_torch(cls: type[S], network: Any, decoder: Any = None, **options: Any) -> S:
        """Return a stack of the dense layers of an ``nn.Sequential``.

        Parameters
        ----------
        network : nn.Sequential
            Modules ``nn.Linear``, each followed by Sigmoid, ReLU, Tanh or nothing.
        decoder : nn.Sequential, optional
            Mirror image of the network; default the transposed weights, and biases of 0.
        classes : sequence of int or of str, optional
            Labels of the last layer's outputs; they make it the head of a classifier.
        regression : bool
            True makes the last layer the head of a regression.
        visible_units : str
            ``gaussian`` (default), or ``bernoulli`` for values in [0, 1].

        Raises
        ------
        DataError
            If the network is no plain stack of dense layers.
        """
        return _stack(cls, layers_of_torch, network, decoder, **options)

    @classmethod
    def from_keras(cls: type[S], network: Any, decoder: Any = None, **options: Any) -> S:
        """Return a stack of the dense layers of a Keras model; see :meth:`from_torch`."""
        return _stack(cls, layers_of_keras, network, decoder, **options)


def _stack(
    made: Callable[..., S],
    read: Callable[[Any], list[Dense]],
    network: Any,
    decoder: Any,
    *,
    classes: Sequence[Any] | None = None,
    regression: bool = False,
    visible_units: str = "gaussian",
) -> S:
    own, down = read(network), None if decoder is None else read(decoder)
    options: dict[str, Any] = {"classes": classes, "regression": regression}
    layers, head = parts_of(own, down, visible_units=visible_units, **options)
    return made(layers, {}, None, head)
