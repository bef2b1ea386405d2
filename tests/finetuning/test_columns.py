"""Convolutions in groups, the columns of a network, and steps whose columns are dealt out."""

from dataclasses import replace

import numpy as np
import pytest
from barpictures import tuned, untrained
from commandline import exit_status
from linkedchains import DROPOUTS, dense, down, examples, up
from minibatches import gradient, loss_of, place, train
from randomconvolutions import ungrouped

import syncpretrain
from syncpretrain import Conv, ImageShape, Pool
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import adam
from syncpretrain.pretraining.build import build_learner
from syncpretrain.settings import read_settings, settings_from
from syncpretrain.settings.architecture import in_columns
from syncpretrain.shapes import ConvolutionShape

TEXT = "2x8x8,conv:4x3:same,pool:2,conv:6x3/2,pool:2,8"


class TestText:
    def test_groups_are_kept(self):
        settings = settings_from("2x8x8, conv:4x3:1/1,pool:2,conv:6x3:0/2,pool:2").pretrain
        assert settings.architecture == "2x8x8,conv:4x3:1,pool:2,conv:6x3/2,pool:2"
        lower, upper = settings.shapes
        assert (lower.groups, upper.groups, upper.fan_in, upper.weights) == (1, 2, 18, 108)
        assert str(upper) == "4x4x4 conv 6x3 in 2 groups pool 2 -> 6x1x1"

    def test_objects(self):
        layers = [ImageShape(2, 8, 8), Conv(4, 3, "same"), Pool(2), Conv(6, 3, groups=2), Pool(2)]
        assert settings_from([*layers, 8]).pretrain.architecture == TEXT.replace("same", "1")

    def test_groups_that_divide_neither(self):
        message = (
            r"^layers: got conv:6x3/4 on images of 4x4x4, expected a number of groups that divides"
            r" 6 filters and 4 channels, such as 1 or 2$"
        )
        with pytest.raises(SettingsError, match=message):
            settings_from("2x8x8,conv:4x3:same,pool:2,conv:6x3/4")


class TestInColumns:
    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            ("4,6", "4,6/2"),
            ("4,6,8", "4,6,8/2"),
            ("4,6,8,2", "4,6,8/2,2/2"),
            ("4,6,8,2,4", "4,6/2,8,2/2,4/2"),  # as in Krizhevsky et al. 2012
        ],
    )
    def test_they_meet_in_the_middle_and_at_the_top(self, sizes, expected):
        def text(filters):
            parts = (part.partition("/") for part in filters.split(","))
            return ",".join(["1x12x12", *(f"conv:{n}x2{s}{g}" for n, s, g in parts), "5"])

        assert in_columns(text(sizes), 2) == text(expected)
        assert settings_from(text(sizes), columns=2).pretrain.architecture == text(expected)
        assert in_columns(text(sizes), 1) == text(sizes)

    @pytest.mark.parametrize(
        ("layers", "columns", "message"),
        [
            ([64, 5], 2, "columns: got 2 with 0 convolutions in the layers, expected two or more"),
            ("1x8x8,conv:4x3,5", 2, "columns: got 2 with 1 convolutions in the layers"),
            (
                "1x8x8,conv:4x3,conv:6x3,5",
                4,
                "columns: got 4 for conv:6x3 on images of 4x6x6, expected a number that divides its"
                " 4 channels and its 6 filters",
            ),
            (TEXT, 2, "columns: got 2 beside conv:6x3/2,pool:2, which says itself what its"),
            (TEXT, 0, "columns: got 0, expected a whole number of at least 1"),
            (TEXT, "x", "columns: got 'x', expected a whole number"),
        ],
    )
    def test_what_there_cannot_be(self, layers, columns, message):
        with pytest.raises(SettingsError) as caught:
            settings_from(layers, columns=columns)
        assert str(caught.value).startswith(message)

    def test_of_a_settings_file(self, tmp_path):
        path = tmp_path / "lenet.toml"
        path.write_text('[pretrain]\nlayers = "1x8x8,conv:4x3,conv:6x3,5"\ncolumns = 2\n')
        assert read_settings(path).pretrain.architecture == "1x8x8,conv:4x3,conv:6x3/2,5"


