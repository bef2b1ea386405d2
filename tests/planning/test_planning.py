"""The planner: what it chooses where measurements are given, and how it measures a tiny stack."""

import json
from dataclasses import replace

import numpy as np
import pytest

from syncpretrain import pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.kernels import native
from syncpretrain.parallel import available_memory
from syncpretrain.planning import Plan, plan, probes
from syncpretrain.planning.bench import bench, random_rows, run_candidate, seconds_to
from syncpretrain.planning.candidates import Candidate, Task
from syncpretrain.planning.choice import plan_for, simplest
from syncpretrain.planning.measure import measure
from syncpretrain.planning.peaks import core_peaks, in_words
from syncpretrain.planning.probes import Probe
from syncpretrain.planning.timings import LayerTimings, Timings, sizes
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.memory import pretraining_bytes
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.settings import PretrainSettings, settings_from
from syncpretrain.shapes import DenseShape
from syncpretrain.workers.activations import Split

EXAMPLES, BATCH = 10_000, 100
HELD_OUT = 1000  # examples
STEPS = EXAMPLES // BATCH
ON_ONE_CORE = [f"{kind.candidate}, one core" for kind in SCHEDULES.values() if kind.candidate]


def settings(layers=(8, 8, 8, 8), **others) -> PretrainSettings:
    return settings_from(layers, **{"epochs": 10, "batch_size": BATCH, **others}).pretrain


def layer(step=1.0, *, examples=None, units=None, blas=None, **others) -> LayerTimings:
    """Return a layer's timings; ``examples`` and ``units`` are those of two workers on shards."""
    split = {"examples": examples, "units": units}
    return LayerTimings(
        **{
            "step": step,
            "products": 0.8 * step,
            "sharded": {(k, 2): {1: 1.1 * step, 2: t} for k, t in split.items() if t},
            "transform": {1: 0.0, 2: 0.0},
            "validation": 0.0,
            "blas_step": blas,
            "blas_transform": blas and 0.0,
            "blas_validation": blas and 0.0,
            **others,
        }
    )


def planned(layers, *, workers=2, **others) -> Plan:
    """Return the plan of a stack that takes as long as is said."""
    blas = workers if layers[0].blas_step else 1
    wanted = settings((8,) * (len(layers) + 1), **others)
    task = Task(wanted, EXAMPLES, 0)
    return plan_for(task, timings=Timings(tuple(layers), workers, blas))


def by_epochs(found: Plan) -> Plan:
    """Return a plan without its streamed candidates."""
    rest = tuple(x for x in found.candidates if "handoff" not in x.options)
    return replace(found, candidates=rest, choice=simplest(rest))


def by_name(found: Plan) -> dict[str, Candidate]:
    return {candidate.name: candidate for candidate in found.candidates}


def seconds(found: Plan) -> dict[str, float]:
    return {name: candidate.seconds for name, candidate in by_name(found).items()}


