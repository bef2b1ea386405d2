"""``syncpretrain plan`` and ``bench``, and ``train --schedule auto``."""

import json
import shlex
from unittest.mock import Mock

import fakecupy
import pytest
from commandline import measure_one_round

import syncpretrain.planning.choice as choosing
from syncpretrain.planning import bench
from syncpretrain.planning.timings import place_of_timings
from syncpretrain.runs import prepare as preparing
from syncpretrain.settings import read_settings, settings_from

pytestmark = pytest.mark.usefixtures("measures_anew", "folder_with_examples")

STACK = ("--layers", "16,8,4", "--epochs", 2, "--batch-size", 10)
QUICK = ("--seconds", 0, "--examples", 100)


@pytest.fixture
def quick(monkeypatch):
    measure_one_round(monkeypatch)


class TestPlan:
    def test_table(self, call):
        out, err = call("plan", *STACK, *QUICK, "--workers", 2)
        lines = out.splitlines()
        assert lines[0] == "16-8-4, 2 epochs of 100 examples, 2 workers"
        assert "greedy, one core" in out
        assert "pipeline" in out
        assert any(line.startswith("the bound is ") for line in lines)
        assert any(line.startswith("choice: ") for line in lines)
        words = f"train it: syncpretrain train {' '.join(map(str, STACK))} --schedule "
        assert lines[-1].startswith(words)
        assert not err

    def test_json(self, call):
        out, _ = call("plan", *STACK, *QUICK, "--workers", 2, "--json")
        assert out.count("\n") == 1
        report = json.loads(out)
        assert [report["layers"], report["epochs"], report["workers"]] == [[16, 8, 4], [2, 2], 2]
        assert [report["examples"], report["held_out"], report["batch_size"]] == [100, 20, 10]
        names = [candidate["name"] for candidate in report["candidates"]]
        assert names[:2] == ["greedy, one core", "pipeline, one core"]
        assert report["choice"] in names
        for candidate in report["candidates"]:
            fields = "bytes epochs floor_share name seconds settings speedup"
            assert " ".join(sorted(candidate)) == fields
        measured = "step_ms contention products_ms blas_step_ms sharded_ms"
        assert set(report["measured"][0]) == set(measured.split())
        chosen = next(each for each in report["candidates"] if each["name"] == report["choice"])
        assert chosen["settings"] == report["settings"]

    def test_own_products(self, call):
        own = ("--products", "own", "--finetune", "reconstruction", "--finetune-products", "own")
        report = json.loads(call("plan", *STACK, *QUICK, *own, "--json")[0])
        assert report["products"] == "own"
        assert report["command"].count("products own") == 2
        assert json.loads(call("plan", *STACK, *QUICK, "--json")[0])["products"] == "auto"

    def test_a_preset_gives_the_stack(self, call):
        out, _ = call("plan", "--preset", "fast", "--layers", "16,8,4", *QUICK, "--json")
        report = json.loads(out)
        assert (report["layers"], report["epochs"]) == ([16, 8, 4], [1, 1])
        assert report["command"].startswith("syncpretrain train --preset fast --layers 16,8,4 ")

    def test_refusals(self, call):
        assert "--layers: got nothing" in call("plan", status=2)[1]
        assert "--workers" in call("plan", *STACK, "--workers", 0, status=2)[1]