@pytest.mark.parametrize("model", ["rbm", "denoising"])
@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_a_learner_takes_the_step_of_one_whose_cross_weights_are_zero(model, pooling):
    text = f"1x6x6,conv:4x3,conv:6x2:1/2,pool:5:{pooling}"
    options = {"model": model, "batch_size": 5, "sparsity_cost": 0.0}
    options |= {"corruption": "masking:0.3"} if model == "denoising" else {}
    grouped = build_learner(settings_from(text, **options).pretrain, 2)
    whole = build_learner(settings_from(text.replace("/2", ""), **options).pretrain, 2)
    grouped.weight[:] = np.random.default_rng(1).normal(0, 0.3, grouped.weight.shape)
    for mine, given in zip(whole.parameters[1:], grouped.parameters[1:], strict=True):
        mine[:] = given
    whole.weight[:] = ungrouped(grouped.weight, grouped.current().shape)
    X = np.random.default_rng(0).random((5, whole.current().shape.visible), dtype=np.float32)
    errors = [x.gradient(X, np.arange(5), epoch=1, step=0) for x in (grouped, whole)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-5)
    lies_inside = ungrouped(np.ones_like(grouped.weight), grouped.current().shape)
    expected = whole.gradients[0] * lies_inside
    found = ungrouped(grouped.gradients[0], grouped.current().shape)
    assert np.abs(found).max() > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for mine, other in zip(grouped.gradients[1:], whole.gradients[1:], strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


# Images of 4 x 5 x 5, in two columns, across, and in two columns again.
LOWER = ConvolutionShape(4, 5, 5, 4, 2, pool=2, channels_first=True, groups=2)
ACROSS = ConvolutionShape(4, 2, 2, 6, 1)
UPPER = ConvolutionShape(6, 2, 2, 4, 2, pad=1, groups=2)
ACROSS_INPUT = replace(LOWER, groups=1)


def classifier(lower):
    shapes = enumerate((lower, ACROSS, UPPER))
    top = [dense(UPPER.hidden, 5, "tanh", 3), dense(5, 3, "softmax", 4)]
    return [up(shape, "tanh", seed) for seed, shape in shapes] + top


def unrolled(lower):
    shapes = (lower, ACROSS, UPPER)
    middle = [dense(UPPER.hidden, 5, "tanh", 3), dense(5, UPPER.hidden, "tanh", 4)]
    back = [down(shape, "tanh", 5 + i) for i, shape in enumerate(reversed(shapes))]
    return [up(shape, "tanh", i) for i, shape in enumerate(shapes)] + middle + back


NETWORKS = {
    "classifier": (classifier(ACROSS_INPUT), "cross-entropy"),
    "classifier, columns from the input up": (classifier(LOWER), "cross-entropy"),
    "unrolled": (unrolled(ACROSS_INPUT), "squared"),
    "unrolled, columns from the input up": (unrolled(LOWER), "squared"),
}

OPTIONS = {"batch_size": 5, "dropout": DROPOUTS["dropout"]}


@pytest.mark.parametrize(("chain", "loss"), NETWORKS.values(), ids=NETWORKS)
class TestDealtOut:
    """Shards that own a column each, and of its examples some."""

    def pictures(self, chain, rows):
        _, target = examples(chain, rows)
        x = np.random.default_rng(5).random((rows, LOWER.visible))
        return (x, target) if chain[-1].units == "softmax" else (x, x)

    def test_the_gradient_is_that_of_finite_differences(self, chain, loss):
        x, target = self.pictures(chain, 3)
        network = Network(chain, loss=loss, shards=4, split="columns", **OPTIONS)
        gradient(network, x, target, epoch=2, step=5)
        found, start = network.gradients.copy(), network.parameters.copy()
        for direction in np.random.default_rng(0).normal(size=(4, start.size)):
            ends = []
            for sign in (-1, 1):
                network.parameters[:] = start + sign * 1e-6 * direction
                ends.append(loss_of(network, x, target, epoch=2, step=5))
            assert (ends[1] - ends[0]) / 2e-6 == pytest.approx(found @ direction, rel=1e-5)

    @pytest.mark.parametrize("rows", [5, 1])
    def test_steps_are_those_of_other_splits_up_to_rounding(self, chain, loss, rows):
        x, target = self.pictures(chain, rows)
        found = []
        for split, shards in (("examples", 1), ("filters", 3), ("hybrid", 2), ("columns", 6)):
            network = Network(chain, loss=loss, shards=shards, split=split, **OPTIONS)
            moving = adam(network, weight_decay=0.1)
            errors = [train(moving, x, target, rate=0.01, epoch=1, step=s) for s in (0, 1)]
            found.append((errors, network.parameters))
        for errors, parameters in found[1:]:
            np.testing.assert_allclose(errors, found[0][0], rtol=1e-8)
            np.testing.assert_allclose(parameters, found[0][1], rtol=1e-6, atol=1e-8)


def test_columns_wait_where_they_meet():
    """Phases: two up and two down, cut at the link across; two a dense link; and the sums."""
    chain, loss = NETWORKS["classifier"]
    network = Network(chain, loss=loss, batch_size=4, shards=4, split="columns")
    place(network, np.zeros((4, LOWER.visible)), np.eye(3)[[0, 1, 2, 0]])
    assert network.program().length == 2 + 2 + 2 + 2 + 1


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        (TEXT, {"shards": 3}, "finetune_shards: got 3 for the split by columns, of which these"),
        (TEXT.replace("/2", ""), {}, "finetune_split: got columns for layers without them"),
    ],
)
def test_what_cannot_be_dealt_out(text, asked, message):
    X = np.zeros((20, 128), dtype=np.float32)
    with pytest.raises(SettingsError) as caught:
        tuned(untrained(text), X, split="columns", **asked)
    assert str(caught.value).startswith(message)


def test_the_command_line(tmp_path):
    given = ("--layers", "1x8x8,conv:4x3,conv:6x3,pool:2,8", "--model", "denoising")
    given += ("--data", "digits", "--epochs", 1, "--examples", 200, "--finetune", "classification")
    given += ("--finetune-epochs", 1, "--finetune-split", "columns", "--finetune-replicas", 2)
    out = tmp_path / "run"
    assert exit_status("train", *given, "--columns", 2, "--out", out, "--quiet") == 0
    assert read_settings(out / "config.toml").pretrain.architecture.split(",")[2] == "conv:6x3/2"
    assert syncpretrain.load(out).layers[1].weight.shape == (3, 3, 2, 6)
    assert exit_status("train", *given, "--columns", 3, "--out", tmp_path / "no", "--quiet") == 2
