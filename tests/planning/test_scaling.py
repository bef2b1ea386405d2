"""The simulation of clusters against small cases worked out by hand, and its bounds."""

import json
from dataclasses import replace
from math import inf
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.planning.candidates import Task, settings_with, simulated
from syncpretrain.planning.scaling import job as texts
from syncpretrain.planning.scaling.curves import (
    WAYS,
    Exchange,
    Options,
    Way,
    check_way,
    curve,
    scaled,
    serve,
)
from syncpretrain.planning.scaling.job import Job, Placed, place
from syncpretrain.planning.scaling.work import (
    GroupWork,
    LayerCosts,
    LayerWork,
    Network,
    PartCost,
    SharedCost,
    costs_from,
    costs_together,
    machine_costs,
    measured_costs,
)
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.settings import settings_from

FREE = Network()
UNITS, EXAMPLES = 10, 100  # of every layer here; one minibatch holds all examples
OF_JOB = ("replicas", "split", "held_out", "versions")
PARAMETERS = UNITS * UNITS + 2 * UNITS


def work(step: float, **others: float) -> LayerWork:
    return LayerWork(step=step, visible=UNITS, hidden=UNITS, parameters=PARAMETERS, **others)


def job(*steps: float, epochs: int = 5, network: Network = FREE, minibatches: int = 1, **options):
    """Return a job whose layers take ``steps`` seconds a minibatch."""
    own = {name: options.pop(name) for name in OF_JOB if name in options}
    works = tuple(x if isinstance(x, LayerWork) else work(x) for x in steps)
    layers = (UNITS,) * (len(works) + 1)
    batch = EXAMPLES // minibatches
    stack = settings_from(layers, epochs=epochs, batch_size=batch, workers=1, **options).pretrain
    return Job(settings=stack, works=works, examples=EXAMPLES, network=network, **own)


class TestNetwork:
    def test_without_latency_bytes_count(self):
        assert Network(2.0).transfer(8) == 4
        assert Network(1.0, 0, "ring").reduce(8, 4) == 12, "3 of 4 parts, twice"
        assert Network(1.0, 0, "tree").reduce(8, 4) == 32, "2 turns up, 2 down"
        assert Network(1.0, 0, "star").reduce(8, 4) == 64, "one link, both ways"
        assert Network(1.0).gather(8, 4) == 6
        assert Network(1.0).broadcast(8, 3) == 16

    def test_latency_counts_in_turns(self):
        assert Network(inf, 1.0, "ring").reduce(8, 4) == 6
        assert Network(inf, 1.0, "tree").reduce(8, 4) == 4
        assert Network(inf, 1.0).reduce(8, 1024) == 20, "the tree is taken"

    def test_one_device_exchanges_nothing(self):
        network = Network(1.0, 1.0, "star")
        assert network.reduce(8, 1) == network.gather(8, 1) == network.reduced_bytes(8, 1) == 0

    @given(st.integers(2, 2000), st.floats(1, 1e9), st.floats(0, 1e-3))
    def test_auto_is_the_faster_of_both(self, devices, size, latency):
        both = [Network(1e9, latency, name).reduce(size, devices) for name in ("ring", "tree")]
        assert Network(1e9, latency).reduce(size, devices) == min(both)


