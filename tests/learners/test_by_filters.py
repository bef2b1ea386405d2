"""Steps of convolutional layers whose filters and channels are dealt out."""

import numpy as np
import pytest
from learnersteps import assert_close

from syncpretrain.errors import SettingsError
from syncpretrain.learners.convolution import RBMByFilters
from syncpretrain.learners.steps import WholeStep
from syncpretrain.pretraining.build import build_learner, step_for
from syncpretrain.settings import settings_from

pytestmark = pytest.mark.usefixtures("forked_layers")
TEXT = "2x6x6,conv:4x3,conv:6x2:1{}"
POOLED = TEXT.format(",pool:5")
SMALL = "1x4x4,conv:4x3,2"
BY_EXAMPLES = [  # what convolutions have with that split alone, and what a refusal calls it
    ("persistent", True, "it"),
    ("hidden_dropout", 0.5, "0.5"),
    ("sample_visible", True, "it"),
    ("sample_input", True, "it"),
]
KINDS = {
    "autoencoder": {"model": "autoencoder"},
    "untied": {"model": "autoencoder", "tied": False, "loss": "squared"},
    "rbm": {"model": "rbm"},
    "rbm of three steps": {"model": "rbm", "cd_steps": 3, "sparsity_cost": 0.0},
}


def learner(kind, text=POOLED, layer=2, **changed):
    """Return a learner of a stack's layer with weights that matter.

    Of three shards, the first one has no channel of layer 1.
    """
    settings = settings_from(text, **{"batch_size": 7, **KINDS[kind], **changed})
    found = build_learner(settings.pretrain, layer)
    draw = np.random.default_rng(1)
    for parameter in found.parameters:
        parameter[:] = draw.normal(0, 0.4, parameter.shape)
    return found


def pictures(shape, rows=7):
    return np.random.default_rng(2).random((rows, shape.visible), dtype=np.float32)


def step_of(one, shards=None):
    """Take two steps, whole or in shards; return the errors and the parameters."""
    step = WholeStep(one) if shards is None else step_for(one, shards, "filters")
    X = pictures(one.current().shape)
    errors = [step.train_step(X, np.arange(7), epoch=1, step=s) for s in (0, 1)]
    return errors, one.parameters


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("pooling", ["", ",pool:5", ",pool:5:mean", "/2,pool:5"])
@pytest.mark.parametrize("kind", ["autoencoder", "untied"])
def test_a_step_is_the_whole_one_up_to_rounding(kind, pooling, layer):
    text = TEXT.format(pooling)
    errors, parameters = step_of(learner(kind, text, layer), 3)
    wanted, whole = step_of(learner(kind, text, layer))
    np.testing.assert_allclose(errors, wanted, rtol=1e-5)
    assert_close(parameters, whole)


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("kind", ["rbm", "rbm of three steps"])
def test_a_step_of_an_rbm_whose_units_are_certain_is_the_whole_one(kind, layer):
    """Weights so large that no unit is left to chance, which every shard has its own of."""
    certain, whole = (learner(kind, POOLED, layer, visible_units="gaussian") for _ in range(2))
    for one in (certain, whole):
        one.weight *= 1e6
    errors, parameters = step_of(certain, 3)
    wanted, whole_parameters = step_of(whole)
    np.testing.assert_allclose(errors, wanted, rtol=1e-4)
    for mine, theirs in zip(parameters, whole_parameters, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("kind", ["rbm", "rbm of three steps"])
def test_one_shard_draws_what_the_whole_layer_draws(kind):
    found, whole = learner(kind), learner(kind)
    X, rows = pictures(whole.current().shape), np.arange(7)
    errors = [
        step.train_step(X, rows, epoch=1, step=0)
        for step in (RBMByFilters(found, 1), WholeStep(whole))
    ]
    assert errors[0] == pytest.approx(errors[1], rel=1e-5)
    assert_close(found, whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["", ",pool:5", ",pool:5:mean"])
def test_what_it_hands_up_is_the_code_before_the_update(kind, pooling):
    one = learner(kind, TEXT.format(pooling))
    step, X = step_for(one, 3, "filters"), pictures(one.current().shape, 5)
    expected, found = one.snapshot().up(X), np.empty((5, one.current().shape.hidden), np.float32)
    step.train_step(X, np.arange(5), epoch=1, step=0)
    if step.hand_up(found):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    else:
        assert pooling.endswith("mean")
        assert kind.startswith("rbm")


@pytest.mark.parametrize(
    ("layers", "asked", "message"),
    [
        ("4,3", {}, "split: got filters for layers without convolutions"),
        ("4,3", {"split": "hybrid"}, "split: got hybrid for layers without convolutions"),
        (
            SMALL,
            {"shards": (5, 1)},
            "shards: got 5 for layer 1, expected at most 4, the filters there are",
        ),
        (
            SMALL,
            {"split": "hybrid", "shards": (1, 2), "model": "denoising"},
            "split: got hybrid with model denoising, expected examples; only RBMs are split",
        ),
        (
            SMALL.replace(",2", ",pool:2:prob,2"),
            {"shards": 2},
            "split: got filters for layer 1, a convolution, expected examples with pooling by",
        ),
        *(
            (
                SMALL,
                {"shards": (2, 1), name: value},
                f"{name}: got {got} for layer 1, a convolution, expected split examples with it",
            )
            for name, value, got in BY_EXAMPLES
        ),
    ],
)
def test_what_is_not_split_so(layers, asked, message):
    with pytest.raises(SettingsError) as caught:
        settings_from(layers, **{"split": "filters", **asked})
    assert str(caught.value).startswith(message)
