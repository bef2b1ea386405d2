"""The fitted layers: encode, decode, reconstruct, save and load."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.backends.draws import Purpose, generator
from syncpretrain.data.examples import as_examples, check_examples
from syncpretrain.errors import DataError
from syncpretrain.kernels.activations import affine_sigmoid

__all__ = ["Layer", "Stack", "load"]

Array = NDArray[np.float32]
ROWS_AT_ONCE = 2000


@dataclass(frozen=True, eq=False)  # of two arrays, == is no truth value
class Layer:
    """Parameters of one layer, float32, contiguous.

    ``weight`` has shape (visible, hidden), ``hidden_bias`` (hidden,), ``visible_bias`` (visible,).
    ``decoder_weight`` of shape (hidden, visible) is None as long as the way down uses the
    transposed ``weight``, as an RBM does; fine-tuning unties the two.
    """

    weight: Array
    hidden_bias: Array
    visible_bias: Array
    decoder_weight: Array | None = None

    @property
    def decoding(self) -> Array:
        """The weights of the way down, of shape (hidden, visible)."""
        return self.weight.T if self.decoder_weight is None else self.decoder_weight

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield name and array of each parameter in their fixed order."""
        yield "weight", self.weight
        yield "hidden_bias", self.hidden_bias
        if self.decoder_weight is not None:
            yield "decoder_weight", self.decoder_weight
        yield "visible_bias", self.visible_bias


