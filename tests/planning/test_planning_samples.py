"""The time that planning takes: parts of minibatches, and what there is no time to measure."""

import json

import pytest

from syncpretrain.errors import SettingsError
from syncpretrain.parallel import available_memory
from syncpretrain.planning import measure as measure_module
from syncpretrain.planning import probes
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.choice import plan_for
from syncpretrain.planning.measure import check_measuring, measure
from syncpretrain.planning.probes import Probe, Sample, measured, sampled
from syncpretrain.pretraining.memory import pretraining_bytes
from syncpretrain.settings import settings_from

HELD_OUT = 1000  # examples
IMAGES = "1x12x12,conv:4x3,conv:4x3,6"


def settings(layers, **others):
    return settings_from(layers, **{"epochs": 2, "batch_size": 20, **others}).pretrain


def chosen(step, *, batch_size=100, operations=1e9, parameters=0, seconds=1.0):
    tried = []

    def timed(rows):
        tried.append(rows)
        return step(rows)

    options = {"operations": operations, "parameters": parameters, "seconds": seconds}
    return sampled(timed, batch_size=batch_size, **options), tried


class TestSamples:
    def test_what_cannot_take_long_is_not_tried(self):
        assert chosen(lambda rows: 9.0, operations=1e7) == (Sample(100, 100), [])

    def test_rows_are_doubled_until_a_step_takes_long(self):
        found, tried = chosen(lambda rows: 0.1 * rows)
        assert tried == [1, 1, 2, 4, 8]
        assert (found.rows, found.is_part) == (8, True)
        assert found.scale == pytest.approx(100 / 8)

    def test_an_update_counts_once(self):
        found, _ = chosen(lambda rows: 0.1 * rows, parameters=8 * 10**7)
        assert found.rows == 8
        assert found.scale == pytest.approx(1 + 92 / 16), "it takes as long as the 8 rows"
        assert found.scale_to(40) == pytest.approx(1 + 32 / 16)

    def test_whole_minibatches_are_taken_where_they_are_fast(self):
        found, tried = chosen(lambda rows: 1e-3 * rows, batch_size=10, operations=1e10)
        assert tried == [1, 1, 2, 4, 8, 10]
        assert (found.rows, found.is_part, found.scale) == (10, False, 1.0)

    def test_after_one_row_that_takes_seconds_no_other_is_tried(self):
        found, tried = chosen(lambda rows: 5.0)
        assert tried == [1]
        assert found.scale == pytest.approx(100)
        updated, _ = chosen(lambda rows: 5.0, operations=1e9, parameters=10**8)
        assert updated.scale == pytest.approx(1 + 99 / 11), "the update takes ten elevenths"

    def test_a_row_of_too_many_operations_is_not_tried(self):
        found, tried = chosen(lambda rows: 9.0, operations=1e12)
        assert (tried, found.rows, found.is_tried, found.seconds) == ([], 1, False, 100.0)
        assert found.scale == pytest.approx(100)


class TestProbes:
    def test_what_is_slow_is_timed_once_in_a_round(self):
        calls = []
        slow = Probe(lambda times: calls.append(times) or 0.5 * times)
        measured([slow], seconds=0)
        assert (calls, slow.seconds) == ([1], 0.5)

    def test_nothing_is_begun_after_the_end(self):
        probes = [Probe(lambda times: 1e-3 * times) for _ in range(2)]
        measured(probes, seconds=9, most=0.0)
        assert not any(probe.is_measured for probe in probes)