class TestChoice:
    def test_equal_layers_are_a_pipeline(self):
        found = by_epochs(planned([layer(), layer(), layer()]))
        assert found.choice.name == "pipeline"
        assert found.settings == {"schedule": "synchronized", "workers": 2}
        assert "fastest" in found.reason
        alone = 3 * 10 * STEPS
        assert seconds(found)["greedy, one core"] == pytest.approx(alone)
        # 30 epochs of which the first and the last have nothing beside them.
        assert found.choice.seconds == pytest.approx((28 / 2 + 2) * STEPS)
        assert found.speedup(found.choice) == pytest.approx(30 / 16)

    def test_replicas_that_pay_make_a_hybrid_of_a_lopsided_pipeline(self):
        found = by_epochs(planned([layer(8.0, units=4.2), layer(), layer()]))
        assert found.choice.name == "hybrid, units split"
        own = {"replicas": (2, 1, 1), "shards": (2, 1, 1), "split": "units"}
        assert own.items() <= found.settings.items()
        times = seconds(found)
        assert times["hybrid, units split"] < times["pipeline"]
        assert "hybrid, examples split" not in times, "it was not measured to pay"

    def test_workers_that_scale_perfectly_make_greedy_training_the_simplest(self):
        costly = {"transform": {1: 0.01, 2: 0.005}}
        found = by_epochs(planned([layer(examples=0.5, **costly) for _ in range(3)]))
        assert found.choice.name == "greedy, examples split"
        assert {"replicas": (2, 2, 2), "schedule": "greedy"}.items() <= found.settings.items()

    def test_streams_of_tiny_steps_wait_for_the_interpreter(self):
        task = Task(settings((8, 8, 8), delay=0.0, handoff="minibatch"), EXAMPLES, 0)
        tiny = (layer(0.1), layer(0.1))
        timings = (Timings(tiny, 2, 1, handover=handover) for handover in (0.0, 0.4))
        free, held = (seconds(plan_for(task, timings=each)) for each in timings)
        minibatches = 2 * 10 * STEPS
        assert free["streamed"] == pytest.approx(0.1 * minibatches / 2, rel=0.01)
        assert held["streamed, one core"] == pytest.approx(0.5 * minibatches)
        assert held["streamed"] == pytest.approx(0.4 * minibatches, rel=0.01)
        assert held["pipeline"] == free["pipeline"]

    def test_noise_takes_a_forward_pass_beside_each_step_of_a_stream(self):
        stack = layer(), layer(transform={1: 0.01})
        found = seconds(planned(stack, model="denoising", delay=0.0, handoff="minibatch"))
        assert found["streamed, one core"] == pytest.approx((2 + 0.01 * BATCH) * 10 * STEPS)

    def test_only_layers_that_gain_take_replicas(self):
        found = by_name(planned([layer(4.0, examples=2.1), layer(0.1, examples=0.5)]))
        assert found["greedy, examples split"].options["replicas"] == (2, 1)

    def test_blas_wins_where_it_scales(self):
        found = by_epochs(planned([layer(blas=0.5), layer(blas=0.5)], epochs=2))
        assert found.choice.name == "greedy, BLAS on 2 cores"
        assert found.settings == {"schedule": "greedy", "workers": 2, "blas_threads": 2}
        assert found.choice.seconds == pytest.approx(0.5 * 2 * 2 * STEPS)

    def test_serial_is_fastest_and_it_says_so(self):
        slow = [layer(contention=2.5, examples=1.5, units=1.6, blas=1.4) for _ in range(3)]
        found = by_epochs(planned(slow))
        assert found.choice.name == "greedy, one core"
        assert found.reason == "staying on one core is fastest"
        assert found.settings == {"schedule": "greedy", "workers": 1, "blas_threads": 1}

    def test_one_core_has_no_choice(self):
        found = by_epochs(planned([layer(), layer()], workers=1))
        assert [candidate.name for candidate in found.candidates] == ON_ONE_CORE
        assert found.choice.name == "greedy, one core"
        assert found.reason == "staying on one core is all there is"

    def test_the_simplest_of_those_that_are_near_each_other(self):
        found = by_epochs(planned([layer(blas=0.508, examples=0.505)] * 2))
        assert min(seconds(found), key=seconds(found).get) != "greedy, BLAS on 2 cores"
        assert found.choice.name == "greedy, BLAS on 2 cores"
        assert found.reason.startswith("simpler than ")
        farther = by_epochs(planned([layer(blas=0.52, examples=0.505)] * 2))
        assert farther.choice.name == "greedy, examples split"

    @pytest.mark.parametrize(
        ("given", "names"),
        [
            ({"pace": "free"}, {"pipeline, one core", "pipeline"}),
            ({"runtime": "serial"}, ON_ONE_CORE),
        ],
    )
    def test_settings_leave_candidates_out(self, given, names):
        assert set(seconds(by_epochs(planned([layer(), layer()], **given)))) == set(names)

    def test_no_way_is_faster_than_the_bound(self):
        found = by_epochs(planned([layer(4.0, units=2.0), layer(units=0.5), layer(0.5)]))
        assert found.floor_seconds == pytest.approx(0.8 * 5.5 * 10 * STEPS / 2)
        assert all(candidate.seconds > found.floor_seconds for candidate in found.candidates)
        assert all(0 < found.share(candidate) < 1 for candidate in found.candidates)

    def test_refreshes_count(self):
        found = by_name(planned([layer(), layer()], epochs=(4, 2), refresh_epochs=(0, 3)))
        assert found["greedy, one core"].epochs == (4, 2)
        assert found["pipeline"].epochs == (4, 2 + 2 * 3)


