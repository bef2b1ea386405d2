"""Perplexity of documents: against enumerations of hidden units and of documents."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from syncpretrain import Stack
from syncpretrain.errors import DataError
from syncpretrain.models.layer import DenseLayer
from syncpretrain.models.likelihood import (
    POPULATIONS,
    Words,
    annealed_over_lengths,
    enumerated_over_lengths,
    free_energy,
)
from syncpretrain.models.perplexity import perplexity

LENGTHS = np.array([1.0, 2, 3, 7, 40])
rng = np.random.default_rng


def words_of(hidden: int, vocabulary: int = 4, seed: int = 0) -> Words:
    draws = rng(seed)
    sizes = (vocabulary, hidden), vocabulary, hidden
    return Words(*(draws.normal(0, 0.7, size) for size in sizes))


def stack_of(words: Words, units: str = "counts") -> Stack:
    W, a, b = (array.astype("f4") for array in words)
    text = f"{units}:{len(a)}"
    return Stack((DenseLayer(W, b, a, visible_units=text, hidden_units="bernoulli", model="rbm"),))


def documents(vocabulary: int, n: int = 30) -> np.ndarray:
    X = 1 + rng(5).poisson(1.5, (n, vocabulary)).astype("f4")
    X[0], X[1, 0] = 0, 30  # one without words, a long one
    return X


def test_z_sums_over_all_documents_of_a_length():
    words = words_of(3)
    found = enumerated_over_lengths(words, LENGTHS[:3])
    layer = stack_of(words).layers[0]
    for length, log_z in zip((1, 2, 3), found, strict=True):
        orders = np.eye(4)[list(product(range(4), repeat=length))].sum(axis=1)
        expected = np.logaddexp.reduce(-free_energy(layer, orders))
        assert log_z == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("steps", [12, 40])
def test_annealing_is_unbiased_at_every_length(steps):
    words = words_of(6)
    exact = enumerated_over_lengths(words, LENGTHS)
    found = annealed_over_lengths(words, LENGTHS, chains=40, steps=steps, draws=rng(1))
    ratio = np.exp(found - exact)
    error = ratio.std(axis=0, ddof=1) / np.sqrt(POPULATIONS)
    assert (np.abs(ratio.mean(axis=0) - 1) < 4 * error).all()
    assert error.max() < (0.1 if steps == 40 else 0.3)


def test_it_is_exact_with_few_hidden_units():
    words, X = words_of(4), documents(4)
    found = perplexity(stack_of(words), X)
    rows = X[1:].astype("f8")
    lengths = rows.sum(axis=1)
    stack = stack_of(words)
    log_p = -free_energy(stack.layers[0], rows) - enumerated_over_lengths(words, lengths)
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
