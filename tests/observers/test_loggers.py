"""Loggers of experiments: TensorBoard's own files, and MLflow behind a stand-in for its client."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from trialruns import DieAt

from syncpretrain import finetune, pretrain
from syncpretrain.errors import DivergedError, RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished, FinetuneEpochFinished, RunFinished
from syncpretrain.observers.figures import figures_of
from syncpretrain.observers.loggers import LOGGERS, check_loggers, flat_settings, logging_to
from syncpretrain.observers.mlflow import MLflowLog
from syncpretrain.runs.run import train_run
from syncpretrain.settings import settings_from

X = np.random.default_rng(0).random((30, 5), dtype=np.float32)


class Client:
    """What the logger asks of ``mlflow.tracking.MlflowClient``, kept in lists."""

    instances: list[Client] = []  # noqa: RUF012

    def __init__(self):
        self.params, self.metrics, self.tags, self.experiments = {}, [], {}, {"old": "7"}
        self.status = self.experiment = None
        self.fails = False
        Client.instances.append(self)

    def get_experiment_by_name(self, name):
        found = self.experiments.get(name)
        return found and SimpleNamespace(experiment_id=found)

    def create_experiment(self, name):
        self.experiments[name] = "8"
        return "8"

    def create_run(self, experiment, start_time, tags):
        self.experiment = experiment
        return SimpleNamespace(info=SimpleNamespace(run_id="run-1"))

    def set_tag(self, run, name, value):
        self.tags[name] = value

    def log_batch(self, run, metrics=(), params=()):
        assert run == "run-1"
        assert len(metrics) + len(params) <= 100
        if self.fails:
            raise ConnectionError("the server is gone\nfor good")
        self.params |= dict(params)
        self.metrics += metrics

    def set_terminated(self, run, status):
        self.status = status


@pytest.fixture
def client(monkeypatch):
    """Stand-ins for the modules of MLflow; returns a function for the client that was made."""
    package, entities, tracking = map(ModuleType, ("mlflow", "mlflow.entities", "mlflow.tracking"))
    entities.Param = lambda key, value: (key, value)
    entities.Metric = lambda key, value, timestamp, step: (key, value, step)
    tracking.MlflowClient = Client
    for module in (package, entities, tracking):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for variable in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(variable, raising=False)
    Client.instances.clear()
    return lambda: Client.instances[0]


def small_run(tmp_path, **others):
    np.save(tmp_path / "x.npy", X)
    data = {"name": str(tmp_path / "x.npy")}
    settings = settings_from((5, 4, 3), data=data, epochs=2, batch_size=10)
    return train_run(settings, out=tmp_path / "run", **others)


class TestFigures:
    def test_of_an_epoch(self):
        found = figures_of(EpochFinished(12.0, 2, 3, 1, 10.0, 0.5, 4.0, None, 0.25))
        assert found.step == 3
        wanted = {"train_error": 4.0, "drift": 0.25, "version_below": 1.0}
        wanted |= {"seconds": 2.0, "transform_seconds": 0.5}
        assert found.values == {f"layer_2/{name}": value for name, value in wanted.items()}

    def test_of_fine_tuning_and_of_the_end(self):
        found = figures_of(FinetuneEpochFinished(9.0, 4, 5, 1.5, 0.5, 0.75))
        assert (found.step, found.values["finetuning/validation_error"]) == (4, 0.75)
        assert figures_of(RunFinished(9.0, 8.0, (1.0, 2.0))).values["pretraining/busy_2"] == 2.0

    def test_settings_as_texts(self):
        sections = {"pretrain": {"epochs": (1, 2), "workers": None, "seed": 0}, "data": {}}
        assert flat_settings(sections) == {"pretrain.epochs": "1,2", "pretrain.seed": "0"}


class TestMLflow:
    def test_a_run_is_recorded(self, client, tmp_path):
        report = small_run(tmp_path, loggers=["mlflow", "mlflow"])
        assert len(Client.instances) == 1
        found = client()
        assert (found.status, found.experiment) == ("FINISHED", "0")
        assert found.tags == {"mlflow.runName": "run"}
        assert found.params["pretrain.layers"] == "5,4,3"
        errors = [value for name, value, step in found.metrics if name == "layer_1/train_error"]
        assert len(errors) == report["layers"][0]["epochs"] == 2

    @pytest.mark.parametrize(
        ("error", "status"),
        [(DivergedError("bad"), "FAILED"), (RunInterrupted("stopped"), "KILLED")],
    )
    def test_how_it_ends(self, client, tmp_path, error, status):
        with pytest.raises(type(error)):
            small_run(tmp_path, loggers=["mlflow"], observers=[DieAt(EpochFinished, error=error)])
        assert client().status == status

    @pytest.mark.parametrize(("name", "number"), [("old", "7"), ("new", "8")])
    @pytest.mark.parametrize("by", ["argument", "variable"])
    def test_the_experiment(self, client, monkeypatch, name, number, by):
        if by == "variable":
            monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", name)
        with MLflowLog(experiment=name if by == "argument" else None) as log:
            pretrain(X, hidden=[3], epochs=1, observers=[log], warn=False)
        assert client().experiment == number

    def test_a_server_that_is_gone_does_not_stop_the_run(self, client, tmp_path):
        said = []
        with logging_to(["mlflow"], tmp_path, {}, said.append) as observers:
            client().fails = True
            for _ in range(3):
                observers[0](RunFinished(9.0, 8.0, (1.0,)))
        assert said == ["warning: mlflow takes no more of this run: the server is gone"]
        assert client().status is None

    def test_by_the_command_line(self, client, call, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        np.save("x.npy", X)
        own = ("--layers", "5,3", "--data", "x.npy", "--epochs", 1, "--batch-size", 10)
        call("train", *own, "--out", "run", "--log", "mlflow", "--quiet")
        assert client().status == "FINISHED"
        own = ("--out", "tuned", "--finetune-batch-size", 10, "--finetune-epochs", 1)
        call("finetune", "run", *own, "--log", "mlflow", "--quiet")
        names = {name for name, _, _ in Client.instances[1].metrics}
        assert "finetuning/train_error" in names


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def library(self):
        pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
        yield
        for thread in threading.enumerate():
            if thread.name == "QueueFeederThread":  # closes the pipe of tensorboardX's queue
                thread.join(10)

    def test_the_files_hold_the_figures(self, tmp_path):
        from tensorboardX.event_file_writer import EventsWriter  # noqa: F401
        from tensorboardX.proto.event_pb2 import Event

        report = small_run(tmp_path, loggers=["tensorboard"])
        (path,) = (tmp_path / "run" / "tensorboard").iterdir()
        values, texts = {}, set()
        for record in records(path.read_bytes()):
            event = Event.FromString(record)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    values.setdefault(value.tag, {})[event.step] = value.simple_value
                else:
                    texts.add(value.tag.partition("/")[0])
        assert values["layer_2/train_error"].keys() == {1, 2}
        assert values["layer_1/version_below"] == {1: 0.0, 2: 0.0}
        assert texts == {"settings", "notices"}
        assert report["layers"][1]["epochs"] == 2

    def test_in_python(self, tmp_path):
        from syncpretrain.observers.tensorboard import TensorBoardLog

        with TensorBoardLog(tmp_path / "log") as log:
            stack = pretrain(X, hidden=[3], epochs=1, observers=[log], warn=False)
            finetune(stack, X, epochs=1, batch_size=10, observers=[log])
        assert len([*(tmp_path / "log").iterdir()]) == 1


def records(content):
    """Yield the records of an event file: a length, its sum, the record, its sum."""
    while content:
        size = int.from_bytes(content[:8], "little")
        yield content[12 : 12 + size]
        content = content[16 + size :]


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_refused_before_the_run(call, monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, {"tensorboard": "tensorboardX"}.get(name, name), None)
    np.save(tmp_path / "x.npy", X)
    own = ("--data", tmp_path / "x.npy", "--out", tmp_path / "run", "--log", name)
    _, err = call("train", "--layers", "5,3", *own, status=2)
    assert f'pip install "syncpretrain[{name}]"' in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_unknown_logger():
    with pytest.raises(SettingsError, match="log: got 'wandb', expected tensorboard or mlflow"):
        check_loggers(["wandb"])