class TestPipeline:
    def test_two_equal_layers_take_one_epoch_more_than_one(self):
        found = scaled(job(3, 3), 2)
        assert found.seconds == pytest.approx(6 * 3)
        assert found.idle == pytest.approx(1 / 6)
        assert (found.used, found.replicas) == (2, (1, 1))

    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_equal_layers_gain_as_many_times_but_for_the_filling(self, depth):
        pipeline, epochs = job(*[2] * depth, epochs=7), 7
        gain = scaled(pipeline, 1).seconds / scaled(pipeline, depth).seconds
        assert gain == pytest.approx(depth * epochs / (epochs + depth - 1))

    def test_the_parameters_go_where_they_are_fewer_bytes(self):
        # 480 bytes of parameters take a second, 4,000 of activations more.
        network = Network(4.0 * PARAMETERS)
        found = scaled(job(3, 3, network=network), 2)
        assert found.seconds == pytest.approx(3 + 5 * (1 + 3))
        assert found.bytes_moved == 5 * 4 * PARAMETERS
        assert found.idle == pytest.approx(1 - 30 / (2 * 23)), "waiting for the network is idle"

    def test_the_activations_go_where_the_passes_take_longer(self):
        # A second for 4,000 bytes; the parameters of layers 1 and 2 need two passes of 10 s.
        network = Network(4.0 * EXAMPLES * UNITS)
        layers = [work(30, forward=10), work(30, forward=10), work(30)]
        found = scaled(job(*layers, epochs=1, network=network, replicas=(1, 1, 1)), 3)
        parameters = 4 * PARAMETERS
        assert found.seconds == pytest.approx(30 + 30 + 10 + 0.12 + 30 + 10 + 1)
        assert found.bytes_moved == parameters + 4 * EXAMPLES * UNITS

    def test_a_version_may_go_as_told(self):
        network = Network(4.0 * PARAMETERS)
        found = scaled(job(3, 3, network=network, versions="activations"), 2)
        assert found.bytes_moved == 5 * 4 * EXAMPLES * UNITS

    def test_rounds_train_as_many_layers_as_there_are_devices(self):
        found = scaled(job(2, 2, 2, epochs=3, schedule="rounds", replicas=(1, 1, 1)), 2)
        assert found.seconds == pytest.approx((3 + 1) * 2 + 3 * 2), "the third layer is alone"
        assert found.idle == pytest.approx(1 - 18 / 28)

    def test_crowded_cores_slow_each_other(self):
        alone, both = job(2, 2), job(work(2, crowding=0.5), work(2, crowding=0.5))
        assert scaled(both, 1).seconds == scaled(alone, 1).seconds
        assert scaled(both, 2).seconds == pytest.approx(2 + 4 * 3 + 2), "four epochs side by side"

    def test_a_link_that_is_slower_than_the_layers_sets_the_pace(self):
        # A minibatch of an example takes a second in a layer and two on the link; a block is 4.
        network = Network(4.0 * UNITS / 2)
        options = {"epochs": 1, "minibatches": EXAMPLES, "handoff": "minibatch", "delay": 0.0}
        slow = scaled(job(1, 1, network=network, **options), 2)
        assert slow.seconds == pytest.approx(4 + 100 * 2 + 4)
        assert slow.bytes_moved == 100 * 4 * UNITS
        fast = scaled(job(1, 1, **options), 2)
        assert fast.seconds == pytest.approx(104)
        assert fast.idle == pytest.approx(1 - 200 / 208)

    @settings(deadline=None, max_examples=30)
    @given(
        st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
        st.integers(1, 5),
        st.integers(1, 9),
        st.floats(1e2, 1e6),
        st.sampled_from(["epoch", "minibatch"]),
    )
    def test_never_faster_than_the_bounds(self, steps, epochs, devices, bandwidth, handoff):
        options = {"epochs": epochs, "handoff": handoff, "minibatches": 4}
        network = Network(bandwidth, 1e-3)
        pure = scaled(job(*steps, **options, network=network, replicas=(1,) * len(steps)), devices)
        whole = 4 * epochs * sum(steps)
        assert pure.seconds >= 4 * epochs * max(steps) * (1 - 1e-9)
        spread = scaled(job(*steps, **options, network=network), devices)
        for found in (pure, spread):
            assert found.seconds >= whole / min(devices, found.used) * (1 - 1e-9)
            assert 0 <= found.idle <= 1
            assert found.used <= devices


