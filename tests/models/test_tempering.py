"""Samples of stacks, by Gibbs and by stacked tempering, against enumerated distributions.

A Gaussian unit has a lattice of values: a sum over a lattice finer than the standard deviation is
the integral, up to exp(-2 (pi / spacing)^2), and swaps stay on the lattice.
"""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from binaryunits import states
from randomstacks import normal_stack
from scipy.stats import chi2

from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError
from syncpretrain.models import gibbs
from syncpretrain.models.gibbs import Levels, swap_cost
from syncpretrain.models.stack import DenseLayer, Stack
from syncpretrain.rng import Purpose, generator
from syncpretrain.units.kinds import kind_of

LATTICE = np.arange(-10, 10.25, 0.5)
CHOICES = np.eye(3)
STATES = {
    "bernoulli": states(2),
    "gaussian": LATTICE[:, None],
    "softmax:2x3": np.array([np.concatenate(pair) for pair in product(CHOICES, CHOICES)]),
    "bernoulli:1,softmax:1x3": np.array(
        [np.concatenate(pair) for pair in product(states(1), CHOICES)]
    ),
}
PAIRS = [  # kinds from the input up
    ("bernoulli", "bernoulli", "bernoulli"),
    ("gaussian", "bernoulli", "bernoulli"),
    ("bernoulli", "gaussian", "bernoulli"),
    ("gaussian", "gaussian", "bernoulli"),
    ("softmax:2x3", "bernoulli", "bernoulli"),
    ("bernoulli", "softmax:2x3", "bernoulli"),
    ("bernoulli:1,softmax:1x3", "bernoulli", "gaussian"),
    ("bernoulli", "bernoulli", "bernoulli", "bernoulli"),
    ("gaussian", "bernoulli", "gaussian", "bernoulli"),
    ("softmax:2x3", "bernoulli", "bernoulli", "gaussian"),
]


def make_stack(kinds: tuple[str, ...], seed: int) -> list[DenseLayer]:
    """Return RBMs in float64 with random parameters; Gaussian sides stay normalizable."""
    draws = np.random.default_rng(seed)
    layers = []
    for below, above in pairwise(kinds):
        visible, hidden = STATES[below].shape[1], STATES[above].shape[1]
        s = 0.5 if below == above == "gaussian" else 1
        weight, b, a = (draws.uniform(-s, s, size=x) for x in ((visible, hidden), hidden, visible))
        layers.append(DenseLayer(weight, b, a, hidden_units=above, visible_units=below))
    return layers