class TestStreams:
    def test_equal_layers_are_streamed(self):
        found = planned([layer(), layer(), layer()])
        assert found.choice.name == "streamed"
        own = {"schedule": "synchronized", "handoff": "minibatch", "workers": 2, "delay": 0.5}
        assert found.settings == own
        # 30 epochs, of which the first and the last half have nothing beside them.
        assert found.choice.seconds == pytest.approx((29 / 2 + 1) * STEPS, rel=0.03)
        assert seconds(found)["streamed, one core"] == pytest.approx(3 * 10 * STEPS)

    def test_a_lopsided_stream_is_shared(self):
        found = planned([layer(8.0, units=4.2), layer(), layer()])
        assert found.choice.name == "streamed, units split"
        assert found.settings["replicas"] == found.settings["shards"] == (2, 1, 1)
        times = seconds(found)
        assert times["streamed"] == pytest.approx(81 * STEPS, rel=0.02)
        # Seven eighths of the bottom layer's steps are shared, at 4.2 instead of 8.
        assert times["streamed, units split"] < 1.08 * 100 * STEPS / 2

    def test_a_hand_over_of_minibatches_is_kept(self):
        found = planned([layer(8.0, blas=0.5), layer()], handoff="minibatch", delay=2.5, workers=2)
        assert found.choice.name.startswith("streamed")
        assert found.settings["delay"] == 2.5
        assert "--handoff minibatch --delay 2.5" in found.command
        assert "greedy, BLAS on 2 cores" in seconds(found), "to compare with"

    def test_what_cannot_be_streamed_is_not(self):
        for others in ({"pace": "free"}, {"early_stopping": "free-energy-gap"}):
            assert not [name for name in seconds(planned([layer()] * 2, **others)) if "str" in name]

    @pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
    def test_the_choice_is_what_pretrain_takes(self, bits, handoff):
        costly = {"transform": {1: 0.005, 2: 0.003}}
        found = planned([layer(4.0, units=2.2), layer(**costly)], handoff=handoff)
        assert found.choice.name == "streamed, units split"
        options = {**found.settings, "epochs": 1, "batch_size": BATCH}
        stack = pretrain(bits, layers=(bits.shape[1], 8, 8), **options)
        applied = found.apply(settings((bits.shape[1], 8, 8), epochs=1, handoff=handoff))
        assert applied.refresh_epochs == (0, 0)
        assert driver_for(applied, bits).run().parameters_sha256 == stack.parameters_sha256


def shared(step: float, **others: float) -> LayerTimings:
    """Return a layer's timings with those of two workers by each cut."""
    cuts = {(cut, 2): {1: step, 2: seconds} for cut, seconds in others.items()}
    return layer(step, sharded=cuts)


SPLIT = shared(8.0, examples=4.5, filters=4.2), shared(2.0, examples=1.5, units=1.1)


