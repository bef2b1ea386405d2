"""Checks of pretraining settings that depend on each other: which values go together.

The refusals of the models, of sharing a minibatch, of early stopping, of streamed and asynchronous
runs, of convolutional layers, of drift (changes of a layer's input that wake it, and of its output
that end it), and of the visible units of layer 1: one kind, or blocks of columns of several kinds.
Devices have a module of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC, MAX_EPOCHS, SCHEDULES, schedule_kind
from syncpretrain.settings import fields
from syncpretrain.settings.architecture import MAX_UNITS, layer_text
from syncpretrain.settings.devices import check_pretraining_backend
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import INPUT_UNITS, KINDS, fitted_units, kind_of, visible_kind

# RBMs split by units lack these.
WHOLE_ONLY = ("persistent", "sparsity_cost", "hidden_dropout", "centred", "sample_input")
VISIBLE_UNITS = (
    f"{' or '.join(INPUT_UNITS)}, or blocks of columns such as"
    " bernoulli:20,gaussian:5,softmax:3x7,counts:2000"
)


def check_pretraining(settings: fields.PretrainFields) -> None:
    """Refuse values that do not go together.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    check_visible_units(settings)
    for corruption in settings.corruption:
        fields.parsed_corruption(corruption)
    parsed_shuffle(settings.shuffle)
    _check_model(settings)
    _check_chains(settings)
    _check_early_stopping(settings)
    for i, shape in enumerate(settings.shapes):
        if isinstance(shape, ConvolutionShape):
            _check_convolution(settings, i, shape)
    _check_replicas(settings)
    _check_handoff(settings)
    check_async_pretraining(settings)
    check_drift(settings)
    check_pretraining_backend(settings)


def check_schedule(settings: fields.PretrainFields) -> None:
    """Raise SettingsError if the schedule does not have the pace or the groups asked for."""
    kind, name = schedule_kind(settings.schedule), settings.schedule
    free = " or ".join(name for name, other in SCHEDULES.items() if other.free is not None)
    grouped = " or ".join(name for name, other in SCHEDULES.items() if other.has_groups)
    refused = {
        f"pace: got free with schedule {name}, where layers wait for the finished layer below; use"
        f" pace lockstep, or schedule {free}": settings.pace == "free" and kind.free is None,
        f"group_size: got {settings.group_size} with schedule {name}, expected none; only {grouped}"
        " train groups of layers": settings.group_size is not None and not kind.has_groups,
    }
    fields.refuse(refused)


def check_layers(layers: tuple[int, ...]) -> None:
    """Raise SettingsError unless a stack can have these widths."""
    if len(layers) < 2:
        raise SettingsError(
            f"layers: got {','.join(map(str, layers)) or 'nothing'}, expected two numbers or more:"
            " the input's width, then the units of each layer, such as 784,1000,500,250,30"
        )
    for units in layers:
        if units > MAX_UNITS:
            raise SettingsError(f"layers: got {units} units, expected at most {MAX_UNITS} a layer")


def check_per_layer(name: str, values: tuple[Any, ...], depth: int) -> None:
    """Raise SettingsError unless there is one number in range for each of ``depth`` layers."""
    if len(values) != depth:
        raise SettingsError(
            f"{name}: got {len(values)} values, expected one for all layers or {depth}, one a layer"
        )
    for value in values:
        if isinstance(value, int) and value > MAX_EPOCHS:
            raise SettingsError(f"{name}: got {value}, expected at most {MAX_EPOCHS}")


def parsed_shuffle(text: str) -> int:
    """Return the rows of a block in a text such as ``blocks:1000``, 0 for ``rows``.

    Raises
    ------
    SettingsError
        If the text has another form, or the number is below 1.
    """
    kind, _, number = text.partition(":")
    if text == "rows":
        return 0
    if kind != "blocks" or not re.fullmatch(r"0*[1-9][0-9]{0,17}", number):
        raise SettingsError(
            f"shuffle: got {text!r}, expected rows, or blocks:N with the rows of a block, such as"
            " blocks:1000"
        )
    return int(number)


