"""Free energy, pseudo-likelihood, log Z and perplexity against enumerations."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from binaryunits import states
from randomstacks import normal_stack
from unitkinds import INPUT_UNITS, LOG_SUMS, RBM_UNITS

from syncpretrain import Stack
from syncpretrain.errors import DataError
from syncpretrain.models import likelihood
from syncpretrain.models.likelihood import free_energy, log_z, log_z_ais, pseudo_likelihood
from syncpretrain.models.perplexity import perplexity
from syncpretrain.models.stack import DenseLayer
from syncpretrain.rng import Purpose, generator

VISIBLE, HIDDEN = 7, 5


def make_layer(visible: int = VISIBLE, hidden: int = HIDDEN, *, scale: float = 0.8) -> DenseLayer:
    return normal_stack((visible, hidden), scale=scale, seed=3).layers[0]


def negative_energies(layer: DenseLayer) -> np.ndarray:
    """-E of every pair of states, of shape (2**V, 2**H)."""
    v, h = states(len(layer.visible_bias)), states(len(layer.hidden_bias))
    W, a, b = (np.float64(x) for x in (layer.weight, layer.visible_bias, layer.hidden_bias))
    return v @ W @ h.T + (v @ a)[:, None] + (h @ b)[None, :]


@pytest.mark.parametrize(("visible", "hidden"), [(7, 5), (5, 7), (1, 1), (13, 2)])
def test_enumeration_is_exact_from_either_side(visible, hidden):
    layer = make_layer(visible, hidden)
    found = log_z(layer)
    assert found.value == pytest.approx(np.logaddexp.reduce(negative_energies(layer), axis=None))
    assert found.low == found.value == found.high


def test_annealing_agrees_with_enumeration_within_its_error_bar():
    for seed, shape in enumerate([(12, 8), (12, 8), (8, 12), (15, 6), (3, 3)]):
        layer = make_layer(*shape)
        exact = log_z(layer).value
        found = log_z_ais(layer, chains=200, steps=200, seed=seed)
        assert found.low <= exact <= found.high
        assert found.high - found.low < 0.5


def test_annealing_is_exact_where_there_is_nothing_to_anneal():
    assert log_z(make_layer(30, 25, scale=0)).value == pytest.approx(55 * math.log(2))


def test_annealing_is_a_function_of_its_seed():
    layer = make_layer()
    assert log_z_ais(layer, chains=9, steps=9) == log_z_ais(layer, chains=9, steps=9)
    assert log_z_ais(layer, chains=9, steps=9, seed=1) != log_z_ais(layer, chains=9, steps=9)


@pytest.mark.parametrize(
    "wrong", [{"chains": 0}, {"chains": -1}, {"steps": 0}, {"steps": 2.5}, {"words": math.nan}]
)
def test_numbers_that_anneal_nothing_are_refused(wrong):
    units = f"counts:{VISIBLE}" if "words" in wrong else "bernoulli"
    with pytest.raises(DataError, match=f"{next(iter(wrong))}: got"):
        log_z_ais(replace(make_layer(), visible_units=units), **wrong)


def test_one_chain_has_no_error_bar():
    found = log_z_ais(make_layer(), chains=1, steps=50)
    assert (found.low, found.high) == (-math.inf, math.inf)


def expected_term(layer: DenseLayer, p: np.ndarray) -> float:
    """V E[log p(v_i | the others)] of independent units on with probabilities p, by enumeration."""
    every = [tuple(v) for v in states(VISIBLE)]
    energies = dict(zip(every, free_energy(layer, states(VISIBLE)), strict=True))
    total = 0.0
    for v in every:
        chance = np.prod(np.where(v, p, 1 - p))
        for i in range(VISIBLE):
            other = (*v[:i], 1 - v[i], *v[i + 1 :])
            total -= chance * np.logaddexp(0, energies[v] - energies[other])
    return total


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 0.8, 0.9])
def test_pseudo_likelihood_of_grey_values_is_that_of_the_binary_units_they_stand_for(value):
    layer = make_layer()
    p = np.full(VISIBLE, value, dtype=np.float32)
    p[0] = 1  # some are binary
    have = pseudo_likelihood(layer, np.tile(p, (20_000, 1)))
    assert have == pytest.approx(expected_term(layer, p), rel=0.05)


def test_pseudo_likelihood_of_binary_rows_draws_nothing_but_the_units():
    """The same figure as by flipping one unit of each row."""
    layer = make_layer()
    X = states(VISIBLE).astype(np.float32)
    rows = np.arange(len(X))
    units = generator(5, Purpose.PROBE).integers(VISIBLE, size=len(X))
    flipped = X.copy()
    flipped[rows, units] = 1 - flipped[rows, units]
    gain = free_energy(layer, flipped) - free_energy(layer, X)
    expected = -np.logaddexp(0, -gain).mean() * VISIBLE
    assert pseudo_likelihood(layer, X, seed=5) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(X, states(VISIBLE))


@pytest.mark.parametrize("visible", INPUT_UNITS)
@pytest.mark.parametrize("hidden", RBM_UNITS)
@pytest.mark.parametrize("scale", [0.8, 2.5])
def test_free_energy_of_every_kind_of_units(visible, hidden, scale):
    log_sum, tolerance = LOG_SUMS[hidden]
    layer = replace(make_layer(scale=scale), visible_units=visible, hidden_units=hidden)
    W, a, b = (np.float64(x) for x in (layer.weight, layer.visible_bias, layer.hidden_bias))
    v = states(VISIBLE)
    if visible == "gaussian":
        v = np.float64(np.float32(np.random.default_rng(0).normal(size=(100, VISIBLE))))
    alone = ((v - a) ** 2).sum(axis=1) / 2 if visible == "gaussian" else -v @ a
    units = [log_sum(v @ W[:, j] + b[j], b[j]) for j in range(HIDDEN)]
    expected = alone - np.sum(units, axis=0)
    have = free_energy(layer, v.astype(np.float32))
    np.testing.assert_allclose(have, expected, atol=tolerance * HIDDEN, rtol=1e-9)


def test_a_rectified_unit_alone_is_its_stepped_copies_everywhere():
    """Both branches of the series, the border between them, and far out."""
    x = np.array([-500, -40, -3, -0.5, -1e-6, 0, 1e-6, 0.5, 3, 40, 100])
    layer = DenseLayer(np.float32([[1]]), np.zeros(1, np.float32), np.zeros(1, np.float32))
    layer = replace(layer, hidden_units="relu")
    expected = LOG_SUMS["relu"][0](np.float64(np.float32(x)), 0.0)
    have = -free_energy(layer, x[:, None].astype(np.float32))
    np.testing.assert_allclose(have, expected, atol=3e-4, rtol=1e-9)


@pytest.mark.parametrize("measure", [log_z, log_z_ais])
@pytest.mark.parametrize(
    "units", [("gaussian", "gaussian"), ("bernoulli", "gaussian"), ("bernoulli", "relu")]
)
def test_log_z_is_for_binary_hidden_units_alone(measure, units):
    layer = replace(make_layer(), visible_units=units[0], hidden_units=units[1])
    with pytest.raises(DataError, match=rf"layer: got .*{max(units)}.* expected bernoulli ones"):
        measure(layer)


def test_a_pseudo_likelihood_flips_binary_visible_units():
    X = states(VISIBLE).astype(np.float32)
    with pytest.raises(DataError, match="layer: got gaussian visible units, expected bernoulli"):
        pseudo_likelihood(replace(make_layer(), visible_units="gaussian"), X)
    for hidden in ("gaussian", "relu"):
        assert pseudo_likelihood(replace(make_layer(), hidden_units=hidden), X) < 0


@pytest.mark.parametrize(
    "measure",
    [
        log_z,
        log_z_ais,
        lambda layer: free_energy(layer, np.zeros((1, VISIBLE), dtype=np.float32)),
        lambda layer: pseudo_likelihood(layer, np.zeros((1, VISIBLE), dtype=np.float32)),
    ],
)
def test_an_autoencoder_has_no_energy(measure):
    with pytest.raises(DataError, match="is an autoencoder, or was fine-tuned"):
        measure(replace(make_layer(), model="autoencoder"))


LENGTHS = np.array([1.0, 2, 3, 7, 40])
rng = np.random.default_rng


def words_of(hidden: int, vocabulary: int = 4, seed: int = 0) -> likelihood.Words:
    draws = rng(seed)
    sizes = (vocabulary, hidden), vocabulary, hidden
    return likelihood.Words(*(draws.normal(0, 0.7, size) for size in sizes))


def stack_of(words: likelihood.Words, units: str = "counts") -> Stack:
    W, a, b = (array.astype("f4") for array in words)
    text = f"{units}:{len(a)}"
    return Stack((DenseLayer(W, b, a, visible_units=text, hidden_units="bernoulli", model="rbm"),))


def documents(vocabulary: int, n: int = 30) -> np.ndarray:
    X = 1 + rng(5).poisson(1.5, (n, vocabulary)).astype("f4")
    X[0], X[1, 0] = 0, 30  # one without words, a long one
    return X


def test_z_sums_over_all_documents_of_a_length():
    words = words_of(3)
    found = likelihood.enumerated_over_lengths(words, LENGTHS[:3])
    layer = stack_of(words).layers[0]
    for length, have in zip((1, 2, 3), found, strict=True):
        orders = np.eye(4)[list(product(range(4), repeat=length))].sum(axis=1)
        assert have == pytest.approx(np.logaddexp.reduce(-free_energy(layer, orders)), rel=1e-6)


@pytest.mark.parametrize("steps", [12, 40])
def test_annealing_is_unbiased_at_every_length(steps):
    words = words_of(6)
    exact = likelihood.enumerated_over_lengths(words, LENGTHS)
    found = likelihood.annealed_over_lengths(words, LENGTHS, chains=40, steps=steps, draws=rng(1))
    ratio = np.exp(found - exact)
    error = ratio.std(axis=0, ddof=1) / np.sqrt(likelihood.POPULATIONS)
    assert (np.abs(ratio.mean(axis=0) - 1) < 4 * error).all()
    assert error.max() < (0.1 if steps == 40 else 0.3)


def test_it_is_exact_with_few_hidden_units():
    words, X = words_of(4), documents(4)
    found = perplexity(stack_of(words), X)
    rows = X[1:].astype("f8")
    lengths = rows.sum(axis=1)
    stack = stack_of(words)
    log_p = -free_energy(stack.layers[0], rows) - likelihood.enumerated_over_lengths(words, lengths)
    assert found.value == pytest.approx(np.exp(-(log_p / lengths).mean()), rel=1e-5)
    assert found.of_all_words == pytest.approx(np.exp(-log_p.sum() / lengths.sum()), rel=1e-5)
    assert found.low == found.value == found.high
    assert (found.documents, found.words) == (29, int(lengths.sum()))


def test_sparse_rows_have_that_of_dense_ones():
    sparse, X, stack = pytest.importorskip("scipy.sparse"), documents(4), stack_of(words_of(4))
    assert perplexity(stack, sparse.csr_array(X)) == perplexity(stack, X)


def test_the_error_bar_holds_the_exact_value(monkeypatch):
    stack, X = stack_of(words_of(10, vocabulary=6)), documents(6)
    exact = perplexity(stack, X).value
    monkeypatch.setattr("syncpretrain.models.perplexity.MOST_ENUMERATED", 0)
    found = perplexity(stack, X, chains=100, steps=50)
    assert found.low < exact < found.high < 1.2 * found.low


@pytest.mark.parametrize(
    ("stack", "X", "options", "message"),
    [
        (stack_of(words_of(2), "bernoulli"), np.eye(4), {}, "stack: got bernoulli:4 visible"),
        (stack_of(words_of(2)), np.zeros((2, 4)), {}, "X: got no document with a word"),
        (stack_of(words_of(2)), np.eye(4), {"chains": 19}, "chains, steps: got 19 and 300"),
        (stack_of(words_of(2)), np.eye(4), {"steps": 2.5}, "chains, steps, seed: got 200, 2.5"),
        (stack_of(words_of(2)), np.eye(4), {"seed": -1}, "chains, steps, seed: got 200, 300 and"),
        (stack_of(words_of(2)), np.eye(4), {"steps": 0}, "chains, steps: got 200 and 0"),
    ],
)
def test_what_has_no_perplexity_is_refused(stack, X, options, message):
    with pytest.raises(DataError, match=message):
        perplexity(stack, X, **options)
