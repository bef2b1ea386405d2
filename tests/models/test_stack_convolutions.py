"""Stacks with convolutional layers: codes, reconstructions, samples, figures and files."""

import json
from dataclasses import asdict, replace

import modelfiles
import numpy as np
import pytest
import safetensors
from modelfiles import arrays, assert_equal, meaning_of, refused, write_file, zeros
from randomconvolutions import convolutional_stack, random_layer
from randomstacks import layer_errors

from syncpretrain import Stack, load
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError
from syncpretrain.models import layer as layer_module
from syncpretrain.models.diagnosis import diagnose_layers, stack_error
from syncpretrain.models.likelihood import free_energy, log_z, pseudo_likelihood
from syncpretrain.models.stack import Head
from syncpretrain.shapes import ConvolutionShape, DenseShape

TEXT = "2x8x6,conv:4x3,pool:2,conv:3x2,6"
NARROW = {"input__shift": zeros(2), "input__scale": zeros(2) + 1}
UNFIT, LOWEST = "arrays of layer {} do not fit each other", "layers__2__visible_bias"


@pytest.fixture(name="X")
def examples():
    return np.random.default_rng(5).random((7, 96), dtype=np.float32)


def mixed_stack():
    """Return a stack with everything that a file may hold."""
    draw = np.random.default_rng(1)
    stack = convolutional_stack(
        TEXT,
        units=("gaussian", "relu", "gaussian", "bernoulli"),
        tied=False,
        model="autoencoder",
        scaling=Scaling(draw.normal(size=96).astype("f4"), draw.random(96, dtype="f4") + 1),
        info={"epochs": [3, 2, 1]},
    )
    head = Head(draw.normal(size=(6, 2)).astype("f4"), zeros(2), "classification", (4, 7))
    return replace(stack, head=head)


