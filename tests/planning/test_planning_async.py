"""Asynchronous runs in plans: exact small cases, and the command that a plan prints."""

import json
from types import SimpleNamespace

import pytest

from syncpretrain.cli.setting_options import settings_from_options
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.planning import plan, tuning
from syncpretrain.planning.asynchronous import AsyncStage, predict_async, predict_stages
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.probes import exchanges
from syncpretrain.planning.timings import Exchange, LayerTimings, Timings
from syncpretrain.planning.tuning import plan_tuning
from syncpretrain.settings import settings_from

pytestmark = pytest.mark.usefixtures("folder_with_examples")

STEPS = 100


def layer(step=1.0, **others):
    usual = {"products": step, "sharded": {}, "transform": {1: 0.0}, "validation": 0.0}
    return LayerTimings(step=step, **(usual | others))


def predicted(*layers, workers=4, exchange=None, held_out=0, **settings):
    own = settings_from((8,) * (len(layers) + 1), epochs=2, schedule="async", **settings).pretrain
    passed = () if exchange is None else (exchange,) * len(layers)
    timings = Timings(layers, workers, 1, exchanges=passed)
    return predict_async(Task(own, STEPS * own.batch_size, held_out), timings)


def test_replicas_share_the_tasks_and_two_pay():
    """A change of R replicas is R - 1 late, and counts as much less."""
    found = predicted(layer(), layer(3.0))
    assert [way.replicas for way in found.ways] == [1, 2, 3, 4]
    seconds = [way.seconds for way in found.ways]
    assert seconds == pytest.approx([8 * STEPS / n for n in (1, 2, 3, 4)])
    assert [way.staleness for way in found.ways] == [0, 1, 2, 3]
    assert [way.useful for way in found.ways] == pytest.approx([0.5, 1.0, 0.75, 2 / 3])
    assert found.paying.replicas == 2
    assert found.settings == {"schedule": "async", "replicas": 2}


def test_whole_changes_pay_on_all_cores():
    assert predicted(layer(), async_rate="constant").paying.replicas == 4


def test_the_server_is_one_thread():
    """Beyond 3 replicas it is busy all the time."""
    exchange = Exchange(fetch=0.3, push=0.2, local=0.1)
    found = predicted(layer(0.9), exchange=exchange, async_rate="constant", workers=8)
    seconds = [way.seconds / (2 * STEPS) for way in found.ways]
    assert seconds == pytest.approx([1.5, 0.75, *[0.5] * 6])
    assert found.paying.replicas == 3


def test_pushes_and_fetches_may_be_rare():
    exchange = Exchange(fetch=0.8, push=0.4)
    often, seldom = (
        predicted(layer(0.0), exchange=exchange, workers=1, push_every=2, fetch_every=fetch)
        for fetch in (2, 8)
    )
    assert often.ways[0].seconds == pytest.approx(STEPS * 1.2)
    assert seldom.ways[0].seconds == pytest.approx(STEPS * (0.2 + 0.4))


def test_busy_cores_slow_each_other_and_may_not_pay():
    found = predicted(layer(contention=2.0), workers=2)
    assert [way.seconds for way in found.ways] == [2 * STEPS, 2 * STEPS]
    assert found.paying.replicas == 1


def test_passes_and_ends_of_epochs_are_not_shared():
    ends = {"validation": 5.0, "transform": {1: 0.001}}
    found = predicted(layer(validation=5.0), layer(**ends), workers=2, held_out=100)
    rest = 4 * 5.0 + 0.001 * (STEPS * 100 + 100)
    assert [way.seconds for way in found.ways] == [4 * STEPS + rest, 2 * STEPS + rest]


def test_a_stream_trains_all_layers_in_a_task():
    found = predicted(layer(), layer(3.0), handoff="minibatch", workers=2)
    assert [way.seconds for way in found.ways] == [8 * STEPS, 4 * STEPS]
    assert [way.useful for way in found.ways] == pytest.approx([0.25, 0.5])


def test_exchanges_are_measured():
    found = exchanges(settings_from((64, 32, 8), schedule="async", servers=2).pretrain)
    assert len(found) == 2
    assert all(min(one.fetch, one.push, one.local) > 0 for one in found)


