"""``syncpretrain simulate``."""

import json

import pytest

from syncpretrain.cli.predictions import ALL_REDUCE_WORDS, SCHEDULE_WORDS
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.planning.scaling.curves import WAYS
from syncpretrain.planning.scaling.work import ALL_REDUCES
from syncpretrain.planning.timings import sizes
from syncpretrain.schedule.kinds import ASYNC, SCHEDULES

STACK = ("--layers", "16,8,4", "--epochs", 3, "--examples", 200, "--costs", "0.02,0.01")


@pytest.fixture
def call(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **options: call("simulate", *arguments, **options)


def test_the_words_are_those_of_the_model():
    assert set(SCHEDULE_WORDS) == {*SCHEDULES, ASYNC}
    assert ALL_REDUCE_WORDS == ALL_REDUCES


def test_all_ways_side_by_side(call):
    out, err = call(*STACK, "--devices", "1,2,4,...,16")
    assert not err
    assert out.startswith("16-8-4, 3 epochs of 200 examples, minibatches of 100: greedy on one")
    assert all(word in out for name in WAYS for word in name.split())
    assert out.splitlines()[-1].startswith("What is learned is not simulated")


def test_units_are_split_in_all_ways_but_one(call):
    """A worker of a parameter server has whole minibatches."""
    out, _ = call(*STACK, "--split", "units", "--json")
    names = [curve["name"] for curve in json.loads(out)["curves"]]
    assert names == [name for name in WAYS if name != "asynchronous"]


def test_one_way_with_all_its_figures(call):
    out, _ = call(*STACK, "--schedule", "synchronized", "--devices", "2", "--bandwidth", "inf")
    row = next(line for line in out.splitlines() if line.strip().startswith("2 "))
    assert (row.split()[:2], row.split()[-1]) == (["2", "2"], "1,1")


def test_json_is_read_again_as_costs(call, tmp_path):
    options = ("--schedule", "synchronized", "--replicas", "1", "--latency", "0s", "--json")
    out, _ = call(*STACK, *options, "--bandwidth", "inf", "--devices", "1,2")
    assert out.count("\n") == 1
    report = json.loads(out)
    assert report["bandwidth"] is None
    assert [cost["step"] for cost in report["costs"]] == [0.02, 0.01]
    (found,) = report["curves"]
    # 2 minibatches of 0.02 and 0.01 s; for layer 2 a pass over 240 rows, 0.004 s for each 100.
    one, two = (run["seconds"] for run in found["runs"])
    assert one == pytest.approx(3 * (0.04 + 0.02 + 0.0096))
    assert two == pytest.approx(3 * 0.04 + 0.02 + 0.0096)
    (tmp_path / "costs.json").write_text(out)
    again, _ = call(*STACK[:-1], "costs.json", *options, "--bandwidth", "inf", "--devices", "1,2")
    assert json.loads(again)["curves"] == report["curves"]


def test_async_says_what_stale_updates_count(call):
    out, _ = call(*STACK, "--schedule", "async", "--devices", "1,4")
    lines = dict(line.split(": ", 1) for line in out.splitlines() if "staleness" in line)
    late = lines["mean staleness of the asynchronous updates"].split(", ")
    useful = lines["times greedy training, where each is divided by its staleness"].split(", ")
    times = [row.split()[3] for row in out.splitlines() if row.split()[:1] in (["1"], ["4"])]
    assert float(useful[0]) == float(times[0])
    assert float(useful[1]) == pytest.approx(float(times[1]) / float(late[1]), abs=0.02)


def test_the_costs_are_measured_without_any(call):
    out, _ = call(*STACK[:-2], "--seconds", 0, "--schedule", "greedy", "--json")
    assert all(cost["step"] > 0 for cost in json.loads(out)["costs"])


def test_cores_of_this_machine_are_measured_together(call):
    given = (*STACK[:-2], "--seconds", 0, "--schedule", "greedy", "--replicas", "all", "--cores")
    report = json.loads(call(*given, "--json")[0])
    assert report["bandwidth"] is None
    assert report["latency"] == 0
    devices = [run["devices"] for run in report["curves"][0]["runs"]]
    assert devices == [1, *sizes(usable_cores())]
    assert {own["devices"] for cost in report["costs"] for own in cost["shared"]} <= set(devices)


@pytest.mark.usefixtures("fonts")
def test_the_picture_is_a_png(call, tmp_path):
    call(*STACK, "--out", "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "0"), "--devices: got '0', expected whole numbers"),
        (("--bandwidth", "fast"), "--bandwidth: got 'fast', expected bits or bytes"),
        (("--latency", "soon"), "--latency: got 'soon', expected a time"),
        (("--costs", "1,2,3"), "--costs: got those of 3 layers, expected 2"),
        (("--costs", "nowhere.json"), "--costs: nowhere.json: "),
        (("--batch-size", "201"), "--batch-size: got 201, expected at most 200, the examples"),
        (("--schedule", "greedy", "--servers", "2"), "--servers: got 2 with schedule greedy"),
        (("--schedule", "rounds", "--push-every", "2"), "--push-every: got 2 with schedule rounds"),
        (("--handoff", "minibatch"), "--handoff: got minibatch without --schedule"),
        (("--replicas", "2"), "--replicas: got 2 without --schedule"),
        (("--group-size", "2"), "--group-size: got 2 without --schedule"),
        (("--schedule", "greedy", "--delay", "1"), "--delay: got 1 with handoff epoch"),
        (("--schedule", "greedy", "--replicas", "x"), "--replicas: got 'x', expected auto"),
        (("--cores", "--latency", "0s"), "--latency: got 0s with --cores, whose messages take no"),
        (("--cores", "--devices", "9999"), "--devices: got 9999 with --cores, expected at most"),
        (("--out", "curves.jpg"), "--out: got curves.jpg, expected a name that ends with .png"),
        (("--out", "nowhere/curves.png"), "--out: the folder nowhere does not exist"),
        (("--epochs", "1,2,3"), "--epochs: got 3 values"),
        (("--epochs", "2001"), "--epochs: got 2001, expected at most 2000, which are played"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(refusal, options, message):
    assert refusal(*STACK, *options).startswith(f"Error: {message}")


def test_layers_are_needed(refusal):
    assert refusal().startswith("Error: --layers: got nothing")