class TestAuto:
    TRAIN = ("train", "--data", "x.npy", *STACK)

    @pytest.mark.parametrize("kept", [("--handoff", "minibatch"), ("--pace", "free")])
    def test_the_data_is_loaded_once(self, call, quick, monkeypatch, kept):
        """Only a stream that the plan chose loads a file anew, to leave it on the disk."""
        loads = Mock(wraps=preparing.load_dataset)
        monkeypatch.setattr(preparing, "load_dataset", loads)
        call(*self.TRAIN, "--schedule", "auto", *kept, "--out", "once")
        assert [each.args[0] for each in loads.call_args_list] == ["x.npy"]

    def test_it_settles_the_schedule_and_records_it(self, call, quick, tmp_path):
        out, err = call(*self.TRAIN, "--schedule", "auto", "--out", "run", "--json")
        report = json.loads(out)
        notice = next(line for line in err.splitlines() if "schedule auto: " in line)
        assert f"--schedule {report['schedule']}" in notice
        recorded = read_settings(tmp_path / "run/config.toml").pretrain
        assert recorded.schedule == report["schedule"]
        assert recorded.workers is not None
        assert 'schedule = "auto"' not in (tmp_path / "run/config.toml").read_text()
        again, _ = call("train", "--config", "run/config.toml", "--out", "again", "--json")
        assert json.loads(again)["parameters_sha256"] == report["parameters_sha256"]

    def test_quiet_is_quiet(self, call, quick):
        assert call(*self.TRAIN, "--schedule", "auto", "--quiet") == ("", "")

    def test_a_second_run_takes_what_the_first_measured(self, call, quick, tmp_path, monkeypatch):
        cache = tmp_path / "cache"
        monkeypatch.setattr("syncpretrain.planning.timings.cache_folder", lambda: cache)
        monkeypatch.setattr(choosing, "place_of_timings", place_of_timings)
        measured = Mock(wraps=choosing.timings_of)
        monkeypatch.setattr(choosing, "timings_of", measured)
        train = (*self.TRAIN, "--schedule", "auto", "--json")
        assert "as measured on" not in call(*train, "--out", "run")[1]
        _, second = call(*train, "--seed", 5, "--epochs", 3, "--out", "again")
        (kept,) = (cache / "timings").iterdir()
        assert f", in {kept}; without that file it is measured anew" in " ".join(second.split())
        assert measured.call_count == 1
        call(*train, "--batch-size", 7, "--out", "other")
        assert measured.call_count == 2
        for each in (cache / "timings").iterdir():
            each.write_bytes(b"damaged")
        _, last = call(*train, "--out", "last")
        assert measured.call_count == 3
        assert "as measured on" not in last

    def test_libraries_may_be_found_in_any_order(self, monkeypatch):
        own = settings_from((8, 4)).pretrain
        found = [{"prefix": name, "version": None} for name in ("a", "b")]
        places = []
        for libraries in (found, found[::-1]):
            loaded = Mock(return_value=Mock(info=Mock(return_value=libraries)))
            monkeypatch.setattr("syncpretrain.planning.timings.loaded_libraries", loaded)
            places.append(place_of_timings(own, 10))
        assert places[0] == places[1] != place_of_timings(own, 11)

    def test_without_a_folder_to_keep_timings_it_measures(self, call, quick, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setattr("syncpretrain.planning.timings.cache_folder", lambda: tmp_path / "file")
        monkeypatch.setattr(choosing, "place_of_timings", place_of_timings)
        for out in ("run", "again"):
            assert "as measured on" not in call(*self.TRAIN, "--schedule", "auto", "--out", out)[1]

    @pytest.mark.parametrize(
        ("option", "value"), [("replicas", 2), ("split", "units"), ("shards", 2), ("group-size", 1)]
    )
    def test_what_it_decides_cannot_be_given(self, refusal, option, value):
        line = refusal(*self.TRAIN, "--schedule", "auto", f"--{option}", value)
        assert f"--{option}: cannot be combined with --schedule auto" in line

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--layers 15,8", "--layers: the first number is 15"),
            ("--layers 16,1000000,1000000", "--layers: 16,1000000,1000000 on 60 examples need"),
            ("--batch-size 60", "--batch-size: got 60, expected at most 54"),
            ("--early-stopping free-energy-gap --validation 0", "--early-stopping: got free-"),
            (
                "--finetune reconstruction --finetune-batch-size 100",
                "--finetune-batch-size: got 100, expected at most 54",
            ),
        ],
    )
    def test_what_cannot_be_trained_is_not_measured(self, refusal, monkeypatch, options, message):
        monkeypatch.setattr("syncpretrain.planning.choice.plan_for", None)
        line = refusal(*self.TRAIN, "--schedule", "auto", *options.split())
        assert line.startswith(f"Error: {message}")

    def test_auto_with_gpus_needs_one(self, call, monkeypatch):
        fakecupy.install(monkeypatch, devices=0)
        _, err = call(*self.TRAIN, "--schedule", "auto", "--backend", "cupy", status=2)
        assert "--backend: got cupy, but the driver finds no NVIDIA GPU" in err

    def test_what_a_file_says_of_it_gives_way(self, call, quick):
        call(*self.TRAIN, "--schedule", "rounds", "--group-size", 1, "--out", "old", "--quiet")
        config = ("--config", "old/config.toml", "--schedule", "auto")
        out, _ = call("train", *config, "--out", "new", "--json")
        assert json.loads(out)["schedule"] in ("greedy", "synchronized")