class TestGroups:
    def test_examples_are_shared_but_not_the_update(self):
        how = {"split": "examples", "network": FREE}
        assert GroupWork.of(work(9, fixed=1), 4, batch_size=100, **how).step == 1 + 8 / 4
        own = GroupWork.of(work(9, fixed=1), 3, batch_size=4, **how)
        assert own.step == 1 + 8 / 2, "the largest share of a minibatch counts"

    def test_gradients_are_summed_in_every_step(self):
        network = Network(4.0 * PARAMETERS, 0, "ring")
        found = scaled(job(8, schedule="greedy", network=network, replicas=(4,)), 4)
        assert found.seconds == pytest.approx(5 * (8 / 4 + 1.5))
        assert found.bytes_moved == 5 * 2 * 3 * 4 * PARAMETERS
        assert found.idle == pytest.approx(1.5 / 3.5)

    def test_steps_on_fewer_rows_count_as_measured(self):
        parts = (PartCost(rows=25, step=4), PartCost(rows=50, step=6))
        own = work(9, fixed=1, parts=parts)
        assert [own.step_on(rows, 100) for rows in (100, 75, 50, 25, 5)] == [9, 7.5, 6, 4, 1.6]
        assert own.step_on(40, 40) == 9, "of a smaller minibatch, whose parts are others"
        found = GroupWork.of(own, 2, batch_size=100, split="examples", network=FREE)
        assert found.step == 6

    def test_cores_that_share_a_step_take_what_they_took_together(self):
        shared = SharedCost(devices=2, split="examples", step=7, forward=1.5)
        own = work(9, fixed=1, crowding=0.25, forward=2, shared=(shared,))

        def group(devices, split="examples", network=FREE):
            return GroupWork.of(own, devices, batch_size=100, split=split, network=network)

        assert (group(2).step, group(2).forward) == (7, 1.5)
        assert group(4).step == 1.75 * (1 + 8 / 4), "not measured: each slows the others"
        assert group(2, "units").step == 1.25 * 9 / 2
        assert group(2, network=Network(1e9)).step > 1.25 * 5, "no cores of one machine"

    def test_units_exchange_no_gradient(self):
        network = Network(4.0 * 100 * UNITS)
        own = GroupWork.of(work(8), 2, batch_size=100, split="units", network=network)
        assert own.step == 4 + 3 * 0.5, "half of the hidden units twice, of the visible ones once"

    def test_devices_go_where_it_takes_longest(self):
        loads = [8.0, 4.0, 2.0, 1.0]
        counts = place("auto", range(4), lambda i, n: loads[i] / n, devices=15, most=[99] * 4)
        assert counts == [8, 4, 2, 1]

    def test_more_devices_than_pay_stay_idle(self):
        network = Network(4.0 * PARAMETERS / 3, 0, "ring")  # summing takes 3 s and more
        assert scaled(job(4, network=network), 8).replicas == (1,)
        every = scaled(job(4, network=network, replicas="all"), 8)
        assert every.replicas == (8,)
        assert every.seconds > scaled(job(4, network=network), 8).seconds

    def test_the_memory_is_that_of_the_largest_device(self):
        found = scaled(job(1, 1, schedule="greedy", replicas=(2, 2)), 2)
        parameters, batch, rows = 3 * PARAMETERS, 100 * 4 * UNITS, EXAMPLES * UNITS / 2
        assert found.memory == 4 * (parameters + batch + rows)
        assert Placed.of(job(1, 1, replicas=(1, 1)), 1).memory([0, 0]) == 8 * (parameters + batch)