def own_energy(units: str, s: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return ((s - bias) ** 2).sum(axis=1) / 2 if units == "gaussian" else -s @ bias


def joint(layer: DenseLayer) -> np.ndarray:
    """Return p(v, h) of all states of an RBM by the energy's definition."""
    v, h = STATES[layer.visible_units], STATES[layer.hidden_units]
    energy = own_energy(layer.visible_units, v, layer.visible_bias)[:, None]
    energy = energy + own_energy(layer.hidden_units, h, layer.hidden_bias) - v @ layer.weight @ h.T
    p = np.exp(energy.min() - energy)
    return p / p.sum()


def of_all(layers: list[DenseLayer]) -> np.ndarray:
    """Return the joint distribution with the axes v1, h1, v2, h2, ..."""
    p = np.ones(())
    for layer in layers:
        p = np.multiply.outer(p, joint(layer))
    return p


def redrawn(p: np.ndarray, layers: list[DenseLayer], axis: int) -> np.ndarray:
    """Draw one side of one level given its other side."""
    own = joint(layers[axis // 2])
    shape = [1] * p.ndim
    first = axis - axis % 2
    shape[first : first + 2] = own.shape
    given = own / own.sum(axis=axis % 2, keepdims=True)
    return p.sum(axis=axis, keepdims=True) * given.reshape(shape)


def swapped(p: np.ndarray, layers: list[DenseLayer], pair: int, *, always: bool) -> np.ndarray:
    """Swap h of a level with v of the next as the package's cost of a swap says."""
    lower, upper = layers[pair : pair + 2]
    s = STATES[lower.hidden_units]
    i, j = (x.ravel() for x in np.indices((len(s), len(s))))
    cost = swap_cost(lower, upper, s[i], s[j])[0].reshape(len(s), len(s))
    accepted = np.ones_like(cost) if always else np.minimum(1, np.exp(-cost))
    shape = [1] * p.ndim
    own = 2 * pair + 1, 2 * pair + 2
    shape[own[0]], shape[own[1]] = cost.shape
    accepted = accepted.reshape(shape)
    return (accepted * p).swapaxes(*own) + (1 - accepted) * p


def stepped(
    p: np.ndarray, layers: list[DenseLayer], turn: list[int], *, always: bool = False
) -> np.ndarray:
    """Return the distribution one step after p: swaps, then new states as Levels draws them."""
    for pair in turn:
        p = swapped(p, layers, pair, always=always)
        for axis in (2 * pair, 2 * pair + 1, 2 * pair + 3):
            p = redrawn(p, layers, axis)
    for level in range(len(layers)):
        if level not in turn:
            for axis in (2 * level + 1,) * (level - 1 not in turn) + (2 * level,):
                p = redrawn(p, layers, axis)
    return p


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_step_leaves_the_joint_distribution(kinds):
    for seed in range(3):
        layers = make_stack(kinds, seed)
        p = of_all(layers)
        for turn in range(len(layers) - 1):
            np.testing.assert_allclose(stepped(p, layers, [turn]), p, atol=1e-12, rtol=0)
            broken = stepped(p, layers, [turn], always=True)
            assert np.abs(broken - p).sum() > 1e-3, "swapping always is noticed"


def test_the_order_of_the_draws_is_the_one_of_the_matrices(monkeypatch):
    """Levels draws what ``stepped`` draws, in its order, and swaps odd and even pairs in turn."""
    drawn: list[int | str] = []
    layers = [replace(layer) for layer in make_stack(PAIRS[7], 0)]

    class Recorded(Levels):
        def _drawn(self, x, rbm, *, up=True):
            drawn.append(2 * [id(y) for y in layers].index(id(rbm)) + up)
            return super()._drawn(x, rbm, up=up)

    chains = Recorded(layers, 5, generator(0, Purpose.SAMPLE))
    chains.rbms = layers
    for expected in ([0, 1, 3, 2, 5, 4], [2, 3, 5, 1, 0, 4], [0, 1, 3, 2, 5, 4]):
        drawn.clear()
        chains.step()
        assert drawn == expected
    assert chains.tried.tolist() == [10, 5]


def frequencies(*codes: np.ndarray) -> np.ndarray:
    """Return how often each joint state of some binary arrays occurs."""
    bits = np.concatenate(codes, axis=1).astype(int)
    return np.bincount(bits @ (1 << np.arange(bits.shape[1])[::-1]), minlength=2 ** bits.shape[1])


def marginal(layer: DenseLayer) -> np.ndarray:
    """Return p(v) of all states of binary visible units."""
    W, b, a = (np.float64(x) for _, x in layer.parameters())
    v = states(len(a))
    logs = v @ a + np.logaddexp(0, v @ W + b).sum(axis=1)
    return np.exp(logs - np.logaddexp.reduce(logs))


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = counts.sum() * p
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("start", [None, np.ones((20_000, 4), np.float32)], ids=["noise", "data"])
def test_three_levels_have_the_frequencies_of_their_rbms(start):
    layers = normal_stack((4, 3, 2, 2), scale=1.5, seed=5).layers
    options = {"level": 1, "method": "stacked", "count": 20_000}
    chains = gibbs.started(layers, start, **options, draws=generator(3, Purpose.SAMPLE))
    for _ in range(60):
        chains.step()
    p1, p2 = marginal(layers[0]), marginal(layers[1])
    assert chi_square(frequencies(chains.visible[0]), p1) < chi2.isf(1e-4, 15)
    assert chi_square(frequencies(chains.visible[0]), np.roll(p1, 1)) > chi2.isf(1e-4, 15)
    # The levels are independent of each other.
    both = frequencies(*chains.visible[:2])
    assert chi_square(both, np.outer(p1, p2).ravel()) < chi2.isf(1e-4, 127)


def test_one_level_is_sampled_by_gibbs_as_states_in_data_units():
    lower, top = make_stack(("gaussian", "bernoulli", "bernoulli"), 1)
    stack = Stack((lower, top))
    found = stack.sample(4000, level=2, steps=30)
    assert set(np.unique(found)) == {0, 1}
    p = joint(top).sum(axis=1) @ STATES["bernoulli"]
    np.testing.assert_allclose(found.mean(axis=0), p, atol=5 * 0.5 / np.sqrt(4000))
    own = joint(lower).sum(axis=1)
    found = stack.sample(4000, level=1, steps=30).mean()
    assert found == pytest.approx(float(own @ LATTICE), abs=0.15)


@pytest.mark.parametrize("method", ["gibbs", "stacked"])
def test_samples_go_on_from_the_chains_of_training(method):
    """Weights of 100 keep every unit where it is: a chain cannot leave its states."""
    weight = np.full((2, 1), 100, np.float32)
    halves = np.float32([-100]), np.float32([-50, -50])
    hidden = np.float32([[1], [0], [0], [1]])
    lower = DenseLayer(weight, *halves, chains=hidden)
    upper = DenseLayer(np.zeros((1, 2), np.float32), np.zeros(2, np.float32), np.float32([0]))
    stack = Stack((lower,) if method == "gibbs" else (lower, upper))
    if method == "stacked":  # a swap may turn both units of the input alone together
        found = stack.sample(3, method=method, start="chains", steps=1)
        assert found.shape == (3, 2)
        assert (found[:, 0] == found[:, 1]).all()
        return
    found = stack.sample(3, start="chains", steps=5)
    np.testing.assert_array_equal(found, np.repeat(hidden[:3], 2, axis=1))
    with pytest.raises(DataError, match="count: got 5, expected at most 4, the chains"):
        stack.sample(5, start="chains")
    with pytest.raises(DataError, match="layer 1 keeps no chains"):
        Stack((replace(lower, chains=None),)).sample(1, start="chains")
    with pytest.raises(DataError, match="start: got 'data', expected noise, chains, or"):
        stack.sample(1, start="data")


def test_samples_are_saved_and_repeat(tmp_path):
    stack = Stack(tuple(make_stack(PAIRS[4], 2)))
    options = {"level": 1, "steps": 7, "method": "stacked", "seed": 4}
    found = stack.sample(5, **options, save=tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), found)
    np.testing.assert_array_equal(stack.sample(5, **options), found)
    assert (found.reshape(5, 2, 3).sum(axis=2) == 1).all(), "one choice a group"
    np.testing.assert_array_equal(stack.sample(5, **options, start="noise"), found)
    assert (stack.sample(5, **options | {"seed": 5}) != found).any()


RELU = DenseLayer(*(np.zeros(x, np.float32) for x in ((3, 2), (2,), (3,))), hidden_units="relu")
LOWER = replace(RELU, hidden_units="bernoulli")
UPPER = DenseLayer(*(np.zeros(x, np.float32) for x in ((2, 2), (2,), (2,))))
TUNED = replace(UPPER, model="autoencoder")


@pytest.mark.parametrize(
    ("layers", "arguments", "message"),
    [
        ((RELU, replace(UPPER, visible_units="gaussian")), {}, "relu units of layer 1"),
        ((LOWER, TUNED), {}, "layer 2 is an autoencoder, or was fine"),
        ((LOWER, replace(UPPER, visible_units="gaussian")), {}, "layer 2 gaussian visible"),
        ((replace(LOWER, visible_units="counts:3"), UPPER), {}, "got stacked for counts:3"),
        ((LOWER,), {}, "two RBMs or more"),
        ((LOWER, UPPER), {"method": "tempered"}, "expected gibbs or stacked"),
        ((LOWER, UPPER), {"level": 3}, "expected 1 to 2"),
        ((LOWER, UPPER), {"level": 0}, "expected 1 to 2"),
        ((LOWER, UPPER), {"steps": 0}, "expected 1 or more"),
        ((LOWER, UPPER), {"start": "data"}, "examples as an array"),
        ((TUNED,), {"method": "gibbs"}, "before fine-tuning"),
        ((UPPER,), {"method": "gibbs", "count": 0}, "expected 1 or more"),
        ((UPPER,), {"method": "gibbs", "steps": 0}, "expected 1 or more"),
        ((UPPER,), {"method": "gibbs", "start": np.zeros((3, 2))}, "3 examples for 2 chains"),
        ((UPPER,), {"method": "gibbs", "start": np.zeros((2, 3))}, "start: got"),
        *(
            ((LOWER, UPPER), {"save": save}, "^save: got .*, expected a file that ends in .npy")
            for save in (5, True, "x.txt", "x.csv", ["x.npy"])
        ),
        ((LOWER, UPPER), {"save": "no/x.npy"}, "expected a file in a folder that exists"),
        ((LOWER, UPPER), {"start": np.zeros((3, 3))}, "3 examples for 2 chains"),
    ],
)
def test_what_has_no_tempering_is_refused_before_any_step(monkeypatch, layers, arguments, message):
    monkeypatch.setattr(gibbs.Levels, "step", lambda self: pytest.fail("a step was made"))
    assert kind_of("relu").energy is None
    with pytest.raises(DataError, match=message):
        Stack(layers).sample(**{"count": 2, "method": "stacked", **arguments})


def test_float32_loses_nothing_that_an_acceptance_needs():
    draws = np.random.default_rng(0)
    shapes = [((784, 64), (64,), (784,)), ((64, 24), (24,), (64,))]
    layers = [DenseLayer(*(0.3 * draws.normal(size=s) for s in own)) for own in shapes]
    single = [DenseLayer(*(np.float32(x) for _, x in layer.parameters())) for layer in layers]
    h, v = (np.float64(draws.random((50, 64)) < 0.5) for _ in range(2))
    expected = swap_cost(*layers, h, v)[0]
    found = swap_cost(*single, np.float32(h), np.float32(v))[0]
    assert np.abs(expected).max() > 10
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.005)


@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_the_top_dreams_and_the_layers_below_decode(model):
    lower, top = normal_stack((7, 5, 4)).layers
    lower = replace(lower, model=model)
    dreams = Stack((top,)).sample(6, steps=5)
    expected = 1 / (1 + np.exp(-(dreams @ lower.weight.T + lower.visible_bias)))
    np.testing.assert_allclose(Stack((lower, top)).sample(6, steps=5), expected, rtol=1e-5)


def test_a_chain_remembers_its_start():
    stiff = DenseLayer(*(np.float32(x) for x in (200 * np.eye(4), [-100] * 4, [-100] * 4)))
    start = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(Stack((stiff,)).sample(4, steps=9, start=start), start, atol=1e-6)


def test_gaussian_dreams_have_the_mean_of_the_rbm_in_data_units():
    """Without weights v ~ N(a, 1); the last way down keeps the means, which are a."""
    arrays = map(np.float32, (np.zeros((2, 3)), [0, 0, 0], [0.5, -2]))
    layer = DenseLayer(*arrays, visible_units="gaussian")
    scaling = Scaling(np.float32([100, 0]), np.float32([10, 1]))
    samples = Stack((layer,), scaling=scaling).sample(4, steps=3)
    np.testing.assert_allclose(samples, [[105, -2]] * 4, rtol=1e-6)


def test_the_joint_gaussian_of_linear_units_is_sampled():
    """E = (v^2 + h^2) / 2 - w v h: v has variance 1 / (1 - w^2), its last mean w h."""
    w, units = 0.6, {"hidden_units": "gaussian", "visible_units": "gaussian"}
    layer = DenseLayer(*map(np.float32, ([[w]], [0], [0])), **units)
    means = Stack((layer,)).sample(40_000, steps=25)
    expected = w**2 / (1 - w**2)  # of w h, where h has the variance of v
    assert means.var() == pytest.approx(expected, rel=5 * np.sqrt(2 / 40_000))
