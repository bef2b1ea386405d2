"""The stack of trained layers: encode, decode, predict, sample, export, import, save and load."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.examples import as_examples
from syncpretrain.data.frames import array_of
from syncpretrain.data.meaning import SHARES, Meaning, meaning_in
from syncpretrain.data.output_file import write_output
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError
from syncpretrain.kernels.activations import activate, affine
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.models import layer as trained
from syncpretrain.models.couplings import zero_sum
from syncpretrain.models.export.formats import format_for, write_export
from syncpretrain.models.gibbs import check_numbers, imputed, sampled, started
from syncpretrain.models.inputs import checked_codes, is_bounded, prepared_examples
from syncpretrain.models.layer import ConvolutionalLayer, DenseLayer, Head, Layer
from syncpretrain.models.mixing import Mixing, mixing_of
from syncpretrain.models.model_file import Model, read_model, write_model
from syncpretrain.observers.history import ErrorHistory
from syncpretrain.rng import Purpose, generator

__all__ = ["ConvolutionalLayer", "DenseLayer", "Head", "Stack", "load"]

S = TypeVar("S", bound="Stack")


@dataclass(frozen=True, eq=False, repr=False)
class Stack:
    """A pretrained deep network: an encoder up the layers and a decoder down again.

    Exports to other libraries, and imports from them, import these libraries on use. A ``part`` of
    an export is ``encoder`` (rows to codes), ``decoder`` (codes to rows), ``autoencoder`` (rows to
    reconstructions), ``classifier`` (rows to probabilities), ``regressor`` (rows to numbers), or
    None for the part that the stack was trained for. The exported network takes raw rows, as
    :meth:`encode` does: it contains the standardization and the categories of a table. Bytes are
    divided by 255 beforehand.

    Attributes
    ----------
    layers : tuple of DenseLayer and ConvolutionalLayer
        Layers from the input up; ``layers[0].shape`` says how the input's rows are images.
    info : dict
        Origin of the stack (JSON values): epochs of each layer, settings, version.
    scaling : Scaling or None
        Scaling of an input that is not in [0, 1] for the visible units; decoding inverts it.
    head : Head or None
        Output layer on top of the code, once fine-tuning gave the stack one.
    history : ErrorHistory or None
        Errors by layer and epoch of the training that returned the stack; it is not saved.
    """

    layers: tuple[Layer, ...]
    info: dict[str, Any] = field(default_factory=dict)
    scaling: Scaling | None = None
    head: Head | None = None
    history: ErrorHistory | None = None

    def __post_init__(self) -> None:
        """Compute in float32, in whatever precision the layers were trained."""
        object.__setattr__(self, "layers", tuple(map(trained.in_float32, self.layers)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of units of the input and of each layer, such as (784, 1000, 500, 250, 30)."""
        return (self.layers[0].shape.visible, *(x.shape.hidden for x in self.layers))

    @property
    def parameters_sha256(self) -> str:
        """SHA-256 over all parameters in layer order, as little-endian float32 in C order."""
        return trained.parameters_sha256(self.layers, self.scaling, self.head)

    @property
    def units(self) -> tuple[str, ...]:
        """Kinds of the units of the input and of each layer."""
        return trained.units_of(self.layers)

    def prepared(self, X: ArrayLike, name: str = "X", *, missing: bool = False) -> Array:
        """Return examples as the lowest layer sees them: checked, and standardized if need be.

        A data frame is read by its columns' names. With ``missing``, NaN is permitted and marked.

        Raises
        ------
        DataError
            If the width is not the stack's, or a value is not finite, or outside [0, 1] where
            the visible units are binary.
        """
        rows: Array = prepared_examples(self.rows_of(X, name), name, self.model, missing=missing)
        return rows

    def rows_of(self, X: ArrayLike, name: str = "X") -> Any:
        """Return a data frame as an array of the columns trained on, anything else as it is."""
        lowest = self.units[0]
        return array_of(X, self.info, lowest, name, bounded=is_bounded(lowest, self.scaling))

    def encode(self, X: ArrayLike, *, layer: int | None = None, log_odds: bool = False) -> Array:
        """Return the code of each example.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_examples, input units)
            The same numbers mean what they did in training, in an array of any type (the page "Your
            own data", "What numbers mean"). NaN stands for a missing value, which is left out.
        layer : int, optional
            Layer of the codes, counted from 1; default the top layer.
        log_odds : bool
            Return the log-odds of that layer's binary units instead of their probabilities.

        Returns
        -------
        ndarray of shape (n_examples, units of that layer), float32
            The codes of a convolution are ordered by position, then by filter: with ``images =
            stack.layers[layer - 1].shape.output``, codes are maps as ``codes.reshape(-1,
            images.height, images.width, images.channels)``.

        Raises
        ------
        DataError
            If X does not fit, there is no such layer, or its units have no log-odds.
        """
        depth = len(self.layers) if layer is None else layer
        if not 1 <= depth <= len(self.layers):
            raise DataError(f"layer: got {layer}, expected 1 to {len(self.layers)}")
        layers = trained.with_log_odds(self.layers[:depth]) if log_odds else self.layers[:depth]
        return trained.up_through(layers, self.prepared(X, missing=True))

    def decode(self, codes: ArrayLike) -> Array:
        """Decode codes of the top layer to the input.

        Parameters
        ----------
        codes : array-like of shape (n_examples, top units)

        Returns
        -------
        ndarray of shape (n_examples, input units), float32
            In [0, 1] for Bernoulli visible units, in the units of the data for Gaussian ones; bytes
            are shares of 255. Float64 if float32 cannot hold the differences of a column.

        Raises
        ------
        DataError
            If the codes are not as wide as the top layer, or a value is not finite.
        """
        return self._unscaled(self.down(checked_codes(codes, self.widths[-1])))

    def down(self, codes: Array, *, layer: int | None = None) -> Array:
        """Return the means of the lowest visible units for codes of a layer, default the top one.

        The layers on the way keep the kinds of units of their encoders.
        """
        return trained.down_through(self.layers[:layer], codes)

    def up(self, prepared: Array, *, layer: int | None = None) -> Array:
        """Return the codes of prepared examples at a layer, default the top one."""
        return trained.up_through(self.layers[:layer], prepared)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of each class for each row of X, in the head's order of classes.

        Raises
        ------
        DataError
            If the stack is no classifier, or X does not fit.
        """
        if self.head is None or self.head.kind != "classification":
            raise DataError("the stack is no classifier; fine-tune it for classification")
        return activate(self._outputs(X, self.head), "softmax")

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label of each row of X, or the numbers of a regression.

        Returns
        -------
        ndarray of shape (n_examples,), or (n_examples, outputs) for several numbers

        Raises
        ------
        DataError
            If the stack has no head, or X does not fit.
        """
        if self.head is None:
            raise DataError("the stack predicts nothing; fine-tune it with labels first")
        outputs = self._outputs(X, self.head)
        if self.head.kind == "regression":
            return outputs[:, 0] if outputs.shape[1] == 1 else outputs
        labels: NDArray[Any] = np.array(self.head.classes)[outputs.argmax(axis=1)]
        return labels

    def _outputs(self, X: ArrayLike, head: Head) -> Array:
        return affine(self.up(self.prepared(X, missing=True)), head.weight, head.bias, "gaussian")

    def reconstruct(self, X: ArrayLike) -> Array:
        """Encode and decode each example, with reconstructions of its missing values too."""
        below = self.prepared(X, missing=True)
        down = self.down(self.up(below))
        as_documents(down, below, self.units[0])
        return self._unscaled(down)

    def impute(
        self, X: ArrayLike, *, steps: int = 20, samples: int = 80, seed: int = 0
    ) -> NDArray[Any]:
        """Return a copy of X with the missing values, NaN, replaced by the means of their units.

        Parameters
        ----------
        X : array-like of shape (n_examples, input units)
        steps, samples, seed : int
            Gibbs steps before the average, steps that are averaged, and seed of the chains.

        Returns
        -------
        ndarray of shape (n_examples, input units), float
            Observed values are unchanged; a missing choice has probabilities.

        Raises
        ------
        DataError
            If ``steps`` is below 0 or ``samples`` below 1, or X does not fit.
        """
        rows = np.asarray(as_examples(self.rows_of(X), "X"))
        below, missing = self.prepared(rows, missing=True), np.isnan(rows)
        divided = self.meaning is not None and self.meaning.divides(rows)
        draws = generator(seed, Purpose.IMPUTATION)
        found = imputed(self.layers, below, missing, steps=steps, samples=samples, draws=draws)
        return np.where(missing, self._unscaled(found) * (255.0 if divided else 1.0), rows)

    def sample(
        self,
        count: int,
        *,
        level: int | None = None,
        steps: int = 1000,
        method: str = "gibbs",
        seed: int = 0,
        start: ArrayLike | str | None = None,
        save: str | Path | None = None,
    ) -> Array:
        """Sample: run chains in one RBM, or in all.

        Without a level, chains run in the top RBM, and the visible means of the last step are
        decoded to the input (Hinton, Osindero and Teh 2006, section 4). With a level, the samples
        are states of the visible units of the RBM of that level: ``level=1`` samples the input.
        Samples are a function of the seed and the other arguments. Whether such chains are long
        enough, :meth:`mixing` measures.

        Parameters
        ----------
        count : int
            Independent chains.
        level : int, optional
            Level of the RBM, from 1; default the top RBM, decoded, or level 1 if stacked, or if the
            chains go on from ``chains``.
        steps : int
            Gibbs steps, each up and down again with states of the units.
        method : str
            ``gibbs``, or ``stacked``: chains at every level swap their states with the level above
            (Fernandez-de-Cossio-Diaz et al. 2024), for RBMs of bernoulli, gaussian and softmax
            units.
        seed : int
        start : array-like of shape (count, input units), or str
            Examples at which the chains start; default, or ``noise``, noise. ``chains`` goes on
            from the persistent chains of the level, default level 1, see :meth:`chains`, at most so
            many. Documents keep their numbers of words; an RBM of counts alone needs examples.
            Samples of a stack that was trained on bytes are shares of 255, as :meth:`decode`
            returns them: such samples are the ``start`` of ``stack.for_prepared_rows().sample``.
        save : str or Path, optional
            A ``.npy`` file for the samples.

        Returns
        -------
        ndarray of shape (count, units of the level), float32

        Raises
        ------
        DataError
            If ``count`` or ``steps`` is no whole number or below 1, ``start`` does not fit, or a
            layer that is sampled is no dense RBM, as after fine-tuning.
        OSError
            If the file cannot be written.
        """
        check_numbers(count=count, steps=steps, level=1 if level is None else level)
        if steps < 1:
            raise DataError(f"steps: got {steps}, expected 1 or more")
        if isinstance(start, str) and start not in ("noise", "chains"):
            wanted = "noise, chains, or the examples as an array"
            raise DataError(f"start: got {start!r}, expected {wanted}")
        if save is not None and Path(str(save)).suffix != ".npy":  # the text of what is no path
            raise DataError(f"save: got {save}, expected a file that ends in .npy")
        if save is not None and not Path(save).absolute().parent.is_dir():
            raise DataError(f"save: got {save}, expected a file in a folder that exists")
        no_start = start is None or isinstance(start, str)
        goes_on = isinstance(start, str) and start == "chains"
        X = None if no_start else self.prepared(start, "start")[:]  # type: ignore[arg-type]
        draws = generator(seed, Purpose.SAMPLE)
        if level is None and method == "gibbs" and not goes_on:
            found = self._unscaled(sampled(self.layers, X, count=count, steps=steps, draws=draws))
        else:
            own = 1 if level is None else level
            how: Any = {"level": own, "method": method, "count": count, "draws": draws}
            if goes_on:
                how["hidden"] = kept = self.chains(1 if method == "stacked" else own)[:count]
                if len(kept) < count:
                    raise DataError(f"count: got {count}, expected at most {len(kept)}, the chains")
            chains = started(self.layers, X, **how)
            chains.run(steps)
            states = chains.visible[own - 1 if method == "stacked" else 0]
            found = self._unscaled(states) if own == 1 else states
        if save is not None:
            write_output(Path(save), {}, {"X": found})
        return found

    def mixing(
        self,
        X: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        level: int | None = None,
        method: str = "gibbs",
        chains: int = 50,
        steps: int = 1000,
        seed: int = 0,
    ) -> Mixing:
        """Measure whether chains mix: from examples and from noise, and by annealing.

        Parameters
        ----------
        X : array-like of shape (n_examples, input units)
            Examples at which half of the chains start.
        labels : array-like of shape (n_examples,), optional
            Classes of the examples, which become the regions; "", -1, NaN and None are no class.
            Default two clusters of the examples.
        weights : array-like of shape (n_examples,), optional
            Weights of the examples, as for ``pretrain``: shares of the data are weighted by them.
        level : int, optional
            Level of the RBM, from 1; default the top RBM, or level 1 if stacked.
        method : str
            ``gibbs`` or ``stacked``, as for :meth:`sample`.
        chains, steps : int
            Chains from each start, at least 10, and steps of each, at least 4; the second half of
            the steps is measured.
        seed : int

        Returns
        -------
        Mixing
            Figures, and :meth:`syncpretrain.models.mixing.Mixing.sentences` about them.

        Raises
        ------
        DataError
            If X, the labels or the weights do not fit, there are too few examples, chains or steps,
            or the stack cannot have such chains.
        """
        if level is None:
            level = 1 if method == "stacked" else len(self.layers)
        check_numbers(level=level, chains=chains, steps=steps)
        rows = self.prepared(X, missing=True)[:]
        how: Any = {"level": level, "method": method, "chains": chains, "steps": steps}
        return mixing_of(self.layers, rows, labels, weights, **how, seed=seed)

    def zero_sum(self) -> Stack:
        """Return the stack with softmax groups in the zero-sum gauge.

        The weights of a group to each hidden unit, and the biases of the group, then add up to 0,
        so that weights of different models can be compared. Complete rows, one choice on in each
        group, keep their codes and probabilities up to rounding: the gauge is computed in float64
        and stored as float32. Rows with a missing group get other codes and free energies, since a
        group that is left out counts in this gauge as the mean of its choices; so do rows with
        groups that do not add up to 1.

        Raises
        ------
        DataError
            If a layer with softmax groups is no RBM, as after fine-tuning.
        """
        return replace(self, layers=zero_sum(self.layers))

    def chains(self, layer: int = 1) -> Array:
        """Return the hidden states at which the persistent chains of a layer have ended.

        Visible states follow by one draw from p(v | h), and chains go on from there.

        Parameters
        ----------
        layer : int
            Layer of the chains, counted from 1.

        Returns
        -------
        ndarray of shape (chains, units of that layer), float32; a copy

        Raises
        ------
        DataError
            If there is no such layer, or it keeps no chains: it needs ``persistent`` and
            ``chains``, and to be as it was before fine-tuning.
        """
        check_numbers(layer=layer)
        if not 1 <= layer <= len(self.layers):
            raise DataError(f"layer: got {layer}, expected 1 to {len(self.layers)}")
        found = dict(self.layers[layer - 1].arrays()).get("chains")
        if found is None:
            advice = "pretrain with persistent=True and chains=500, say, and ask before fine-tuning"
            raise DataError(f"layer {layer} keeps no chains; {advice}")
        return np.array(found)

    @property
    def meaning(self) -> Meaning | None:
        """Meaning of the numbers in the training rows; None if the stack keeps none."""
        return meaning_in(self.info)

    def for_prepared_rows(self) -> Stack:
        """Return the stack for rows that its meaning has prepared before: shares stay shares.

        Decoded rows are prepared rows too.
        """
        if self.meaning is None:
            return self
        return replace(self, info=self.info | {"meaning": msgspec.to_builtins(SHARES)})

    def _unscaled(self, down: Array) -> NDArray[Any]:
        found = down if self.scaling is None else self.scaling.invert(down)
        return found if self.meaning is None else self.meaning.restored(found)

    @property
    def model(self) -> Model:
        """The parts of the stack, as a model file has them."""
        return Model(self.layers, self.info, self.scaling, self.head)

    def save(self, path: str | Path) -> None:
        """Write the stack to a safetensors file, whole or not at all.

        Raises
        ------
        OSError
            If the file cannot be written; an earlier file stays as it was.
        """
        write_model(Path(path), self.model)

    def export(
        self, path: str | Path, part: str | None = None, *, file_format: str | None = None
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
        format_for(file_format, Path(path))  # a wrong one is refused before the work
        return write_export(Path(path), file_format, self._described(part))

    def to_torch(self, part: str | None = None) -> Any:
        """Return a part as an ``nn.Sequential`` of PyTorch, float32, on the CPU.

        For a table with categories, a row has a number for each column: a category is given by its
        place among the texts in ``stack.info["columns"]``, or NaN if it is missing.

        Raises
        ------
        SettingsError
            If the stack has no such part, or PyTorch is not installed.
        """
        return self._built("torch_model", part)

    def to_onnx(self, part: str | None = None) -> Any:
        """Return a part as an ``onnx.ModelProto``, of operator set 17.

        For a table with categories, each column is an input of shape (n, 1), texts as texts. A
        classifier has a second output, ``label``.

        Raises
        ------
        SettingsError
            If the stack has no such part, or the package onnx is not installed.
        """
        return self._built("onnx_model", part)

    def to_keras(self, part: str | None = None) -> Any:
        """Return a part as a ``keras.Model`` of Keras 3; rows are as for :meth:`to_torch`.

        Raises
        ------
        SettingsError
            If the stack has no such part, or Keras and a backend are not installed.
        """
        return self._built("keras_model", part)

    def to_sklearn(self, part: str | None = None) -> Any:
        """Return a part as a fitted ``MLPClassifier`` or ``MLPRegressor`` of scikit-learn.

        ``predict`` of an encoder returns codes. For a table with categories the result is a
        ``Pipeline``; its rows are arrays of objects with the texts in them.

        Raises
        ------
        SettingsError
            If the stack has no such part, the part does not fit a perceptron, or scikit-learn is
            not installed.
        """
        return self._built("sklearn_model", part)

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
        from syncpretrain.models.export.foreign import model_of, torch_parts

        return cls(*model_of(torch_parts, network, decoder, **options))

    @classmethod
    def from_keras(cls: type[S], network: Any, decoder: Any = None, **options: Any) -> S:
        """Return a stack of the dense layers of a Keras model; see :meth:`from_torch`."""
        from syncpretrain.models.export.foreign import keras_parts, model_of

        return cls(*model_of(keras_parts, network, decoder, **options))

    def _built(self, module: str, part: str | None) -> Any:
        return import_module(f"syncpretrain.models.export.{module}").build(self._described(part))

    def _described(self, part: str | None) -> Any:
        # Imported on use: a training would begin 5 % later.
        from syncpretrain.models.export.describe import describe

        return describe(self.model, part)

    def __repr__(self) -> str:
        """Return one line a layer, without the weights."""
        rows = (" ".join(row).rstrip() for row in self._rows())
        return "\n".join([f"Stack of {len(self.layers)} layers", *(f"  {row}" for row in rows)])

    def _repr_html_(self) -> str:
        """Return the same lines as a table, for notebooks, with the last known errors."""
        from html import escape  # for notebooks alone

        rows, history = self._rows(), self.history or ErrorHistory()
        errors = [_error_text("error", curve.last) for curve in history.layers]
        errors += [""] * (len(rows) - len(errors))
        cells = (
            "".join(f"<td>{escape(cell)}</td>" for cell in (*row, *([error] * any(errors))))
            for row, error in zip(rows, errors, strict=True)
        )
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        tuned = _error_text("; error after fine-tuning", history.finetune.last)
        return f"<table><caption>Stack of {len(self.layers)} layers{tuned}</caption>{body}</table>"

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the name, shape, kind of units, and model of each layer, and of the head."""
        rows: list[tuple[str, ...]] = []
        epochs = self.info.get("epochs", [])
        for number, layer in enumerate(self.layers, start=1):
            trained = f"{epochs[number - 1]} epochs" if number <= len(epochs) else ""
            units = f"{layer.visible_units} to {layer.hidden_units}"
            rows.append((f"layer {number}:", str(layer.shape), units, layer.model, trained))
        if self.head is not None:
            inputs, outputs = self.head.weight.shape
            rows.append(("head:", f"{inputs}-{outputs}", self.head.kind, "", ""))
        return rows


def load(path: str | Path) -> Stack:
    """Read a stack from a model file or a run folder.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` file that :meth:`Stack.save` wrote, or the folder of a run.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or of another format. Nothing in it is ever executed.
    """
    return Stack(*read_model(Path(path)))


def _error_text(name: str, error: float | None) -> str:
    return "" if error is None else f"{name} {error:.4g}"
