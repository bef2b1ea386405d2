"""Sparse rows: the same results as dense ones, without a dense array of all of them."""

import dataclasses
import signal
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onelayer import layer_settings
from sparsematrices import Matrix, csr

from syncpretrain import Stack, errors, finetune, pretrain
from syncpretrain.data import blocks, load_dataset
from syncpretrain.data.facts import look_at, units_of_array
from syncpretrain.data.sparse_rows import SparseRows, joined, rows_of_matrix
from syncpretrain.events import EpochFinished
from syncpretrain.kernels import activations, conditions, native
from syncpretrain.learners.rbm import RBM, SparseRBM
from syncpretrain.models.diagnosis import stack_error
from syncpretrain.models.scores import scores
from syncpretrain.settings.fields import MomentumSchedule
from syncpretrain.units.kinds import kind_of

pytestmark = pytest.mark.usefixtures("forked_layers")
DRAWS = np.random.default_rng(3)
DENSE = np.where(DRAWS.random((70, 40)) < 0.1, DRAWS.integers(1, 5, (70, 40)), 0).astype("f4")
BITS = (DENSE > 0).astype("f4")
COUNTS = f"counts:{DENSE.shape[1]}"
SEVERAL = "bernoulli:10,counts:30"
MIXED = np.hstack([BITS[:, :10], DENSE[:, 10:]])


def close(one, other, **options):
    np.testing.assert_allclose(one, other, **({"rtol": 1e-4, "atol": 1e-5} | options))


def same(one: Stack, other: Stack) -> bool:
    return one.parameters_sha256 == other.parameters_sha256