def _check_model(settings: fields.PretrainFields) -> None:
    """Refuse settings that the model does not use."""
    model = settings.model
    visible = kind_of(settings.visible_units)
    for units in settings.hidden_units:
        if model == "rbm" and kind_of(units).sample is None:
            raise SettingsError(
                f"hidden_units: got {units} with model rbm, expected units whose states can be"
                f" sampled: {' or '.join(n for n in KINDS if KINDS[n].sample)}; or take model"
                " autoencoder"
            )
    used = {
        "corruption": model == "denoising",
        "contraction": model == "contractive",
        **dict.fromkeys(fields.OF_RBMS, model == "rbm"),
    }
    for name, is_used in used.items():
        values = [value for value in getattr(settings, name) if value != fields.PER_LAYER[name]]
        if values and not is_used:
            raise SettingsError(f"{name}: got {values[0]} with model {model}, which ignores it")
    name = "tied" if settings.loss is None else "loss"
    chosen = settings.loss is not None or not settings.tied
    refused = {
        f"{name}: got a value with model rbm, expected none; only autoencoders choose": chosen
        and model == "rbm",
        f"sample_visible: got it with model {model}, which ignores it": settings.sample_visible
        and model != "rbm",
        f"loss: got cross-entropy with {visible.name} visible units, expected squared;"
        " cross-entropy needs values in [0, 1]": settings.loss == "cross-entropy"
        and visible.loss != "cross-entropy",
    }
    fields.refuse(refused)
    for layer, draws in enumerate(settings.sample_input, start=1):
        units = settings.visible_units_of(layer)
        if draws and layer > 1 and not kind_of(units).is_binary:  # other data are states
            raise SettingsError(
                f"sample_input: got it for layer {layer} with {units} visible units, expected"
                " bernoulli above layer 1"
            )
    for cost, units in zip(settings.sparsity_cost, settings.hidden_units, strict=True):
        if cost and kind_of(units).lower != 0:
            raise SettingsError(
                f"sparsity_cost: got a cost for {units} hidden units, expected 0; their mean"
                " activity says nothing"
            )


def _check_chains(settings: fields.PretrainFields) -> None:
    """Refuse chains of their own where there are none to keep, or no way to deal them out."""
    for i, chains in enumerate(settings.chains):
        start, shards = settings.chain_start[i], settings.shards_of(i + 1)
        refused = {
            f"chain_start: got {start} without chains, expected none; take chains 500, say": not (
                chains or start == "noise"
            ),
            f"chains: got {chains} without persistent, which keeps them; take persistent": chains
            and not settings.persistent[i],
            f"chains: got {chains} with hidden_dropout, which leaves units out by the row, expected"
            " 0": chains and settings.hidden_dropout[i],
            f"chains: got {chains} for {shards} shards of layer {i + 1}, expected one a shard or"
            " more": 0 < chains < shards,
        }
        fields.refuse(refused)


def check_weights(settings: fields.PretrainFields) -> None:
    """Refuse weights of rows where a layer has no way to count rows differently.

    Raises
    ------
    SettingsError
    """
    shared = [n for n in range(1, len(settings.layers)) if settings.shards_of(n) > 1]
    by_units = [n for n in shared if settings.split_of(n) != "examples"]
    lone = [p and not n for p, n in zip(settings.persistent, settings.chains, strict=True)]
    chains, units = any(settings.persistent[:1]), kind_of(settings.visible_units)
    own = "whose chains have the conditions of rows; take CD, without persistent"
    refused = {
        f"model {settings.model}, expected rbm": settings.model != "rbm",
        f"persistent and missing values, {own}": chains and settings.missing,
        f"persistent and {settings.visible_units} units, {own}": chains and units.are_counts,
        "a convolution, expected dense layers": bool(settings.architecture),
        f"schedule {settings.schedule}, whose replicas share no rows": settings.schedule == ASYNC,
        "handoff minibatch, expected epoch": settings.handoff == "minibatch",
        f"split {settings.split}, expected examples": bool(by_units),
        "persistent, whose chains are of rows; take chains 500, say": any(lone),
        "sparsity_cost, expected 0": any(settings.sparsity_cost),
        f"backend {settings.backend}, expected numpy": settings.backend.startswith("cupy"),
    }
    fields.refuse(refused, prefix="weights: got them with ")


