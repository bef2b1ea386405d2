"""Weights of rows in pretraining, and those of sequences with relatives."""

import signal
from functools import partial

import numpy as np
import pytest
from chainedlearners import HIDDEN, KINDS, make, rows
from learnersteps import assert_close, assert_same_bits
from moments import At
from scipy import sparse

from syncpretrain import load, pretrain
from syncpretrain.data import load_dataset
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.data.weights import sequence_weights, weighted_means
from syncpretrain.errors import CheckpointError, DataError, RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished
from syncpretrain.pretraining.build import step_for
from syncpretrain.runs.run import train_run
from syncpretrain.settings import MomentumSchedule, settings_from
from syncpretrain.units.kinds import kind_of

COUNTS = np.array([3, 0, 1, 2, 1, 1, 4, 0, 2, 1])


@pytest.mark.parametrize("units", KINDS)
@pytest.mark.parametrize("centred", [False, True])
def test_whole_numbers_are_repeated_rows(units, centred):
    """The chains are the same beside either."""
    X, times = rows(units), np.repeat(np.arange(10), COUNTS)
    weighted, repeated = (make(units, batch_size=15, centred=centred) for _ in range(2))
    weighted.weigh_rows(np.float32(COUNTS / 1.5))
    for step in range(2):
        for rbm, own in ((weighted, np.arange(10)), (repeated, times)):
            rbm.gradient(X, own, epoch=1, step=step)
        assert_close(weighted.gradients, repeated.gradients, rtol=1e-7)
        for rbm in (weighted, repeated):
            rbm.update(epoch=1)


@pytest.mark.parametrize("units", KINDS)
@pytest.mark.parametrize("more", [{}, {"cd_steps": 2, "hidden_dropout": 0.3}])
def test_a_chain_from_the_data_has_the_weight_of_its_row(units, more):
    X, weights = rows(units), np.float32([0.5, 2, 0, 1, 1, 3, 0.1, 1, 1, 4])
    plain, weighted = (make(units, persistent=False, chains=0, **more) for _ in range(2))
    weighted.weigh_rows(weights)
    for rbm in (plain, weighted):
        rbm.gradient(X, np.arange(10), epoch=1, step=0)
    v, h = np.float64(plain._v[:20]), np.float64(plain._h[:20])
    v *= np.tile(weights, 2)[:, None]
    shares = np.concatenate([weights, -weights])[:, None] / 10
    wanted = [v.T @ h, v.sum(axis=0), (shares * h).sum(axis=0)]
    if kind_of(units).are_counts:
        wanted[2] *= 0
    assert_close(weighted.gradients, wanted, rtol=1e-7, atol=2e-6)


@pytest.mark.parametrize("rows_", [10, 3, 2])
@pytest.mark.parametrize("how", [{"chains": 4}, {"persistent": False, "chains": 0}])
def test_shards_add_up_to_the_weight_of_the_minibatch(how, rows_):
    """Visible units are certain, and hidden ones do not see them: no draw matters."""
    whole, cut = (make(**how) for _ in range(2))
    for rbm, shards in ((whole, 1), (cut, 4)):
        rbm.weight.fill(0)
        rbm.visible_bias[:] = [100, -100] * 3
        rbm.weigh_rows(np.float32([0, 2, 1, 1, 1, 3, 1, 1, 1, 7]))
        training = step_for(rbm, shards, "examples")
        training.train_step(rows("bernoulli"), np.arange(rows_), epoch=1, step=0)
    assert_close(cut, whole)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("how", [{"persistent": False, "chains": 0}, {}, {"chain_start": "data"}])
def test_a_minibatch_without_weight_moves_nothing(how, centred, shards):
    rbm = make(momentum=MomentumSchedule("0"), centred=centred, **how)
    rbm.weigh_rows(np.float32([0, 2] * 10))
    training, X = step_for(rbm, shards, "examples"), rows("bernoulli", 20)
    training.train_step(X, np.arange(10), epoch=1, step=0)
    before = [array.copy() for array in rbm.parameters[:3]]  # without the offsets
    training.train_step(X, np.arange(0, 20, 2), epoch=1, step=1)
    assert_same_bits(rbm.parameters[:3], before)
    training.train_step(X, np.arange(1, 20, 2), epoch=1, step=2)
    assert (rbm.weight != before[0]).all()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("how", "scale", "within"),
    [
        ({"persistent": False, "chains": 0}, 1000, 1e-5),  # states are certain
        ({"persistent": False, "chains": 0, "centred": True}, 1000, 1e-5),
        ({"chains": 100_000}, 0, 0.02),  # chains are in equilibrium
    ],
)
def test_the_minibatches_of_an_epoch_have_the_gradient_of_all_rows(how, scale, within, size):
    """Whatever the weights of a minibatch are; nothing but rounding, or the chains, is drawn."""
    whole, cut = (make(**how) for _ in range(2))
    X, found = rows("bernoulli"), [0.0, 0.0, 0.0]
    for rbm in (whole, cut):
        rbm.weigh_rows(np.float32(COUNTS / 1.5))
        for parameter in rbm.parameters[:3]:
            parameter *= scale
    whole.gradient(X, np.arange(10), epoch=1, step=0)
    for step, own in enumerate(np.arange(10).reshape(-1, size)):
        cut.gradient(X, own, epoch=1, step=step)
        parts = [np.float64(gradient) * size / 10 for gradient in cut.gradients]
        found = [total + part for total, part in zip(found, parts, strict=False)]
    assert np.abs(whole.gradients[0]).max() > 5 * within
    for have, want in zip(found, whole.gradients, strict=False):
        np.testing.assert_allclose(have, want, atol=within)