class TestRows:
    @given(st.data())
    @settings(max_examples=40, deadline=None)
    def test_any_order_and_what_is_there_twice(self, data):
        rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7))
        place = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))
        places = sorted(data.draw(st.lists(place, max_size=25)), key=lambda place: place[0])
        values = data.draw(st.lists(st.integers(-2, 2), min_size=len(places), max_size=len(places)))
        expected = np.zeros((rows, columns))
        np.add.at(expected, tuple(np.array(places, dtype=int).reshape(-1, 2).T), values)
        owners = np.array([row for row, _ in places], dtype=int)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=rows))])
        indices = np.array([column for _, column in places], dtype=int)
        values = np.array(values, dtype=float)
        found = rows_of_matrix(Matrix(values, indices, indptr, expected.shape), "X")
        np.testing.assert_array_equal(found.toarray(), expected)
        assert (found.data != 0).all()
        assert found.limits == (expected.min(), expected.max())

    def test_some_of_them(self):
        rows, chosen = rows_of_matrix(csr(DENSE), "X"), np.array([5, 0, 69, 5])
        np.testing.assert_array_equal(rows[chosen], DENSE[chosen])
        np.testing.assert_array_equal(rows[chosen - 70], DENSE[chosen - 70])  # from the end
        np.testing.assert_array_equal(rows[DENSE[:, 0] > 0], DENSE[DENSE[:, 0] > 0])
        np.testing.assert_array_equal(rows[3:60:7], DENSE[3:60:7])
        np.testing.assert_array_equal(rows[60:1000], DENSE[60:])
        np.testing.assert_array_equal(rows[9:9], DENSE[9:9])
        np.testing.assert_array_equal(rows.run(slice(4, 30))[2:], DENSE[6:30])
        np.testing.assert_array_equal(rows.subset(chosen)[1:], DENSE[chosen[1:]])
        np.testing.assert_array_equal(joined([rows, rows])[60:80], np.vstack([DENSE, DENSE])[60:80])
        out = np.full((4, 40), 7, dtype=np.float32)
        np.take(rows, chosen, axis=0, out=out, mode="clip")
        np.testing.assert_array_equal(out, DENSE[chosen])

    def test_nothing_makes_them_dense_unasked(self):
        with pytest.raises(errors.DataError, match=r"expected X.toarray\(\)"):
            np.asarray(rows_of_matrix(csr(DENSE), "X"))

    @pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix", "coo_array", "csr_array"])
    def test_the_formats_of_scipy(self, sparse, form):
        rows = rows_of_matrix(getattr(sparse, form)(DENSE.astype(np.uint8)), "X")
        np.testing.assert_array_equal(rows.toarray(), DENSE)

    @pytest.mark.parametrize(
        ("X", "units"), [(DENSE, COUNTS), (BITS, "bernoulli"), (BITS - 0.25 * BITS, "bernoulli")]
    )
    def test_units_that_suit_them(self, X, units):
        assert units_of_array(rows_of_matrix(csr(X), "X")) == units
        assert units_of_array(rows_of_matrix(csr(-X), "X")) == "gaussian"

    def test_counts_of_words_in_a_dense_array(self):
        words = np.random.default_rng(0).poisson(0.1, (60, 30))
        assert look_at(words).facts.are_counts
        assert units_of_array(words) == "counts:30"
        others = words.copy()
        others[:, :3] += 20  # such as ages
        for X in (others, words + 0.5 * words, np.eye(9), np.where(words == 1, 5, words)):
            assert not look_at(X).facts.are_counts
        assert not look_at(words[:, :19]).facts.are_counts  # too few for a vocabulary
        stack = pretrain(words, hidden=[3], epochs=1, batch_size=10, warn=False)
        assert stack.units[0] == "counts:30"
        images = pretrain(words, layers="1x5x6,conv:2x2,4", epochs=1, batch_size=10, warn=False)
        assert images.units[0] == "gaussian"

    @pytest.mark.parametrize("rows", [30, 100, 1000])
    @pytest.mark.parametrize("length", [None, 30])
    def test_documents_of_any_length_are_counts(self, rows, length):
        draws, shares = np.random.default_rng(1), 1 / np.arange(20, 320)
        lengths = np.full(rows, length) if length else draws.geometric(1 / 30, rows)
        words = np.array([draws.multinomial(n, shares / shares.sum()) for n in lengths])
        assert look_at(words).facts.are_counts
        assert units_of_array(words.astype("f2")) == "counts:300"

    @pytest.mark.parametrize("rows", [30, 100, 1000])
    @pytest.mark.parametrize("sizes", [(4, 5, 6, 8), (40,), (100, 3), (7, 7, 7)])
    @pytest.mark.parametrize("numbers", [1, 4])
    def test_categories_beside_small_numbers_are_no_counts(self, rows, sizes, numbers):
        draws = np.random.default_rng(2)
        columns = [np.eye(k)[draws.integers(0, k, rows)] for k in sizes]
        for others in (columns, [draws.random((rows, sum(sizes))) < 0.1]):  # symptoms
            X = np.hstack([*others, draws.poisson(0.6, (rows, numbers))])
            assert not look_at(X).facts.are_counts
            units = pretrain(X, hidden=[2], epochs=1, batch_size=10, warn=False).units[0]
            assert units == "gaussian"


