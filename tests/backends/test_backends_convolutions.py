"""Convolutions on a device: each form against the equation, layers and networks against NumPy's."""

from inspect import unwrap

import numpy as np
import pytest
from backends import errors_of
from convolutionalruns import MODELS as PLAIN
from convolutionalruns import train
from convolutioncases import SHAPES
from devicearrays import framed, in_both_orders, normal, same_bits, unframed
from devicedraws import draw_as_on_a_device
from learnersteps import usual
from stackcomparisons import alike

from syncpretrain import finetune
from syncpretrain.backends.cuda_source import cuda_source
from syncpretrain.kernels import convolution
from syncpretrain.learners.convolution import convolutional_rbm
from syncpretrain.shapes import ConvolutionShape

BLOCKS = ConvolutionShape(2, 5, 7, 3, 2, pool=2, pooling="prob")
MODELS = PLAIN | {
    "persistent": {"persistent": True, "visible_bias": "log-odds"},
    "dropout": {"hidden_dropout": 0.3},
    "probabilistic": {"layers": "1x8x8,conv:3x3,pool:2:prob,conv:4x2,5"},
    "groups": {"layers": "1x8x8,conv:4x3,pool:2,conv:4x2/2,5"},
    "padded means": {"model": "autoencoder", "layers": "1x8x8,conv:3x3:same,pool:2:mean,5"},
}
TUNING = {
    "adam": {},
    "dropout": {"dropout": 0.3, "input_dropout": 0.1},
    "sgd": {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01},
}