class TestServer:
    def test_one_worker_adds_everything_up(self):
        exchange = Exchange(computing=4, size=1, applying=0.5)
        found = serve(exchange, workers=1, turns=10, network=Network(1.0, 0.25))
        assert found.seconds == pytest.approx(10 * (0.25 + 1.25 + 4 + 1.25) + 0.5)
        assert found.staleness == 0

    def test_two_workers_wait_for_each_other_once(self):
        found = serve(Exchange(computing=4, size=1), workers=2, turns=10, network=Network(1.0))
        assert found.seconds == pytest.approx(5 * 6 + 1)
        assert found.staleness == pytest.approx(0.9), "that of all but the first update is 1"

    def test_the_links_of_the_servers_saturate(self):
        exchange = Exchange(computing=4, size=1)
        for own, seconds in ((exchange, 900), (replace(exchange, servers=2), 450)):
            found = serve(own, workers=30, turns=900, network=Network(1.0))
            assert found.seconds == pytest.approx(seconds, rel=9 / seconds)

    @settings(deadline=None, max_examples=40)
    @given(
        *(st.integers(1, 20), st.integers(1, 60), st.floats(0.1, 5), st.floats(0, 5)),
        st.integers(1, 3),
    )
    def test_never_faster_than_the_workers_and_the_servers(
        self, workers, turns, computing, size, servers
    ):
        exchange = Exchange(computing=computing, size=size, applying=0.1, servers=servers)
        found = serve(exchange, workers=workers, turns=turns, network=Network(1.0))
        least = max(-(-turns // workers) * (computing + 2 * size), turns * size / servers)
        assert found.seconds >= least * (1 - 1e-9)
        assert 0 <= found.staleness < workers


def replicated(*replicas: int) -> Way:
    return Way("synchronized", replicas=replicas)


class TestCurves:
    COSTS = (LayerCosts(step=0.008, fixed=0.001, forward=0.001), LayerCosts(step=0.004))

    def options(self, **others):
        stack = {"epochs": 2, "batch_size": 100}
        network = Network(1.25e9, 2e-5)
        kwargs = {"layers": (784, 500, 250), "stack": stack, "network": network, "examples": 2000}
        return Options(**{**kwargs, **others})

    def runs(self, way, devices, **others):
        return curve("", WAYS[way], self.options(**others), self.COSTS, devices).runs

    @pytest.mark.parametrize("name", WAYS)
    def test_every_way_starts_near_one(self, name):
        found = curve(name, WAYS[name], self.options(), self.COSTS, [1, 2, 8])
        assert [run.devices for run in found.runs] == [1, 2, 8]
        first, second, last = map(found.speedup, found.runs)
        assert 0.5 < first < 1.05 and last > first
        assert found.report()["runs"][1]["speedup"] == second

    def test_workers_without_a_minibatch_are_not_at_work(self):
        found = self.runs("asynchronous", [8, 64])
        assert [run.used for run in found] == [8, 40], "2 epochs of 20 minibatches"

    def test_a_push_is_of_an_epoch_at_most(self):
        found = [self.runs("asynchronous", [1], push_every=push)[0] for push in (20, 10**9)]
        assert found[0] == found[1]
        parameters = (784 * 500 + 784 + 500) + (500 * 250 + 500 + 250)
        assert found[0].bytes_moved == 2 * 2 * 4 * parameters, "fetched and pushed in each epoch"

    def test_only_devices_inside_layers_pass_the_bound_of_a_pipeline(self):
        (pure,), (hybrid,) = (self.runs(way, [16]) for way in ("streamed pipeline", "hybrid"))
        assert hybrid.seconds < pure.seconds
        assert pure.idle > 0.85 and sum(hybrid.replicas) <= 16

    @pytest.mark.parametrize(
        ("way", "others", "message"),
        [
            (Way("async", "minibatch"), {}, "handoff: got minibatch with schedule async"),
            (Way("async", replicas="all"), {}, "replicas: got some with schedule async"),
            (Way("async"), {"split": "units"}, "split: got units with schedule async"),
            (Way("rounds", "minibatch"), {}, "schedule: got rounds with handoff minibatch"),
            (replicated(2, 1), {}, "replicas: got 2,1, which take 3 devices"),
            (replicated(2, 1, 1), {}, "replicas: got 2,1,1, expected 2 numbers"),
            (replicated(0), {}, "replicas: got 0,0, expected 2 numbers"),
            (Way("synchronized", replicas="some"), {}, "replicas: got 'some'"),
            (Way("synchronized"), {"split": "layers"}, "split: got 'layers'"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, way, others, message):
        with pytest.raises(SettingsError, match=f"^{message}"):
            check_way(way, self.options(**others), [2])


class TestCosts:
    def test_texts(self, tmp_path):
        assert [cost.step for cost in costs_from("0.5,2")] == [0.5, 2]
        file = tmp_path / "costs.json"
        file.write_text('{"costs": [{"step": 2.0, "fixed": 1.0, "forward": 0.5, "end": 3}]}')
        assert costs_from(str(file)) == [LayerCosts(step=2, fixed=1, forward=0.5, end=3)]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[{}]", "step"),
            ('[{"step": -1}]', "step: got -1"),
            ('[{"step": 1, "fixed": 2}]', "got fixed 2, expected at most step, 1"),
            *((text, "") for text in ('[{"step": 1, "speed": 2}]', "{", "[1]")),
            *((text, "") for text in ("nowhere.json", "-1", "nan,1", "0")),  # no files
        ],
    )
    def test_wrong_files_and_texts_are_refused(self, tmp_path, text, message):
        file = tmp_path / "costs.json"
        file.write_text(text)
        with pytest.raises((SettingsError, DataError), match=f"^costs: {message}"):
            costs_from(str(file) if "{" in text or "[" in text else text)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"layers": "16,8,5"}, "layers 16,8,4, expected 16,8,5; leave out --costs"),
            ({"layers": "16,8,4", "batch_size": 50}, "batch_size 100, expected 50"),
        ],
    )
    def test_those_of_another_stack_are_refused(self, tmp_path, given, message):
        file = tmp_path / "costs.json"
        file.write_text('{"layers": "16,8,4", "batch_size": 100, "costs": [{"step": 1}]}')
        assert costs_from(str(file), layers="16,8,4", batch_size=100)
        with pytest.raises(SettingsError, match=message):
            costs_from(str(file), **given)

    @pytest.mark.parametrize(("batch_size", "rows"), [(8, None), (100, [50, 25, 12, 6])])
    def test_steps_on_minibatches_and_on_parts_are_measured(self, batch_size, rows):
        stack = settings_from((16, 8, 4), batch_size=batch_size, workers=1).pretrain
        costs = measured_costs(Task(stack, 200, 8), seconds=0)
        assert len(costs) == 2
        for cost in costs:
            assert rows in (None, [part.rows for part in cost.parts])
            steps = [cost.step, *(part.step for part in cost.parts), cost.fixed, 0]
            assert steps == sorted(steps, reverse=True), "none slower than one on more rows"
            assert cost.forward is not None


