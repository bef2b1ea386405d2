"""The convolutional autoencoder: its gradient by definition, and what it hands up."""

from dataclasses import replace

import numpy as np
import pytest
from convolutionbydefinition import channel_of, matrix_of, pooled, unpooled
from learnersteps import assert_close, slopes_of, usual
from onelayer import set_parameters
from unitkinds import KINDS, MEANS, UNITS, examples_for

from syncpretrain.kernels.backprop import corrupt
from syncpretrain.learners.convolution import ConvolutionalAutoencoder
from syncpretrain.pretraining.build import step_for
from syncpretrain.rng import Purpose, generator
from syncpretrain.shapes import ConvolutionShape

BATCH = 4
SHAPE = ConvolutionShape(2, 5, 7, 3, 2, pool=2)
SHAPES = {
    "max": SHAPE,
    "mean": replace(SHAPE, pooling="mean"),
    "no pooling": replace(SHAPE, pool=1),
    "channel by channel": replace(SHAPE, channels_first=True),
    "padded": ConvolutionShape(1, 4, 6, 2, 3, pad=1, pool=2, channels_first=True),
    "as large as the image": ConvolutionShape(2, 3, 3, 4, 3),
    "one pixel": ConvolutionShape(3, 2, 2, 2, 1, pool=2),
}
CORRUPTIONS = [("masking", 0.3), ("salt-and-pepper", 0.3), ("gaussian", 0.3)]


def make(shape: ConvolutionShape = SHAPE, **changed) -> ConvolutionalAutoencoder:
    return ConvolutionalAutoencoder(2, shape, usual(**{"batch_size": BATCH, **changed}))


def images(shape: ConvolutionShape, n: int = BATCH, units: str = "bernoulli") -> np.ndarray:
    return examples_for(units, n, shape.visible)