@pytest.mark.skipif(not native.available(), reason="the compiled kernels are not in use")
class TestProducts:
    @pytest.mark.parametrize("density", [0.0, 0.03, 0.12, 0.5])
    @pytest.mark.parametrize("shape", [(1, 1, 1), (7, 2500, 3), (100, 60, 130), (30, 1029, 67)])
    def test_as_dense_ones(self, shape, density):
        n, visible, hidden = shape
        draws = np.random.default_rng(visible)
        v = (draws.random((n, visible)) < density) * draws.standard_normal((n, visible))
        v = v.astype(np.float32)
        v[v == 0] *= -1  # the sign of a zero says nothing
        W = draws.standard_normal((visible, hidden)).astype(np.float32)
        h = draws.standard_normal((n, hidden)).astype(np.float32)
        out, back = np.full_like(h, 7), np.full_like(W, 7)
        activations.sparse_product(v, W, out=out)
        close(out, v @ W, atol=1e-4)
        activations.transposed_product(v, h, out=back)
        close(back, v.T @ h, atol=1e-4)
        activations.transposed_product(v, h, out=back, adds=True)
        close(back, 2 * v.T @ h, atol=1e-4)
        rows = rows_of_matrix(csr(v), "X")
        found = activations.product(rows, W)
        close(found, v @ W, atol=1e-4)
        activations.csr_product.__wrapped__(rows.data, rows.indices, rows.indptr, W, out=out)
        close(out, found, atol=1e-4)
        if n > 2:  # a sum does not depend on the rows beside it
            np.testing.assert_array_equal(activations.product(rows.run(slice(1, 3)), W), found[1:3])

    def test_documents_are_the_same_in_both_forms(self):
        draws = np.random.default_rng(4)
        shares = draws.random((30, 17)).astype(np.float32) * (draws.random((30, 17)) < 0.7)
        shares[:, 0] = 0.1
        ends = np.cumsum(draws.integers(1, 60, 30))
        points = draws.standard_exponential(ends[-1])
        compiled, plain = shares.copy(), shares.copy()
        conditions.draw_documents(compiled, points, ends)
        conditions.draw_documents.__wrapped__(plain, points, ends)
        np.testing.assert_array_equal(compiled, plain)
        np.testing.assert_array_equal(plain.sum(axis=1), np.diff(ends, prepend=0) - 1)
        assert not plain[:, 1:-1][shares[:, 1:-1] == 0].any()

    def test_documents_from_inputs_are_the_same_in_both_forms(self):
        draws = np.random.default_rng(5)
        inputs, bias = (draws.normal(0, 2, s).astype(np.float32) for s in ((9, 77), 77))
        inputs[0, :70] = -1e9  # as good as impossible
        words = draws.integers(0, 200, 9)
        like = draws.multinomial(words, np.full(77, 1 / 77)).astype(np.float32)
        ends = np.cumsum(words + 1)
        points = draws.standard_exponential(ends[-1])
        compiled, plain = inputs.copy(), inputs.copy()
        errors = [
            conditions.reconstruct_documents(compiled, bias, like, points, ends),
            conditions.reconstruct_documents.__wrapped__(plain, bias, like, points, ends),
        ]
        close(*errors)
        np.testing.assert_array_equal(compiled, plain)
        np.testing.assert_array_equal(plain.sum(axis=1), words)
        inputs[3, 4] = np.nan
        assert np.isnan(conditions.reconstruct_documents(inputs, bias, like, points, ends))

    def test_columns_that_are_not_there(self):
        W, out = np.ones((3, 2), dtype=np.float32), np.zeros((1, 2), dtype=np.float32)
        arrays = np.ones(1, "f4"), np.array([3], "i4"), np.array([0, 1])
        with pytest.raises(IndexError):
            activations.csr_product(*arrays, W, out=out)


def settings_of(units, **more):
    own = {"batch_size": 20, "learning_rate": 0.1, "momentum": MomentumSchedule("0.5"), "seed": 5}
    return layer_settings(visible_units=units, **own, **more)


@pytest.mark.parametrize(
    "more", [{}, {"sample_visible": True}, {"persistent": True}, {"cd_steps": 2}]
)
@pytest.mark.parametrize(("units", "X"), [("bernoulli", BITS), (COUNTS, DENSE), (SEVERAL, MIXED)])
def test_gradients_are_those_of_dense_rows(units, X, more):
    dense, sparse = (kind(1, 40, 9, settings_of(units, **more)) for kind in (RBM, SparseRBM))
    rows = rows_of_matrix(csr(X), "X")
    for step in range(3):
        chosen = np.arange(20 * step, 20 * step + 20)
        error = dense.gradient(X, chosen, epoch=1, step=step)
        close(sparse.gradient(rows, chosen, epoch=1, step=step), error)
        for one, other in zip(dense.gradients, sparse.gradients, strict=True):
            close(one, other)
        dense.update(epoch=1)
        sparse.update(epoch=1)