def test_visible_biases_start_from_weighted_means():
    X = np.float32(rows("bernoulli") > 0)
    marked = X.copy()
    marked[2:5, 1] = -0.0
    times = np.repeat(np.arange(10), COUNTS)
    weights = np.float32(COUNTS)
    found = weighted_means(marked, weights, missing=True)[1]
    known = [row for row in times if not 2 <= row < 5]
    assert found == pytest.approx(X[known, 1].mean())
    csr = sparse.csr_matrix(X)
    for stored in (X, SparseRows(csr.data, csr.indices, csr.indptr, X.shape[1])):
        means = weighted_means(stored, weights, missing=False)
        np.testing.assert_allclose(means, X[times].mean(axis=0), rtol=1e-6)


INTERRUPT = partial(signal.raise_signal, signal.SIGINT)
HOW = {"hidden": [HIDDEN, 3], "epochs": 2, "batch_size": 40, "warn": False}


def test_rows_without_weight_are_not_learned(bits):
    """Columns that are on only there keep the weights of units that are never on."""
    X = np.hstack([bits, np.zeros((200, 2), np.float32)])
    X[:100, 16:] = 1
    weights = np.r_[np.zeros(100), np.ones(100)]
    how = HOW | {"visible_bias": "log-odds", "epochs": 20, "batch_size": 20}
    stack = pretrain(X, **how, weights=weights)
    assert stack.reconstruct(X[100:])[:, 16:].max() < 0.05
    plain = pretrain(X, **how)
    assert plain.reconstruct(X[:100])[:, 16:].mean() > 0.3


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("how", [{}, {"persistent": True, "chains": 30}])
def test_equal_weights_are_none(bits, how, shards):
    more = {**how, "shards": shards}
    alike = pretrain(bits, **HOW, **more, weights=np.full(200, 7))
    assert alike.parameters_sha256 == pretrain(bits, **HOW, **more).parameters_sha256


@pytest.mark.parametrize("what", ["persistent and missing values", "persistent and counts:16"])
def test_chains_with_the_conditions_of_rows_have_no_weights(bits, what):
    """CD has them; chains of a layer above have no conditions."""
    X, units = bits.copy(), {"visible_units": "counts:16"} if "counts" in what else {}
    if not units:
        X[::2, 0] = np.nan
    weights, chains = np.arange(200) % 3 + 1, {"persistent": True, "chains": 30}
    with pytest.raises(SettingsError, match=f"weights: got them with {what}.*; take CD"):
        pretrain(X, **HOW, **units, **chains, weights=weights)
    above = {"persistent": (False, True), "chains": (0, 30)}
    for more in ({}, above):
        assert pretrain(X, **HOW, **units, **more, weights=weights).widths == (16, HIDDEN, 3)


def test_a_call_that_goes_on_has_the_same_weights(bits, tmp_path):
    weights, stops = np.arange(200) % 3, At(EpochFinished, INTERRUPT, epoch=1)
    with pytest.raises(RunInterrupted):
        pretrain(bits, **HOW, weights=weights, resume=tmp_path, observers=[stops])
    with pytest.raises(CheckpointError, match="in which X was another"):
        pretrain(bits, **HOW, weights=weights + 1, resume=tmp_path)
    again = pretrain(bits, **HOW, weights=weights, resume=tmp_path)
    assert again.parameters_sha256 == pretrain(bits, **HOW, weights=weights).parameters_sha256


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "autoencoder"}, "weights: got them with model autoencoder"),
        ({"schedule": "async"}, "weights: got them with schedule async"),
        ({"handoff": "minibatch"}, "weights: got them with handoff minibatch"),
        ({"split": "units", "shards": 2}, "weights: got them with split units"),
        ({"persistent": True}, "weights: got them with persistent, whose chains"),
        ({"sparsity_cost": 0.1}, "weights: got them with sparsity_cost"),
        ({"backend": "cupy"}, "weights: got them with backend cupy|cupy"),
    ],
)
def test_weights_are_refused_where_rows_are_alike(bits, given, message):
    with pytest.raises(SettingsError, match=message):
        pretrain(bits, **HOW | given, weights=np.ones(200))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"weights: got shape \(3,\), expected \(200,\)"),
        (np.full(200, -1), r"weights: got -1 at row 0 \(counted from 0\), expected finite numbers"),
        ([1] * 7 + [np.nan] * 193, "weights: got nan at row 7 .* of 0 or more"),
        ([np.inf] * 200, "weights: got inf at row 0 "),
        (np.zeros(200), "weights: got 0 for every row"),
    ],
)
def test_weights_are_one_number_a_row(bits, weights, message):
    with pytest.raises(DataError, match=message):
        pretrain(bits, **HOW, weights=weights)