class TestPasses:
    @pytest.mark.parametrize("layer", [1, 2, 3])
    def test_log_odds_of_pooled_maps(self, X, layer):
        stack = convolutional_stack(TEXT)
        odds = stack.encode(X, layer=layer, log_odds=True)
        np.testing.assert_allclose(1 / (1 + np.exp(-odds)), stack.encode(X, layer=layer), atol=1e-6)

    def test_units_that_exclude_each_other_have_no_log_odds(self, X):
        shape = ConvolutionShape(2, 8, 6, 4, 3, pool=2, pooling="prob")
        stack = Stack((random_layer(shape),))
        with pytest.raises(DataError, match=r"log_odds: got probabilistic pooling .* max or mean"):
            stack.encode(X, log_odds=True)

    def test_layer_after_layer(self, X):
        stack = convolutional_stack(TEXT)
        assert stack.widths == (96, 24, 6, 6)
        code = X
        for number, layer in enumerate(stack.layers, start=1):
            code = layer.up(code)
            np.testing.assert_array_equal(stack.encode(X, layer=number), code)
        np.testing.assert_array_equal(stack.decode(code), stack.reconstruct(X))

    def test_the_way_down_takes_the_units_of_the_encoder(self, X):
        stack = mixed_stack()
        prepared = stack.prepared(X)
        first, second, third = stack.layers
        down = third.down(third.up(second.up(first.up(prepared))), units="gaussian")
        down = first.down(second.down(down, units="relu"), units="gaussian")
        np.testing.assert_array_equal(stack.reconstruct(X), stack.scaling.invert(down))
        assert stack.predict(X).shape == (7,)

    @pytest.mark.parametrize("most", [1, 120, 500])
    def test_a_few_rows_at_a_time(self, X, most, monkeypatch):
        stack = convolutional_stack(TEXT)
        whole = stack.reconstruct(X)
        monkeypatch.setattr(layer_module, "NUMBERS_AT_ONCE", most)
        assert layer_module.rows_at_once(stack.layers) == max(1, most // 120)
        np.testing.assert_allclose(stack.reconstruct(X), whole, rtol=1e-5)

    def test_wrong_widths(self):
        stack = convolutional_stack(TEXT)
        with pytest.raises(DataError, match=r"X: got shape \(1, 95\), expected \(examples, 96\)"):
            stack.encode(zeros(1, 95))
        with pytest.raises(DataError, match=r"codes: got shape \(1, 5\)"):
            stack.decode(zeros(1, 5))


class TestText:
    def test_a_line_a_layer(self):
        assert repr(mixed_stack()).splitlines() == [
            "Stack of 3 layers",
            "  layer 1: 2x8x6 conv 4x3 pool 2 -> 4x3x2 gaussian to relu autoencoder 3 epochs",
            "  layer 2: 4x3x2 conv 3x2 -> 3x2x1 gaussian to gaussian autoencoder 2 epochs",
            "  layer 3: 6-6 gaussian to bernoulli autoencoder 1 epochs",
            "  head: 6-2 classification",
        ]

    def test_a_row_a_layer(self):
        assert "<td>2x8x6 conv 4x3 pool 2 -&gt; 4x3x2</td>" in mixed_stack()._repr_html_()


class TestSampling:
    def test_from_a_dense_rbm_on_top(self, X):
        stack = convolutional_stack(TEXT)
        found = stack.sample(3, steps=4, seed=1)
        assert found.shape == (3, 96)
        assert ((found >= 0) & (found <= 1)).all()
        np.testing.assert_array_equal(found, stack.sample(3, steps=4, seed=1))
        top = Stack(stack.layers[2:]).sample(7, steps=4, seed=1, start=stack.encode(X, layer=2))
        below = Stack(stack.layers[:2])
        np.testing.assert_array_equal(stack.sample(7, steps=4, seed=1, start=X), below.decode(top))

    def test_no_convolution_on_top(self):
        stack = Stack(convolutional_stack(TEXT).layers[:2])
        with pytest.raises(DataError, match=r"the top layer is a convolution, 4x3x2 conv 3x2 ->"):
            stack.sample(1)


class TestFigures:
    def test_errors(self, X):
        stack = convolutional_stack(TEXT)
        maps = replace(stack.layers[0], shape=replace(stack.layers[0].shape, pool=1))
        expected = np.square(maps.down(maps.up(X)) - X).sum() / len(X)  # those of an RBM
        errors = layer_errors(stack, X)
        assert len(errors) == 3
        assert errors[0] == pytest.approx(expected, rel=1e-5)
        expected = np.square(stack.reconstruct(X) - X).sum() / len(X)
        assert stack_error(stack, X) == pytest.approx(expected, rel=1e-5)

    def test_a_filter_is_dead_where_all_its_places_are(self, X):
        stack = convolutional_stack(TEXT, units=("bernoulli", "relu", "relu", "bernoulli"))
        first = replace(stack.layers[0], hidden_bias=np.float32([9, -99, 9, -99]))
        stack = Stack((first, *stack.layers[1:]))
        found = diagnose_layers(stack, X, X)
        assert found[0]["dead_units"] == 2
        assert found[0]["saturated_units"] is None
        for name in ("free_energy_gap", "pseudo_likelihood", "log_z"):
            assert found[0][name] is found[1][name] is None
        assert found[2]["free_energy_gap"] == 0

    def test_no_energy(self, X):
        layer = convolutional_stack(TEXT).layers[0]
        for figure in (free_energy, pseudo_likelihood):
            with pytest.raises(DataError, match=r"layer: got 2x8x6 conv 4x3 pool 2 -> 4x3x2, exp"):
                figure(layer, X)
        with pytest.raises(DataError, match=r"expected a dense RBM"):
            log_z(layer)


def meaning(stack, *, whole=None, **changed):
    """Return the text of what a stack's arrays mean, with another shape of layer 1."""
    layers = meaning_of(stack)["layers"]
    for row, layer in zip(layers, stack.layers, strict=True):
        if isinstance(layer.shape, ConvolutionShape):
            row["shape"] = asdict(layer.shape)
    layers[0]["shape"] = layers[0]["shape"] | changed if whole is None else json.loads(whole)
    return json.dumps({"layers": layers, "head": None})


class TestFiles:
    @pytest.mark.parametrize("tied", [True, False])
    def test_a_stack_comes_back_bit_for_bit(self, tmp_path, tied, X):
        for stack in (convolutional_stack(TEXT, tied=tied), mixed_stack()):
            stack.save(tmp_path / "a")
            found = load(tmp_path / "a")
            assert_equal(found, stack)
            assert [x.shape for x in found.layers] == [x.shape for x in stack.layers]
            assert found.parameters_sha256 == stack.parameters_sha256
            np.testing.assert_array_equal(found.reconstruct(X), stack.reconstruct(X))

    def test_a_part_of_a_stack(self, tmp_path):
        Stack(convolutional_stack(TEXT).layers[1:]).save(tmp_path / "a")
        assert load(tmp_path / "a").layers[0].shape == ConvolutionShape(4, 3, 2, 3, 2)

    def test_a_dense_stack_says_nothing_of_shapes(self, tmp_path):
        Stack((random_layer(DenseShape(4, 3)),)).save(tmp_path / "a")
        with safetensors.safe_open(tmp_path / "a", framework="numpy") as opened:
            kept = json.loads(opened.metadata()["meaning"])
        assert kept["layers"][0].keys() == {"hidden_units", "visible_units", "model"}

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"layers__1__weight": zeros(36, 8)}, UNFIT.format(1)),
            ({"layers__1__weight": zeros(3, 3, 4, 2)}, UNFIT.format(1)),
            ({"layers__1__weight": zeros(2, 2, 2, 4)}, UNFIT.format(1)),
            ({"layers__1__hidden_bias": zeros(24)}, UNFIT.format(1)),
            ({"layers__1__visible_bias": zeros(96)}, UNFIT.format(1)),
            ({"layers__1__decoder_weight": zeros(4, 2, 3, 3)}, UNFIT.format(1)),
            ({"layers__2__weight": zeros(2, 2, 8, 3), LOWEST: zeros(8)}, UNFIT.format(2)),
            ({"layers__3__weight": zeros(3, 3, 2, 4)}, UNFIT.format(3)),
            ({"layers__1__hidden_bias": np.nan + zeros(4)}, "layer 1 holds NaN or infinite"),
            ({"layers__2__weight": np.inf + zeros(2, 2, 4, 3)}, "layer 2 holds NaN or infinite"),
            ({"layers__1__hidden_bias": zeros(4)}, "do not match their checksum"),
            (NARROW, "the input's scaling does not fit layer 1"),
        ],
    )
    def test_arrays_that_make_no_stack_are_refused(self, tmp_path, changed, message):
        stack = convolutional_stack(TEXT)
        write_file(tmp_path / "a", arrays(stack, **changed), stack, meaning=meaning(stack))
        refused(tmp_path / "a", message)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"whole": "null"}, "Expected `object`, got `null`"),
            ({"whole": "{}"}, "missing required field"),
            ({"whole": "[2, 8, 6]"}, "Expected `object`"),
            ({"height": "8"}, "Expected `int`, got `str`"),
            ({"channels_first": 1}, "Expected `bool`, got `int`"),
            ({"pooling": "median"}, "is no convolution"),
            *(({"pad": pad}, "is no convolution") for pad in (-1, 3)),
            *(({"height": height}, "is no convolution") for height in (0, 2, 7)),
            *(({"pool": pool}, "is no convolution") for pool in (0, 4)),
            ({"height": 10}, "layers 1 and 2 do not fit each other"),
            ({"height": 6, "width": 8}, "layers 1 and 2 do not fit each other"),
            ({"pool": 1}, "layers 1 and 2 do not fit each other"),
            *(({name: 1}, UNFIT.format(1)) for name in ("filters", "channels", "size")),
        ],
    )
    def test_a_shape_that_is_none_is_refused(self, tmp_path, changed, message):
        stack = convolutional_stack(TEXT)
        write_file(tmp_path / "a", arrays(stack), stack, meaning=meaning(stack, **changed))
        refused(tmp_path / "a", message)

    @pytest.mark.parametrize(
        "shapes",
        [
            (DenseShape(9, 16), ConvolutionShape(1, 4, 4, 2, 3)),
            (ConvolutionShape(1, 6, 6, 1, 3), ConvolutionShape(1, 4, 4, 2, 3, channels_first=True)),
            (ConvolutionShape(1, 6, 6, 1, 3), ConvolutionShape(1, 2, 8, 2, 2)),
            (ConvolutionShape(1, 6, 6, 1, 3), DenseShape(15, 2)),
        ],
    )
    def test_layers_that_do_not_fit_are_refused(self, tmp_path, shapes):
        Stack(tuple(map(random_layer, shapes))).save(tmp_path / "a")
        refused(tmp_path / "a", "layers 1 and 2 do not fit each other")

    def test_a_damaged_file_is_refused_or_means_the_same(self, tmp_path):
        assert modelfiles.loaded_though_damaged(mixed_stack(), tmp_path / "a", times=2000) < 40