ASYNC = '[pretrain]\nlayers = [16, 8]\nschedule = "async"\nepochs = 1\nbatch_size = 10\n'


QUICK = ("--seconds", 0, "--examples", 100)
ON_THE_COMMAND_LINE = ("--layers", "16,8", "--batch-size", 10, "--schedule", "async")
ON_THE_COMMAND_LINE += ("--push-every", 2)


@pytest.mark.parametrize("given", [("--config", "own.toml"), ON_THE_COMMAND_LINE])
def test_an_asynchronous_plan_prints_a_command_that_trains(call, tmp_path, given):
    """Workers are the most replicas that it looks at."""
    (tmp_path / "own.toml").write_text(ASYNC + "push_every = 2\n")
    report = json.loads(call("plan", *given, *QUICK, "--workers", 3, "--json")[0])
    found, words = report["asynchronous"], report["command"].split()
    assert [way["replicas"] for way in found["ways"]] == [1, 2, 3]
    assert found["replicas"] in (1, 2, 3)
    assert words[words.index("--schedule") + 1] == "async"
    assert "--workers" not in words
    assert ("--config" in words) or words[words.index("--push-every") + 1] == "2"
    trained, _ = call(*words[1:], "--epochs", 1, "--data", "x.npy", "--json")
    assert json.loads(trained)["schedule"] == "async"
    assert "choice: asynchronous, " in call("plan", *given, *QUICK)[0]


def test_workers_are_the_most_replicas_of_the_public_function_too():
    found = plan((16, 8), schedule="async", workers=3, batch_size=10, measure_seconds=0)
    assert [way.replicas for way in found.asynchronous.ways] == [1, 2, 3]


@pytest.mark.parametrize("workers", [0, 1025, 1.5])
def test_workers_that_no_machine_has_are_refused(workers):
    with pytest.raises(SettingsError, match=f"^workers: got {workers}, expected a whole number"):
        plan((16, 8), workers=workers)


class TestTuning:
    def tuned(self, **finetune):
        own = {"objective": "reconstruction", "batch_size": 10, **finetune}
        own = settings_from((16, 8, 4), finetune=own)
        return plan_tuning(own.pretrain, own.finetune, workers=2, examples=100, seconds=0)

    def test_stages_are_predicted_by_the_number_of_replicas(self):
        stage = AsyncStage(tasks=10, computing=0.9, contention=1.5, local=0.1, server=0.5, rest=2)
        found = predict_stages([stage], workers=2, rate="staleness")
        assert [way.seconds for way in found.ways] == pytest.approx([17.0, 11.75])
        assert [way.useful for way in found.ways] == pytest.approx([10 / 15, 10 / 9.75])
        assert stage.training(2, 4) == stage.training(2, 2), "more replicas than cores share them"

    @pytest.mark.parametrize("objective", ["reconstruction", "classification", "regression"])
    def test_both_schedules_of_fine_tuning_are_measured(self, objective):
        found = self.tuned(objective=objective)
        assert found.synchronous > 0
        assert [way.replicas for way in found.asynchronous.ways] == [1, 2]
        assert min(way.seconds for way in found.asynchronous.ways) > 0
        assert found.settings == {}, "synchronous fine-tuning was asked for"

    def test_replicas_left_open_are_those_that_pay(self):
        found = self.tuned(schedule="async", push_every=4)
        assert found.settings == {"finetune_replicas": found.asynchronous.paying.replicas}
        assert self.tuned(schedule="async", replicas=2).settings == {}

    def test_optimizers_along_lines_are_not_predicted(self):
        pytest.importorskip("scipy", reason="cg is SciPy's")
        found = self.tuned(optimizer="cg")
        assert found.synchronous is found.asynchronous is None
        expected = "fine-tuning for reconstruction is not predicted: steps by cg differ in length"
        assert found.sentences == [expected]

    @pytest.mark.parametrize(("operations", "rows"), [(1e5, 10), (2000.0, 2), (1.0, 0)])
    def test_large_stacks_are_timed_on_some_rows_or_not_at_all(self, monkeypatch, operations, rows):
        monkeypatch.setattr(tuning, "TIMED_OPERATIONS", operations)
        monkeypatch.setattr(tuning, "MOST_OPERATIONS", 5 * operations)
        found = self.tuned(schedule="async")
        assert (found.synchronous is None) == (rows == 0)
        note = "; timed on 2 of the 10 examples of a minibatch"
        assert found.note == (note if rows == 2 else "")

    def test_minibatches_for_ranks_are_timed_in_threads(self):
        found = self.tuned(runtime="mpi", replicas=2)
        assert found.synchronous > 0
        assert (found.replicas, found.options.runtime) == (2, "mpi")
        assert self.tuned(runtime="mpi", schedule="async").asynchronous is not None

    def test_an_interrupt_is_no_end_of_the_measuring(self):
        def run(stack, *, stop):
            assert not stop()
            raise RunInterrupted("by a signal")

        timed = SimpleNamespace(options=SimpleNamespace(optimizer="adam"), run=run)
        with pytest.raises(RunInterrupted, match="by a signal"):
            tuning.minibatch_seconds(timed, None, seconds=9.0)

    def test_the_command_line_prints_what_trains(self, call):
        given = ("--layers", "16,8", "--batch-size", 10, "--examples", 100, "--seconds", 0)
        asked = ("--finetune", "reconstruction", "--finetune-schedule", "async")
        out, _ = call("plan", *given, *asked, "--finetune-batch-size", 10, "--workers", 2)
        assert "\nfine-tuning for reconstruction: " in out
        assert "\nasynchronous fine-tuning, an epoch by the number of replicas: 1: " in out
        words = out.splitlines()[-1].removeprefix("train it: syncpretrain ").split()
        assert "--finetune-replicas" in words
        options = ("--epochs", 1, "--data", "x.npy", "--finetune-epochs", 1, "--json")
        trained = json.loads(call(*words, *options)[0])
        assert trained["schedule"] in ("greedy", "synchronized")

    def test_what_fine_tuning_refuses_is_refused_before_measuring(self, call, monkeypatch):
        monkeypatch.setattr("syncpretrain.planning.measure.measure", None)
        given = ("--layers", "16,8", "--finetune", "reconstruction", "--examples", 50)
        _, err = call("plan", *given, "--finetune-batch-size", 51, status=2)
        assert err.startswith("Error: --finetune-batch-size: got 51, expected at most 50, the ex")


