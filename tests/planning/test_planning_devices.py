"""Plans, benchmarks and dry runs on GPUs, with the stand-in for CuPy."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import fakecuda
import fakecupy
import numpy as np
import pytest
from backends import backend_of
from commandline import measure_one_round

from syncpretrain.backends import cupy_backend
from syncpretrain.backends.choice import backend_for
from syncpretrain.errors import SettingsError
from syncpretrain.planning import dry_run, measure, peaks
from syncpretrain.planning.bench import bench, random_rows
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.choice import plan_for
from syncpretrain.planning.measure import measure_devices
from syncpretrain.planning.peaks import device_peak, unreadable_pairs
from syncpretrain.planning.probes import BareProducts
from syncpretrain.planning.timings import GPU, LayerTimings, Timings
from syncpretrain.settings import read_settings, settings_from
from syncpretrain.workers.activations import Split

STACK = ("--layers", "16,8,4", "--epochs", "2", "--batch-size", "10")
QUICK = ("--seconds", "0", "--examples", "100")

pytestmark = [
    pytest.mark.skipif(fakecuda.COMPILER is None, reason="no g++ here for the kernels"),
    pytest.mark.usefixtures("measures_anew"),
]


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Two GPUs, in an empty folder with some data."""
    monkeypatch.setattr("syncpretrain.backends.gpu_check.missing", lambda device: None)
    monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 3)
    monkeypatch.setattr(peaks, "SIDE_ON_GPU", 32)
    monkeypatch.setattr("syncpretrain.planning.probes.BLOCK_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", (np.random.default_rng(0).random((60, 16)) < 0.3).astype(np.float32))
    return backend_of("double", monkeypatch)


def task(layers=(16, 8, 4), **settings) -> Task:
    own = {"epochs": 2, "batch_size": 10, "backend": "cupy"}
    return Task(settings_from(layers, **(own | settings)).pretrain, 100, 20)


def layer(step: float, **others) -> LayerTimings:
    own = {"products": step / 2, "sharded": {}, "transform": {1: 0.0}, "validation": 0.0}
    return LayerTimings(step=step, **(own | others))


class TestMeasured:
    def test_every_piece_on_its_gpu_as_in_training(self):
        launched = fakecupy.Graph.launched
        fakecupy.log.clear()
        found = measure_devices(task(), seconds=0)
        assert (found.unit, found.workers, found.blas_threads, found.notes) == (GPU, 2, 1, ())
        for i, own in enumerate(found.layers):
            assert own.step > 0 and own.products > 0 and own.validation > 0
            assert own.contention >= 1
            assert set(own.sharded) == {("examples", 2)}
            assert set(own.transform) == ({1} if i else set())
        assert fakecupy.Graph.launched - launched > 6, "steps, products and shards are recorded"
        draws = {device for device, _, what in fakecupy.log if what == "draw_bernoulli"}
        assert draws == {0, 1}

    def test_one_gpu_has_no_shards(self):
        found = measure_devices(replace(task(backend="cupy:1"), held_out=0), seconds=0)
        assert found.workers == 1 and not any(own.sharded for own in found.layers)

    def test_gpus_that_cannot_read_each_other_have_none_either(self, monkeypatch, machine):
        assert unreadable_pairs(machine.xp) == []
        monkeypatch.setattr(fakecupy, "PEERS", False)
        assert unreadable_pairs(machine.xp) == [(0, 1), (1, 0)]
        found = measure_devices(replace(task(), held_out=0), seconds=0)
        assert found.workers == 2 and not any(own.sharded for own in found.layers)

    def test_a_step_is_timed_until_the_gpu_has_finished(self, monkeypatch):
        backend_of("deferred", monkeypatch)
        seconds, real = [0.0], fakecupy.RawKernel.__call__

        def slow(self, grid, block, args, **options):
            fakecupy.queue(lambda: seconds.__setitem__(0, seconds[0] + 1))
            real(self, grid, block, args, **options)

        monkeypatch.setattr(fakecupy.RawKernel, "__call__", slow)
        monkeypatch.setattr("syncpretrain.planning.measure.perf_counter", lambda: seconds[0])
        found = measure_devices(task(), seconds=0)
        assert all(own.step >= 5 for own in found.layers), "launches, one second each"
        assert found.layers[1].transform[1] > 0

    def test_what_does_not_fit(self, monkeypatch):
        monkeypatch.setattr(fakecupy, "MEMORY", 5_000)
        with pytest.raises(SettingsError, match="are free on the GPU"):
            measure_devices(task(), seconds=0)

    def test_large_products(self, monkeypatch):
        times = iter([1.0, 3.0])
        monkeypatch.setattr(peaks, "perf_counter", lambda: next(times))
        assert device_peak(backend_for("cupy:1")) == 5 * 2 * 32**3 / 2

    def test_large_products_are_of_random_numbers(self, monkeypatch):
        factors, real = [], peaks.multiply
        noted = lambda *ab, out: (factors.extend(ab), real(*ab, out=out))  # noqa: E731
        monkeypatch.setattr(peaks, "multiply", noted)
        device_peak(backend_for("cupy"))
        assert len(factors) == 12
        assert all(np.unique(factor.get()).size > 900 for factor in factors), "of 1,024"


