"""The settings of a call and of its data, and the examples as layer 1 sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.backends.choice import resolve_backend
from syncpretrain.data import examples
from syncpretrain.data.facts import Look
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.minibatches import ArrayPasses, Minibatches, is_iterable_of_arrays
from syncpretrain.data.scaling import Scaling, check_varies
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.parallel.precision_choice import resolved
from syncpretrain.pretraining.memory import check_memory
from syncpretrain.schedule.kinds import UNTRAINED
from syncpretrain.settings import settings_from
from syncpretrain.settings.architecture import check_width
from syncpretrain.settings.by_data import pretrain_by_data
from syncpretrain.settings.checks import check_missing, check_sparse
from syncpretrain.settings.devices import why_not_on_a_device
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.units.kinds import kind_of
from syncpretrain.workers.activations import Split
from syncpretrain.workers.worker import PROBE_ROWS


def settled(
    layers: Any, look: Look, settings: Mapping[str, Any]
) -> tuple[PretrainSettings, dict[str, Any]]:
    """Return the settings, and by name the values that follow from the data.

    Raises
    ------
    SettingsError
        If one is wrong, or they do not go together.
    """
    wanted = settings_from(layers, **settings).pretrain
    if look.facts is None:
        return wanted, {}
    given = [name for name, value in settings.items() if value is not None]
    return pretrain_by_data(wanted, given, look.facts)


def build_data(
    settings: PretrainSettings, X: ArrayLike, validation: ArrayLike | None
) -> tuple[PretrainSettings, Split, Scaling | None]:
    """Return the examples as layer 1 is to see them, and how they were standardized, if they were.

    The settings that come with them say whether values are missing, and which backend and precision
    it is.

    Raises
    ------
    SettingsError, DataError
        If they cannot be trained on, or do not fit the settings, or the stack not the memory.
    """
    data = _checked_data(settings, X, validation)
    is_sparse = isinstance(data.train, SparseRows)
    if is_sparse:
        check_sparse(settings)
    missing = any(map(examples.has_missing, data))
    if missing:
        check_missing(settings)
    lacks = why_not_on_a_device(with_facts_of(settings, *data))
    settings = resolved(settings, resolve_backend(settings.backend, lacks), sparse=is_sparse)
    check_memory(settings, data)
    scaling = Scaling.for_units(data.train, settings.visible_units)
    if scaling is not None:
        check_varies(data.train, scaling)
    if missing:
        settings = msgspec.structs.replace(settings, missing=True)
        examples.check_columns(data.train)
        data = Split(*(examples.marked(rows, scaling) for rows in data))
    elif scaling is not None:
        data = Split(*map(scaling.apply, data))
    if is_sparse and scaling is None:
        settings = msgspec.structs.replace(settings, sparse=True)
    if isinstance(data.train, ArrayPasses) and settings.visible_bias != "zero":
        data.train.measure()
    return settings, data, scaling


def with_facts_of(settings: PretrainSettings, *parts: Any) -> PretrainSettings:
    """Return settings that say whether examples have missing values, or are sparse rows."""
    missing = settings.missing or any(map(examples.has_missing, parts))
    sparse = any(isinstance(X, SparseRows) for X in parts)
    return msgspec.structs.replace(settings, missing=missing, sparse=sparse)


def _checked_data(settings: PretrainSettings, X: ArrayLike, validation: ArrayLike | None) -> Split:
    width, batch = settings.layers[0], settings.batch_size
    train = _train_rows(settings, X)
    check_width(settings.shapes, train.shape[1])
    if not isinstance(train, ArrayPasses):  # of which some can be read once only
        check_varies(train)
    trains = settings.schedule != UNTRAINED
    if trains and batch > len(train):
        raise SettingsError(
            f"batch_size: got {batch}, expected at most {len(train)}, the examples to train on"
        )
    if validation is None or not np.size(validation):
        if trains and settings.early_stopping != "none":
            raise SettingsError(
                f"early_stopping: got {settings.early_stopping} without validation examples,"
                " expected some to judge by"
            )
        return Split(train, np.empty((0, width), dtype=np.float32))
    units, in_file = settings.visible_units, isinstance(validation, FileRows)
    held_out: Any = validation if in_file else examples.as_examples(validation, "validation")
    if held_out.shape[1] != width:
        raise SettingsError(f"validation: got {held_out.shape[1]} columns, expected {width}")
    if not in_file:
        held_out = examples.check_visible(held_out, "validation", units)
    # Activations of the validation rows are computed for every version, and a thousand rows say as
    # much as all.
    return Split(train, examples.as_visible(examples.evenly_spaced(held_out, PROBE_ROWS), units))


def _train_rows(settings: PretrainSettings, X: Any) -> Any:
    """Return the examples to train on, in memory unless a stream needs only some at a time."""
    kind = kind_of(settings.visible_units)
    bounded = kind.is_unit_interval
    streams = settings.handoff == "minibatch"
    if is_iterable_of_arrays(X):
        if not streams:
            raise DataError(
                f"X: got {type(X).__name__} with handoff epoch, expected an array; take handoff"
                " minibatch to train on what an iterable gives"
            )
        if kind.blocks is not None:
            raise DataError(
                f"X: got {type(X).__name__} with visible units in blocks, expected an array"
            )
        source = X if isinstance(X, Minibatches) else Minibatches(X)
        return ArrayPasses(
            source,
            settings.layers[0],
            bounded=bounded,
            batch_size=settings.batch_size,
            trained=math.ceil(settings.stream.passes),  # the last one need not be finished
            measured=(not bounded) + (settings.visible_bias != "zero"),
        )
    if isinstance(X, FileRows) and kind.blocks is None:
        return X if streams else np.asarray(X)
    if streams and kind.blocks is None and (rows := rows_in_file(X)) is not None:
        return examples.checked_rows(rows, bounded=bounded)
    return examples.visible_examples(X, "X", settings.visible_units, missing=True)