class TestCores:
    """Devices that are the workers of one machine."""

    LAYERS = (784, 250, 500, 1000)
    CUTS: ClassVar = {("examples", 2): {1: 0.008, 2: 0.005}, ("units", 2): {1: 0.008, 2: 0.006}}

    def timings(self):
        common = {"sharded": self.CUTS, "validation": 5e-4}
        layers = (
            LayerTimings(step=step, products=step, contention=slow, transform=makes, **common)
            for step, slow, makes in (
                (0.003, 1.2, {}),
                (0.002, 1.1, {1: 2e-6, 2: 1.2e-6}),
                (0.007, 1.3, {1: 1e-6, 2: 0.7e-6}),
            )
        )
        return Timings(tuple(layers), 2, 1, handover=1e-4)

    @pytest.mark.parametrize(
        ("way", "workers", "options"),
        [
            (Way("greedy", replicas=(1,)), 1, {}),
            (replicated(1), 1, {}),
            (replicated(1), 2, {}),
            (Way("synchronized", "minibatch", (1,)), 2, {"delay": 0.5}),
            (Way("rounds", replicas=(1,)), 2, {"group_size": 2}),
            (Way("greedy", replicas=(2,)), 2, {}),
        ],
    )
    @pytest.mark.parametrize("split", ["examples", "units"])
    def test_they_take_what_a_plan_predicts(self, way, workers, options, split):
        stack = {"epochs": 4, "batch_size": 100}
        given = {"network": FREE, "examples": 4000, "held_out": 50, "split": split}
        job = Options(layers=self.LAYERS, stack=stack | options, **given)
        costs = costs_together(self.timings(), batch_size=100)
        found = curve("", way, job, costs, [workers]).runs[0].seconds
        task = Task(settings_from(self.LAYERS, **stack).pretrain, 4000, 50)
        own = {"schedule": way.schedule, "handoff": way.handoff, "workers": workers, **options}
        if max(way.replicas) > 1:
            own |= {"replicas": way.replicas * 3, "shards": way.replicas * 3, "split": split}
        planned = simulated(task, settings_with(task.settings, own), self.timings()).seconds
        # The stream's last layer passes its held-out examples up, which a plan leaves out.
        assert found == pytest.approx(planned, rel=3e-3 if way.handoff == "minibatch" else 1e-9)

    def test_costs_of_cores_are_read_again(self, tmp_path):
        costs = costs_together(self.timings(), batch_size=100)
        file = tmp_path / "costs.json"
        file.write_text(json.dumps(msgspec.to_builtins(costs)))
        assert costs_from(str(file)) == costs

    def test_what_cores_share_is_measured(self):
        stack = settings_from((16, 8, 4), batch_size=8).pretrain
        for cost in machine_costs(Task(stack, 64, 8), workers=2, seconds=0):
            cuts = {(own.devices, own.split) for own in cost.shared}
            assert cuts == {(2, "examples"), (2, "units")}
            assert cost.handover > 0 and cost.crowding >= 0


