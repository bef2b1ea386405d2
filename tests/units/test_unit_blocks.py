"""Visible units in blocks: choices, counts and mixtures against definitions and enumerations."""

from itertools import product

import numpy as np
import pytest
from densechains import finite_differences
from learnersteps import slopes_of, usual
from minibatches import gradient

from syncpretrain import Stack, load, pretrain
from syncpretrain.errors import DataError, ModelFileError, SettingsError
from syncpretrain.finetuning.chain import Affine
from syncpretrain.finetuning.network import Network
from syncpretrain.kernels.activations import activate
from syncpretrain.kernels.backprop import cross_entropy
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.rbm import RBM
from syncpretrain.models.layer import DenseLayer
from syncpretrain.models.likelihood import free_energy, log_z, log_z_ais
from syncpretrain.settings import settings_from
from syncpretrain.units.kinds import blocks_text, kind_of, visible_kind

pytestmark = pytest.mark.usefixtures("forked_layers")
MIXTURE = "bernoulli:2,gaussian:2,softmax:2x3,counts:3"
WIDTH = 13
TEXTS = ["softmax:2x3", "counts:4", "bernoulli:2,softmax:1x3", "bernoulli:1,counts:2", MIXTURE]
rng = np.random.default_rng


def rows_of(text: str, n: int, seed: int = 1) -> np.ndarray:
    """Return rows that a text of blocks permits."""
    draws, columns = rng(seed), []
    for part in kind_of(text).blocks.parts:
        shape = n, part.stop - part.start
        if part.groups:
            choices = draws.integers(part.choices, size=(n, part.groups))
            columns.append(np.eye(part.choices)[choices].reshape(shape))
        elif part.kind == "counts":
            columns.append(draws.poisson(2, shape))
        else:
            is_normal = part.kind == "gaussian"
            columns.append(draws.normal(size=shape) if is_normal else draws.random(shape) < 0.5)
    return np.hstack(columns).astype(np.float32)


def layer_of(text: str, hidden: int = 3, seed: int = 0) -> DenseLayer:
    width, draws = kind_of(text).blocks.width, rng(seed)
    W, b, a = (draws.normal(0, 0.7, s).astype("f4") for s in ((width, hidden), hidden, width))
    return DenseLayer(W, b, a, visible_units=text)


class TestText:
    @pytest.mark.parametrize(
        ("text", "width", "kept"),
        [
            ("bernoulli:20", 20, "bernoulli"),
            ("gaussian:2,gaussian:3", 5, "gaussian"),
            ("bernoulli:2,bernoulli,gaussian:1", 6, "bernoulli:5,gaussian:1"),
            ("softmax:7", 7, "softmax:1x7"),
            ("softmax", 4, "softmax:1x4"),
            ("counts", 9, "counts:9"),
            ("softmax:2x3, softmax:3,counts", 12, "softmax:3x3,counts:3"),
            ("counts:2,counts:2", 4, "counts:2,counts:2"),
        ],
    )
    def test_the_form_that_is_kept(self, text, width, kept):
        found = settings_from((width, 2), visible_units=text).pretrain
        assert found.visible_units == kept
        assert visible_kind(kept).name == kept

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("bernoulli:3,counts:2", "whose blocks have 5 columns, expected 6"),
            ("bernoulli:6,counts", "whose blocks have 6 columns, expected 6"),
            ("bernoulli,gaussian", "whose blocks have 0 columns, expected 6"),
            ("cubic:6", "got 'cubic:6' in 'cubic:6', expected blocks such as"),
            ("bernoulli:2x3", "got 'bernoulli:2x3'"),
            ("softmax:0x6", "got 'softmax:0x6'"),
            ("gaussian:6,", "got 'nothing'"),
            ("relu:6", "got 'relu:6'"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, text, message):
        with pytest.raises(SettingsError, match="visible_units: ") as refused:
            settings_from((6, 2), visible_units=text)
        assert message in str(refused.value)

    def test_another_form_than_the_kept_one_is_no_kind(self):
        assert blocks_text("softmax:4") == "softmax:1x4"
        for text in ("softmax:4", "bernoulli:2", "softmax", "x", 3, ["gaussian"]):
            assert visible_kind(text) is None

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"split": "units", "shards": 2}, "with split units"),
            ({"backend": "cupy"}, "in blocks, which compute on the CPU"),
            ({"early_stopping": "pseudo-likelihood"}, "pseudo-likelihood"),
            ({"layers": "1x2x3,conv:2x2"}, "with convolutions"),
        ],
    )
    def test_what_blocks_lack_is_refused(self, other, message):
        with pytest.raises(SettingsError, match=message):
            settings_from(**({"layers": (6, 2), "visible_units": "softmax:2x3"} | other))


