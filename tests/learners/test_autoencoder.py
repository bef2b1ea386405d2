import numpy as np
import pytest
from learnersteps import assert_close, assert_same_bits, slopes_of, usual
from onelayer import set_parameters
from unitkinds import KINDS, MEANS, SLOPES, UNITS, logistic

from syncpretrain.kernels.backprop import corrupt
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.steps import WholeStep
from syncpretrain.pretraining.build import build_learners
from syncpretrain.rng import Purpose, generator
from syncpretrain.settings import settings_from

VISIBLE, HIDDEN, BATCH = 5, 4, 8
CORRUPTIONS = [("masking", 0.3), ("salt-and-pepper", 0.3), ("gaussian", 0.3)]
OUTPUTS = [(units, "squared") for units in sorted({KINDS[name].above for name in UNITS})]
OUTPUTS += [(units, "cross-entropy") for units, _ in OUTPUTS if KINDS[units].loss != "squared"]


def make(visible: int = VISIBLE, hidden: int = HIDDEN, **changed) -> Autoencoder:
    return Autoencoder(2, visible, hidden, usual(**{"batch_size": BATCH, **changed}))


def examples(n: int = BATCH) -> np.ndarray:
    return np.random.default_rng(1).random((n, VISIBLE)).astype(np.float32)


def loss(parameters, settings, x: np.ndarray, z: np.ndarray) -> float:
    """What is trained on, word for word: the Jacobian of the penalty is written out."""
    W, a, b, *own = parameters
    h = MEANS[settings.hidden_units](z @ W + b)
    y = MEANS[settings.visible_units](h @ (own[0] if own else W.T) + a)
    if settings.loss == "squared":
        total = np.square(y - x).sum()
    else:
        total = -(x * np.log(y) + (1 - x) * np.log(1 - y)).sum()
    jacobian = SLOPES[settings.hidden_units](h)[:, :, None] * W.T  # (B, H, V)
    return (total + settings.contraction * np.square(jacobian).sum()) / len(x)


def gradient(learner: Autoencoder, X: np.ndarray, *, epoch: int = 2, step: int = 5):
    learner.gradient(X, np.arange(len(X)), epoch=epoch, step=step)
    return [g.copy() for g in learner.gradients]


def assert_downhill(learner: Autoencoder, X: np.ndarray, z: np.ndarray) -> None:
    """Compare the gradient with the slopes of the loss of reconstructing X from z."""
    parameters = set_parameters(learner)
    wanted = learner.settings, np.float64(X), np.float64(z)
    slopes = slopes_of(lambda own: loss(own, *wanted), parameters)
    assert_close(gradient(learner, X), [-slope for slope in slopes], rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize(("visible_units", "measure"), OUTPUTS)
@pytest.mark.parametrize("hidden_units", UNITS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_the_gradient_is_the_way_down_the_loss(visible_units, measure, hidden_units, tied, penalty):
    kinds = {"visible_units": visible_units, "hidden_units": hidden_units}
    learner = make(**kinds, loss=measure, tied=tied, contraction=penalty)
    assert len(learner.parameters) == (3 if tied else 4)
    assert_downhill(learner, examples(7), examples(7))


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_a_denoising_one_reads_noisy_copies_and_is_judged_by_the_clean_examples(
    corruption, penalty
):
    z = examples()
    corrupt(z, *corruption, generator(3, Purpose.CORRUPTION, layer=2, epoch=2, step=5))
    assert_downhill(make(corruption=corruption, contraction=penalty), examples(), z)


def test_salt_and_pepper_are_the_limits_of_the_input():
    corruption, limits = ("salt-and-pepper", 0.5), (-1, 2)
    learner = make(visible_units="gaussian", corruption=corruption, limits=limits)
    X = examples()
    noise = generator(3, Purpose.CORRUPTION, layer=2, epoch=2, step=5).random(X.shape, dtype="f4")
    assert_downhill(learner, X, np.select([noise < 0.25, noise < 0.5], [2, -1], X))


@pytest.mark.parametrize("below", UNITS)
def test_the_limits_are_those_of_the_units_below(below):
    given = {"model": "denoising", "hidden_units": (below, "relu"), "visible_units": "gaussian"}
    lowest, upper = build_learners(settings_from((5, 4, 3), **given).pretrain)
    kind = KINDS[below]
    assert lowest.settings.limits == (0, 1)
    assert upper.settings.limits == ((kind.lower, kind.upper) if kind.is_bounded else (0, 1))


@pytest.mark.parametrize("tied", [True, False])
def test_the_error_is_the_squared_one_whatever_the_loss(tied):
    X = examples()
    for measure in ("squared", "cross-entropy"):
        learner = make(loss=measure, tied=tied)
        W, a, b, *own = set_parameters(learner)
        y = logistic(logistic(X @ W + b) @ (own[0] if own else W.T) + a)
        expected = np.square(y - X).sum()
        reported = learner.gradient(X, np.arange(BATCH), epoch=1, step=0)
        assert reported == pytest.approx(expected, rel=1e-5)
        assert learner.validation_error(X) == pytest.approx(expected / BATCH, rel=1e-5)


def test_rows_of_the_data_are_gathered():
    X = examples(30)
    learner = make()
    learner.gradient(X, np.array([4, 29, 0]), epoch=1, step=0)
    some = [g.copy() for g in learner.gradients]
    assert_same_bits(some, gradient(learner, X[[4, 29, 0]]))


def noisy(kind: str, amount: float) -> np.ndarray:
    x = np.full((400, 500), 0.5, dtype=np.float32)
    corrupt(x, kind, amount, np.random.default_rng(2))
    return x


@pytest.mark.parametrize(
    ("kind", "shares"), [("masking", {0: 0.3}), ("salt-and-pepper", {0: 0.15, 1: 0.15})]
)
def test_noise_sets_a_share_to_its_limits(kind, shares):
    x = noisy(kind, 0.3)
    assert set(np.unique(x)) == {0.5, *shares}
    for value, share in shares.items():
        assert abs((x == value).mean() - share) < 5 * np.sqrt(share * (1 - share) / x.size)


def test_gaussian_noise_has_the_standard_deviation_asked_for():
    noise = np.float64(noisy("gaussian", 0.3)) - 0.5
    assert abs(noise.mean()) < 5 * 0.3 / np.sqrt(noise.size)
    assert abs(np.square(noise).mean() - 0.09) < 5 * 0.09 * np.sqrt(2 / noise.size)


def test_an_untied_one_starts_as_its_tied_twin_and_goes_its_own_way(bits):
    tied, untied = make(16, 6, tied=True), make(16, 6, tied=False)
    np.testing.assert_array_equal(untied.decoder_weight, tied.weight.T)
    WholeStep(untied).train_step(bits, np.arange(BATCH), epoch=1, step=0)
    assert not np.allclose(untied.decoder_weight, untied.weight.T)
    assert tied.snapshot().decoder_weight is None
