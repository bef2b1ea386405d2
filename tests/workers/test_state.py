"""Keys and names of states in a checkpoint, by which every version reads those of earlier ones."""

import numpy as np
import pytest

from syncpretrain.array_files import read_arrays, write_arrays
from syncpretrain.errors import CheckpointError
from syncpretrain.learners.epoch import Cursor
from syncpretrain.models.layer import DenseLayer
from syncpretrain.observers.history import ErrorCurve
from syncpretrain.schedule.schedule import Past
from syncpretrain.workers.state import (
    ASYNC_STATE,
    EPOCHS_STATE,
    FINETUNE_STATE,
    STREAM_STATE,
    AsyncState,
    FinetuneState,
    LayerState,
    PretrainState,
    StreamedLayerState,
    StreamState,
    refusing_others,
)

VECTOR = np.zeros(2, np.float32)
LAYER = DenseLayer(np.zeros((2, 2), np.float32), VECTOR, VECTOR, hidden_units="relu")
STATE = LayerState(
    layer=LAYER,
    step_state={"velocity": VECTOR},
    last_good=LAYER,
    cursor=Cursor(3, 0.5),
    learning_rate=0.1,
    rollbacks=1,
    stopping=(float("inf"), 2),
    outputs={4: VECTOR},
)
STREAMED = StreamedLayerState(
    position=7,
    state=STATE,
    examples=30,
    validation_error=None,
    warnings=("slow",),
    ring={6: VECTOR},
    passes={1: VECTOR},
)
PAST = Past(reads=((0,),), done=(1,), held=((1,),), epochs=(2,))
CURVE = ErrorCurve([0.5, float("inf")], [float("nan")])
STATES = {
    "epochs": (EPOCHS_STATE, PretrainState(PAST, {(1, 1): LAYER}, [(1, 1)], (STATE,), (CURVE,))),
    "stream": (STREAM_STATE, StreamState((STREAMED,), (1,), (CURVE,))),
    "async": (ASYNC_STATE, AsyncState((1,), 5, (0.5,), {"layer.1.weight": VECTOR}, (CURVE,))),
    "finetune": (
        FINETUNE_STATE,
        FinetuneState(2, Cursor(3, 0.5), 0.75, None, 0, {"best": VECTOR}, CURVE),
    ),
}

CURSOR = {"minibatches": 3, "error": 0.5}
SCALARS = {"cursor": CURSOR, "learning_rate": 0.1, "rollbacks": 1, "stopping": ["inf", 2]}
KINDS = {"hidden_units": "relu", "visible_units": "bernoulli", "model": "rbm"}
WRITTEN_CURVE = {"train": [0.5, "inf"], "validation": ["nan"]}
PAST_AS_WRITTEN = {"reads": [[0]], "done": [1], "held": [[1]], "epochs": [2]}
PAST_AS_WRITTEN |= {"skipped": [], "drifts": []}
LAYER_AS_WRITTEN = {"position": 7, "scalars": SCALARS, "kinds": KINDS, "examples": 30}
LAYER_AS_WRITTEN |= {"validation_error": None, "warnings": ["slow"]}
LAYER_AS_WRITTEN |= {"ring": [6], "passes": [1], "steps": None}
HEADERS = {
    "epochs": {"past": PAST_AS_WRITTEN, "made": [[1, 1]], "snapshots": [[1, 1]]},
    "stream": {"stream": [LAYER_AS_WRITTEN], "done": [1], "curves": [WRITTEN_CURVE]},
    "async": {"done": [1], "minibatches": 5, "errors": [0.5], "curves": [WRITTEN_CURVE]},
    "finetune": {"epoch": 2, "cursor": CURSOR, "first_error": 0.75, "best_error": None},
}
HEADERS["epochs"] |= {"states": [SCALARS], "kinds": [KINDS], "curves": [WRITTEN_CURVE]}
HEADERS["finetune"] |= {"best_epoch": 0, "curve": WRITTEN_CURVE}
PARAMETERS = ("weight", "hidden_bias", "visible_bias")
OF_A_LAYER = {f"{what}.1.{name}" for what in ("layer", "good") for name in PARAMETERS}
OF_A_LAYER |= {"memory.1.velocity", "outputs.1.4"}
NAMES = {
    "epochs": OF_A_LAYER | {f"snapshot.1.1.{name}" for name in PARAMETERS},
    "stream": OF_A_LAYER | {"ring.1.6", "passes.1.1"},
    "async": {"layer.1.weight"},
    "finetune": {"best"},
}
ADDED_LATER = {"curves", "curve"}


@pytest.mark.parametrize("kind", STATES)
def test_a_checkpoint_has_the_keys_and_names_of_the_first_version(kind, tmp_path):
    file, state = STATES[kind]
    file.write(tmp_path / "state", state, {"data": "abc"})
    header, arrays = read_arrays(tmp_path / "state")
    assert header == {"run": {"data": "abc"}, **HEADERS[kind]}
    assert arrays.keys() == NAMES[kind]


@pytest.mark.parametrize("kind", STATES)
def test_a_state_is_read_as_it_was_written(kind, tmp_path):
    file, state = STATES[kind]
    file.write(tmp_path / "state", state, {})
    file.write(tmp_path / "again", file.read(tmp_path / "state"), {})
    (header, arrays), (other, others) = map(read_arrays, (tmp_path / "state", tmp_path / "again"))
    assert header == other
    assert all(np.array_equal(arrays[name], others[name]) for name in arrays | others)


@pytest.mark.parametrize("kind", STATES)
def test_only_what_later_versions_added_may_be_missing(kind, tmp_path):
    file, state = STATES[kind]
    file.write(tmp_path / "state", state, {})
    header, arrays = read_arrays(tmp_path / "state")
    for key in header:
        write_arrays(tmp_path / key, {k: x for k, x in header.items() if k != key}, arrays)
        if key in ADDED_LATER:
            file.read(tmp_path / key)
            continue
        with pytest.raises(CheckpointError, match=f"is damaged: .*required field `{key}`"):
            file.read(tmp_path / key)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("epochs", "layer.1.weight"), ("epochs", "snapshot.1.1.weight"), ("stream", "ring.1.6")],
)
def test_a_missing_array_is_told(kind, name, tmp_path):
    file, state = STATES[kind]
    file.write(tmp_path / "state", state, {})
    header, arrays = read_arrays(tmp_path / "state")
    del arrays[name]
    write_arrays(tmp_path / "state", header, arrays)
    with pytest.raises(CheckpointError, match="is damaged"):
        file.read(tmp_path / "state")


def test_a_state_of_another_run_is_refused(tmp_path):
    def check(header):
        raise CheckpointError(f"is of another run: {header}")

    file, state = STATES["stream"]
    file.write(tmp_path / "x.safetensors", state, {"data": "abc"})
    with pytest.raises(CheckpointError, match=r"x\.safetensors: is of another run: .*abc"):
        file.read(tmp_path / "x.safetensors", check)


def test_what_does_not_fit_is_refused_in_a_sentence():
    told = "the state is of another layer"
    with pytest.raises(CheckpointError, match=f"resume: {told}: 'weight'"), refusing_others(told):
        raise KeyError("weight")