def test_a_sampled_reconstruction_is_right_on_average():
    own = [settings_of("bernoulli", sample_visible=is_drawn) for is_drawn in (False, True)]
    means, samples = (RBM(1, 40, 9, each) for each in own)
    rows, total = np.arange(20), 0.0
    for learner in (means, samples):
        learner.weight[:] = np.random.default_rng(1).standard_normal((40, 9))
        learner.gradient(BITS, rows, epoch=1, step=0)
    for step in range(400):
        samples.gradient(BITS, rows, epoch=1, step=step)
        total = total + samples.gradients[1] / 400
    expected = 0.0
    for step in range(400):
        means.gradient(BITS, rows, epoch=1, step=step)
        expected = expected + means.gradients[1] / 400
    close(total, expected, atol=0.02)


def test_documents_keep_their_lengths_and_shares():
    shares = np.tile(np.array([[0.5, 0.3, 0.2, 0.0]], dtype=np.float32), (500, 1))
    like = np.zeros_like(shares)
    like[:, 0] = np.arange(500) % 40
    noise = np.random.default_rng(0).random(shares.shape, dtype=np.float32)
    known = conditions.conditions_of(like, "counts:4")
    found = conditions.draw_words(shares.copy(), "counts:4", noise, known)
    np.testing.assert_array_equal(found.sum(axis=1), like[:, 0])
    close(found.sum(axis=0) / found.sum(), shares[0], atol=0.02)
    assert not found[:, 3].any()


def test_a_document_may_have_any_number_of_words():
    shares = np.array([[0.5, 0.3, 0.2, 0.0]] * 4 + [[np.nan] * 4], dtype=np.float32)
    like = np.diag([1e9, 0, 1, 0, 1e9]).astype(np.float32)[:, :4]
    like[4] = 1e9
    noise = np.random.default_rng(0).random(shares.shape, dtype=np.float32)
    known = conditions.conditions_of(like, "counts:4")
    found = conditions.draw_words(shares, "counts:4", noise, known)
    close(found[0] / 1e9, [0.5, 0.3, 0.2, 0], atol=1e-3)
    np.testing.assert_array_equal(found[1:4].sum(axis=1), [0, 1, 0])
    assert np.isnan(found[4]).all()  # diverged, which training stops at


def test_a_document_without_words_divides_by_no_zero():
    shares, points = np.zeros((2, 3), dtype=np.float32), np.ones(4)
    with np.errstate(all="raise"):
        conditions.draw_documents.__wrapped__(shares, points, np.array([1, 4]))
    np.testing.assert_array_equal(shares, [[0, 0, 0], [0, 0, 2]])


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [("indices", 0, 40), ("indices", 0, -1), ("indptr", 1, 10**6), ("indptr", 0, 1)],
)
def test_arrays_that_do_not_fit_each_other_are_refused(name, at, value):
    matrix = csr(DENSE)
    getattr(matrix, name)[at] = value
    words = "^X: got a sparse matrix whose arrays do not fit each"
    with pytest.raises(errors.DataError, match=words):
        rows_of_matrix(matrix, "X")


OPTIONS = {"hidden": [8, 4], "epochs": 2, "batch_size": 20, "seed": 1, "warn": False}


