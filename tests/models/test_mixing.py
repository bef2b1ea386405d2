"""Mixing of chains: the sentence against enumerated relaxation times, and its figures."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from binaryunits import logistic, states

from syncpretrain import pretrain
from syncpretrain.errors import DataError
from syncpretrain.models.mixing import Mixing
from syncpretrain.models.stack import DenseLayer, Stack
from syncpretrain.report.examples import Shown, mixing_shown

STEPS = 400
NOT_MIXED, MIXED = "these chains have not mixed", "these chains have mixed"


def layer_of(W: np.ndarray, a: np.ndarray, b: np.ndarray) -> DenseLayer:
    return DenseLayer(np.float32(W), np.float32(b), np.float32(a))


def of_states(x: np.ndarray) -> np.ndarray:
    """Return the probability of every state of units with inputs x, of shape (rows, states)."""
    return np.exp(x @ states(x.shape[1]).T - np.logaddexp(0, x).sum(axis=1, keepdims=True))


def parameters_of(layer: DenseLayer) -> list[np.ndarray]:
    return [np.float64(x) for x in (layer.weight, layer.visible_bias, layer.hidden_bias)]


def relaxation(layer: DenseLayer) -> float:
    """Return the steps in which the slowest part decays by a factor of e, by enumeration."""
    W, a, b = parameters_of(layer)
    step = of_states(states(len(b)) @ W.T + a) @ of_states(states(len(a)) @ W + b)
    second = np.sort(np.abs(np.linalg.eigvals(step)))[-2]
    return math.inf if second >= 1 else -1 / math.log(second)


def drawn_from(layer: DenseLayer, count: int, draws: np.random.Generator) -> np.ndarray:
    """Return exact samples of an enumerated RBM."""
    W, a, b = parameters_of(layer)
    h = states(len(b))
    logs = h @ b + np.logaddexp(0, h @ W.T + a).sum(axis=1)
    chosen = draws.choice(len(h), count, p=np.exp(logs - np.logaddexp.reduce(logs)))
    means = logistic(h[chosen] @ W.T + a)
    return np.float32(draws.random(means.shape) < means)


def random_layer(draws: np.random.Generator) -> DenseLayer:
    visible, hidden = draws.integers(4, 9), draws.integers(2, 5)
    W = draws.uniform(0.3, 1.2) * draws.normal(size=(visible, hidden))
    return layer_of(W, draws.normal(size=visible), draws.normal(size=hidden))


def layer_with_modes(draws: np.random.Generator) -> DenseLayer:
    """Return an RBM with two opposite modes at random, deep and about equally probable."""
    visible, hidden = draws.integers(6, 10), draws.integers(3, 5)
    signs = np.outer(draws.choice([-1, 1], visible), draws.choice([-1, 1], hidden))
    W = draws.uniform(3.5, 5) * signs * draws.uniform(0.8, 1.2, size=signs.shape)
    tilt = 0.1 * draws.normal(size=visible)
    return layer_of(W, tilt - W.sum(axis=1) / 2, -W.sum(axis=0) / 2)


def mixing_of(layer: DenseLayer, seed: int, steps: int = STEPS) -> Mixing:
    X = drawn_from(layer, 500, np.random.default_rng(seed))
    return Stack((layer,)).mixing(X, steps=steps, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_models_that_mix_are_said_to_mix(seed):
    layer = random_layer(np.random.default_rng(seed))
    assert relaxation(layer) < STEPS / 50
    (sentence,) = mixing_of(layer, seed).sentences()
    assert sentence.startswith(MIXED), "and not that the model is wrong"


@pytest.mark.parametrize("seed", range(20))
def test_models_that_do_not_mix_are_said_not_to(seed):
    layer = layer_with_modes(np.random.default_rng(seed))
    assert relaxation(layer) > 5 * STEPS
    assert mixing_of(layer, seed).sentences()[0].startswith(NOT_MIXED)


def two_modes(weight: float, tilt: float) -> DenseLayer:
    W = np.full((6, 3), weight)
    return layer_of(W, np.full(6, tilt - 1.5 * weight), np.full(3, -3 * weight))


def exact_share(layer: DenseLayer) -> float:
    """Return the probability that more than half of the visible units are on."""
    W, a, b = parameters_of(layer)
    v = states(len(a))
    logs = v @ a + np.logaddexp(0, v @ W + b).sum(axis=1)
    p = np.exp(logs - np.logaddexp.reduce(logs))
    on = v.sum(axis=1)
    return float(p[on > 3].sum() + p[on == 3].sum() / 2)


MODES = np.float32([[1] * 6] * 50 + [[0] * 6] * 50)
LABELS = ["on"] * 50 + ["off"] * 50


def test_a_wrong_model_is_told_from_chains_that_do_not_mix():
    """The chains stay where the data are; annealing finds what the model prefers."""
    layer = two_modes(4, 0.5)
    found = Stack((layer,)).mixing(MODES, LABELS, steps=300)
    assert found.regions == ("off", "on")
    np.testing.assert_allclose(found.occupancy["data"], 0.5)
    np.testing.assert_allclose(found.occupancy["from data"], 0.5, atol=0.25)
    assert exact_share(layer) > 0.9
    assert found.occupancy["AIS"][1] == pytest.approx(exact_share(layer), abs=0.1)
    assert found.log_z is not None
    assert found.log_z.low < found.log_z.value < found.log_z.high
    assert 50 < found.annealed_samples <= 100
    first, second = found.sentences()
    assert first.startswith(NOT_MIXED)
    assert second.startswith("the model may be wrong: by AIS")
    assert "more chains, a longer k, the centred gradient" in second


def test_a_wrong_model_that_mixes_is_said_to_be_wrong():
    first, second = Stack((two_modes(0.3, 1),)).mixing(MODES, LABELS, steps=300).sentences()
    assert first.startswith(MIXED)
    assert second.startswith("the model is wrong: by the chains")
    assert "in region on, and 50 % of the data" in second.replace("off", "on")


def test_stacked_tempering_mixes_where_gibbs_does_not():
    upper = layer_of(np.full((3, 1), 2), np.full(3, -1), np.full(1, -3))
    stack = Stack((two_modes(4, 0), upper))
    options = {"labels": LABELS, "level": 1, "steps": 600}
    gibbs, stacked = (stack.mixing(MODES, method=x, **options) for x in ("gibbs", "stacked"))
    assert not gibbs.mixed
    assert stacked.mixed
    assert gibbs.acceptance == []
    assert 0.3 < stacked.acceptance[0] < 0.6
    np.testing.assert_allclose(stacked.occupancy["from noise"], 0.5, atol=0.1)
    assert "swaps of levels 1 and 2" in stacked.figures()[-1]


@pytest.mark.parametrize("w", [0.5, 0.8])
def test_the_autocorrelation_time_is_the_one_of_a_known_process(w):
    """v of the RBM with one Gaussian unit a side is an AR(1) process with the coefficient w^2."""
    units = {"hidden_units": "gaussian", "visible_units": "gaussian"}
    layer = DenseLayer(*map(np.float32, ([[w]], [0], [0])), **units)
    X = np.random.default_rng(0).normal(size=(200, 1)).astype(np.float32)
    found = Stack((layer,)).mixing(X, chains=400, steps=400)
    expected = (1 + w**2) / (1 - w**2)
    assert found.autocorrelation == pytest.approx(expected, rel=0.2)
    assert found.samples == pytest.approx(800 * 200 / expected, rel=0.2)
    assert found.mixed
    assert found.log_z is None, "Gaussian hidden units are not enumerated"
    assert "AIS" not in found.occupancy


def test_labels_that_are_too_many_give_way_to_two_clusters():
    found = Stack((two_modes(0.3, 0),)).mixing(MODES, np.arange(100), steps=20)
    assert found.regions == ("A", "B")
    np.testing.assert_allclose(found.occupancy["data"], 0.5)
    head, rows = found.rows()
    assert head == ("region", "data", "from data", "from noise", "AIS")
    assert rows[0][:2] == ("A", "50.0 %")


def test_equal_examples_have_one_region():
    assert Stack((two_modes(0.3, 0),)).mixing(MODES[:10], steps=20).occupancy["data"].max() == 1


@pytest.mark.parametrize(
    "wrong", [{"chains": 9}, {"steps": 3}, {"X": MODES[:1]}, {"X": np.full_like(MODES, np.nan)}]
)
def test_too_little_is_refused(wrong):
    with pytest.raises(DataError, match="expected 2, 10 and 4 or more"):
        Stack((two_modes(1, 0),)).mixing(**{"X": MODES, **wrong})


def test_weights_of_rows_weigh_the_shares_of_the_data():
    layer = two_modes(0.3, 1)
    right = exact_share(layer)
    weights = np.where(np.array(LABELS) == "on", right, 1 - right)
    found = Stack((layer,)).mixing(MODES, LABELS, weights=weights, steps=300)
    assert found.occupancy["data"][1] == pytest.approx(right)
    assert found.effective_examples == pytest.approx(weights.sum() ** 2 / np.square(weights).sum())
    assert len(found.sentences()) == 1
    assert "is wrong" in Stack((layer,)).mixing(MODES, LABELS, steps=300).sentences()[1]
    with pytest.raises(DataError, match=r"weights: got shape \(3,\)"):
        Stack((layer,)).mixing(MODES, weights=[1, 2, 3])


def test_unweighted_shares_do_not_judge_a_weighted_model():
    found = Stack((two_modes(0.3, 1),)).mixing(MODES, LABELS, steps=300)
    assert replace(found, is_weighted_alike=False).sentences()[1].endswith("do not judge the model")


NO_CLASSES = "got {}, expected two classes or more"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        *((labels, r"got .*expected \(?100") for labels in (LABELS[:5], LABELS * 2, "ab")),
        *((labels, r"got .*expected \(?100") for labels in (np.zeros((100, 1)), [[1], [1, 2]])),
        (["a"] * 100, NO_CLASSES.format(r"the classes \['a'\]")),
        ([3] * 99 + [-1], NO_CLASSES.format(r"the classes \['3'\]")),
        ([-1] * 100, NO_CLASSES.format(r"the classes \[\]")),
        (np.arange(100) / 8, NO_CLASSES.format("0.125, which is no class")),
        ([None, *np.arange(99) / 8], NO_CLASSES.format("0.125, which is no class")),
        (np.repeat([1, np.inf], 50), NO_CLASSES.format("inf, which is no class")),
    ],
)
def test_labels_that_are_no_two_classes_of_the_rows_are_refused(labels, message):
    with pytest.raises(DataError, match=f"^labels: {message}"):
        Stack((two_modes(1, 0),)).mixing(MODES, labels, steps=20)


@pytest.mark.parametrize("labels", [["a"] * 100, np.arange(100) / 8, [-1] * 99 + [2], None])
def test_a_report_takes_two_clusters_where_labels_are_no_classes(labels):
    shown = Shown(MODES, None if labels is None else np.asarray(labels), "x")
    assert mixing_shown(Stack((two_modes(0.3, 0),)), shown, steps=20).regions == ("A", "B")


@pytest.mark.parametrize("lost", [np.nan, None, -1, -1.0, ""])
def test_no_class_makes_no_region(lost):
    own = ["a", "b"] if isinstance(lost, str) else [1.0, 2.0]
    labels = [own[0]] * 40 + [lost] * 20 + [own[1]] * 40
    found = Stack((two_modes(0.3, 0),)).mixing(MODES, labels, steps=20)
    assert found.regions == tuple(map(str, own))
    np.testing.assert_allclose(found.occupancy["data"], 0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_refused(value):
    layer = two_modes(1, 0)
    layer.weight[0, 0] = value
    for call in (partial(Stack((layer,)).mixing, MODES), partial(Stack((layer,)).sample, 3)):
        for level in (None, 1):
            with pytest.raises(DataError, match="layer 1 has weights that are NaN or infinite"):
                call(level=level, steps=20)


def test_tempering_is_advised_where_it_is_possible():
    lower, upper = two_modes(6, 0), layer_of(np.zeros((3, 1)), np.full(3, -9), np.zeros(1))
    alone, both = Stack((lower,)), Stack((lower, upper))
    how = {"level": 1, "steps": 40}
    said = [x.sentences()[0] for x in (alone.mixing(MODES, **how), both.mixing(MODES, **how))]
    assert all(x.startswith(NOT_MIXED) for x in said)
    assert [x.endswith("or method stacked") for x in said] == [False, True]
    stacked = both.mixing(MODES, method="stacked", **how).sentences()[0]
    assert stacked.startswith(NOT_MIXED)
    assert stacked.endswith("take more steps")


def test_counts_cannot_start_at_noise():
    layer = replace(two_modes(1, 0), visible_units="counts:6")
    with pytest.raises(DataError, match="mixing: got an RBM of counts"):
        Stack((layer,)).mixing(MODES, steps=20)


@pytest.mark.parametrize("value", [2.5, "5", True])
@pytest.mark.parametrize("name", ["count", "steps", "level", "chains", "layer"])
def test_numbers_are_whole(name, value):
    stack = Stack((two_modes(1, 0),))
    call = {"chains": stack.mixing, "layer": stack.chains}.get(name, stack.sample)
    given = {stack.mixing: {"X": MODES}, stack.chains: {}}.get(call, {"count": 5})
    with pytest.raises(DataError, match=rf"^{name}: got {value!r}, expected a whole number"):
        call(**given | {name: value})


def test_samples_of_bytes_are_a_start_as_prepared_rows():
    X = np.random.default_rng(0).integers(256, size=(40, 9), dtype=np.uint8)
    stack = pretrain(X, hidden=[4], epochs=1, batch_size=10, warn=False)
    samples = stack.sample(5, level=1, steps=3)
    again = stack.for_prepared_rows().sample(5, level=1, steps=3, start=samples)
    assert set(np.unique(again)) == {0, 1}