class TestConvolutions:
    TEXT = "1x4x4,conv:4x3,8"

    def found(self, *layers, **others) -> Plan:
        task = Task(settings(self.TEXT, **others), EXAMPLES, 0)
        return plan_for(task, timings=Timings(layers, 2, 1))

    def test_each_split_shares_layers_in_its_own_way(self):
        found = self.found(*SPLIT)
        times = seconds(found)
        for name, both in (("examples", 4.5 + 1.5), ("filters", 4.2 + 1.1), ("hybrid", 4.5 + 1.1)):
            assert times[f"greedy, {name} split"] == pytest.approx(both * 10 * STEPS)
        assert "greedy, units split" not in times
        assert by_epochs(found).choice.name == "hybrid, filters split"
        assert "--split filters" in by_epochs(found).command

    def test_gradients_of_shards_are_those_of_examples_alone(self):
        bytes_of = {x.name: x.bytes for x in self.found(*SPLIT).candidates}
        convolution, dense = (x.weights + sum(x.biases) for x in settings(self.TEXT).shapes)
        examples, filters, hybrid = (
            bytes_of[f"greedy, {name} split"] for name in ("examples", "filters", "hybrid")
        )
        assert (hybrid - filters, examples - hybrid) == (4 * 2 * convolution, 4 * 2 * dense)

    def test_a_hybrid_of_one_kind_of_cut_is_no_candidate(self):
        times = seconds(self.found(shared(8.0, examples=4.2, filters=4.5), layer(2.0)))
        assert "greedy, examples split" in times
        assert "greedy, filters split" in times
        assert not [name for name in times if name.endswith("hybrid split")]

    @pytest.mark.parametrize("name", ["greedy, filters split", "streamed, hybrid split"])
    def test_the_pick_is_what_pretrain_takes(self, bits, name):
        found = self.found(shared(8.0, examples=4.5, filters=4.2), shared(8.0, units=4.1))
        given = by_name(found)[name].options
        assert given["replicas"] == (2, 2)
        own = {"layers": self.TEXT, "epochs": 1, "batch_size": 20, **given}
        stack, alone = pretrain(bits, **own), pretrain(bits, **own | {"workers": 1, "replicas": 1})
        assert alone.parameters_sha256 == stack.parameters_sha256


class TestMemory:
    def test_of_convolutions_maps_count_before_they_are_pooled(self):
        first, second = shapes = settings("2x9x9,conv:5x2,pool:4,7").shapes
        assert isinstance(second, DenseShape)
        assert (first.units, first.lowered, first.hidden) == (5 * 64, 8 * 64, 20)
        alone, example, row = (
            pretraining_bytes(shapes, examples=n, batch_size=b) / 4
            for n, b in ((0, 0), (1, 0), (0, 1))
        )
        assert alone == 8 * (40 + 5 + 2 + 140 + 7 + 20) + 8 * 64 + 5 * 64 + 40
        assert (example - alone, row - alone) == (3 * 20, 3 * (162 + 20) + 4 * (320 + 7))

    def test_a_stack_that_does_not_fit_is_refused_by_its_text(self, monkeypatch):
        monkeypatch.setattr(available_memory, "available_bytes", lambda: 1000)
        with pytest.raises(SettingsError, match=r"^layers: 1x8x8,conv:4x3,6 on 0 examples need"):
            measured("1x8x8,conv:4x3,6", workers=1)

    def test_a_pipeline_holds_more_activations_and_shards_more_gradients(self):
        wide = [layer(examples=0.6), layer(1.0, examples=0.6), layer(3.0, examples=1.6)]
        bytes_of = {name: x.bytes for name, x in by_name(planned(wide, workers=3)).items()}
        assert bytes_of["greedy, one core"] < bytes_of["pipeline"]
        assert bytes_of["greedy, one core"] < bytes_of["greedy, examples split"]


class TestSettings:
    def test_applied_to_settings_it_takes_the_place_of_theirs(self):
        old = settings((8, 8, 8), schedule="rounds", group_size=1, replicas=2, learning_rate=0.01)
        new = planned([layer(), layer()]).apply(old)
        assert (new.schedule, new.workers, new.group_size) == ("synchronized", 2, None)
        assert new.replicas == (1, 1)
        assert new.learning_rate == (0.01, 0.01)

    def test_the_command_line_names_all_that_was_asked_for(self):
        found = planned([layer(9.0, units=4.6), layer()], epochs=(3, 4), batch_size=50)
        assert found.command == (
            "syncpretrain train --layers 8,8,8 --epochs 3,4 --batch-size 50"
            " --schedule synchronized --handoff minibatch --delay 0.5 --workers 2 --split units"
            " --replicas 2,1 --shards 2,1"
        )

    def test_the_report_is_json(self):
        report = json.loads(json.dumps(planned([layer(units=0.6), layer(blas=0.7)]).report()))
        assert report["choice"] in [candidate["name"] for candidate in report["candidates"]]
        assert report["measured"][0]["sharded_ms"] == {
            "units, 2 shards, 1 workers": 1100.0,
            "units, 2 shards, 2 workers": 600.0,
        }