def reconstruction(shape, parameters, settings, z) -> np.ndarray:
    """Return the code of z, and what is made of it, word for word."""
    W, a, b, *own = parameters
    code, counts = pooled(shape, z @ matrix_of(shape, W))
    h = MEANS[settings.hidden_units](code + np.tile(b, code.shape[1] // len(b)))
    up = unpooled(shape, h, counts) @ matrix_of(shape, own[0] if own else W).T
    return MEANS[settings.visible_units](up + a[channel_of(shape)])


def loss(shape, parameters, settings, x, z) -> float:
    y = reconstruction(shape, parameters, settings, z)
    if settings.loss == "squared":
        return np.square(y - x).sum() / len(x)
    return -(x * np.log(y) + (1 - x) * np.log(1 - y)).sum() / len(x)


def assert_downhill(learner, shape, x, z) -> None:
    parameters = set_parameters(learner)
    learner.gradient(x, np.arange(len(x)), epoch=2, step=5)
    wanted = learner.settings, np.float64(x), np.float64(z)
    slopes = slopes_of(lambda own: loss(shape, own, *wanted), parameters)
    code = shape.output.height * shape.output.width
    places = (code, shape.height * shape.width, code, code)  # averaged over, as documented
    ways = [-slope / count for slope, count in zip(slopes, places, strict=False)]
    assert_close(learner.gradients, ways, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("measure", ["squared", "cross-entropy"])
def test_the_gradient_is_the_way_down_the_loss(shape, tied, measure):
    x = images(shape, 3)
    assert_downhill(make(shape, tied=tied, loss=measure), shape, x, x)


@pytest.mark.parametrize("hidden_units", UNITS)
@pytest.mark.parametrize("visible_units", sorted({KINDS[name].above for name in UNITS}))
@pytest.mark.parametrize("name", ["max", "mean"])
def test_it_is_for_every_kind_of_units(hidden_units, visible_units, name):
    shape = SHAPES[name]
    x = images(shape, 2, visible_units)
    learner = make(shape, hidden_units=hidden_units, visible_units=visible_units)
    assert_downhill(learner, shape, x, x)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_denoising_one_reads_noisy_copies_and_is_judged_by_the_clean_examples(corruption):
    x = images(SHAPE)
    z = x.copy()
    corrupt(z, *corruption, generator(3, Purpose.CORRUPTION, layer=2, epoch=2, step=5))
    assert not np.array_equal(x, z)
    assert_downhill(make(corruption=corruption), SHAPE, x, z)


@pytest.mark.parametrize("name", SHAPES)
def test_error_and_validation_error_are_of_the_same_reconstruction(name):
    shape, learner = SHAPES[name], make(SHAPES[name], tied=False)
    parameters, x = set_parameters(learner), images(SHAPES[name])
    y = reconstruction(shape, parameters, learner.settings, np.float64(x))
    error = learner.gradient(x, np.arange(BATCH), epoch=1, step=0)
    assert error == pytest.approx(np.square(y - x).sum(), rel=1e-5)
    assert learner.validation_error(x) == pytest.approx(error / BATCH, rel=1e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("units", UNITS)
def test_what_it_hands_up_is_the_code_of_the_plain_input(name, units):
    learner, x = make(SHAPES[name], hidden_units=units), images(SHAPES[name])
    set_parameters(learner)
    code = learner.current().up(x)
    learner.gradient(x, np.arange(BATCH), epoch=1, step=0)
    np.testing.assert_array_equal(learner.hidden_means(BATCH), code)
    assert make(SHAPES[name], corruption=("masking", 0.5)).hidden_means(0) is None


@pytest.mark.parametrize("units", UNITS)
def test_weights_start_with_the_spread_of_their_units(units):
    shape = ConvolutionShape(8, 12, 12, 64, 5)
    learner = make(shape, hidden_units=units, tied=False)
    variance = 2 / 200 if units == "relu" else 2 / (200 + 1600)
    assert learner.weight.std() == pytest.approx(np.sqrt(variance), rel=0.02)
    assert learner.weight.mean() == pytest.approx(0, abs=3 * np.sqrt(variance / 12800))
    np.testing.assert_array_equal(learner.decoder_weight, learner.weight)
    assert not learner.hidden_bias.any()
    assert not learner.visible_bias.any()


@pytest.mark.parametrize("channels_first", [True, False])
def test_visible_biases_start_from_the_log_odds_of_a_channel(channels_first):
    shape = replace(SHAPE, channels_first=channels_first)
    learner = make(shape, visible_bias="log-odds")
    x = np.zeros((6, shape.visible), dtype=np.float32)
    x[:, channel_of(shape) == 0] = 0.25
    x[:3, channel_of(shape) == 1] = 1
    learner.start(x)
    np.testing.assert_allclose(learner.visible_bias, [np.log(1 / 3), 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("l2", "l1"), [(0.5, 0.0), (0.0, 0.25), (0.5, 0.25)])
def test_weights_decay_and_biases_do_not(tied, l2, l1):
    learner = make(tied=tied, weight_decay=l2, l1=l1)
    parameters = set_parameters(learner)
    for gradient in learner.gradients:
        gradient.fill(0)
    learner.update(epoch=1)
    for now, before in zip(learner.parameters, parameters, strict=True):
        decay = l2 * before + l1 * np.sign(before) if before.ndim > 1 else 0
        np.testing.assert_allclose(now, before - 0.1 * decay, rtol=1e-5)


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_shards_by_examples_make_the_whole_step(shards, tied):
    """With noise each has draws of its own, so without."""
    x = images(SHAPE, 11)
    whole, cut = make(tied=tied, batch_size=7), make(tied=tied, batch_size=7)
    for learner, count in ((whole, 1), (cut, shards)):
        training = step_for(learner, count, "examples")
        for step, rows in enumerate((np.arange(7), np.arange(7, 11))):
            training.train_step(x, rows, epoch=1, step=step)
    assert_close(whole, cut)


def test_a_snapshot_of_another_shape_is_refused():
    learner = make()
    for other in (replace(SHAPE, filters=5), replace(SHAPE, pool=1), replace(SHAPE, height=7)):
        with pytest.raises(ValueError, match=r"got 2x.* expected 2x5x7 conv 3x2"):
            learner.restore(make(other).snapshot())