def near(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


class TestForms:
    """NumPy's equations are the oracle; in float32, as the forms are."""

    def coded(self, shape, units="gaussian", examples=3):
        """Return x, weight, bias, and the code and its places by the equation."""
        x, weight = normal(examples, shape.visible), normal(shape.fan_in, shape.filters, seed=1)
        bias = normal(shape.filters, seed=2)
        out, places = (np.empty((examples, shape.hidden), np.float32) for _ in range(2))
        unwrap(convolution.convolve)(x, weight, bias, out, places, x[:0], shape, units)
        return x, weight, bias, out, places

    @pytest.mark.parametrize("units", ["gaussian", "relu", "bernoulli", "tanh"])
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_codes_and_their_places(self, device, shape, units):
        x, weight, bias, expected, at = self.coded(shape, units)
        given, own = [device.asarray(array) for array in (weight, bias)], np.empty_like(at)
        (x, _), (out, frame), (places, around) = (framed(device, a) for a in (x, at, own))
        convolution.convolve(x, *given, out, places, places[:0], shape, units)
        near(unframed(device, frame), expected)
        np.testing.assert_array_equal(unframed(device, around), at)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_gradients_and_what_goes_back(self, device, shape):
        x, weight, _, _, places = self.coded(shape)
        delta = normal(3, shape.hidden, seed=3)
        dW, back = np.empty_like(weight), np.empty_like(x)
        for kept in (places, places[:0].reshape(0)):
            unwrap(convolution.convolve_gradient)(x, delta, kept, dW, x[:0], shape)
            unwrap(convolution.convolve_back)(delta, kept, weight, back, x[:0], shape)
            found = device.zeros(dW.shape)
            (out, frame), (above, _) = framed(device, x), framed(device, delta)
            at = device.asarray(kept)
            convolution.convolve_gradient(device.asarray(x), above, at, found, at, shape)
            convolution.convolve_back(above, at, device.asarray(weight), out, at, shape)
            near(device.tohost(found), dW)
            near(unframed(device, frame), back)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_what_is_read_at_the_places(self, device, shape):
        x, weight, _, _, places = self.coded(shape)
        expected = np.empty_like(places)
        scratch = np.empty(100_000, np.float32)
        unwrap(convolution.convolve_at)(x, weight, places, expected, scratch, shape)
        given = [device.asarray(array) for array in (x, weight, places)]
        out = device.empty(places.shape)
        convolution.convolve_at(*given, out, given[0], shape)
        near(device.tohost(out), expected)
        out.fill(7)
        convolution.convolve_at(*given, out, given[0], shape, slice(1, 2))
        found = device.tohost(out).reshape(-1, shape.filters)
        near(found[:, 1:2], expected.reshape(-1, shape.filters)[:, 1:2])
        assert (np.delete(found, 1, axis=1) == 7).all()

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_some_filters_and_channels_leave_the_others_alone(self, device, shape):
        x, weight, bias, out, places = self.coded(shape)
        delta, none = normal(3, shape.hidden, seed=3), x[:0]
        own, last = slice(1, 2), slice(shape.channels - 1, shape.channels)
        for form, given, like, options in (
            (convolution.convolve, (x, weight, bias), out, (none, none, shape, "gaussian", own)),
            (convolution.convolve_gradient, (x, delta, places), weight, (none, shape, own)),
            (convolution.convolve_back, (delta, places, weight), x, (none, shape, last)),
        ):
            expected = np.full_like(like, 7)
            unwrap(form)(*given, expected, *options)
            found = device.asarray(np.full_like(like, 7))
            arrays = [device.asarray(a) if isinstance(a, np.ndarray) else a for a in options]
            form(*map(device.asarray, given), found, *arrays)
            near(device.tohost(found), expected)
            np.testing.assert_array_equal(device.tohost(found) == 7, expected == 7)

    def test_of_equals_the_first_is_the_largest_and_a_number_that_is_none_is_larger(self, device):
        shape = ConvolutionShape(1, 4, 4, 1, 1, pool=2)
        x = np.float32([[1, 2, 0, 0, 2, 0, 0, 0, -3, -1, 5, 9, -2, -1, np.nan, np.nan]])
        given = [device.asarray(a) for a in (x, np.ones((1, 1), "f4"), np.zeros(1, "f4"))]
        out, places = device.empty((1, 4)), device.empty((1, 4))
        convolution.convolve(*given, out, places, places[:0], shape, "gaussian")
        np.testing.assert_array_equal(device.tohost(out), [[2, 0, -1, np.nan]])
        np.testing.assert_array_equal(device.tohost(places), [[1, 0, 1, 2]])

    @pytest.mark.parametrize("examples", [0, 1])
    def test_few_examples(self, device, examples):
        shape = SHAPES[0]
        x, weight, bias, out, places = (device.asarray(a) for a in self.coded(shape, "relu", 1))
        dW = device.asarray(np.full((shape.fan_in, shape.filters), 7, np.float32))
        some = slice(0, examples)
        convolution.convolve(x[some], weight, bias, out[some], places[some], x, shape, "relu")
        convolution.convolve_gradient(x[some], out[some], places[some], dW, x, shape)
        assert (device.tohost(dW) == 0).all() == (examples == 0)

    def test_some_examples_at_a_time(self, device, monkeypatch):
        shape = SHAPES[1]
        x, weight, bias, out, _ = (device.asarray(a) for a in self.coded(shape, "relu", 5))
        results = []
        for most in (2 * shape.lowered, 1, 2**25):
            monkeypatch.setattr("syncpretrain.backends.cuda_kernels.COLUMNS_AT_ONCE", most)
            code, at, dW, back = (device.empty(a.shape) for a in (out, out, weight, x))
            convolution.convolve(x, weight, bias, code, at, x, shape, "relu")
            convolution.convolve_gradient(x, code, at, dW, x, shape)
            convolution.convolve_back(code, at, weight, back, x, shape)
            results.append([device.tohost(a) for a in (code, at, back, dW)])
        for some in results[:2]:
            for actual, expected in zip(some, results[2], strict=True):
                near(actual, expected)

    @pytest.mark.parametrize("units", ["gaussian", "bernoulli"])
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_visible_means_and_sums_of_channels(self, device, shape, units):
        x, bias = normal(4, shape.visible), normal(shape.channels, seed=1)
        (given, frame), sums = framed(device, x), np.empty(shape.channels, np.float32)
        convolution.visible_means(given, device.asarray(bias), shape, units)
        out = convolution.sum_channels(device.asarray(x), shape, out=device.empty(shape.channels))
        near(device.tohost(out), unwrap(convolution.sum_channels)(x, shape, out=sums))
        near(unframed(device, frame), unwrap(convolution.visible_means)(x, bias, shape, units))

    def test_blocks_of_which_one_unit_is_on(self, device):
        maps, noise = 3 * normal(5, BLOCKS.units), np.random.default_rng(1)
        noise = noise.random((5, BLOCKS.hidden), dtype=np.float32)
        (given, frame), (out, around) = (framed(device, a.copy()) for a in (maps, maps))
        convolution.draw_blocks(given, device.asarray(noise), BLOCKS, out=out)
        again = device.asarray(maps)
        convolution.block_means(again, BLOCKS)
        np.testing.assert_array_equal(device.tohost(again), unframed(device, frame))
        sums, (total, _) = np.empty_like(noise), framed(device, noise)
        convolution.block_sums(given, BLOCKS, out=total)
        states = unwrap(convolution.draw_blocks)(maps, noise, BLOCKS, out=np.empty_like(maps))
        np.testing.assert_array_equal(unframed(device, around), states)
        near(unframed(device, frame), maps)
        near(device.tohost(total), unwrap(convolution.block_sums)(maps, BLOCKS, out=sums))

    def test_other_arrays_than_of_float32_are_refused(self, double):
        shape = SHAPES[0]
        x, weight, bias, out, places = self.coded(shape)
        given = [double.asarray(array) for array in (x, weight, bias, out, places)]
        with pytest.raises(TypeError, match=r"x: got float64 of shape .*, expected float32"):
            convolution.convolve(
                double.asarray(x.astype(float)), *given[1:], given[0], shape, "relu"
            )
        with pytest.raises(TypeError, match=r"bias: got .*, expected 3 of float32"):
            convolution.convolve(*given[:2], given[2][:2], *given[3:], given[0], shape, "relu")

    def test_the_order_of_threads_changes_no_bit(self, double):

        def gradients():
            rbm = learner(double)
            rbm.gradient(double.asarray(examples(8)), np.arange(8), epoch=1, step=0)
            return [double.tohost(gradient) for gradient in rbm.gradients]

        same_bits(*in_both_orders(cuda_source(), gradients))


def examples(count: int) -> np.ndarray:
    return np.random.default_rng(5).random((count, BLOCKS.visible), dtype=np.float32)


def learner(backend):
    made = convolutional_rbm(1, BLOCKS, usual(batch_size=8))
    made.weight[...] = normal(*made.weight.shape)
    made.to(backend)
    return made


class TestTraining:
    """What a layer and a network are after training; NumPy is the oracle."""

    @pytest.mark.parametrize("kind", MODELS)
    def test_every_learner_comes_to_numpys_weights(self, device, images, kind, monkeypatch):
        draw_as_on_a_device(monkeypatch)
        events: dict[str, list] = {"numpy": [], "cupy": []}
        stacks = {
            name: train(images, **MODELS[kind], backend=name, observers=[events[name].append])
            for name in events
        }
        alike(stacks["cupy"], stacks["numpy"])
        errors = {name: errors_of(some) for name, some in events.items()}
        np.testing.assert_allclose(errors["cupy"], errors["numpy"], rtol=1e-4)
        assert stacks["cupy"].info["pretrain"]["backend"] == "cupy"

    def test_one_and_two_gpus_in_turns_or_threads_come_to_the_same_bits(self, double, images):
        places = [("cupy", "threads"), ("cupy:1", "threads"), ("cupy", "serial")]
        sums = {
            train(images, backend=name, runtime=runtime).parameters_sha256
            for name, runtime in places
        }
        assert len(sums) == 1

    @pytest.mark.parametrize("tuning", TUNING)
    @pytest.mark.parametrize("supervised", [False, True])
    def test_a_tuned_network_comes_to_numpys_weights(self, device, images, supervised, tuning):
        y = images[:, :32].sum(axis=1) > images[:, 32:].sum(axis=1) if supervised else None
        stack = train(images, **MODELS["groups"] if tuning == "adam" else {}, backend="numpy")
        settings = {"epochs": 2, "batch_size": 20, "seed": 4} | TUNING[tuning]
        held = {"validation": images[:30], "validation_y": None if y is None else y[:30]}
        oracle = finetune(stack, images, y, **settings, **held, backend="numpy")
        tuned = finetune(stack, images, y, **settings, **held, backend="cupy")
        alike(tuned, oracle, 1e-5)
        curves = tuned.history.finetune, oracle.history.finetune
        for name in ("train", "validation"):
            np.testing.assert_allclose(*(getattr(each, name) for each in curves), rtol=1e-4)