def _check_replicas(settings: fields.PretrainFields) -> None:
    for layer, replicas in enumerate(settings.replicas, start=1):
        shards = settings.shards_of(layer)
        if replicas > shards:
            raise SettingsError(
                f"replicas: got {replicas} for layer {layer}, whose minibatches have {shards}"
                " shards, expected no more workers than shards"
            )
        split = settings.split_of(layer)
        most = {
            "examples": settings.batch_size,
            "units": min(settings.layers[layer - 1 : layer + 1]),
            "filters": settings.shapes[layer - 1].biases[1],
        }[split]
        if shards > most and settings.schedule != ASYNC:
            raise SettingsError(
                f"shards: got {shards} for layer {layer}, expected at most {most}, the {split}"
                " there are"
            )
    split, model, layers = settings.split, settings.model, range(1, len(settings.layers))
    by_units = [n for n in layers if settings.split_of(n) == "units" and settings.shards_of(n) > 1]
    lacks_filters = split in ("filters", "hybrid") and not settings.architecture
    by_name = {n: [getattr(settings, n)[layer - 1] for layer in by_units] for n in WHOLE_ONLY}
    refused = {
        "for layers without convolutions, expected examples or units": lacks_filters,
        f"with model {model}, expected examples; only RBMs are split by units": model != "rbm"
        and (by_units or split == "units"),
        "with sample_visible, expected examples": settings.sample_visible and 1 in by_units,
        **{f"with {name}, expected examples": any(values) for name, values in by_name.items()},
    }
    fields.refuse(refused, prefix=f"split: got {split} ")


def _check_early_stopping(settings: fields.PretrainFields) -> None:
    metric = settings.early_stopping
    if metric == "none":
        return
    is_rbm, by_error = settings.model == "rbm", metric == "validation-error"
    has_no_energy = not (is_rbm or by_error)
    kinds = [kind_of(settings.visible_units_of(layer)) for layer in range(1, len(settings.layers))]
    binary = " or ".join(name for name, kind in KINDS.items() if kind.is_binary)
    other = "free-energy-gap" if settings.handoff == "epoch" else "none"
    refused = {
        "validation-error with model rbm, expected free-energy-gap or pseudo-likelihood; an RBM's"
        " reconstruction error is a poor guide (Hinton 2010)": is_rbm and by_error,
        f"{metric} with model {settings.model}, expected validation-error": has_no_energy,
        f"pseudo-likelihood with visible units that are not {binary} in every layer, expected"
        f" {other}": metric == "pseudo-likelihood" and not all(kind.is_binary for kind in kinds),
        "a metric with finish first-layer in lockstep, where what follows would depend on timing;"
        " take finish drain, or pace free": _depends_on_timing(settings),
    }
    fields.refuse(refused, prefix="early_stopping: got ")


def _depends_on_timing(settings: fields.PretrainFields) -> bool:
    return settings.finish == "first-layer" and settings.pace == "lockstep"