class TestEquations:
    def test_a_choice_is_drawn_with_one_number_of_the_noise(self):
        x = np.tile(np.log([0.2, 0.5, 0.3, 0.6, 0.3, 0.1]), (1000, 1)).astype("f4")
        noise = np.full(x.shape, np.nan, dtype="f4")
        noise[:, 0] = (np.arange(1000) + 0.5) / 1000
        noise[:, 3] = noise[::-1, 0]
        out = sample(x, "softmax:2x3", noise, out=np.empty_like(x))
        assert set(np.unique(out)) == {0, 1}
        np.testing.assert_array_equal(out.reshape(1000, 2, 3).sum(axis=2), 1)
        np.testing.assert_allclose(out.mean(axis=0), [0.2, 0.5, 0.3, 0.6, 0.3, 0.1], atol=2e-3)

    def test_noise_is_normal_where_units_are_gaussian(self):
        noise = draw_noise(rng(0), MIXTURE, out=np.empty((2000, WIDTH), dtype="f4"))
        normal = noise[:, 2:4]
        assert abs(float(normal.mean())) < 0.1
        assert abs(float(normal.std()) - 1) < 0.1
        rest = np.delete(noise, [2, 3], axis=1)
        assert 0 <= rest.min() < rest.max() < 1

    def test_biases_give_the_mean_frequencies(self):
        mean = rows_of(MIXTURE, 4000).mean(axis=0, dtype="f8")
        found = activate(kind_of(MIXTURE).bias_of(np, mean)[None].copy(), MIXTURE)[0]
        np.testing.assert_allclose(found[:10], mean[:10], rtol=1e-6)
        np.testing.assert_allclose(found[10:], mean[10:] / mean[10:].sum(), rtol=1e-6)
        none = kind_of("softmax:1x4").bias_of(np, np.array([0, 0, 0, 1.0]))
        assert np.isfinite(none).all()


def visible_states(text: str, words: int) -> np.ndarray:
    """Return every state of visible units; a document once for each order of its words."""
    found = []
    for part in kind_of(text).blocks.parts:
        if part.kind == "bernoulli":
            found.append([np.array(v) for v in product((0.0, 1.0), repeat=part.stop - part.start)])
            continue
        units, times = part.choices, words if part.kind == "counts" else part.groups
        orders = product(range(units), repeat=times)
        one = [np.eye(units)[list(order)].reshape(times, units) for order in orders]
        found.append([v.sum(axis=0) if part.kind == "counts" else v.ravel() for v in one])
    return np.array([np.concatenate(parts) for parts in product(*found)])


DISCRETE = [text for text in TEXTS if "gaussian" not in text]


class TestEnumeration:
    def words(self, text: str) -> dict[str, int]:
        return {"words": 3} if "counts" in text else {}

    @pytest.mark.parametrize("text", TEXTS)
    def test_free_energies_are_sums_over_the_hidden_states(self, text):
        layer = layer_of(text)
        W, a, b = (np.float64(p) for p in (layer.weight, layer.visible_bias, layer.hidden_bias))
        v = rows_of(text, 6).astype("f8")
        energies = []
        for h in product((0.0, 1.0), repeat=3):
            own = -v @ a
            for part in kind_of(text).blocks.normal:
                away = v[:, part.columns] - a[part.columns]
                own += v[:, part.columns] @ a[part.columns] + 0.5 * np.square(away).sum(axis=1)
            energies.append(own - (v @ W + b) @ np.array(h))
        expected = -np.logaddexp.reduce(-np.array(energies), axis=0)
        np.testing.assert_allclose(free_energy(layer, v), expected, rtol=1e-10)

    @pytest.mark.parametrize("text", DISCRETE)
    def test_log_z_sums_over_all_documents_and_choices(self, text):
        layer = layer_of(text)
        expected = np.logaddexp.reduce(-free_energy(layer, visible_states(text, 3)))
        found = log_z(layer, **self.words(text))
        assert found.value == pytest.approx(expected, rel=1e-10)
        as_arrays = {name: np.asarray(words) for name, words in self.words(text).items()}
        assert log_z(layer, **as_arrays) == found

    def test_log_z_of_gaussian_units_by_integration(self):
        layer = layer_of("gaussian:1,softmax:1x2")
        grid = np.linspace(-30, 30, 6001)
        states = [np.column_stack([grid, np.full(6001, i), np.full(6001, 1 - i)]) for i in (0, 1)]
        terms = [np.logaddexp.reduce(-free_energy(layer, v)) for v in states]
        expected = np.logaddexp(*terms) + np.log(grid[1] - grid[0])
        assert log_z(layer).value == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("text", TEXTS)
    def test_annealing_comes_near_to_the_enumeration(self, text):
        layer, words = layer_of(text), self.words(text)
        exact, estimate = log_z(layer, **words), log_z_ais(layer, steps=100, chains=200, **words)
        assert estimate.low <= exact.value <= estimate.high
        assert estimate.high - estimate.low < 1

    @pytest.mark.parametrize("text", DISCRETE)
    def test_visible_means_are_conditional_expectations(self, text):
        layer, h = layer_of(text), np.float32([[1, 0, 1]])
        states = visible_states(text, 3)
        x = np.float64(layer.visible_bias) + np.float64(layer.weight) @ h[0]
        p, like = np.exp(states @ x), states[:1]
        for found, most in ((layer.down(h), 1e-5), (activate(x[None].copy(), text), 1e-12)):
            found = as_documents(found, like.astype(found.dtype), text)[0]
            np.testing.assert_allclose(found, p @ states / p.sum(), rtol=most)

    @pytest.mark.parametrize("words", [(), 3, (1, 2, 3), -1])
    def test_a_document_has_a_length(self, words):
        text = "softmax:1x2" if words == 3 else "counts:2"
        with pytest.raises(DataError, match="words: got"):
            log_z(layer_of(text), words=words)


