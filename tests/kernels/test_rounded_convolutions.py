"""Convolutions of factors rounded to bfloat16: their sums, and training with them."""

from dataclasses import replace

import numpy as np
import pytest
from barpictures import bars, tuned
from compiledproducts import COMPILED
from convolutionalruns import LAYERS, train
from convolutioncases import FORMS, Drawn, part_of, shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from learnersteps import usual
from linkedchains import NETWORKS, as_float32, examples
from minibatches import gradient
from randomconvolutions import convolutional_stack
from roundedgradients import ROUNDING, away, gradients

from syncpretrain import load
from syncpretrain.backends.base import Backend
from syncpretrain.finetuning.network import Network
from syncpretrain.kernels.convolution import convolve, convolve_back, convolve_gradient
from syncpretrain.kernels.precision import rounded
from syncpretrain.learners.convolution import ConvolutionalAutoencoder, ConvolutionalRBM
from syncpretrain.shapes import ConvolutionShape

pytestmark = pytest.mark.usefixtures("forked_layers")
PORTABLE = 2  # the number of the form without the instruction, in the place of True
SHAPE = ConvolutionShape(3, 9, 8, 5, 3, pad=1, pool=1)
POOLED = ConvolutionShape(2, 8, 8, 5, 3, pool=2, channels_first=True)
EQUATIONS = {"up": convolve, "gradient": convolve_gradient, "back": convolve_back}


def case_of(shape, number=True, **options):
    return Drawn(replace(shape, rounded=number), **options)


def results(case, forms, filters=slice(None), channels=slice(None)):
    return [
        case.up(forms["convolve"], "gaussian", filters)[0],
        case.gradient(forms["convolve_gradient"], filters),
        case.back(forms["convolve_back"], channels),
    ]


def exactly(shape, x, weight, delta, *, is_rounded):
    """Return the three products in float64, of factors as they are or rounded, without a bias."""
    plain = replace(shape, rounded=False)
    given = [np.float64(rounded(a) if is_rounded else a) for a in (x, weight, delta)]
    none, places = np.empty(0), np.empty(0)
    up, gradient, back = (np.empty_like(given[i]) for i in (2, 1, 0))
    bias = np.zeros(shape.filters)
    convolve.__wrapped__(given[0], given[1], bias, up, places, none, plain, "gaussian")
    convolve_gradient.__wrapped__(given[0], given[2], places, gradient, none, plain)
    convolve_back.__wrapped__(given[2], places, given[1], back, none, plain)
    return up, gradient, back


@COMPILED
@settings(max_examples=120, deadline=None)
@given(shapes(), st.integers(1, 4), st.integers(0, 99))
def test_products_are_those_of_rounded_factors(shape, examples, seed):
    case = case_of(shape, examples=examples, seed=seed, places=False)
    case.bias[:] = 0
    found = results(case, FORMS)
    back = case.shape.precision_back == "bfloat16"
    rounds = case.shape.rounds, back, back
    factors = case.x, case.weight, case.delta
    bounds = exactly(shape, *map(np.abs, factors), is_rounded=True)
    terms = shape.fan_in * shape.pool**2, examples * shape.positions, shape.fan_in * shape.filters
    for own, is_rounded, i in zip(found, rounds, range(3), strict=True):
        expected = exactly(shape, *factors, is_rounded=is_rounded)[i]
        assert (np.abs(own - expected) <= (terms[i] + 8) * 2.0**-23 * bounds[i] + 1e-30).all()


@COMPILED
@settings(max_examples=120, deadline=None)
@given(st.data(), shapes(), st.integers(1, 4), st.booleans())
def test_both_forms_and_parts_by_filters_have_the_same_bits(data, shape, examples, places):
    whole, portable = (
        results(case_of(shape, number, examples=examples, places=places), FORMS)
        for number in (True, PORTABLE)
    )
    filters = part_of(data.draw, shape.filters)
    parts = results(case_of(shape, examples=examples, places=places), FORMS, filters)
    for one, other in zip(whole, portable, strict=True):
        np.testing.assert_array_equal(one, other)
    by_filter = [a.reshape(-1, shape.filters)[:, filters] for a in (*whole[:2], *parts[:2])]
    np.testing.assert_array_equal(by_filter[0], by_filter[2])
    np.testing.assert_array_equal(by_filter[1], by_filter[3])