@pytest.fixture
def table(bits, tmp_path):
    path = tmp_path / "bits.csv"
    names = [*(f"c{i}" for i in range(16)), "w"]
    lines = [",".join(f"{x:g}" for x in (*row, row.sum() % 3)) for row in bits]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    return path


def test_a_column_has_the_weights(table, tmp_path):
    how = {"layers": (16, 5, 3), "epochs": 2, "batch_size": 40}
    data = load_dataset(table, weights="w")
    assert data.train.shape == (180, 16)
    assert set(data.train_weights) == {0, 1, 2}
    np.testing.assert_array_equal(data.train_weights, data.train.sum(axis=1) % 3)
    assert load_dataset(table, drop="w").sha256 != data.sha256
    few = load_dataset(table, weights="-1", examples=50)
    assert few.train_weights.shape == (50,)
    own = {"name": str(table), "weights": "w"}
    train_run(settings_from(**how, data=own), out=tmp_path / "run")
    wanted = pretrain(data.train, **how, warn=False, weights=data.train_weights)
    found = load(tmp_path / "run")
    for have, want in zip(found.layers, wanted.layers, strict=True):
        np.testing.assert_allclose(have.weight, want.weight, atol=1e-6)
    assert found.info["columns"]["dropped"] == ["w"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"weights": "v"}, "weights: got 'v', which is no column"),
        ({"drop": "w"}, "weights: got 'w', a column that is dropped"),
        ({"target": "w", "task": "regression"}, "weights: got 'w', the target"),
        ({"weights": "c0", "target": "w", "drop": "w"}, "drop: got 'w', the target"),
        ({"weights": "c0", "target": "w", "drop": "c0"}, "weights: got 'c0', a column that is dr"),
        ({"drop": "c1,c1"}, "drop: got 'c1', a column that is dropped"),
    ],
)
def test_a_column_has_one_use(table, more, message):
    with pytest.raises(DataError, match=message):
        load_dataset(table, **{"weights": "w"} | more)


def test_other_files_and_texts_have_no_weights(tmp_path, bits):
    np.save(tmp_path / "bits.npy", bits)
    with pytest.raises(DataError, match=r"weights: got 'w' for .*, which has no named columns"):
        load_dataset(tmp_path / "bits.npy", weights="w")
    with pytest.raises(DataError, match="weights: got 'w' for digits"):
        load_dataset("digits", weights="w")
    path = tmp_path / "texts.csv"
    path.write_text("a,w\n" + "1,x\n0,y\n" * 10)
    with pytest.raises(DataError, match="weights: got 'w', which holds texts"):
        load_dataset(path, weights="w")


def families(n: int, sites: int, letters: int, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed)
    parents = draws.integers(letters, size=(7, sites))
    X = parents[draws.integers(7, size=n)]
    changed = draws.random((n, sites)) < draws.uniform(0, 0.4, size=(n, 1))
    return np.where(changed, draws.integers(letters, size=(n, sites)), X)


@pytest.mark.parametrize("within", [0, 0.2, 0.29, 0.5, 0.99])
@pytest.mark.parametrize("size", [50, 2048])
def test_sequences_count_by_those_that_are_near(monkeypatch, within, size):
    monkeypatch.setattr("syncpretrain.data.weights.MOST_ROWS", size)
    X = families(300, 100, 21)
    apart = (X[:, None] != X[None]).sum(axis=2)
    wanted = 1 / (apart <= round(within * 100)).sum(axis=1)
    assert len(np.unique(wanted)) > 1 or within in (0, 0.99)
    np.testing.assert_array_equal(sequence_weights(X, within=within), wanted)


def test_letters_of_any_type():
    X = families(60, 12, 4)
    wanted = sequence_weights(X)
    texts = np.array(list("ACG-"))[X]
    for other in (np.uint8(X), texts, texts.astype("S1"), X * 1000 - 7):
        np.testing.assert_array_equal(sequence_weights(other), wanted)


@pytest.mark.parametrize(
    ("X", "within", "message"),
    [
        ([1, 2, 3], 0.2, "X: got shape"),
        (np.zeros((0, 4)), 0.2, "X: got shape"),
        ([[1, 2]], 1.0, "within: got 1, expected"),
        ([[1, 2]], -0.1, "within: got -0.1, expected"),
    ],
)
def test_other_sequences_are_refused(X, within, message):
    with pytest.raises(DataError, match=message):
        sequence_weights(X, within=within)