class TestLearners:
    @pytest.mark.parametrize("text", TEXTS)
    @pytest.mark.parametrize("missing", [False, True])
    def test_the_gradient_of_contrastive_divergence(self, text, missing):
        own = usual(batch_size=8, visible_units=text, missing=missing)
        rbm = RBM(1, kind_of(text).blocks.width, 3, own)
        first = layer_of(text)
        rbm.weight[:], rbm.visible_bias[:] = first.weight, first.visible_bias
        rbm.hidden_bias[:] = 0 if kind_of(text).are_counts else first.hidden_bias
        X = rows_of(text, 8)
        lost = np.zeros(X.shape, dtype=bool)
        if missing and not text.startswith("counts"):
            lost[:3, : kind_of(text).blocks.parts[0].choices] = True
            X[lost] = -0.0
        error = rbm.gradient(X, np.arange(8), epoch=1, step=0)
        W, a, b, v = (np.float64(p) for p in (rbm.weight, rbm.visible_bias, rbm.hidden_bias, X))
        h0 = 1 / (1 + np.exp(-(v @ W + b)))
        v1 = activate(np.float64(rbm._states) @ W.T + a, text)
        v1 = as_documents(v1, v, text)
        v1[lost] = 0
        distance = np.square(v - v1).sum()
        drawn = np.rint(-8.0 * rbm._v[8:])  # which the gradient divided
        for part in kind_of(text).blocks.counts:
            own = part.columns
            np.testing.assert_array_equal(drawn[:, own].sum(axis=1), v[:, own].sum(axis=1))
            v1[:, own] = drawn[:, own]
        h1 = 1 / (1 + np.exp(-(v1 @ W + b)))
        db = (h0 - h1).mean(axis=0) * (not kind_of(text).are_counts)
        expected = (v.T @ h0 - v1.T @ h1) / 8, (v - v1).mean(axis=0), db
        for have, want in zip(rbm.gradients, expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
        assert error == pytest.approx(distance, rel=1e-4)

    def test_persistent_documents_have_as_many_words_as_those_of_the_data(self):
        rbm = RBM(1, WIDTH, 3, usual(batch_size=8, visible_units=MIXTURE, persistent=True))
        X = rows_of(MIXTURE, 8)
        rbm.gradient(X, np.arange(8), epoch=1, step=0)
        chains = -rbm._v[8:16] * 8  # which the gradient divided
        np.testing.assert_allclose(chains[:, 10:].sum(axis=1), X[:, 10:].sum(axis=1), rtol=1e-5)
        np.testing.assert_allclose(chains[:, 4:10].sum(axis=1), 2, rtol=1e-5)

    @pytest.mark.parametrize("text", TEXTS)
    @pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
    def test_an_autoencoders_gradient_by_finite_differences(self, text, loss):
        own = usual(batch_size=8, visible_units=text, loss=loss)
        learner = Autoencoder(1, kind_of(text).blocks.width, 3, own)
        first = layer_of(text)
        learner.weight[:], learner.visible_bias[:] = first.weight, first.visible_bias
        X = rows_of(text, 4)
        learner.gradient(X, np.arange(4), epoch=1, step=0)
        parameters, x = [np.float64(p) for p in learner.parameters], np.float64(X)

        def total(own):
            W, a, b = own
            h = 1 / (1 + np.exp(-(x @ W + b)))
            y = as_documents(activate(h @ W.T + a, text), x, text)
            if loss == "squared":
                return np.square(y - x).sum() / 4
            return cross_entropy(x, y, text) / 4

        for found, slope in zip(learner.gradients, slopes_of(total, parameters), strict=True):
            np.testing.assert_allclose(-found, slope, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("text", TEXTS)
    @pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
    def test_the_gradient_of_fine_tuning_by_finite_differences(self, text, loss):
        width, draws = kind_of(text).blocks.width, rng(5)
        chain = [
            Affine(draws.normal(0, 0.5, (width, 2)), draws.normal(size=2), "bernoulli"),
            Affine(draws.normal(0, 0.5, (2, width)), draws.normal(size=width), text),
        ]
        network = Network(chain, loss=loss, batch_size=3, shards=2)
        x = rows_of(text, 3).astype("f8")
        gradient(network, x, x)
        found = network.gradients.copy()
        np.testing.assert_allclose(found, finite_differences(network, x, x), rtol=5e-6, atol=5e-7)


def stack_of(X, units="counts", **more):
    options = {"layers": [X.shape[1], 2], "epochs": 1, "batch_size": 5, **more}
    return pretrain(X, visible_units=units, **options)


class TestStacks:
    def test_only_gaussian_columns_are_standardized(self):
        X = rows_of(MIXTURE, 40)
        X[:, 2] = 5 * X[:, 2] + 100
        stack = stack_of(X, MIXTURE, layers=[WIDTH, 4], batch_size=8)
        prepared = stack.prepared(X)
        rest = np.delete(np.arange(WIDTH), [2, 3])
        np.testing.assert_array_equal(prepared[:, rest], X[:, rest])
        np.testing.assert_allclose(prepared[:, 2:4].std(axis=0), 1, rtol=1e-4)
        found = stack.reconstruct(X)
        np.testing.assert_allclose(found[:, 10:].sum(axis=1), X[:, 10:].sum(axis=1), rtol=1e-4)
        np.testing.assert_allclose(found[:, 4:10].sum(axis=1), 2, rtol=1e-4)
        np.testing.assert_allclose(stack.decode(stack.encode(X))[:, 10:].sum(axis=1), 1, rtol=1e-4)

    def test_bytes_of_counts_and_choices_are_not_scaled(self):
        X = rows_of("counts:4", 20)
        kept, same = stack_of(X), stack_of(X.astype(np.uint8))
        assert kept.parameters_sha256 == same.parameters_sha256

    def test_a_model_file_keeps_the_blocks(self, tmp_path):
        stack_of(rows_of(MIXTURE, 20), MIXTURE).save(tmp_path / "m.safetensors")
        assert load(tmp_path / "m.safetensors").units == (MIXTURE, "bernoulli")

    @pytest.mark.parametrize("text", ["counts:12", "softmax:13x1,counts", "cubic:13"])
    def test_a_model_file_of_other_blocks_is_refused(self, tmp_path, text):
        layer = layer_of(MIXTURE)
        wrong = DenseLayer(layer.weight, layer.hidden_bias, layer.visible_bias, visible_units=text)
        Stack((wrong,)).save(tmp_path / "m.safetensors")
        with pytest.raises(ModelFileError, match=r"do not fit each other|is unknown"):
            load(tmp_path / "m.safetensors")

    def test_documents_are_sampled_from_documents(self):
        X = rows_of("counts:4", 20)
        stack = stack_of(X)
        drawn = stack.sample(20, steps=3, start=X)
        np.testing.assert_allclose(drawn.sum(axis=1), X.sum(axis=1), rtol=1e-4)
        with pytest.raises(DataError, match="start: got nothing for counts"):
            stack.sample(2)

    def test_a_row_without_words_is_permitted(self):
        X = rows_of("counts:4", 20)
        X[:5] = 0
        stack = stack_of(X, epochs=2)
        np.testing.assert_array_equal(stack.encode(X[:1]), 0.5)
        np.testing.assert_array_equal(stack.reconstruct(X[:1]), 0)

    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            ((3, 1), 1.5, r"got 1.5 at row 3, column 1 .* \[0, 1\] for bernoulli:2"),
            ((3, 2), np.inf, "row 3, column 2"),
            ((3, slice(4, 7)), 0, "row 3, column 4 .* a one and 2 zeros"),
            ((3, slice(7, 10)), 1, "row 3, column 7 .* a one and 2 zeros"),
            ((3, 8), np.nan, "row 3, column 7 .*NaN in all of them"),
            ((3, 12), -1, "got -1 at row 3, column 12 .* whole numbers of 0 or more"),
            ((3, 12), 0.5, "got 0.5 at row 3, column 12"),
            ((3, 12), np.nan, "got nan at row 3, column 12 .*give 0 for what does not occur"),
        ],
    )
    def test_values_that_units_cannot_have_are_refused(self, place, value, message):
        X = rows_of(MIXTURE, 20)
        X[place] = value
        with pytest.raises(DataError, match=f"X: .*{message}"):
            pretrain(X, layers=[WIDTH, 4], visible_units=MIXTURE)