class TestMeasuring:
    @pytest.mark.parametrize("layers", [(12, 8, 8), IMAGES])
    def test_slow_layers_are_timed_on_some_rows(self, monkeypatch, layers):
        monkeypatch.setattr(probes, "sampled", lambda *given, **options: Sample(4, 20, 0.25, 1e-3))
        found = measure(Task(settings(layers), 100, HELD_OUT), workers=2, seconds=0)
        assert found.notes[0].startswith("a step takes long: timed on 4 of the 20 examples")
        assert len(found.notes) == 1
        assert all(own.step > 0 and ("examples", 2) in own.sharded for own in found.layers)

    def test_too_few_rows_are_not_shared_by_examples(self, monkeypatch):
        monkeypatch.setattr(probes, "sampled", lambda *given, **options: Sample(1, 20, 1.0, 1e-3))
        found = measure(Task(settings(IMAGES), 100, HELD_OUT), workers=2, seconds=0)
        assert {split for split, _ in found.layers[0].sharded} == {"filters"}

    def test_what_was_not_timed_is_left_out_of_the_plan(self, monkeypatch):
        monkeypatch.setattr(probes, "sampled", lambda *given, **options: Sample(4, 20, 0.25, 1e-3))
        monkeypatch.setattr(probes, "MOST_SECONDS", 0.0)
        found = plan_for(Task(settings(IMAGES), 100, 20), workers=2, measure_seconds=0)
        assert [layer.step for layer in found.timings.layers] == pytest.approx([5e-3] * 3)
        assert found.timings.blas_threads == 1
        assert found.timings.notes[-1].startswith("not all was timed in 0 s: ")
        assert "greedy, one core" in {candidate.name for candidate in found.candidates}
        assert not [candidate for candidate in found.candidates if "split" in candidate.options]
        assert json.loads(json.dumps(found.report()))["notes"] == list(found.timings.notes)

    def test_a_note_names_the_seconds_that_were_asked_for(self, monkeypatch):
        monkeypatch.setattr(probes, "measured", lambda *probes, **seconds: None)
        found = measure(Task(settings((12, 8)), 100, HELD_OUT), workers=1, seconds=60)
        assert found.notes[-1].startswith("not all was timed in 60 s: ")

    def test_nothing_is_timed_where_one_row_takes_too_long(self, monkeypatch):
        monkeypatch.setattr(probes, "USUAL_SPEED", 1e-3)
        monkeypatch.setattr(probes.Probe, "warm_up", None)
        found = measure(Task(settings(IMAGES), 100, HELD_OUT), workers=2, seconds=0)
        operations, update = 2 * 5 * 10 * 10 * 4 * 9, 100 * 4 * 9
        rest = 19 * operations / (operations + update)
        assert found.layers[0].step == pytest.approx(operations / 1e-3 * (1 + rest))
        assert len(found.notes) == 1
        assert "too long to be timed: nothing was measured" in found.notes[0]

    def test_what_does_not_fit_is_refused_before_it_is_allocated(self, monkeypatch):
        own = settings("3x100x100,conv:50x5,6")
        check_measuring(own, workers=2)
        needed = []
        monkeypatch.setattr(measure_module, "check_available", lambda n, *rest: needed.append(n))
        check_measuring(own, workers=2)
        stack = pretraining_bytes(own.shapes, examples=0, batch_size=own.batch_size)
        assert needed[0] - stack > 4 * 20 * 3 * 100 * 100
        monkeypatch.undo()
        monkeypatch.setattr(available_memory, "available_bytes", lambda: 10**7)
        monkeypatch.setattr("syncpretrain.pretraining.build.build_learners", None)
        with pytest.raises(SettingsError, match=r"^layers: 3x100x100,conv:50x5,6 on 0 examples"):
            measure(Task(own, 50_000, HELD_OUT), workers=2)

    def test_a_wide_layer_is_timed_on_few_rows(self, monkeypatch):
        """They stand in a minibatch again and again."""
        monkeypatch.setattr(measure_module, "WIDE_NUMBERS", 500)
        found = measure(Task(settings((100, 4)), 90, HELD_OUT), workers=1, seconds=0)
        assert found.layers[0].step > 0 and not found.notes


def test_a_minibatch_of_more_examples_than_there_are_is_refused_before_anything_is_timed():
    task = Task(settings((8, 4), batch_size=20), 19, 0)
    with pytest.raises(SettingsError, match=r"^batch_size: got 20, expected at most 19, the ex"):
        plan_for(task, workers=1)