class TestPlan:
    def plan(self, *layers: LayerTimings, gpus: int = 1, **settings):
        own = task((8,) * (len(layers) + 1), epochs=10, **settings)
        return plan_for(own, timings=Timings(layers, gpus, 1, unit=GPU))

    def test_layers_in_turn_take_the_sum_and_at_a_time_what_they_hinder(self):
        # 10 steps an epoch, so 100 of each layer; two that share a GPU take twice as long.
        found = self.plan(layer(1.0, contention=2.0), layer(1.0, contention=2.0))
        assert [x.name for x in found.candidates] == ["greedy", "pipeline"]
        greedy, pipeline = found.candidates
        assert greedy.seconds == pytest.approx(200) == pipeline.seconds
        assert found.choice is greedy and found.reason == "one layer after another is fastest"
        assert found.asynchronous is None and found.report()["asynchronous"] is None
        assert found.report()["unit"] == "GPU"
        assert found.floor_seconds == pytest.approx(100)

    def test_layers_that_do_not_hinder_each_other_train_at_a_time(self):
        found = self.plan(layer(1.0), layer(1.0), gpus=2)
        assert found.choice.name == "pipeline"
        assert found.choice.seconds == pytest.approx(110), "an epoch more than one layer"
        assert "1.82 times one layer at a time" in found.reason
        assert found.floor_seconds == pytest.approx(50), "products alone, over both"
        assert found.settings["workers"] == 2 and found.settings["backend"] == "cupy"

    def test_shards_are_chosen_where_they_pay(self):
        shared = {("examples", 2): {1: 0.6}}
        found = self.plan(layer(1.0, sharded=shared), layer(0.1), gpus=2)
        assert found.choice.name == "hybrid, examples split"
        assert found.settings["replicas"] == (2, 1)
        assert found.choice.seconds == pytest.approx(10 * 6 + 1)
        slower = {("examples", 2): {1: 1.1}}
        found = self.plan(layer(1.0, sharded=slower), layer(0.1), gpus=2)
        assert [x.name for x in found.candidates] == ["greedy", "pipeline"]

    def test_streams_are_chosen_where_they_are_asked_for(self):
        found = self.plan(layer(1.0), layer(1.0), gpus=2, handoff="minibatch", delay=0.5)
        assert [x.name for x in found.candidates] == ["greedy", "pipeline", "streamed"]
        assert found.settings["handoff"] == "minibatch" and found.settings["delay"] == 0.5
        # Half an epoch of 10 steps, after which both train; layer 2 is a block of 1 behind.
        assert found.choice.seconds == pytest.approx(105, abs=2)

    def test_workers_are_refused(self):
        with pytest.raises(SettingsError, match=r"^workers: got 2 with backend cupy, expected non"):
            plan_for(task(), workers=2)
        with pytest.raises(SettingsError, match=r"^batch_size: got 200, expected at most 100"):
            plan_for(task(batch_size=200))

    def test_every_candidate_can_be_run(self):
        rows = Split(random_rows(100, 16), random_rows(20, 16))
        found = bench(task(), rows, measure_seconds=0)
        assert {count: set(peak) for count, peak in found.peak.items()} == {1: {"blas"}}
        assert [row["name"] for row in found.rows()][:2] == ["greedy", "pipeline"]
        assert all(row["seconds"] > 0 for row in found.rows())


