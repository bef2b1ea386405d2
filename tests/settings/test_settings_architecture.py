"""The text of convolutional stacks: what it stands for, and what is refused."""

import re
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import syncpretrain
from syncpretrain import Conv, ImageShape, Pool
from syncpretrain.errors import SettingsError
from syncpretrain.settings import read_settings, settings_from, write_settings
from syncpretrain.settings.architecture import architecture_of, read_architecture
from syncpretrain.shapes import ConvolutionShape, DenseShape

LENET = "1x28x28,conv:20x5,pool:2,conv:50x5,pool:2,500"
WIDTHS = (784, 2880, 800, 500)
SHAPES = (
    ConvolutionShape(1, 28, 28, 20, 5, pool=2, channels_first=True),
    ConvolutionShape(20, 12, 12, 50, 5, pool=2),
    DenseShape(800, 500),
)
SMALL = partial(ConvolutionShape, 3, 8, 6, 4, 3)
FIRST = partial(SMALL, channels_first=True)


class TestText:
    def test_what_it_stands_for(self):
        pretrain = settings_from(LENET).pretrain
        assert (pretrain.layers, pretrain.architecture, pretrain.shapes) == (WIDTHS, LENET, SHAPES)
        assert pretrain.epochs == (10, 10, 10)

    @pytest.mark.parametrize(
        "layers",
        [
            (ImageShape(1, 28, 28), Conv(20, 5), Pool(2), Conv(50, 5), Pool(2), 500),
            [ImageShape(1, 28, 28), Conv(20, 5, pad=0), Pool(2, "max"), "conv:50x5,pool:2", 500],
            ["1x28x28", "conv:20x5", "pool:2", "conv:50x5", "pool:2", np.int64(500)],
            " 1x28x28, conv:020x5:0 ,pool:2:max,conv:50x5,pool:2,0500",
        ],
    )
    def test_one_stack_in_other_words(self, layers):
        assert settings_from(layers) == settings_from(LENET)

    @pytest.mark.parametrize("layers", [(784, 500, 30), "784,500,30", "1x28x28,500,30"])
    def test_dense_layers_need_none(self, layers):
        pretrain = settings_from(layers).pretrain
        assert (pretrain.layers, pretrain.architecture) == ((784, 500, 30), "")
        assert pretrain.shapes == (DenseShape(784, 500), DenseShape(500, 30))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("3x8x6,conv:4x3:same", FIRST(1)),
            ("3x8x6,conv:4x3:2", FIRST(2)),
            ("3x8x6,conv:4x3,pool:2:mean", FIRST(0, 2, "mean")),
            ("3x8x6,conv:4x3,pool:1:mean", FIRST()),
        ],
    )
    def test_pads_and_pooling(self, text, expected):
        assert settings_from(text).pretrain.shapes == (expected,)

    def test_the_objects_are_at_the_top(self):
        assert {"Conv", "Pool", "ImageShape"} <= set(syncpretrain.__all__)
        assert (str(Conv(4, 3, "same")), str(Pool(3, "mean"))) == ("conv:4x3:same", "pool:3:mean")

    def test_toml_there_and_back(self, tmp_path):
        path = tmp_path / "config.toml"
        write_settings(settings_from(LENET), path)
        assert f'architecture = "{LENET}"' in path.read_text(encoding="utf-8")
        assert read_settings(path) == settings_from(LENET)
        write_settings(settings_from((9, 4)), path)
        assert "architecture" not in path.read_text(encoding="utf-8")
        settings = settings_from("1x8x8,conv:4x3,pool:2,5", sparsity_cost=0)  # not the default
        write_settings(settings, path)
        assert read_settings(path) == settings

    @pytest.mark.parametrize(
        "line", [f'"{LENET}"', '["1x28x28", "conv:20x5,pool:2", "conv:50x5", "pool:2", 500]']
    )
    def test_toml_by_hand(self, tmp_path, line):
        path = tmp_path / "mine.toml"
        path.write_text(f"[pretrain]\nlayers = {line}\n", encoding="utf-8")
        assert read_settings(path) == settings_from(LENET)


