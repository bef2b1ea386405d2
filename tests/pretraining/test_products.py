"""Steps with own products: where they are taken, and the same bits in every runtime and form."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from syncpretrain import pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.kernels import native, precision
from syncpretrain.kernels.program import Program

pytestmark = pytest.mark.usefixtures("forked_layers")
FORMS = native.extension.float32_forms() if native.extension else ()
X = (np.random.default_rng(0).random((60, 20)) < 0.3).astype(np.float32)
BASE = {"layers": (20, 17, 9), "epochs": 2, "batch_size": 20, "seed": 3, "products": "own"}
PLACES = [("serial", 1), ("threads", 1), ("threads", 2), ("processes", 2)]
MODELS = {
    "rbm": {},
    "persistent": {"persistent": True, "cd_steps": (1, 2), "hidden_dropout": (0.5, 0)},
    "autoencoder": {"model": "autoencoder"},
    "shared by examples": {"replicas": 2, "shards": 2},
    "shared by units": {"replicas": 2, "shards": 2, "split": "units"},
    "streamed": {"handoff": "minibatch"},
}


def bits_of(**settings) -> str:
    return pretrain(X, **(BASE | settings)).parameters_sha256


@pytest.mark.parametrize("what", MODELS)
def test_every_runtime_has_the_same_bits(what):
    assert len({bits_of(**MODELS[what], runtime=run, workers=n) for run, n in PLACES}) == 1


@pytest.mark.skipif(native.extension is None, reason="the compiled kernels are not there")
@pytest.mark.parametrize("what", ["rbm", "shared by units"])
def test_every_form_of_the_products_has_the_same_bits(what):
    found = set()
    try:
        for form in FORMS:
            native.extension.keep_float32_form(form)
            found.add(bits_of(**MODELS[what], runtime="serial", workers=1))
    finally:
        native.extension.keep_float32_form(FORMS[0])
    assert len(found) == 1


@pytest.mark.parametrize("what", MODELS)
def test_steps_take_own_products_and_none_of_the_blas(what, monkeypatch):
    taken, build = Counter(), Program.__init__

    def counted(*given, **options):
        taken["called"] += 1
        return precision.multiply_float32(*given, **options)

    def listed(own, phases, slots):
        taken.update(operation[0] for shards in phases for shard in shards for operation in shard)
        build(own, phases, slots)

    own = precision.PRODUCTS["own"]._replace(multiply=counted)
    monkeypatch.setitem(precision.PRODUCTS, "own", own)
    monkeypatch.setattr(Program, "__init__", listed)
    bits_of(**MODELS[what], runtime="serial", workers=1)
    assert taken["called"] + taken["matmul_float32"] > 0
    assert taken["matmul"] == 0


def test_own_products_train_like_those_of_the_blas():
    stacks = [pretrain(X, **(BASE | {"products": name})) for name in ("own", "blas")]
    own, blas = (stack.layers[0].weight for stack in stacks)
    np.testing.assert_allclose(own, blas, atol=0.02)


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (
            {"precision": "bfloat16"},
            "products: got own with precision bfloat16, expected float32, which alone",
        ),
        ({"precision": "auto"}, "products: got own with precision auto"),
        ({"backend": "cupy"}, "with own products, which the CPU computes"),
        ({"products": "mkl"}, "products"),
    ],
)
def test_what_own_products_do_not_support_is_refused(settings, reported):
    with pytest.raises(SettingsError, match=reported):
        pretrain(X, **(BASE | settings))


def test_sparse_examples_are_refused():
    with pytest.raises(SettingsError, match="products: got own with sparse examples"):
        pretrain(sparse.csr_matrix(X), **BASE)