def settings_of(preset=None, config=None, **options):
    return settings_from_options(preset, config, {"model": None, "layers": None, **options})


def test_an_explicit_schedule_wins_over_the_workers_of_a_preset_alone():
    found = settings_of("santara2016", schedule="async", replicas=(2,)).pretrain
    assert (found.schedule, found.workers, found.replicas) == ("async", None, (2,) * 4)
    assert set(found.epochs) == {20}
    with pytest.raises(SettingsError, match=r"^workers: got 2 with schedule async"):
        settings_of("santara2016", schedule="async", workers=2)


@pytest.mark.parametrize("schedule", ["greedy", "synchronized"])
def test_an_explicit_schedule_wins_over_asynchronous_settings_of_a_file(tmp_path, schedule):
    path = tmp_path / "own.toml"
    path.write_text(
        ASYNC + "push_every = 2\nreplicas = 3\n[finetune]\nobjective ="
        ' "reconstruction"\nschedule = "async"\nruntime = "serial"\nreplicas = 2\n'
    )
    found = settings_of(None, path, schedule=schedule, finetune_schedule="synchronous")
    assert (found.pretrain.schedule, found.pretrain.push_every) == (schedule, 1)
    assert found.pretrain.replicas == (1,)
    assert (found.finetune.schedule, found.finetune.runtime) == ("synchronous", "threads")
    assert settings_of(None, path, seed=1).pretrain.replicas == (3,)


@pytest.mark.parametrize(
    "tuning",
    [{}, {"finetune": "reconstruction", "finetune_schedule": "async", "finetune_replicas": 2}],
)
def test_blas_threads_that_nothing_would_use_are_refused(tuning):
    own = {"layers": "16,8", "schedule": "async", "blas_threads": 2}
    with pytest.raises(SettingsError, match=r"^blas_threads: got 2 with schedule async"):
        settings_of(**own, **tuning)
    assert settings_of(**own, finetune="reconstruction").pretrain.blas_threads == 2