TEXTS = {
    texts.bandwidth_from: {"10Gb/s": 1.25e9, "1.2GB/s": 1.2e9, "8Mb/s": 1e6, "5B/s": 5, "inf": inf},
    texts.latency_from: {"20us": 2e-5, "1.5ms": 1.5e-3, "0s": 0},
    texts.devices_from: {
        "3": (3,),
        "1,2,4,...,16": (1, 2, 4, 8, 16),
        "1,2,...,4": (1, 2, 3, 4),
        "2,4,6,...,10": (2, 4, 6, 8, 10),
    },
    texts.replicas_from: {"auto": "auto", "2,1": (2, 1)},
}
WRONG_TEXTS = {
    texts.bandwidth_from: [
        *("", "10", "-1Gb/s", "0b/s", "1.2.3Gb/s", "nan", "1e-300b/s", "1e308Tb/s")
    ],
    texts.latency_from: ["20", "1h", "-1s", "..s", "1e300s"],
    texts.devices_from: [
        *("", "0", "0,1,...,4", "0,1,2,...,4", "1,...", "...,4", "1,2,...,4,5", "x"),
        *("1,2,4,...,9", "2,1,...,4", "1,1,...,2", "99999999"),
    ],
    texts.replicas_from: ["", "some", "1,x", "1.5", "2,0", "-1"],
}


class TestTexts:
    @pytest.mark.parametrize(
        ("parse", "text", "expected"),
        [(parse, *row) for parse, rows in TEXTS.items() for row in rows.items()],
    )
    def test_numbers_with_units_and_lists(self, parse, text, expected):
        found = parse(text)
        assert found == (pytest.approx(expected) if parse is texts.latency_from else expected)

    @pytest.mark.parametrize(
        ("parse", "text"), [(parse, text) for parse, own in WRONG_TEXTS.items() for text in own]
    )
    def test_what_is_none_is_refused(self, parse, text):
        name = parse.__name__.removesuffix("_from")
        with pytest.raises(SettingsError, match=f"^{name}: got '.*', expected "):
            parse(text)
