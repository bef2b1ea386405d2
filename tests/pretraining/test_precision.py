"""Training with products of bfloat16: near float32, and the same bits however it is run."""

import numpy as np
import pytest
from densechains import make_chain, make_examples
from linkedchains import interpreted
from minibatches import gradient, place
from onelayer import layer_settings
from randomstacks import normal_stack
from roundedgradients import ROUNDING, away, gradients
from sparsematrices import csr
from trialruns import never, stop_after

from syncpretrain import Stack, finetune, pretrain
from syncpretrain.backends.base import Backend
from syncpretrain.errors import RunInterrupted, SettingsError, SyncpretrainError
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.options import tuning_precision
from syncpretrain.kernels import native
from syncpretrain.kernels.activations import means
from syncpretrain.kernels.precision import multiply_bfloat16
from syncpretrain.kernels.program import in_turn
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.rbm import RBM
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.precision_choice import resolve_precision
from syncpretrain.pretraining.build import build_learners, step_for
from syncpretrain.settings import FinetuneSettings, MomentumSchedule, settings_from

LAYERS = (16, 12, 8, 5)
BASE = {"layers": LAYERS, "epochs": 2, "batch_size": 20, "seed": 3, "precision": "bfloat16"}
MODELS = {
    "rbm": {},
    "persistent": {"persistent": True, "cd_steps": (1, 2, 1), "hidden_dropout": (0.5, 0, 0.2)},
    "rectified": {"visible_units": "gaussian", "hidden_units": "relu", "learning_rate": 0.005},
    "autoencoder": {"model": "autoencoder"},
    "denoising": {"model": "denoising", "corruption": "masking:0.3", "tied": False},
    "contractive": {"model": "contractive"},
}
PLACES = [("serial", 1), ("threads", 1), ("threads", 2)]

COMMON = {"batch_size": 8, "learning_rate": 0.1, "momentum": MomentumSchedule("0.9"), "seed": 5}


def sums_of(X, wanted):
    return {pretrain(X, **(BASE | settings)).parameters_sha256 for settings in wanted}


def made(kind, precision, **changed):
    return kind(2, 23, 17, layer_settings(**(COMMON | changed), precision=precision))


PRODUCTS = 4  # of a learner, one behind the other
GAUSSIAN = {"hidden_units": "gaussian", "visible_units": "gaussian"}
LEARNERS = {
    "autoencoder": (Autoencoder, {}),
    "untied": (Autoencoder, {"tied": False, "loss": "squared"}),
    "linear": (Autoencoder, GAUSSIAN | {"loss": "squared"}),
    "contractive": (Autoencoder, {"contraction": 0.1}),
    "rbm of gaussian units": (RBM, GAUSSIAN),
}


@pytest.mark.parametrize("what", LEARNERS)
def test_gradients_of_a_layer_are_those_of_float32_up_to_rounding(what):
    kind, own = LEARNERS[what]
    X = np.random.default_rng(1).random((8, 23), dtype=np.float32)
    exact, found = (gradients(made(kind, name, **own), X) for name in ("float32", "bfloat16"))
    assert 0 < away(found, exact) < 2 * PRODUCTS * ROUNDING


def test_whole_numbers_train_alike_in_both_precisions():
    X = np.random.default_rng(1).integers(0, 2, (8, 23)).astype(np.float32)
    kind, own = LEARNERS["linear"]
    pair = [made(kind, name, **own) for name in ("float32", "bfloat16")]
    for exact, found in zip(*(gradients(each, X, whole=True) for each in pair), strict=True):
        assert exact.any()
        np.testing.assert_array_equal(found, exact)


def network(chain, precision, **options):
    given = {"split": "units", "backend": Backend(), "batch_size": 6} | options
    return Network(chain, precision=precision, **given)


@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize(
    ("kinds", "loss"),
    [
        (("bernoulli", "relu", "softmax"), "cross-entropy"),
        (("tanh", "gaussian", "gaussian"), "squared"),
    ],
)
def test_gradients_of_a_network_are_those_of_float32_up_to_rounding(kinds, loss, split):
    chain = make_chain(kinds, dtype=np.float32)
    x, target = make_examples(kinds[-1], dtype=np.float32)
    found, losses = {}, {}
    for precision in ("float32", "bfloat16"):
        tuned = network(chain, precision, loss=loss, split=split, shards=2)
        gradient(tuned, x, target, epoch=1, step=0)
        found[precision] = [tuned.gradients.copy()]
        losses[precision] = tuned.loss_of_minibatch()
    depth = 2 * len(chain)
    assert 0 < away(found["bfloat16"], found["float32"]) < 2 * depth * ROUNDING
    assert 0 < abs(losses["bfloat16"] / losses["float32"] - 1) < 2 * depth * ROUNDING