class TestRefusals:
    @pytest.mark.parametrize(
        ("layers", "message"),
        [
            ("1x28x28,conv:20", "got conv:20, expected conv:FILTERSxSIZE of at least 1, such as"),
            ("1x28x28,conv:20x5x3", "got conv:20x5x3, expected conv:FILTERSxSIZE"),
            ("1x28x28,conv:0x5", "got conv:0x5, expected conv:FILTERSxSIZE of at least 1"),
            ("1x28x28,convolution", "got convolution, expected conv:FILTERSxSIZE"),
            ("1x28x28,conv:20x5:-1", "got conv:20x5:-1, expected conv:FILTERSxSIZE"),
            ("1x28x28,conv:20x5,pool", "got pool, expected pool:SIZE of at least 1, such as"),
            ("1x28x28,conv:20x5,pool:2:sum", "got pool:2:sum, expected pool:SIZE"),
            ("1x28x28,conv:20x5,pool:0", "got pool:0, expected pool:SIZE"),
            ("1x28,conv:20x5", "got 1x28, expected CHANNELSxHEIGHTxWIDTH, such as 1x28x28"),
            ("0x28x28,conv:20x5", "got 0x28x28, expected CHANNELSxHEIGHTxWIDTH"),
            ("1x28x28,3x4x4,5", "got 3x4x4 behind other layers, expected the shape of the images"),
            ("784,conv:20x5", "got 784 before conv:20x5, expected the shape of the images before"),
            ("conv:20x5,10", "got conv:20x5 first, expected the shape of the images before it"),
            ("1x28x28,500,conv:20x5", "got conv:20x5 behind 500 dense units, expected all conv"),
            ("1x28x28,pool:2", "got pool:2 without a convolution right before it, expected it"),
            ("pool:2", "got pool:2 without a convolution"),
            ("1x28x28,conv:20x5,8,pool:2", "got pool:2 without a convolution right before it"),
            ("1x28x28,conv:20x5,pool:2,pool:2", "got pool:2 behind pool:2, expected one pooling"),
            ("1x28x28,conv:20x29", "got conv:20x29 on images of 1x28x28, expected filters of at"),
            (
                "1x4x9,conv:2x7:1",
                "got conv:2x7:1 on images of 1x4x9 with 1 zeros around them, expected filters of at"
                " most 6 x 6",
            ),
            ("1x9x9,conv:2x3:3", "got conv:2x3:3, expected a pad below the size 3; filters that"),
            ("1x9x9,conv:2x4:same", "got conv:2x4:same, expected an odd size with same, or"),
            (
                "1x28x28,conv:20x5,pool:5",
                "got pool:5 on maps of 24x24, expected a size that divides both: 2 or 3 or 4 or 6"
                " or 8 or 12 or 24; or another filter or pad",
            ),
            ("1x28x28,conv:20x6,pool:2", "got pool:2 on maps of 23x23, expected a size that"),
            ("1x8x7,conv:2x1,pool:2", "got pool:2 on maps of 8x7, expected a size that divides"),
            ("1x28x28,conv:1000000000x5", "got 1000000000 filters in conv:1000000000x5, expected"),
            ("1x28x28,conv:2000x5,10", "got conv:2000x5 of 1152000 units, expected at most 100000"),
            ("1x9999x9999,conv:2x5", "got 1x9999x9999 of 99980001 numbers, expected at most"),
            (
                "1x28x28,conv:1x9999:9998",
                "got conv:1x9999:9998 with maps of 10026x10026, expected at most 1000000 places",
            ),
            ("1x28x28,conv:20x5,0", "got 0, expected a whole number of at least 1"),
            ("1x28x28,conv:20x5,2000000", "got 2000000 units, expected at most 1000000 a layer"),
            ("784,x", "got 'x', expected a whole number, conv:FILTERSxSIZE or pool:SIZE"),
            ("1x28x28,", "got '', expected a whole number"),
            ("1x28x28", "got 784, expected two numbers or more"),
            ("", "got '', expected a whole number"),
            ([ImageShape(1, 28, 28), Conv(20, (5, 5))], "got "),
            ([ImageShape(1, 28.5, 28), Conv(20, 5)], "got "),
            ([ImageShape(1, 28, 28), Conv(20, 5), Pool(2, "median")], "got "),
            ([ImageShape(1, 28, 28), Conv(20, 5), None], "got "),
        ],
    )
    def test_one_sentence(self, layers, message):
        with pytest.raises(SettingsError, match=f"^layers: {re.escape(message)}"):
            settings_from(layers)

    @pytest.mark.parametrize(
        ("layers", "architecture", "message"),
        [
            (
                (784, 10),
                "1x28x28,conv:20x5",
                "got 1x28x28,conv:20x5, whose layers are 784,11520, with layers 784,10; leave one",
            ),
            ((784, 11520), "1x28x28,conv:20x05", "got 1x28x28,conv:20x05, expected 1x28x28,conv:"),
            ((784, 10), "784,10", "got 784,10, expected nothing"),
            ("1x28x28,conv:20x5,pool:2", "1x28x28,conv:20x5,pool:2:mean", "got 1x28x28,conv:20x5"),
        ],
    )
    def test_two_that_differ(self, layers, architecture, message):
        with pytest.raises(SettingsError, match=f"^architecture: {re.escape(message)}"):
            settings_from(layers, architecture=architecture)

    def test_the_same_twice(self):
        assert settings_from(WIDTHS, architecture=LENET) == settings_from(LENET)
        assert settings_from(LENET, architecture=LENET) == settings_from(LENET)