def _check_handoff(settings: fields.PretrainFields) -> None:
    """Refuse settings that a streamed run lacks, and settings that only a streamed run has."""
    if settings.handoff == "epoch":
        refused = {
            f"shuffle: got {settings.shuffle} with handoff epoch, expected rows; take handoff"
            " minibatch": settings.shuffle != "rows",
            f"delay: got {settings.delay:g} with handoff epoch, expected none; take handoff"
            " minibatch": settings.delay,
        }
        fields.refuse(refused)
        return
    streaming = [name for name, kind in SCHEDULES.items() if kind.can_stream]
    usual = {
        "schedule": (" or ".join([*streaming, ASYNC]), None),
        "pace": ("lockstep", None),
        "finish": ("drain", None),
        "early_stopping": (
            "none, pseudo-likelihood or validation-error: the gap is judged by fixed examples",
            ("none", "pseudo-likelihood", "validation-error"),
        ),
        "refresh_when": (f"{ALWAYS}: no newer version wakes a layer", (ALWAYS,)),
        "settle": ("0, and numbers of epochs, not auto: there are no versions to compare", (0,)),
        "refresh_epochs": ("0: no newer version wakes a layer", (0,)),
    }
    for name, (expected, values) in usual.items():
        for value in fields.values_of(settings, name):
            if value not in (values or expected.split(" or ")):
                raise SettingsError(
                    f"{name}: got {value} with handoff minibatch, expected {expected}; leave it"
                    " out, or take handoff epoch"
                )


MESSAGES = "messages"
NOT_SUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {  # permitted values, and the reason
    "split": (("examples",), "replicas share no minibatch"),
    "shards": ((0,), "replicas share no minibatch"),
    "workers": ((None,), "replicas are its workers"),
    "early_stopping": (("none",), "every layer trains its epochs"),
    "settle": ((0,), "every layer trains its epochs"),
    "refresh_epochs": ((1, 0), "no version wakes a layer"),  # the default, and none
    "finish": (("drain",), "no version wakes a layer"),
    "shuffle": (("rows",), "its examples are in memory"),
    "marks": ((0,), "no layer has updates of its own to space checkpoints by"),
    "chains": ((0,), "each replica has chains of its own"),
    "centred": ((False,), "each replica would have offsets of its own"),
    "delay": ((0,), "replicas train all layers of a minibatch"),
}


def check_blas_threads(schedule: str, requested: int | None) -> None:
    """Refuse a number of BLAS threads that the user gave for an asynchronous pretraining alone.

    A run records a number in its settings in any case, for its other stages.

    Raises
    ------
    SettingsError
    """
    if schedule == ASYNC and requested is not None:
        raise SettingsError(
            f"blas_threads: got {requested} with schedule {ASYNC}, where each replica takes one;"
            " leave it out"
        )


