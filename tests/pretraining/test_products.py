"""Steps with own products: where they are taken, and the same bits in every runtime and form."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from trialruns import DieAt

from syncpretrain import pretrain
from syncpretrain.errors import DivergedError, SettingsError
from syncpretrain.events import EpochFinished
from syncpretrain.kernels import native, precision
from syncpretrain.kernels.program import Program
from syncpretrain.parallel import precision_choice
from syncpretrain.parallel.precision_choice import resolve_products
from syncpretrain.planning import measure
from syncpretrain.planning.candidates import Task, candidates
from syncpretrain.planning.choice import plan_for
from syncpretrain.planning.timings import LayerTimings
from syncpretrain.pretraining import build
from syncpretrain.pretraining.build import threads_of
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import read_settings, settings_from
from syncpretrain.settings.architecture import read_architecture
from syncpretrain.shapes import DenseShape
from syncpretrain.sklearn import StackedRBM

pytestmark = pytest.mark.usefixtures("forked_layers")
FORMS = native.extension.float32_forms() if native.extension else ()
X = (np.random.default_rng(0).random((60, 20)) < 0.3).astype(np.float32)
SPARSE = sparse.random(60, 300, 0.05, format="csr", dtype=np.float32, random_state=0)
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


def bits_of(**settings):
    return pretrain(X, **(BASE | settings)).parameters_sha256


@pytest.mark.parametrize("what", MODELS)
def test_every_runtime_has_the_same_bits(what):
    assert len({bits_of(**MODELS[what], runtime=run, workers=n) for run, n in PLACES}) == 1


@pytest.fixture
def taken(monkeypatch):
    """Count the calls of own products outside of programs."""
    multiply, taken = precision.PRODUCTS["own"].multiply, Counter()

    def counted(*given, **options):
        taken["called"] += 1
        return multiply(*given, **options)

    counting = precision.PRODUCTS["own"]._replace(multiply=counted)
    monkeypatch.setitem(precision.PRODUCTS, "own", counting)
    return taken


@pytest.mark.parametrize("what", MODELS)
def test_steps_take_own_products_and_none_of_the_blas(what, monkeypatch, taken):
    build = Program.__init__

    def listed(own, phases, slots):
        taken.update(operation[0] for shards in phases for shard in shards for operation in shard)
        build(own, phases, slots)

    monkeypatch.setattr(Program, "__init__", listed)
    bits_of(**MODELS[what], runtime="serial", workers=1)
    assert taken["called"] + taken["matmul_float32"] > 0
    assert taken["matmul"] == 0


@pytest.mark.parametrize(
    ("threads", "changes"),
    [
        (2, {}),
        (3, {"batch_size": 100}),
        (5, {"batch_size": 1000, "workers": 20}),
        (2, {"runtime": "processes", "handoff": "minibatch"}),
        (1, {"workers": 1}),
        (1, {"runtime": "serial", "workers": None}),
        (1, {"runtime": "mpi", "workers": None}),
        (1, {"products": "blas"}),
        (1, {"batch_size": 40}),
        (1, {"layers": (20, 300), "batch_size": 1000}),
        (1, {"model": "autoencoder"}),
        (1, {"hidden_units": "relu"}),
        (1, {"visible_units": "gaussian:20,softmax:28x10"}),
        (1, {"centred": True}),
        (2, {"replicas": 2, "shards": 2}),
        (1, {"shards": 2}),
    ],
)
def test_workers_take_pieces_of_steps_that_have_the_same_bits_then(threads, changes, monkeypatch):
    monkeypatch.setattr(build, "usable_cores", lambda: 5)
    wide = {"layers": (300, 300), "batch_size": 50, "products": "own", "workers": 3}
    settings = settings_from(**(wide | changes)).pretrain
    assert threads_of(settings, 1) == threads


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
        ({"X": SPARSE, "layers": (300, 9)}, "products: got own with sparse examples"),
    ],
)
def test_what_own_products_do_not_support_is_refused(settings, reported):
    with pytest.raises(SettingsError, match=reported):
        pretrain(**({"X": X} | BASE | settings))


WIDE = DenseShape(300, 300), DenseShape(300, 10)
DENSE = np.random.default_rng(0).random((60, 300), dtype=np.float32)
HOW = {"X": DENSE, "layers": (300, 300, 10), "epochs": 1, "batch_size": 20, "warn": False}


@pytest.mark.skipif(FORMS[:1] in ((), ("portable",)), reason="own products are slow here")
class TestAuto:
    @pytest.mark.parametrize("name", ["blas", "own"])
    def test_what_is_named_stays(self, name):
        assert resolve_products(name, "bfloat16", "numpy", (), prefers_blas=True) == name

    @pytest.mark.parametrize(
        ("products", "changes"),
        [
            ("own", {}),
            ("blas", {"shapes": WIDE[1:]}),
            ("blas", {"shapes": (*read_architecture("1x28x28,conv:20x5,500")[1], *WIDE)}),
            ("blas", {"precision": "bfloat16"}),
            ("blas", {"backend": "cupy"}),
            ("blas", {"prefers_blas": True}),
        ],
    )
    def test_own_ones_where_they_pay(self, products, changes):
        how = {"precision": "float32", "backend": "numpy", "shapes": WIDE, "prefers_blas": False}
        assert resolve_products("auto", **(how | changes)) == products

    def test_the_blas_without_the_compiled_kernels(self, monkeypatch):
        monkeypatch.setattr(precision_choice, "extension", None)
        assert resolve_products("auto", "float32", "numpy", WIDE, prefers_blas=False) == "blas"

    @pytest.mark.parametrize(
        ("products", "settings"),
        [
            ("own", {}),
            ("own", {"handoff": "minibatch"}),
            ("own", {"model": "denoising", "hidden_units": "tanh"}),
            ("own", {"schedule": "greedy"}),
            ("blas", {"schedule": "greedy", "persistent": True}),
            ("blas", {"schedule": "greedy", "model": "autoencoder"}),
            ("blas", {"layers": (300, 20)}),
            ("blas", {"X": SPARSE}),
        ],
    )
    def test_pretraining(self, products, settings, taken):
        auto = pretrain(**(HOW | settings))
        assert auto.info["pretrain"]["products"] == products
        assert bool(taken["called"]) == (products == "own")
        named = pretrain(products=products, **(HOW | settings))
        assert auto.parameters_sha256 == named.parameters_sha256

    def test_parts_of_either_kind_train_the_same_stack(self):
        dense, found = SPARSE.toarray(), set()
        for parts in ((SPARSE, SPARSE), (dense, SPARSE), (SPARSE, dense)):
            rbms = StackedRBM([300, 20], batch_size=20, random_state=0, visible_units="bernoulli")
            for part in parts:
                rbms.partial_fit(part)
            found.add(rbms.stack_.parameters_sha256)
        assert len(found) == 1

    @pytest.mark.parametrize("workers", [2, 8])
    def test_a_plan_times_pieces_of_wide_layers(self, workers, monkeypatch):
        for module in (build, measure):
            monkeypatch.setattr(module, "usable_cores", lambda: 2)
        settings = settings_from((300, 300, 10), batch_size=50, products="own").pretrain
        found = plan_for(Task(settings, 60, 0), workers=workers, measure_seconds=0)
        assert list(found.timings.layers[0].sharded) == [("pieces", 2)]
        assert not found.timings.layers[1].sharded
        names = [candidate.name for candidate in found.candidates]
        assert f"greedy, {workers} cores" in names
        assert not [name for name in names if "split" in name]
        wide = LayerTimings(1.0, 1.0, {("pieces", 2): {1: 1.0, 2: 0.5}}, {}, 0.0)
        timings = replace(found.timings, layers=(wide, LayerTimings(0.0, 0.0, {}, {1: 0.0}, 0.0)))
        seconds = {each.name: each.seconds for each in candidates(found.task, timings)}
        assert seconds[f"greedy, {workers} cores"] == pytest.approx(seconds["greedy, one core"] / 2)

    def test_a_plan_of_sparse_rows(self):
        settings = settings_from((300, 300), batch_size=20, sparse=True).pretrain
        found = plan_for(Task(settings, 60, 0), measure_seconds=0)
        assert found.task.settings.products == "auto"
        assert "products" not in found.command


@pytest.mark.parametrize("lacking", [("pretrain", "finetune"), ("finetune",)])
def test_a_run_that_began_without_the_setting_goes_on_with_the_blas(lacking, tmp_path):
    how = {"batch_size": 20, "products": "blas"}
    tuning = {"objective": "reconstruction", "epochs": 1, **how}
    how |= {"epochs": 3, "data": {"name": str(tmp_path / "x.npy")}, "finetune": tuning}
    np.save(tmp_path / "x.npy", DENSE)
    settings = settings_from((300, 300), **how)
    whole = train_run(settings, out=tmp_path / "whole")
    with pytest.raises(DivergedError):
        dies = DieAt(EpochFinished, n=2, error=DivergedError("at a moment"))
        train_run(settings, out=tmp_path / "run", observers=[dies])
    config, identity = tmp_path / "run" / "config.toml", tmp_path / "run" / "run.json"
    head, section, tail = config.read_text().partition("[finetune]")
    head = head.replace('products = "blas"\n', "") if "pretrain" in lacking else head
    config.write_text(head + section + tail.replace('products = "blas"\n', ""))
    known = json.loads(identity.read_text())
    for name in lacking:
        del known["settings"][name]["products"]
    identity.write_text(json.dumps(known))
    assert read_settings(config).finetune.products == "auto"
    assert resume_run(tmp_path / "run")["parameters_sha256"] == whole["parameters_sha256"]