class TestTraining:
    @pytest.mark.parametrize("model", ["rbm", "denoising"])
    @pytest.mark.parametrize(
        ("units", "X"),
        [("bernoulli", BITS), (COUNTS, DENSE), (SEVERAL, MIXED), ("gaussian", DENSE)],
    )
    def test_layers_are_those_of_dense_rows(self, units, X, model):
        options = {**OPTIONS, "visible_units": units, "model": model, "runtime": "serial"}
        dense = pretrain(X, validation=X[:9], **options)
        sparse = pretrain(csr(X), validation=csr(X[:9]), **options)
        for one, other in zip(dense.layers, sparse.layers, strict=True):
            for (_, a), (_, b) in zip(one.parameters(), other.parameters(), strict=True):
                close(a, b)
        close(sparse.history.layers[0].validation, dense.history.layers[0].validation)
        close(sparse.encode(csr(X)), dense.encode(X))
        close(sparse.reconstruct(csr(X)), dense.reconstruct(X), atol=1e-4)
        close(scores(sparse, csr(X)), scores(dense, X))

    @pytest.mark.parametrize(
        "more",
        [
            {"early_stopping": "free-energy-gap"},
            {"early_stopping": "validation-error", "model": "denoising"},
            {"settle": 0.007},  # of outputs that are not standardized: two epochs later
        ],
    )
    def test_they_stop_after_as_many_epochs(self, more):
        options = {**OPTIONS, "epochs": 8, "learning_rate": 0.01, "momentum": "0.5"}
        options |= {"visible_units": "gaussian", "runtime": "serial", **more}
        dense = pretrain(DENSE, validation=DENSE[:9], **options)
        sparse = pretrain(csr(DENSE), validation=csr(DENSE[:9]), **options)
        assert sparse.info["epochs"] == dense.info["epochs"]

    def test_an_iterable_may_give_matrices(self):
        options = {**OPTIONS, "handoff": "minibatch", "visible_units": "gaussian"}
        options |= {"layers": [40, 8, 4], "hidden": None}
        parts = [csr(DENSE[at : at + 20]) for at in range(0, 70, 20)]
        assert pretrain(lambda number: parts, **options).widths == (40, 8, 4)

    def test_no_dense_array_of_all_rows(self, monkeypatch):
        most, take, item = [0], SparseRows.take, SparseRows.__getitem__

        def seen(function):
            def called(*args, **options):
                found = function(*args, **options)
                most[0] = max(most[0], len(found))
                return found

            return called

        monkeypatch.setattr(blocks, "CHUNK_VALUES", 1000 * DENSE.shape[1])
        monkeypatch.setattr(SparseRows, "take", seen(take))
        monkeypatch.setattr(SparseRows, "__getitem__", seen(item))
        X = np.tile(DENSE, (100, 1))
        y = np.arange(len(X)) % 2
        stack = pretrain(csr(X), validation=csr(X), visible_units=COUNTS, **OPTIONS)
        stack.encode(csr(X))
        scores(stack, csr(X))
        assert stack_error(stack, rows_of_matrix(csr(X), "X")) > 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.PoorResultWarning)
            tuned = finetune(stack, csr(X), y, epochs=1, batch_size=100)
        assert tuned.predict(csr(X)).shape == (7000,)
        assert most[0] <= 2000

    def test_a_call_goes_on_to_the_same_bits(self, tmp_path):
        def interrupt(event):
            if isinstance(event, EpochFinished) and event.layer == 1 and event.epoch == 1:
                signal.raise_signal(signal.SIGINT)

        options = {**OPTIONS, "visible_units": COUNTS, "runtime": "serial"}
        with pytest.raises(errors.RunInterrupted):
            pretrain(csr(DENSE), resume=tmp_path, observers=[interrupt], **options)
        with pytest.raises(errors.CheckpointError, match="X was another"):
            pretrain(csr(DENSE + (DENSE > 0)), resume=tmp_path, **options)
        again = pretrain(csr(DENSE), resume=tmp_path, **options)
        assert same(again, pretrain(csr(DENSE), **options))