def check_async_pretraining(settings: fields.PretrainFields) -> None:
    """Refuse settings that an asynchronous run lacks, and settings that only such a run has.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    fields.check_async(settings, has_momentum=any(text.strip("0.") for text in settings.momentum))
    _check_exchange(settings)
    if settings.schedule != ASYNC:
        return
    if max(settings.replicas) > fields.MAX_WORKERS:
        raise SettingsError(
            f"replicas: got {max(settings.replicas)}, expected at most {fields.MAX_WORKERS}"
        )
    for name, (usual, why) in NOT_SUPPORTED.items():
        for value in fields.values_of(settings, name):
            if value not in usual:
                raise SettingsError(
                    f"{name}: got {value} with schedule {ASYNC}, where {why}; leave it out"
                )
    if settings.handoff == "minibatch" and len(set(settings.replicas)) > 1:
        raise SettingsError(
            f"replicas: got {','.join(map(str, settings.replicas))} with schedule {ASYNC} and"
            " handoff minibatch, whose replicas train all layers, expected one number"
        )


def _check_exchange(settings: fields.PretrainFields) -> None:
    """Refuse windows without ranks, or with a delay compensation: windows only add changes."""
    if settings.exchange == MESSAGES:
        return
    name = "schedule" if settings.schedule != ASYNC else "runtime"
    lacks_ranks = settings.schedule != ASYNC or settings.runtime != "mpi"
    refused = {
        f"{name} {getattr(settings, name)}, expected {MESSAGES}; windows are memory of ranks that"
        f" replicas share: take schedule {ASYNC} and runtime mpi": lacks_ranks,
        f"delay_compensation {settings.delay_compensation:g}, expected {MESSAGES}; MPI only adds"
        " to a window, and a compensation needs the parameters at that moment": (
            settings.delay_compensation
        ),
    }
    fields.refuse(refused, prefix=f"exchange: got {settings.exchange} with ")


OF_ENERGIES = ("free-energy-gap", "pseudo-likelihood")


def _check_convolution(s: fields.PretrainFields, i: int, shape: ConvolutionShape) -> None:
    """Refuse settings that the layer ``i``, counted from 0, cannot have."""
    excludes = shape.pooling == "prob"  # the units of a block exclude each other
    is_cut = s.shards_of(i + 1) > 1
    by_filters = is_cut and s.split_of(i + 1) == "filters"
    units, dropout = s.hidden_units[i], s.hidden_dropout[i]
    expected = f"for layer {i + 1}, a convolution, expected"
    pool = "with pooling by probabilities; or pool by max or mean"
    whole = f"{expected} split examples with it;"
    refused = {
        f"layers: got {layer_text(shape)} {expected} pooling by max or mean; only RBMs pool by"
        " probabilities": excludes and s.model != "rbm",
        f"hidden_units: got {units} {expected} bernoulli {pool}": excludes
        and not kind_of(units).is_binary,
        f"hidden_dropout: got {dropout} {expected} 0 {pool}": excludes and dropout,
        f"split: got {s.split} {expected} filters, or examples; only dense layers are split by"
        " units": is_cut and s.split == "units",
        f"split: got {s.split} {expected} examples {pool}": excludes and by_filters,
        f"persistent: got it {whole} chains are not split by filters": by_filters
        and s.persistent[i],
        f"chains: got {s.chains[i]} {expected} 0; only dense layers keep them apart": s.chains[i],
        f"centred: got it {expected} the plain gradient; only dense layers have a centred one": (
            s.centred[i]
        ),
        f"hidden_dropout: got {dropout} {whole} what is left out is not split by filters": (
            by_filters and dropout
        ),
        f"sample_visible: got it {whole} filters reconstruct by means": by_filters
        and s.sample_visible
        and not i,
        f"sample_input: got it {whole} filters take the input as it is": by_filters
        and s.sample_input[i],
        f"contraction: got {s.contraction[i]} {expected} 0; the penalty is known for dense layers"
        " alone. Take model denoising, or one value a layer": s.contraction[i],
        f"early_stopping: got {s.early_stopping} {expected} none; convolutions have no free energy"
        " here. Autoencoders stop by validation-error": s.early_stopping in OF_ENERGIES,
    }
    fields.refuse(refused)


def kept_units(text: Any, layers: Any) -> Any:
    """Return the text of visible units in its standard form.

    Raises
    ------
    SettingsError
        If the blocks do not fit the values of an example.
    """
    width = layers[0] if isinstance(layers, (list, tuple)) and layers else None
    try:
        return fitted_units(text, width)
    except ValueError as error:
        raise SettingsError(f"visible_units: {error}") from error


def check_visible_units(settings: Any) -> None:
    """Refuse visible units that do not exist, or do not fit the other settings.

    Raises
    ------
    SettingsError
    """
    text = settings.visible_units
    kept = kept_units(text, settings.layers)
    if kept != text:
        raise SettingsError(f"visible_units: got {text}, expected {kept}, the form that is kept")
    kind = visible_kind(text)
    if kind is None:
        got = text if text in KINDS else repr(text)
        raise SettingsError(f"visible_units: got {got}, expected {VISIBLE_UNITS}")
    lacks = None if kind.blocks is None else why_not_in_blocks(settings)
    if lacks:
        raise SettingsError(f"visible_units: got {text} {lacks}")


def check_missing(settings: Any) -> None:
    """Refuse settings that cannot leave missing values out.

    Raises
    ------
    SettingsError
    """
    lacks = why_not_in_blocks(settings)
    if settings.early_stopping == "pseudo-likelihood":
        lacks = "with early stopping by pseudo-likelihood; take free-energy-gap"
    if lacks is None and settings.backend.startswith("cupy"):
        lacks = "with a GPU, which has no form for them; take backend numpy"
    if lacks:
        raise SettingsError(f"X: got NaN, which stands for missing values, {lacks}")


def check_sparse(settings: Any) -> None:
    """Refuse settings that cannot train on sparse rows.

    Raises
    ------
    SettingsError
    """
    by_units = settings.split == "units" and settings.shards_of(1) > 1
    refused = {
        "with convolutions, whose input is images; pass X.toarray()": settings.architecture,
        "with split units, which has no form for it; take split examples": by_units,
        "with a GPU, which has no form for it; take backend numpy, or pass X.toarray()": (
            settings.backend.startswith("cupy")
        ),
    }
    fields.refuse(refused, prefix="X: got a sparse matrix ")


def why_not_in_blocks(settings: Any) -> str | None:
    """Return why layer 1 cannot have blocks of units or missing values; None if it can."""
    if settings.architecture:
        return "with convolutions, whose units are of one kind; take dense layers"
    if settings.split == "units" and settings.shards_of(1) > 1:
        return "with split units, expected examples; a shard of the columns cannot know the others"
    return None


ALWAYS = "always"
AUTO_EPOCHS = 100  # most epochs of a layer
SETTLE = 0.15  # relative root mean square, without another number


def parsed_waking(text: str) -> float | None:
    """Return the drift in a text such as ``drift:0.05``, None for ``always``.

    Raises
    ------
    SettingsError
        If the text has another form, or the drift is out of range.
    """
    if text == ALWAYS:
        return None
    kind, least = fields.kind_and_number(text)
    if kind != "drift" or not 0 < least < math.inf:
        raise SettingsError(
            f"refresh_when: got {text!r}, expected always, or drift:X with a number X above 0"
        )
    return least


def settled_epochs(epochs: Sequence[Any], settle: Any, waking: Sequence[Any]) -> dict[str, Any]:
    """Return ``epochs`` and ``settle`` with numbers for ``auto`` and ``auto:N``.

    Parameters
    ----------
    epochs, settle : sequence
        One value a layer; ``settle`` is None if the user gave none.
    waking : sequence of str
        Values of ``refresh_when``; their drift is the default of ``settle``.

    Raises
    ------
    SettingsError
        If an entry begins with ``auto`` and has another form, or its layer can never settle.
    """
    limits, found = list(epochs), list(settle or [0.0] * len(epochs))
    for i, text in enumerate(limits):
        if not isinstance(text, str) or not text.startswith("auto"):
            continue
        form = re.fullmatch(r"auto(?::([0-9]{1,9}))?", text)
        if form is None or form[1] == "0":
            raise SettingsError(
                f"epochs: got {text!r}, expected a whole number, auto, or auto:N with at most N"
                " epochs"
            )
        limits[i] = int(form[1] or AUTO_EPOCHS)
        if settle is None:
            known = parsed_waking(str(waking[i])) if i < len(waking) else None
            found[i] = SETTLE if known is None else known
        elif i < len(found) and not found[i]:
            raise SettingsError(
                f"settle: got 0 with epochs {text}, expected a number above 0, by which another"
                " epoch must change a layer"
            )
    return {"epochs": limits, "settle": found}


def check_drift(settings: fields.PretrainFields) -> None:
    """Refuse drift where no version wakes a layer, or where the result would depend on timing.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    waking = [text for text in settings.refresh_when if parsed_waking(text) is not None]
    got, kind = f"refresh_when: got {waking[0] if waking else ALWAYS}", settings.schedule
    above = zip(settings.refresh_when[1:], settings.refresh_epochs[1:], strict=True)
    saves = any(epochs and text in waking for text, epochs in above)
    refused = {
        f"{got} with schedule {kind}, where no newer version wakes a layer; take always, or"
        " schedule synchronized": waking and not schedule_kind(kind).has_refreshes,
        f"{got}, but there is no layer above the first whose refresh_epochs it could save; take"
        " always, or refresh_epochs of at least 1": waking and not saves,
        "settle: got a number, or epochs auto, with finish first-layer in lockstep, where what"
        " follows would depend on timing; take finish drain, or pace free": any(settings.settle)
        and _depends_on_timing(settings),
    }
    fields.refuse(refused)