class TestBench:
    @pytest.fixture(autouse=True)
    def one_round(self, monkeypatch):
        """Measure the layers in one round only, and the peak with small products."""
        monkeypatch.setattr(bench, "SIDE", 64)
        measured = bench.plan_for
        brief = {"measure_seconds": 0}
        monkeypatch.setattr(bench, "plan_for", lambda task, **own: measured(task, **own | brief))

    def test_table(self, call):
        out, err = call("bench", *STACK, *QUICK[2:], "--workers", 2, "--products", "own")
        lines = out.splitlines()
        assert lines[0] == "16-8-4, 2 epochs of 100 examples, 2 workers"
        assert lines[1].startswith("large products, 1 core: BLAS ")
        assert "greedy, one core" in out
        assert err.splitlines()[0] == "measuring the layers"

    @pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
    def test_the_schedules_of_one_hand_over_beside_greedy_training(self, call, handoff):
        options = ("--examples", 100, "--workers", 2, "--json", "--handoff", handoff)
        report = json.loads(call("bench", *STACK, *options)[0])
        names = [row["name"] for row in report["schedules"]]
        assert names[0] == "greedy, one core"
        is_streamed = handoff == "minibatch"
        assert ("streamed, one core" in names) == is_streamed
        assert ("pipeline" in names) is not is_streamed
        assert ("streamed" in report["choice"]) == is_streamed

    def test_json_with_a_target(self, call):
        data = ("--data", "x.npy", "--target", 1000)
        out, _ = call("bench", *STACK, "--batch-size", 5, *data, "--json")
        assert out.count("\n") == 1
        report = json.loads(out)
        assert " ".join(sorted(report)) == (
            "batch_size blas_threads choice epochs examples floor_seconds layers own_gflops "
            "peak_gflops register_gflops rounds schedules target unit workers"
        )
        assert set(report["peak_gflops"]) >= set(report["own_gflops"])
        assert report["schedules"][0]["speedup_over_one_core"] == 1
        assert report["target"]["seconds"] > 0
        assert report["target"]["finetune_epochs"] == 1

    def test_refusals(self, call):
        assert "--target: " in call("bench", *STACK, "--target", 8, status=2)[1]
        wrong = ("--layers", "15,8", "--data", "x.npy")
        assert "the first number is 15" in call("bench", *wrong, status=2)[1]

    def test_it_names_no_option_that_it_lacks(self, call, tmp_path):
        for column, words in (
            ("label", "whose last column is named 'label'; leave it out (under"),
            ("text", "or leave it out\n"),
        ):
            lines = "".join(f"{i / 9},{'u' if column == 'text' else i % 2}\n" for i in range(9))
            (tmp_path / "t.csv").write_text(f"a,{column}\n{lines}")
            err = call("bench", "--data", tmp_path / "t.csv", "--layers", "2,1", status=2)[1]
            assert words in err and "drop" not in err


def test_the_printed_command_trains_the_chosen_candidate(call, tmp_path):
    """The settings of a file that the candidate does not share are named on the command line."""
    stack = ("--data", "digits", "--layers", "64,12,8", "--epochs", 1, "--batch-size", 100)
    options = ("--schedule", "rounds", "--group-size", 1, "--replicas", 2, "--split", "units")
    call("train", *stack, *options, "--quiet", "--out", "run")
    report = json.loads(call("plan", "--config", "run/config.toml", "--seconds", 0, "--json")[0])
    call(*shlex.split(report["command"])[1:], "--quiet", "--out", "again")
    ran = read_settings(tmp_path / "again" / "config.toml").pretrain
    chosen = report["settings"]
    assert ran.schedule == chosen["schedule"]
    assert list(ran.replicas) == list(chosen.get("replicas", (1, 1)))
    assert ran.group_size is None