@dataclass(frozen=True, eq=False)
class Stack:
    """A pretrained deep network: an encoder up the layers and a decoder down again.

    Attributes
    ----------
    layers : tuple of Layer
        From the input up.
    info : dict
        What made it (JSON values): the epochs each layer trained, the settings, the version.
    """

    layers: tuple[Layer, ...]
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def widths(self) -> tuple[int, ...]:
        """Units of the input and of each layer, such as (784, 1000, 500, 250, 30)."""
        return (self.layers[0].weight.shape[0], *(x.weight.shape[1] for x in self.layers))

    @property
    def parameters_sha256(self) -> str:
        """SHA-256 over all parameters in layer order, as little-endian float32 in C order."""
        digest = hashlib.sha256()
        for layer in self.layers:
            for _, array in layer.parameters():
                digest.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
        return digest.hexdigest()

    def encode(self, X: ArrayLike, *, layer: int | None = None) -> Array:
        """Return the code of each example.

        Parameters
        ----------
        X : array-like of shape (n_examples, input units)
            Values in [0, 1], or bytes, which are divided by 255.
        layer : int, optional
            Stop at this layer, counted from 1; default the top one.

        Returns
        -------
        ndarray of shape (n_examples, units of that layer), float32

        Raises
        ------
        DataError
            If the width is not the stack's, or a value is not finite or outside [0, 1].
        """
        depth = len(self.layers) if layer is None else layer
        if not 1 <= depth <= len(self.layers):
            raise DataError(f"layer: got {layer}, expected 1 to {len(self.layers)}")
        steps = [(x.weight, x.hidden_bias) for x in self.layers[:depth]]
        return _through(steps, _checked_width(check_examples(X), self.widths[0], "X"))

    def decode(self, codes: ArrayLike) -> Array:
        """Return the input that each code of the top layer stands for.

        Parameters
        ----------
        codes : array-like of shape (n_examples, top units)

        Returns
        -------
        ndarray of shape (n_examples, input units), float32, values in [0, 1]

        Raises
        ------
        DataError
            If the width is not that of the top layer, or a value is not finite.
        """
        steps = [(x.decoding, x.visible_bias) for x in reversed(self.layers)]
        with np.errstate(over="ignore"):  # what overflows is found below
            array = np.ascontiguousarray(as_examples(codes, "codes"), dtype=np.float32)
        if not np.isfinite(array).all():
            raise DataError("codes: holds NaN or infinite values")
        return _through(steps, _checked_width(array, self.widths[-1], "codes"))

    def reconstruct(self, X: ArrayLike) -> Array:
        """Encode and decode: the stack's reconstruction of each example, of X's shape."""
        return self.decode(self.encode(X))

    def sample(
        self, count: int, *, steps: int = 1000, seed: int = 0, start: ArrayLike | None = None
    ) -> Array:
        """Dream: run Gibbs chains in the top RBM, then go down to the input.

        Parameters
        ----------
        count : int
            Independent chains.
        steps : int
            Up and down again in the top RBM, each time drawing binary states; the last time down
            keeps the probabilities (Hinton, Osindero and Teh 2006, section 4).
        seed : int
            Of the chains.
        start : array-like of shape (count, input units), optional
            Examples to start at; default noise.

        Returns
        -------
        ndarray of shape (count, input units), float32, values in [0, 1]

        Raises
        ------
        DataError
            If ``count`` or ``steps`` is below 1, ``start`` does not fit, or the top layer was
            fine-tuned, which leaves no RBM to sample from.
        """
        if count < 1 or steps < 1:
            raise DataError(f"count and steps: got {count} and {steps}, expected 1 or more")
        top = self.layers[-1]
        if top.decoder_weight is not None:
            raise DataError(
                "the top layer was fine-tuned and is no RBM any more; sample the stack as it was"
                " before fine-tuning"
            )
        draws = generator(seed, Purpose.SAMPLE)
        if start is None:
            visible = draws.random((count, self.widths[-2]), dtype=np.float32)
        else:
            visible = self._input_of_top(start, count)
        states = (draws.random(visible.shape, dtype=np.float32) < visible).astype(np.float32)
        for _ in range(steps):
            hidden = affine_sigmoid(states, top.weight, top.hidden_bias)
            hidden = (draws.random(hidden.shape, dtype=np.float32) < hidden).astype(np.float32)
            visible = affine_sigmoid(hidden, top.weight.T, top.visible_bias)
            states = (draws.random(visible.shape, dtype=np.float32) < visible).astype(np.float32)
        below = [(x.decoding, x.visible_bias) for x in reversed(self.layers[:-1])]
        return _through(below, visible) if below else visible

    def _input_of_top(self, start: ArrayLike, count: int) -> Array:
        X = _checked_width(check_examples(start, "start"), self.widths[0], "start")
        if len(X) != count:
            raise DataError(f"start: got {len(X)} examples for {count} chains; give one a chain")
        return X if len(self.layers) == 1 else self.encode(X, layer=len(self.layers) - 1)

    def save(self, path: str | Path) -> None:
        """Write the stack to a safetensors file, whole or not at all.

        Raises
        ------
        OSError
            If the file cannot be written; a file that was there before stays as it was.
        """
        from syncpretrain.modelfile import write_stack

        write_stack(self, Path(path))


def load(path: str | Path) -> Stack:
    """Read a stack from a model file or a run folder.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` file that :meth:`Stack.save` wrote, or the folder of a run.

    Raises
    ------
    ModelFileError
        If it is missing, damaged or of another format. Nothing in it is ever executed.
    """
    from syncpretrain.modelfile import read_stack

    return read_stack(Path(path))


def _checked_width(X: Array, width: int, name: str) -> Array:
    if X.shape[1] != width:
        raise DataError(f"{name}: got shape {X.shape}, expected (examples, {width})")
    return X


def _through(steps: Sequence[tuple[Array, Array]], X: Array) -> Array:
    result = np.empty((len(X), steps[-1][0].shape[1]), dtype=np.float32)
    for start in range(0, len(X), ROWS_AT_ONCE):
        rows = X[start : start + ROWS_AT_ONCE]
        for weight, bias in steps[:-1]:
            rows = affine_sigmoid(rows, weight, bias)
        weight, bias = steps[-1]
        affine_sigmoid(rows, weight, bias, out=result[start : start + ROWS_AT_ONCE])
    return result