def test_a_network_multiplies_in_its_precision_and_leaves_the_chain():
    chain = make_chain(("relu", "relu", "gaussian"), dtype=np.float32)
    assert products_of(network(chain, "bfloat16", loss="squared")) == {"matmul_bfloat16"}
    assert all(link.precision == "float32" for link in chain), "those given stay"
    assert products_of(network(chain, "float32", loss="squared")) == {"matmul"}


def products_of(network):
    """Return the operations by which a step of a network multiplies matrices."""
    place(network, *make_examples("gaussian", dtype=np.float32))
    phases = network.program().operations
    names = {operation[0] for phase in phases for shard in phase for operation in shard}
    return {name for name in names if name.startswith("matmul")}


@pytest.mark.skipif(native.extension is None, reason="the compiled kernels are not there")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("cd_steps", [1, 2])
def test_a_compiled_step_has_the_bits_of_the_interpreted_one(shards, cd_steps):
    X = np.random.default_rng(3).random((40, 23), dtype=np.float32)
    both = []
    for run in (in_turn, interpreted):
        learner = made(RBM, "bfloat16", cd_steps=cd_steps)
        step = step_for(learner, shards, "units")
        for number in range(4):
            rows = np.arange(number, number + 8)
            step.train_step(X, rows, epoch=1, step=number, run=run)
        both.append(learner.parameters)
    for one, other in zip(*both, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("model", MODELS)
def test_the_precision_matters(bits, model):
    exact = MODELS[model] | {"precision": "float32"}
    assert len(sums_of(bits, [MODELS[model], exact])) == 2


@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_layers_hand_their_means_up_in_the_precision_of_training(bits, model):
    settings = {"model": model, "schedule": "greedy", "blas_threads": 1}
    stack = pretrain(bits, **(BASE | settings))
    X, layers = bits, []
    with blas_limit(1):
        for learner in build_learners(settings_from(**(BASE | settings)).pretrain):
            step = step_for(learner, 1, "examples")
            learner.start(X)
            for epoch in (1, 2):
                train_epoch(learner, step, X, epoch=epoch, stop=never, progress=lambda _: None)
            layers.append(learner.snapshot())
            X = multiply_bfloat16(X, learner.weight)
            means(X, learner.hidden_bias, "bernoulli")
    assert Stack(tuple(layers)).parameters_sha256 == stack.parameters_sha256


def test_a_trained_stack_computes_in_float32(bits):
    stack = pretrain(bits, **BASE)
    assert {layer.precision for layer in stack.layers} == {"float32"}
    assert stack.info["pretrain"]["precision"] == "bfloat16"
    expected = bits
    for layer in stack.layers:
        expected = means(expected @ layer.weight, layer.hidden_bias, "bernoulli")
    np.testing.assert_allclose(stack.encode(bits), expected, rtol=1e-5)


def test_a_folder_goes_on_in_its_precision(bits, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(RunInterrupted):
        stop_after(patch, 12)
        pretrain(bits, **BASE, resume=tmp_path)
    with pytest.raises(SyncpretrainError, match="precision"):
        pretrain(bits, **(BASE | {"precision": "float32"}), resume=tmp_path)
    found = pretrain(bits, **BASE, resume=tmp_path)
    assert found.parameters_sha256 == pretrain(bits, **BASE).parameters_sha256


def tuned(X, y=None, *, stack=None, **settings):
    given = {"epochs": 2, "batch_size": 20, "blas_threads": 1, "precision": "bfloat16"}
    return finetune(stack or normal_stack((16, 12, 6), scale=0.5), X, y, **(given | settings))


TUNING = {
    "adam": {},
    "nesterov": {"optimizer": "sgd", "momentum": 0.5, "nesterov": True},
    "dropout": {"dropout": 0.3, "input_dropout": 0.1},
}


@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("variant", [*TUNING, "convolutions"])
def test_replicas_of_fine_tuning_end_in_the_same_bits(bits, variant, split):
    settings = TUNING.get(variant, {}) | {"split": split, "shards": 3}
    if variant == "convolutions":
        text = "1x4x4,conv:3x3,pool:2,6"
        settings["stack"] = pretrain(bits, layers=text, epochs=1, batch_size=20)
    y = None if variant == "dropout" else np.arange(len(bits)) % 3
    sums = {tuned(bits, y, **settings, replicas=n).parameters_sha256 for n in (1, 2)}
    assert len(sums) == 1
    exact = tuned(bits, y, **settings, precision="float32").parameters_sha256
    assert exact not in sums, "the precision matters"


def test_a_tuned_stack_is_near_that_of_float32(bits):
    rough, exact = (tuned(bits, precision=name) for name in ("bfloat16", "float32"))
    pair = ([layer.weight for layer in stack.layers] for stack in (rough, exact))
    assert 0 < away(*pair) < ROUNDING
    assert {layer.precision for layer in rough.layers} == {"float32"}
    assert rough.info["finetune"][0]["precision"] == "bfloat16"


@pytest.mark.parametrize("persistent", [True, False])
def test_products_of_sparse_rows_stay_those_of_float32(bits, persistent):
    """With persistent chains all products of a layer are sparse, else also its dense ones."""
    wanted = BASE | {"persistent": persistent}
    rough, exact = (
        pretrain(csr(bits), **(wanted | {"precision": name})) for name in ("bfloat16", "float32")
    )
    assert np.array_equal(rough.layers[0].weight, exact.layers[0].weight) == persistent
    assert away([rough.layers[0].weight], [exact.layers[0].weight]) < ROUNDING
    assert (rough.layers[1].weight != exact.layers[1].weight).any()
    assert len(sums_of(csr(bits), [{"runtime": "serial"}, {"runtime": "threads"}])) == 1


@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_convolutions_train_below_layers_of_bfloat16(bits, model):
    wanted = BASE | {"layers": "1x4x4,conv:3x3,pool:2,6", "model": model}
    rough, exact = (pretrain(bits, **(wanted | {"precision": p})) for p in ("bfloat16", "float32"))
    for own, other in zip(rough.layers, exact.layers, strict=True):
        assert 0 < away([own.weight], [other.weight]) < 10 * ROUNDING
    places = [{"runtime": runtime, "workers": workers} for runtime, workers in PLACES]
    assert len(sums_of(bits, [wanted | place for place in places])) == 1


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize("optimizer", ["cg", "lbfgs"])
def test_searches_are_refused_it(bits, optimizer, precision):
    message = f"precision: got {precision} with optimizer {optimizer}, whose searches need exact"
    with pytest.raises(SettingsError, match=message):
        settings_from(LAYERS, finetune={"optimizer": optimizer, "precision": precision})
    with pytest.raises(SettingsError, match=message):
        tuned(bits, optimizer=optimizer, precision=precision)


@pytest.mark.parametrize("name", ["bfloat", "float16", "BFLOAT16", "", 16])
def test_an_unknown_precision_is_refused_with_those_there_are(name):
    expected = "text" if name == 16 else "float32 or tf32 or bfloat16 or auto"
    message = rf"precision: got {name!r}, expected {expected}"
    with pytest.raises(SettingsError, match=message):
        settings_from(LAYERS, precision=name)
    with pytest.raises(SettingsError, match=message):
        settings_from(LAYERS, finetune={"precision": name})


@pytest.mark.parametrize(("gain", "expected"), [(1.0, "float32"), (3.0, "bfloat16")])
def test_auto_is_bfloat16_where_it_was_measured_to_be_faster(bits, monkeypatch, gain, expected):
    monkeypatch.setattr("syncpretrain.parallel.precision_choice.bfloat16_gain", lambda: gain)
    stack, named = (pretrain(bits, **(BASE | {"precision": p})) for p in ("auto", expected))
    assert stack.info["pretrain"]["precision"] == expected
    assert stack.parameters_sha256 == named.parameters_sha256
    after = tuned(bits, precision="auto")
    assert after.info["finetune"][0]["precision"] == expected
    assert after.parameters_sha256 == tuned(bits, precision=expected).parameters_sha256
    searching = FinetuneSettings(optimizer="cg", precision="auto")
    assert tuning_precision(searching, "numpy") == "float32"
    assert resolve_precision("auto", "cupy") == "float32"