def measured(layers, *, workers=2, examples=50_000, **others) -> Timings:
    return measure(Task(settings(layers, **others), examples, HELD_OUT), workers=workers, seconds=0)


EVERY = {("examples", 2), ("units", 2)}
BY_EXAMPLES = {("examples", 2)}
BY_FILTERS = {("examples", 2), ("filters", 2)}


class TestMeasuring:
    def test_every_allocation_of_every_layer(self):
        found = measured((12, 8, 8, 4), batch_size=10, examples=200)
        assert (found.workers, len(found.layers)) == (2, 3)
        for i, timings in enumerate(found.layers):
            assert set(timings.sharded) == EVERY
            assert all(set(by_size) == {1, 2} for by_size in timings.sharded.values())
            assert set(timings.transform) == ({1, 2} if i else set())
            assert min(timings.step, timings.products, timings.validation) > 0
            assert timings.contention >= 1

    @pytest.mark.parametrize(
        ("workers", "given", "splits"),
        [
            (2, {"layers": "1x6x6,conv:4x3", "persistent": True}, [BY_EXAMPLES]),
            (2, {"layers": "1x6x6,conv:4x3", "hidden_dropout": 0.5}, [BY_EXAMPLES]),
            (4, {"layers": "1x6x6,conv:3x3"}, [BY_FILTERS | {("examples", 4)}]),
            (2, {"persistent": True}, [BY_EXAMPLES] * 2),
            (2, {"sparsity_cost": 0.1}, [BY_EXAMPLES] * 2),
            (2, {"model": "denoising"}, [BY_EXAMPLES] * 2),
            (2, {"sample_visible": True, "layers": (8, 6)}, [BY_EXAMPLES]),
            (2, {"sparse": True, "layers": (8, 6)}, [BY_EXAMPLES]),
            (4, {"layers": (8, 6, 2), "batch_size": 3}, [EVERY | {("units", 4)}, EVERY]),
        ],
    )
    def test_splits_and_numbers_of_shards_that_there_are(self, workers, given, splits):
        found = measured(**{"layers": (8, 6, 4), "batch_size": 8, "workers": workers, **given})
        assert [set(timings.sharded) for timings in found.layers] == splits

    def test_convolutions_are_split_by_filters_instead_of_units(self):
        text = ",".join(["1x8x8", *["conv:4x3:same"] * 4, "6"])
        found = measured(text, batch_size=10, examples=50)
        assert [set(x.sharded) for x in found.layers] == [*[BY_FILTERS] * 4, EVERY]
        assert found.layers[3] == found.layers[2], "one timing of layers that are alike"

    @pytest.mark.parametrize(("cd_steps", "are_alike"), [(1, True), ((1, 1, 3), False)])
    def test_only_layers_that_are_alike_share_their_timings(self, cd_steps, are_alike):
        own = {"batch_size": 10, "cd_steps": cd_steps}
        first, second, third = measured((8, 8, 8, 8), examples=50, **own).layers
        assert (second == third) == are_alike
        assert not first.transform

    def test_workers_are_no_faster_than_their_number(self, monkeypatch):
        """Tiny steps: whatever is timed with two workers falls into a fast moment."""
        fast = property(lambda probe: 1 / max(probe.cores, probe.blas_threads) ** 3)
        monkeypatch.setattr(Probe, "seconds", fast)
        monkeypatch.setattr(Probe, "relative_to", lambda probe, other: 1.0)
        found = plan([8, 6, 4, 3], batch_size=10, workers=2, examples=100, measure_seconds=0)
        assert max(map(found.speedup, found.candidates)) <= 2.01

    def test_handing_over_a_minibatch_takes_time(self):
        found = plan([8, 6, 4], batch_size=8, workers=2, examples=100, measure_seconds=0)
        assert 1e-6 < found.timings.handover < 0.1

    def test_one_layer_has_nobody_beside_it(self):
        assert measured((8, 6), batch_size=8).layers[0].contention == 1

    def test_sizes_are_powers_of_two_and_all(self):
        assert [sizes(most) for most in (1, 2, 3, 4, 6)] == [[], [2], [2, 3], [2, 4], [2, 4, 6]]