@COMPILED
@pytest.mark.parametrize("shape", [SHAPE, POOLED, replace(POOLED, pooling="mean")])
def test_what_is_pooled_goes_back_in_float32(shape):
    places = shape.has_places
    own, plain = (results(case_of(shape, number, places=places), FORMS) for number in (True, False))
    same = [bool((a == b).all()) for a, b in zip(own, plain, strict=True)]
    assert same == [not replace(shape, rounded=True).rounds, *[shape.pool > 1] * 2]


@COMPILED
@pytest.mark.parametrize("shape", [SHAPE, POOLED, replace(SHAPE, channels=6, filters=4, groups=2)])
def test_numpy_adds_the_same_rounded_terms(shape):
    case = case_of(shape, examples=4, places=shape.has_places)
    theirs = results(case, {name.__name__: name.__wrapped__ for name in EQUATIONS.values()})
    for ours, others in zip(results(case, FORMS), theirs, strict=True):
        np.testing.assert_allclose(ours, others, rtol=1e-4, atol=1e-4)


GAUSSIAN = {"hidden_units": "gaussian", "visible_units": "gaussian"}  # no states that flip


@pytest.mark.parametrize("shape", [SHAPE, POOLED])
@pytest.mark.parametrize(
    ("kind", "own"), [(ConvolutionalRBM, GAUSSIAN), (ConvolutionalAutoencoder, {})]
)
def test_gradients_of_a_layer_are_those_of_float32_up_to_rounding(kind, own, shape):
    if kind is ConvolutionalAutoencoder and shape.pool == 1:
        shape = replace(shape, pooling="mean")
    X, found = np.random.default_rng(1).random((8, shape.visible), dtype=np.float32), []
    for precision in ("float32", "bfloat16"):
        learner = kind(2, shape, usual(batch_size=8, **own, precision=precision))
        found.append(gradients(learner, X))
    assert 0 < away(found[1], found[0]) < 8 * ROUNDING


@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("name", ["classifier, tanh, mean", "unrolled, bernoulli, mean"])
def test_gradients_of_a_network_are_those_of_float32_up_to_rounding(name, split):
    chain, loss = as_float32(NETWORKS[name][0]), NETWORKS[name][1]
    x, target = examples(chain, dtype=np.float32)
    found = []
    for precision in ("float32", "bfloat16"):
        options = {"split": split, "backend": Backend(), "batch_size": 6, "shards": 2}
        tuned = Network(chain, precision=precision, loss=loss, **options)
        gradient(tuned, x, target, epoch=1, step=0)
        found.append([tuned.gradients.copy()])
    assert 0 < away(found[1], found[0]) < 4 * len(chain) * ROUNDING
    assert not any(link.shape.rounded for link in chain if link.is_local), "those given stay"


@pytest.mark.parametrize("layers", [LAYERS, "1x8x8,conv:3x3,5"])
def test_a_trained_stack_computes_in_float32_and_its_file_knows_no_other(images, layers, tmp_path):
    stack = train(images, layers=layers, precision="bfloat16")
    assert not any(getattr(layer.shape, "rounded", False) for layer in stack.layers)
    stack.save(tmp_path / "model.safetensors")
    assert b"rounded" not in (tmp_path / "model.safetensors").read_bytes()
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.encode(images), stack.encode(images))


@pytest.mark.parametrize("split", ["examples", "filters"])
def test_fine_tuning_with_any_workers_ends_in_the_same_bits(split):
    (X, y), stack = bars(), convolutional_stack("1x8x8,conv:4x3:same,pool:2,conv:6x3,8")
    options = {"split": split, "shards": 2}
    found = [
        tuned(stack, X, y, **options, precision=precision, replicas=replicas).parameters_sha256
        for precision, replicas in (("bfloat16", 1), ("bfloat16", 2), ("float32", 1))
    ]
    assert found[0] == found[1] != found[2]
