"""Models by updates, spaced by their logarithm."""

from functools import partial

import numpy as np
import pytest
from contractruns import RUNTIMES, SERIAL, STATES, STREAM, driver
from trialruns import stop_after

from syncpretrain import load, pretrain
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.learners.steps import spaced
from syncpretrain.runs.run import train_run
from syncpretrain.settings import settings_from
from syncpretrain.sklearn import StackedRBM

pytestmark = pytest.mark.usefixtures("forked_layers")
CHAINS = {"persistent": True, "chains": 30, "centred": True, "shards": 2}
PLAN = {"layers": (16, 12, 8), "epochs": (2, 3), "batch_size": 33, "marks": 6, **CHAINS}


def arrays_of(stack, handoff):
    """Return the arrays of the whole stack; streamed, the layers below are not in step with it."""
    layers = stack.layers if handoff == "epoch" else stack.layers[-1:]
    return [array for layer in layers for _, array in layer.arrays()]


def marked(bits, runtime, handoff, *, resume=None, save=None, into=None, **more):
    found = {} if into is None else into

    def take(layer, update, stack):
        assert stack.info["updates"] == update
        assert len(stack.layers) == layer
        found[layer, update] = arrays_of(stack, handoff)

    with runtime.around():
        run = driver(bits, runtime, handoff, **PLAN | more)
        run.take_mark, run.resume, run.save = take, resume, save
        found["end"] = [array for x in run.run().layers for _, array in x.arrays()]
    return found


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for key, arrays in wanted.items():
        for have, want in zip(found[key], arrays, strict=True):
            np.testing.assert_array_equal(have, want, err_msg=str(key))


@pytest.mark.parametrize(
    ("count", "total", "numbers"),
    [(5, 10_000, {1, 10, 100, 1000, 10_000}), (9, 4, {1, 2, 3, 4}), (1, 7, {1}), (2, 7, {1, 7})],
)
def test_numbers_are_spaced_by_their_logarithm(count, total, numbers):
    assert spaced(count, total) == numbers


@pytest.mark.parametrize("handoff", STREAM)
def test_every_runtime_keeps_the_same_layers(bits, handoff):
    wanted = marked(bits, SERIAL, handoff)
    updates = [update for layer, update in wanted.keys() - {"end"} if layer == 1]
    assert sorted(updates) == sorted(spaced(6, 14))
    assert max(update for layer, update in wanted.keys() - {"end"} if layer == 2) == 21
    assert len(wanted["end"]) == 8
    last = wanted[1, 14] + wanted[2, 21][-4:]
    assert all(np.array_equal(x, y) for x, y in zip(last, wanted["end"], strict=True))
    for name in ("threads", "processes", "ranks", "ranks that share layers"):
        sharing = {"replicas": 2} if "share" in name else {}
        assert_same(marked(bits, RUNTIMES[name], handoff, **sharing), wanted)


def test_a_layer_is_above_the_version_that_it_trained_on(bits):
    found = marked(bits, SERIAL, "epoch", marks=60)
    after = {7: found[1, 7], 14: found[1, 14]}  # of the two epochs of layer 1
    assert any(np.any(x != y) for x, y in zip(*after.values(), strict=True))
    for update in (1, 3, 7, 8, 21):
        below, wanted = found[2, update][:4], after[7 if update <= 7 else 14]
        assert all(np.array_equal(x, y) for x, y in zip(below, wanted, strict=True)), update


@pytest.mark.parametrize("handoff", STREAM)
@pytest.mark.parametrize("minibatches", [2, 9, 20])
def test_a_run_that_is_stopped_keeps_them_too(bits, monkeypatch, tmp_path, handoff, minibatches):
    wanted, found, states = marked(bits, SERIAL, handoff), {}, []
    save = lambda state, *, done, final: states.append(state()) if final else None  # noqa: E731
    with monkeypatch.context() as patch, pytest.raises(RunInterrupted):
        stop_after(patch, minibatches)
        marked(bits, SERIAL, handoff, into=found, save=save)
    STATES[handoff].write(tmp_path / "state", states[-1], {})
    resume = STATES[handoff].read(tmp_path / "state")
    assert_same(marked(bits, SERIAL, handoff, resume=resume, into=found), wanted)


def test_a_run_writes_models(tmp_path, bits):
    np.save(tmp_path / "bits.npy", bits)
    own = {"epochs": 2, "batch_size": 40, "run": {"checkpoint_every": "log:4"}}
    own |= {"data": {"name": str(tmp_path / "bits.npy"), "validation": 0.2}}
    settings = settings_from((16, 12, 8), **own)
    train_run(settings, out=tmp_path / "run")
    paths = sorted((tmp_path / "run" / "updates").iterdir())
    names = [f"layer-{n}-{update:08d}.safetensors" for n in (1, 2) for update in (1, 2, 4, 8)]
    assert [path.name for path in paths] == names
    stack, whole = load(paths[3]), load(tmp_path / "run")
    np.testing.assert_array_equal(stack.layers[0].weight, whole.layers[0].weight)
    assert stack.info["updates"] == 8
    assert stack.widths == (16, 12)
    assert load(paths[7]).parameters_sha256 == whole.parameters_sha256
    assert "meaning" in stack.info


@pytest.mark.parametrize("more", [{"schedule": "async"}, {"backend": "cupy"}])
def test_what_has_no_updates_to_stop_at_is_refused(more):
    with pytest.raises(SettingsError, match=r"^checkpoint_every: got log:5 with|by updates"):
        settings_from((4, 3), run={"checkpoint_every": "log:5"}, **more)


def test_a_call_without_a_run_folder_is_refused(bits):
    for call in (partial(pretrain, hidden=[4], marks=5), StackedRBM(settings={"marks": 5}).fit):
        with pytest.raises(SettingsError, match="marks: got 5, expected 0: only a run"):
            call(bits)
