"""Fine-tuning with own products: where they are taken, and what is refused."""

from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from syncpretrain import finetune, pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.options import TuningOptions, resolve_options
from syncpretrain.kernels.native import extension
from syncpretrain.kernels.program import Program
from syncpretrain.shapes import DenseShape

FORMS = extension.float32_forms() if extension else ()
X = (np.random.default_rng(0).random((80, 20)) < 0.3).astype(np.float32)
CLASSES = np.int64(X[:, 0] + X[:, 1])
OWN = {"epochs": 2, "batch_size": 20, "seed": 3, "products": "own", "warn": False}
CASES = {
    "reconstruction": {},
    "classes": {"y": CLASSES},
    "classes, by units": {"y": CLASSES, "shards": 2, "replicas": 1},
    "normalized": {"y": CLASSES, "normalization": "batch"},
    "by examples": {"shards": 2, "replicas": 1, "split": "examples", "optimizer": "sgd"},
}


@pytest.fixture(scope="module")
def stack():
    settings = {"hidden_units": "relu", "learning_rate": 0.005, "seed": 3, "warn": False}
    return pretrain(X, layers=(20, 12, 7), epochs=1, **settings)


@pytest.mark.parametrize("what", CASES)
def test_steps_take_own_products_and_exponentials(what, stack, monkeypatch):
    taken, build = Counter(), Program.__init__

    def listed(own, phases, slots, *others):
        phases = [list(map(list, shards)) for shards in phases]
        taken.update(operation[0] for shards in phases for shard in shards for operation in shard)
        build(own, phases, slots, *others)

    monkeypatch.setattr(Program, "__init__", listed)
    finetune(stack, X, **(OWN | CASES[what]))
    assert taken["matmul_float32"] > 0
    assert taken["matmul"] == taken["softmax"] == 0
    assert bool(taken["softmax_fixed"]) == ("y" in CASES[what])


@pytest.mark.parametrize("what", CASES)
def test_it_trains_like_the_products_of_the_blas(what, stack):
    given = OWN | CASES[what]
    own, blas = (finetune(stack, X, **given | {"products": name}) for name in ("own", "blas"))
    for one, other in zip(own.layers, blas.layers, strict=True):
        np.testing.assert_allclose(one.weight, other.weight, atol=1e-4)
    # The bits may be equal: on some CPUs the BLAS adds so few terms in the same order.


@pytest.mark.parametrize(
    ("rows", "given", "message"),
    [
        (X, {"optimizer": "cg"}, "got own with optimizer cg and precision"),
        (X, {"optimizer": "lbfgs"}, "got own with optimizer lbfgs and precision"),
        (X, {"precision": "bfloat16"}, "got own with optimizer adam and precision"),
        (X, {"precision": "auto"}, "got own with optimizer adam and precision"),
        (X, {"precision": "tf32"}, "got own with optimizer adam and precision"),
        (X, {"backend": "cupy"}, "own products of fine-tuning, which the CPU computes"),
        (sparse.csr_matrix(X), {}, "finetune_products: got own with sparse examples"),
    ],
)
def test_what_has_no_own_products_is_refused(stack, rows, given, message):
    with pytest.raises(SettingsError, match=message):
        finetune(stack, rows, **OWN, **given)


@pytest.mark.skipif(FORMS[:1] in ((), ("portable",)), reason="own products are slow here")
@pytest.mark.parametrize(
    ("products", "changes"),
    [
        ("own", {}),
        ("blas", {"batch_size": 20}),  # too little work to be shared: the BLAS has all cores
        ("blas", {"optimizer": "cg"}),
        ("blas", {"precision": "bfloat16"}),
    ],
)
def test_auto_takes_own_ones_where_they_pay(products, changes):
    shapes = DenseShape(300, 400), DenseShape(400, 10)
    options = TuningOptions(**({"objective": "classification", "shards": 1} | changes))
    assert options.products == "auto"
    assert resolve_options(options, shapes).products == products
    assert resolve_options(options, shapes, sparse=True).products == "blas"