class TestRefusals:
    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"layers": "1x8x5,conv:2x3,8"}, "with convolutions"),
            ({"split": "units", "shards": [2, 1]}, "split units"),
        ],
    )
    def test_settings_without_a_form_for_them(self, more, words):
        options = {**OPTIONS, **more, "hidden": None if "layers" in more else [8, 4]}
        with pytest.raises(errors.SettingsError, match=f"^X: got a sparse matrix .*{words}"):
            pretrain(csr(BITS), visible_units="bernoulli", **options)

    @pytest.mark.parametrize(
        ("value", "units", "words"),
        [
            (np.nan, "bernoulli", "got nan at row 7, column 3 .* expected finite numbers"),
            (np.inf, COUNTS, "got inf at row 7, column 3 .* expected finite numbers"),
            (-1, COUNTS, "got -1 at row 7, column 3 .* expected whole numbers"),
            (1.5, COUNTS, "got 1.5 at row 7, column 3 .* expected whole numbers"),
            (2, "bernoulli", "got 2 at row 7, column 3 .* expected values in"),
            (2, SEVERAL, "got 2 at row 7, column 3 .* expected values in"),
        ],
    )
    def test_values(self, value, units, words):
        X = BITS.copy()
        X[7, 3] = value
        with pytest.raises(errors.DataError, match=f"^X: {words}"):
            pretrain(csr(X), visible_units=units, **OPTIONS)

    @pytest.mark.parametrize("value", [1e300, -1e39])
    def test_a_value_beyond_float32_is_told_as_it_is(self, value):
        X = BITS.astype(np.float64)
        X[7, 3] = value
        words = f"^X: got {value:g} at row 7, column 3 .* float32 holds".replace("+", "[+]")
        with pytest.raises(errors.DataError, match=words):
            pretrain(csr(X, np.float64), visible_units="gaussian", **OPTIONS)

    def test_other_things(self):
        stack = pretrain(csr(DENSE), visible_units=COUNTS, **OPTIONS)
        with pytest.raises(errors.DataError, match="where a dense array is needed"):
            stack.impute(csr(DENSE))
        with pytest.raises(errors.DataError, match="got 20 columns, expected 40"):
            stack.encode(csr(DENSE[:, :20]))
        with pytest.raises(errors.DataError, match="complex"):
            pretrain(csr(DENSE, complex), **OPTIONS)
        with pytest.raises(errors.SettingsError, match="sample_visible"):
            pretrain(BITS, model="autoencoder", sample_visible=True, **OPTIONS)
        with pytest.raises(errors.SettingsError, match="sample_visible"):
            pretrain(BITS, split="units", shards=[2, 1], sample_visible=True, **OPTIONS)


def test_a_file_stays_sparse(tmp_path):
    np.savez(tmp_path / "X.npz", **vars(csr(DENSE)), format=np.array(b"csr"), y=np.arange(70) % 2)
    data = load_dataset(tmp_path / "X.npz", bounded=False, test=0.2)
    for part in (data.train, data.validation, data.test):
        assert isinstance(part, SparseRows)
    assert sum(map(len, (data.train, data.validation, data.test))) == 70
    other = dataclasses.replace(data, train=data.train.subset(np.arange(len(data.train))[::-1]))
    assert other.sha256 != data.sha256
    assert data.with_examples(10).train.shape == (10, 40)
    assert kind_of(units_of_array(data.train)).are_counts


@pytest.mark.parametrize("form", ["coo", "dia", "bsr"])
def test_a_file_in_another_sparse_format_is_refused(sparse, form, tmp_path):
    sparse.save_npz(tmp_path / "X.npz", sparse.csr_matrix(DENSE).asformat(form))
    with pytest.raises(errors.DataError, match=f"in the format '{form}', expected csr"):
        load_dataset(tmp_path / "X.npz")


def test_estimators_have_the_results_of_dense_rows(sparse):
    estimators = pytest.importorskip("syncpretrain.sklearn", reason="needs scikit-learn")
    own = {"hidden": (6,), "batch_size": 10, "epochs": 2, "random_state": 0}
    X = sparse.csr_matrix(BITS)
    rbm = estimators.StackedRBM(**own)
    close(rbm.fit_transform(X), estimators.StackedRBM(**own).fit_transform(BITS))
    close(rbm.score_samples(X), rbm.score_samples(BITS))
    assert rbm.partial_fit(X).transform(X).shape == (70, 6)
    assert estimators.StackedRBM(**own).fit(sparse.csr_matrix(DENSE)).stack_.units[0] == COUNTS