@pytest.mark.parametrize(
    ("given", "name"),
    [({}, "float32"), ({"products": "own"}, "own"), ({"precision": "bfloat16"}, "bfloat16")],
)
def test_the_products_of_the_run_are_timed(monkeypatch, given, name):
    """Steps, what a layer hands up, and the bound."""
    timed: dict[str, list[str]] = {"products": [], "steps": [], "transforms": []}

    def spied(kind, usual, precision):
        def call(*args, **options):
            timed[kind].append(precision(*args, **options))
            return usual(*args, **options)

        monkeypatch.setattr(probes, usual.__name__, call)

    spied("products", probes.products, lambda shape, precision, **more: precision.name)
    spied("steps", probes.Steps, lambda learner, X: learner.precision.name)
    spied("transforms", probes.transforming, lambda layer, X, run: layer.precision)
    measure(Task(settings((16, 8, 4), batch_size=20, **given), 100, 0), workers=1, seconds=0)
    assert timed == {"products": [name] * 2, "steps": [name] * 2, "transforms": [name]}


class TestBench:
    @pytest.fixture(autouse=True)
    def small_products(self, monkeypatch):
        monkeypatch.setattr("syncpretrain.planning.bench.SIDE", 64)

    @pytest.fixture
    def task(self):
        return Task(settings((16, 8, 4), epochs=2, batch_size=20, workers=2), 200, 20)

    def test_every_way_is_run(self, task, bits):
        lines = []
        data = Split(bits, bits[:20])
        found = bench(task, data, rounds=2, measure_seconds=0, report=lines.append)
        rows = found.rows()
        assert [row["name"] for row in rows] == list(by_name(found.plan))
        assert len(lines) == 1 + 2 * len(rows)
        assert all(len(runs) == 2 for runs in found.seconds.values())
        assert rows[0]["speedup_over_one_core"] == 1
        assert all(row["floor_share"] > 0 for row in rows)
        assert list(found.peak) == sorted({1, found.plan.timings.blas_threads})
        assert all(min(peak.values()) > 0 for peak in found.peak.values())

    def test_schedules_learn_what_they_learn_without_the_bench(self, task, bits):
        found = planned([layer(), layer()])
        for choice in (found.choice, by_epochs(found).choice):
            _, stack = run_candidate(choice, task.settings, Split(bits, bits[:20]))
            again = pretrain(bits, layers=[16, 8, 4], epochs=2, batch_size=20, **choice.options)
            assert stack.parameters_sha256 == again.parameters_sha256

    def test_seconds_to_an_error(self, task, bits):
        found = plan_for(task, measure_seconds=0)
        data = Split(np.tile(bits, (2, 1)), bits)
        near, far = (seconds_to(error, found, data) for error in (1e9, 0.0))
        assert near.seconds > 0 and far.seconds is None
        assert (near.epochs, far.epochs) == (1, 20)
        assert 0 < far.error < near.error

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_the_peaks_are_of_this_machine(self, threads):
        peaks = core_peaks(threads, 64)
        assert min(peaks.values()) > 1e5, "operations a second"
        has_vectors = getattr(native.extension, "WIDTH", 0) > 4
        own = {"own"} if native.available() else set()
        assert set(peaks) == {"blas"} | own | ({"registers"} if has_vectors else set())
        assert in_words({"blas": 2.134e11, "own": 1e9}) == "BLAS 213, own products 1 GFLOP/s"

    def test_random_rows_are_examples(self):
        rows = random_rows(5, 3)
        assert (rows.shape, rows.dtype) == ((5, 3), np.float32)
        assert 0 <= rows.min() <= rows.max() < 1
