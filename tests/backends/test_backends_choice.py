"""Which backend a run takes, and what is refused on a GPU."""

import fakecupy
import msgspec
import numpy as np
import pytest
from backends import backend_of
from disturbedsteps import before_steps
from stackcomparisons import alike
from trialruns import notices_of, stop_after

from syncpretrain import finetune, load, pretrain
from syncpretrain.backends.choice import resolve_backend
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.errors import RunInterrupted, SettingsError, WorkerError
from syncpretrain.learners.base import Learner
from syncpretrain.parallel import available_memory
from syncpretrain.pretraining.runtimes import workers_of
from syncpretrain.runs.folder import CONFIG_NAME
from syncpretrain.runs.prepare import resolve
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import FinetuneSettings, read_settings, settings_from
from syncpretrain.settings.devices import why_not_tuned_on_a_device

IMAGES = {"layers": "1x6x6,conv:3x3,pool:2,conv:4x2,5"}


class TestChoice:
    """Which backend a run takes, and what is refused on a GPU."""

    def wanted(self, **settings):
        return settings_from(**{"layers": (16, 8, 4)} | settings)

    def backend_of(self, **settings):
        return resolve(self.wanted(**settings)).pretrain.backend

    def test_auto_is_the_gpu_where_there_is_one_and_numpy_where_there_is_none(
        self, double, monkeypatch
    ):
        tuned = {"objective": "reconstruction"}
        assert resolve_backend("auto") == self.backend_of(finetune=tuned) == "cupy"
        monkeypatch.setattr(fakecupy, "DEVICES", 0)
        fakecupy.install(monkeypatch, devices=0)
        assert resolve_backend("auto") == self.backend_of(finetune=tuned) == "numpy"

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"replicas": 2, "split": "units"}, "with split units, expected examples"),
            ({"shards": (1, 2), "split": "units"}, "with split units, expected examples"),
            ({"runtime": "processes"}, "with runtime processes"),
            (
                IMAGES | {"handoff": "minibatch", "shards": 2},
                "with handoff minibatch and minibatches in sh",
            ),
            (IMAGES | {"shards": 2, "split": "filters"}, "with split filters, expected examples"),
            (IMAGES | {"shards": 2, "split": "hybrid"}, "with split hybrid, expected examples"),
            (
                {"layers": "1x6x6,conv:4x3,pool:2,conv:4x2/2,5"}
                | {"finetune": {"objective": "reconstruction", "split": "columns"}},
                "with fine-tuning split by columns",
            ),
            (
                {"layers": "1x1000x1000,conv:2x50,pool:3,5"},
                "with the convolution 1x1000x1000 conv .* see 2261002500 numbers of an example",
            ),
        ],
    )
    def test_what_only_the_cpu_does(self, double, settings, message):
        assert self.backend_of(**settings) == "numpy"
        other = "handoff epoch" if "handoff" in settings else "backend numpy"
        with pytest.raises(SettingsError, match=f"^backend: got cupy:1 {message}.*{other}"):
            self.wanted(**settings, backend="cupy:1")

    def test_examples_that_only_the_cpu_takes(self, double, bits, tmp_path):
        sparse = pytest.importorskip("scipy.sparse", reason="a sparse matrix is needed")
        holes, own = bits.copy(), {"layers": (16, 8), "epochs": 1, "batch_size": 20}
        holes[0, 0] = np.nan
        counts = sparse.csr_matrix(bits)
        for X, units in ((holes, "bernoulli"), (counts, "bernoulli"), (counts, "gaussian")):
            stack = pretrain(X, visible_units=units, **own)
            assert stack.info["pretrain"]["backend"] == "numpy"
            with pytest.raises(SettingsError, match=r"^X: got .* with a GPU, which has no form"):
                pretrain(X, visible_units=units, **own, backend="cupy")
        tuned = finetune(stack, counts, epochs=1, batch_size=20)
        assert tuned.info["finetune"][0]["backend"] == "numpy"
        with pytest.raises(SettingsError, match=r"^backend: got cupy with a sparse matrix"):
            finetune(stack, counts, backend="cupy")
        np.save(tmp_path / "x.npy", holes)
        settings = settings_from(**own, data={"name": str(tmp_path / "x.npy")})
        train_run(settings, out=tmp_path / "run")
        assert read_settings(tmp_path / "run" / CONFIG_NAME).pretrain.backend == "numpy"

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"optimizer": "cg"}, "the optimizer cg"),
            ({"optimizer": "lbfgs"}, "the optimizer lbfgs"),
            ({"replicas": 2}, "replicas or shards"),
            ({"shards": 2, "split": "examples"}, "replicas or shards"),
        ],
    )
    def test_what_only_the_cpu_does_in_fine_tuning(self, double, bits, settings, message):
        chosen = {"objective": "reconstruction", **settings}
        assert self.backend_of(finetune=chosen) == "numpy"
        wanted = why_not_tuned_on_a_device(FinetuneSettings(**chosen))
        assert message in wanted and resolve_backend("auto", wanted) == "numpy"
        with pytest.raises(SettingsError, match=f"backend: got cupy with .*{message}"):
            settings_from((16, 8), backend="cupy", finetune=chosen)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        with pytest.raises(SettingsError, match=f"backend: got cupy with .*{message}"):
            finetune(stack, bits, **settings, backend="cupy")

    def test_a_run_whose_gpu_is_gone_goes_on_elsewhere_and_says_so(
        self, double, bits, monkeypatch, tmp_path
    ):
        np.save(tmp_path / "x.npy", bits)
        given = {"epochs": 3, "batch_size": 20, "data": {"name": str(tmp_path / "x.npy")}}
        settings = settings_from((16, 8), **given)
        train_run(settings_from((16, 8), **given, backend="numpy"), out=tmp_path / "whole")
        with monkeypatch.context() as patch:
            stop_after(patch, 12)
            with pytest.raises(RunInterrupted):
                train_run(settings, out=tmp_path / "run")
        assert read_settings(tmp_path / "run" / CONFIG_NAME).pretrain.backend == "cupy"
        fakecupy.install(monkeypatch, devices=0)
        own = {"layers": (16, 8), "backend": "cupy"}
        for work in (lambda: resume_run(tmp_path / "run"), lambda: pretrain(bits, **own)):
            with pytest.raises(SettingsError, match=r"got cupy, but .* Or take --backend numpy"):
                work()
        events = []
        report = resume_run(tmp_path / "run", backend="numpy", observers=[events.append])
        assert report["backend"] == "numpy"
        notices = notices_of(events)
        assert any("begun with backend cupy and goes on with numpy" in text for text in notices)
        alike(load(tmp_path / "run"), load(tmp_path / "whole"))

    def test_processes_train_on_the_cpu_where_auto_could_take_a_gpu_and_say_so(self, double, bits):
        events = []
        own = {"layers": (16, 8, 4), "epochs": 1, "observers": [events.append]}
        fakecupy.log.clear()
        stack = pretrain(bits, **own, runtime="processes")
        assert stack.info["pretrain"]["backend"] == "numpy"
        assert not fakecupy.log
        (notice,) = [text for text in notices_of(events) if "there is a GPU" in text]
        assert "but backend auto is numpy: with runtime processes, whose" in notice
        for named in ("numpy", "cupy"):
            events.clear()
            pretrain(bits, **own, backend=named)
            assert not any("there is a GPU" in text for text in notices_of(events))

    def test_a_run_and_a_fine_tuning_say_that_a_gpu_is_not_taken(self, double, bits, tmp_path):
        np.save(tmp_path / "x.npy", bits)
        tuned = {"objective": "reconstruction", "optimizer": "cg", "epochs": 1}
        own = {"layers": (16, 8), "epochs": 1, "batch_size": 20}
        events = []
        settings = settings_from(**own, finetune=tuned, data={"name": str(tmp_path / "x.npy")})
        train_run(settings, out=tmp_path / "run", observers=[events.append])
        (notice,) = [text for text in notices_of(events) if "there is a GPU" in text]
        assert "with the optimizer cg of fine-tuning" in notice
        stack = pretrain(bits, **own, backend="numpy")
        events.clear()
        finetune(stack, bits, optimizer="cg", epochs=1, observers=[events.append])
        assert any("there is a GPU" in text for text in notices_of(events))

    def test_a_stack_that_does_not_fit_the_gpu_is_refused(self, double, bits, monkeypatch):
        wanted = {"layers": (16, 8), "epochs": 1, "backend": "cupy"}
        monkeypatch.setattr(fakecupy, "MEMORY", 5_000)
        with pytest.raises(SettingsError, match=r"^layers: 16,8 on 200 .* are free on the GPU"):
            pretrain(bits, **wanted)
        monkeypatch.setattr(fakecupy, "MEMORY", 1 << 30)
        monkeypatch.setattr(available_memory, "available_bytes", lambda: 40_000)
        pretrain(bits, **wanted)  # activations take no memory of the host

    def test_chains_that_do_not_fit_the_gpu_are_refused(self, double, bits, monkeypatch):
        wanted = {"layers": (16, 8), "epochs": 1, "backend": "cupy", "persistent": True}
        monkeypatch.setattr(fakecupy, "MEMORY", 500_000)
        pretrain(bits, chains=50, **wanted)
        with pytest.raises(SettingsError, match=r"^layers: 16,8 on 200 .* are free on the GPU"):
            pretrain(bits, chains=20_000, **wanted)

    @pytest.mark.parametrize("gpus", [1, 3])
    def test_a_network_that_does_not_fit_a_gpu_is_refused(self, bits, monkeypatch, gpus):
        monkeypatch.setattr(fakecupy.install, "__defaults__", (gpus,))
        backend_of("double", monkeypatch)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        monkeypatch.setattr(fakecupy, "MEMORY", 7_000)
        with pytest.raises(SettingsError, match=r"fine-tuning 16,8 on 200 .* are free on the GPU"):
            finetune(stack, bits, backend="cupy")
        monkeypatch.setattr(fakecupy, "MEMORY", 1 << 30)
        monkeypatch.setattr(available_memory, "available_bytes", lambda: 5_000)
        finetune(stack, bits, epochs=1, backend="cupy")  # on the host there are the examples alone

    def test_a_device_trains_all_layers_at_a_time(self, double, bits):
        deep = settings_from((16, 8, 8, 8, 8), backend="cupy").pretrain
        assert workers_of(deep) == 4
        assert workers_of(msgspec.structs.replace(deep, workers=2)) == 2

    @pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    @pytest.mark.parametrize(
        "broken",
        [
            *[(CupyBackend, "asarray"), (CupyBackend, "tohost")],
            *[(fakecupy.Stream, "synchronize"), (fakecupy.DefaultPool, "free_all_blocks")],
        ],
        ids=lambda broken: broken[1],
    )
    def test_a_device_that_fails_after_an_error_does_not_hide_it(
        self, double, bits, monkeypatch, runtime, broken, handoff
    ):
        def illegal_address(*_, **__):
            raise fakecupy.CUDARuntimeError(700, "cudaErrorIllegalAddress")

        failing = {"epoch": 2, "minibatch": 1}[handoff]  # before blocks are recorded

        def break_down(learner: Learner, epoch: int, step: int) -> None:
            if learner.layer == 1 and epoch == failing:
                monkeypatch.setattr(*broken, illegal_address)
                raise ValueError("the first error")

        before_steps(monkeypatch, break_down)
        own = {"layers": (16, 8), "epochs": 2, "handoff": handoff, "runtime": runtime}
        with pytest.raises(
            WorkerError, match=f"layer 1 failed in epoch {failing}: .*first err"
        ) as end:
            pretrain(bits, **own, backend="cupy")
        assert (end.value.stack is None) == (broken[1] == "tohost")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--backend", "cupy"], "--backend: got cupy, but the driver finds no NVIDIA GPU"),
            (["--backend", "cuda"], "--backend: got 'cuda', expected auto, numpy, cupy or cupy:N"),
            (
                ["--backend", "cupy", "--replicas", "2", "--split", "units"],
                "got cupy with split units, expected examples",
            ),
            (["--backend", "cupy:0", "--runtime", "processes"], "got cupy:0 with runtime proc"),
        ],
    )
    def test_the_command_refuses_before_data_are_read_or_anything_is_written(
        self, monkeypatch, tmp_path, call, options, message
    ):
        fakecupy.install(monkeypatch, devices=0)
        given = ["--layers", "16,8", "--data", tmp_path / "x.npy", "--out", tmp_path / "run"]
        _, err = call("train", *given, *options, status=2)
        assert message in " ".join(err.split())
        assert not any(tmp_path.iterdir())