class TestCommands:
    @pytest.mark.parametrize(
        ("more", "handoff"), [((), "epoch"), (("--handoff", "minibatch"), "minibatch")]
    )
    def test_plan(self, call, more, handoff):
        out, _ = call("plan", *STACK, *QUICK, "--backend", "cupy", *more)
        assert out.startswith("16-8-4, 2 epochs of 100 examples, 2 GPUs\n")
        assert "as one GPU takes for them, over 2 GPUs" in out
        assert "core" not in out and "asynchronous" not in out
        line = next(x for x in out.splitlines() if x.startswith("train it: "))
        call(*shlex.split(line)[3:], "--data", "x.npy", "--out", "run")
        own = read_settings(Path("run/config.toml")).pretrain
        assert (own.handoff, own.backend) == (handoff, "cupy")

    def test_a_dry_run_of_a_stream_has_no_handover_of_the_cores(self, call, monkeypatch):
        monkeypatch.setattr(dry_run, "MEASURED_SECONDS", 0)
        monkeypatch.setattr(dry_run, "handover_seconds", lambda: 1e6)
        words = (*STACK, "--data", "x.npy", "--backend", "cupy", "--handoff", "minibatch")
        out, _ = call("train", *words, "--dry-run", "--json")
        assert 0 < json.loads(out)["seconds"]["pretrain"] < 1e6

    def test_plan_as_json_of_one_gpu(self, call):
        report = json.loads(call("plan", *STACK, *QUICK, "--backend", "cupy:1", "--json")[0])
        assert (report["unit"], report["workers"]) == ("GPU", 1)
        assert report["settings"]["backend"] == "cupy:1"

    def test_plan_does_not_predict_fine_tuning_there(self, call):
        words = (*STACK, *QUICK, "--backend", "cupy", "--finetune", "reconstruction")
        _, err = call("plan", *words, status=2)
        assert "finetune: got reconstruction with backend cupy, expected none" in err

    def test_bench(self, call):
        words = (*STACK[:2], "--epochs", 1, "--examples", 60, "--batch-size", 10)
        out, err = call("bench", *words, "--backend", "cupy")
        assert "large products, 1 GPU: " in out and "over all GPUs" in out
        assert "greedy: " in err and "core" not in out
        _, err = call("bench", *words, "--backend", "cupy", "--handoff", "minibatch")
        assert "greedy: " in err and "streamed: " in err and "pipeline" not in err
        out, _ = call("bench", *words, "--backend", "cupy:0", "--json")
        assert json.loads(out)["unit"] == "GPU"

    def test_train_with_schedule_auto(self, call, monkeypatch):
        measure_one_round(monkeypatch)
        words = (*STACK, "--data", "x.npy", "--schedule", "auto", "--backend", "cupy")
        call("train", *words, "--out", "run", "--quiet")
        assert read_settings(Path("run/config.toml")).pretrain.backend == "cupy"

    @pytest.mark.parametrize("more", [(), ("--replicas", "2")])
    def test_dry_run(self, call, monkeypatch, more):
        monkeypatch.setattr(dry_run, "MEASURED_SECONDS", 0)
        words = (*STACK, "--data", "x.npy", "--backend", "cupy", "--dry-run")
        out, _ = call("train", *words, *more)
        assert "pretraining: about" in out and "not predicted" not in out

    def test_a_dry_run_is_of_as_many_workers_as_a_run_has(self, call, monkeypatch):
        seconds = {}
        timings = Timings((layer(1.0), layer(1.0)), 2, 1)
        monkeypatch.setattr(dry_run, "measure", lambda *given, **more: timings)
        monkeypatch.setattr(dry_run, "usable_cores", lambda: 2)
        monkeypatch.setattr("syncpretrain.pretraining.runtimes.usable_cores", lambda: 2)
        for workers in ((), ("--workers", 2), ("--workers", 1)):
            words = (*STACK, "--data", "x.npy", "--backend", "numpy", "--dry-run", "--json")
            out, _ = call("train", *words, *workers)
            seconds[workers] = json.loads(out)["seconds"]["pretrain"]
        assert seconds[()] == seconds["--workers", 2] < seconds["--workers", 1]


def test_the_products_alone_are_those_of_a_step(machine):
    bench = measure._DeviceBench(task(cd_steps=2).settings, 100, 0)
    learner, shape = bench._learners[0], task().settings.shapes[0]
    with learner.stream:
        bare = BareProducts(learner.backend, learner.precision, shape, learner.batch_size, 2)
        fakecupy.log.clear()
        bare.train_step(None, None, epoch=1, step=0)
        bare.train_step(None, None, epoch=1, step=1)
    assert [what for _, _, what in fakecupy.log].count("sgemm") == 12
    for factor in (bare._v, bare._h, bare._states, bare._weights):  # zeros would be faster
        assert np.unique(factor.get()).size > 0.8 * factor.size