COUNTS = st.integers(-1, 12) | st.sampled_from([10**9, 10**18, 10**30])
PARTS = st.one_of(
    st.builds("{}x{}x{}".format, COUNTS, COUNTS, COUNTS),
    st.builds("conv:{}x{}".format, COUNTS, COUNTS),
    st.builds("conv:{}x{}:{}".format, COUNTS, COUNTS, COUNTS | st.just("same")),
    st.builds("pool:{}".format, COUNTS),
    st.builds("pool:{}:{}".format, COUNTS, st.sampled_from(["max", "mean", "x"])),
    st.builds(str, COUNTS),
    st.text(max_size=6),
)
NUMBERS = st.integers(1, 4)
SOUND = st.one_of(
    st.builds("conv:{}x{}:same".format, NUMBERS, st.sampled_from([1, 3])),
    st.builds("conv:{}x{},pool:2:mean".format, NUMBERS, NUMBERS),
    st.builds("conv:{}x{}:1,pool:3".format, NUMBERS, NUMBERS),
    st.builds(str, NUMBERS),
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.lists(PARTS, max_size=5).map(",".join),
    st.lists(SOUND, min_size=1, max_size=4).map(lambda parts: ",".join(["2x12x12", *parts])),
)


@given(text=TEXTS)
def test_any_text_is_read_or_refused(text):
    try:
        widths, kept = architecture_of(text)
    except SettingsError as error:
        assert str(error).startswith("layers: got ")
        return
    width, shapes = read_architecture(text)
    assert widths == (width, *(shape.hidden for shape in shapes))
    assert [shape.visible for shape in shapes] == list(widths[:-1])
    for below, above in pairwise(shapes):
        assert not isinstance(above, ConvolutionShape) or below.output == (
            syncpretrain.ImageShape(above.channels, above.height, above.width)
        )
    assert bool(kept) == any(isinstance(shape, ConvolutionShape) for shape in shapes)
    if kept:
        assert (read_architecture(kept), architecture_of(kept)) == ((width, shapes), (widths, kept))


SMALL_STACK = "1x8x8,conv:4x3,pool:2,10"


class TestWhatConvolutionsLack:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("model", "contractive", "contraction: got 0.1"),
            ("early_stopping", "pseudo-likelihood", "early_stopping: got pseudo-likelihood"),
        ],
    )
    def test_it_is_refused(self, name, value, message):
        with pytest.raises(SettingsError, match=f"^{message} for layer 1, a convolution, expected"):
            settings_from(SMALL_STACK, **{name: value})

    @pytest.mark.parametrize(
        "asked",
        [
            {"replicas": (1, 2), "split": "units"},
            {"replicas": 2, "split": "examples"},
            {"persistent": True, "hidden_dropout": 0.5},
            {"model": "contractive", "contraction": (0, 0.1)},
            {"model": "denoising", "early_stopping": "validation-error"},
            {"backend": "auto"},
        ],
    )
    def test_the_rest_they_have(self, asked):
        assert settings_from(SMALL_STACK, **asked).pretrain.architecture == SMALL_STACK


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (SHAPES[0], "1x28x28 conv 20x5 pool 2 -> 20x12x12"),
        (SMALL(1, 2, "mean"), "3x8x6 conv 4x3 pad 1 pool 2 mean -> 4x4x3"),
        (SMALL(), "3x8x6 conv 4x3 -> 4x6x4"),
        (DenseShape(800, 500), "800-500"),
        (ImageShape(3, 8, 6), "3x8x6"),
    ],
)
def test_a_shape_as_people_read_it(shape, text):
    assert str(shape) == text


class TestSparsity:
    def costs(self, **given):
        return settings_from("1x8x8,conv:4x3,pool:2,conv:6x2,5", **given).pretrain.sparsity_cost

    def test_filters_of_an_rbm_are_sparse_unless_another_cost_is_given(self):
        assert self.costs() == (1, 1, 0)
        assert self.costs(sparsity_cost=0.5) == (0.5, 0.5, 0.5)
        assert self.costs(sparsity_cost=[0, 2, 0]) == (0, 2, 0)
        assert self.costs(hidden_units=["gaussian", "relu", "bernoulli"]) == (0, 1, 0)

    def test_other_models_and_dense_layers_have_no_cost(self):
        assert self.costs(model="denoising") == (0, 0, 0)
        assert settings_from((64, 20, 10)).pretrain.sparsity_cost == (0, 0)

    def test_dense_layers_above_are_still_split_by_units(self):
        given = {"split": "units", "shards": [1, 1, 2]}
        assert self.costs(**given) == (1, 1, 0)
        with pytest.raises(SettingsError, match=r"split: got units for layer 2, a convolution"):
            self.costs(split="units", shards=[1, 2, 2])
        with pytest.raises(SettingsError, match="split: got units with sparsity_cost"):
            self.costs(**given, sparsity_cost=0.1)

    def test_odd_units_are_refused_as_elsewhere(self):
        with pytest.raises(SettingsError, match="hidden_units"):
            self.costs(hidden_units="odd")
        with pytest.raises(SettingsError, match="hidden_units: got 2 values"):
            self.costs(hidden_units=["relu", "relu"])
