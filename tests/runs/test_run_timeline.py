"""The course of a run, read back from its events, and its critical path."""

import json

import numpy as np
import pytest
from trialruns import died, settings_on

from syncpretrain import pretrain
from syncpretrain.errors import DataError
from syncpretrain.events import EpochStarted, RunStarted
from syncpretrain.observers.history import History
from syncpretrain.runs.record import (
    EpochSpan,
    Timeline,
    critical_path,
    path_seconds,
    read_timeline,
    timeline_of,
)
from syncpretrain.runs.run import resume_run, train_run

LAYERS = (16, 8, 4)


def span(layer, epoch, reads, start, end):
    return EpochSpan(layer, epoch, reads, start, end, 0.0, 1.0, None)


def timeline(*spans, layers=LAYERS, **values):
    usual = {"epochs": (9,) * (len(layers) - 1), "handoff": "epoch", "busy": (0.0, 0.0)}
    ended = max(x.end for x in spans)
    return Timeline(layers=layers, spans=spans, ended=ended, **(usual | values))


class TestReading:
    def test_the_file_and_the_events_say_the_same(self, bits, tmp_path):
        history, out = History(), tmp_path / "run"
        train_run(settings_on(tmp_path, bits, LAYERS), out=out, observers=[history])
        read, seen = read_timeline(out), timeline_of(history.events)
        assert [(x.layer, x.epoch, x.reads) for x in read.spans] == [
            (x.layer, x.epoch, x.reads) for x in seen.spans
        ]
        assert [x.train_error for x in read.tuning] == [x.train_error for x in seen.tuning]
        assert len(read.tuning) == 3
        assert read.busy == pytest.approx(history.busy_seconds, abs=1e-5)
        assert read.seconds == pytest.approx(history.pretrain_seconds, abs=1e-4)
        assert (read.layers, read.schedule, read.is_pretrained) == (LAYERS, "synchronized", True)
        reads = [tuple(x.reads for x in read.of_layer(n)) for n in (1, 2)]
        assert tuple(reads) == history.reads

    def test_a_resumed_run_has_each_epoch_once(self, bits, tmp_path):
        settings = settings_on(tmp_path, bits, LAYERS, schedule="greedy")
        out = died(settings, tmp_path / "run", EpochStarted, 5)
        resume_run(out)
        read = read_timeline(out)
        assert [x.epoch for x in read.of_layer(1)] == [1, 2, 3]
        assert [x.epoch for x in read.of_layer(2)] == [1, 2, 3]
        assert len(read.resumed) == 1
        assert all(x.start <= y.start for x, y in zip(read.spans, read.spans[1:], strict=False))

    def test_epochs_after_the_checkpoint_are_void(self, tmp_path):
        start = {"event": "RunStarted", "layers": [4, 2], "epochs": [3], "workers": 1}
        finished = {"event": "EpochFinished", "layer": 1, "reads": 0, "train_error": 1.0}
        lines = [
            {"event": "Notice", "time": 0.0, "message": "first"},
            {**start, "time": 0.5, "past_reads": []},
            {**finished, "time": 1.0, "started": 0.5, "epoch": 1},
            {**finished, "time": 2.0, "started": 1.0, "epoch": 2},
            {"event": "Notice", "time": 0.0, "message": "second"},
            {**start, "time": 0.25, "past_reads": [[0]]},
        ]
        path = tmp_path / "events.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "EpochFin')
        read = read_timeline(path)
        assert [(x.epoch, x.end) for x in read.spans] == [(1, 1.0)]
        assert (read.resumed, read.notices) == ((2.0,), ("first", "second"))
        assert not read.is_pretrained

    def test_without_a_file_it_says_which(self, tmp_path):
        with pytest.raises(DataError, match=r"^run: cannot read .*events\.jsonl: No such file"):
            read_timeline(tmp_path)


class TestCriticalPath:
    def test_of_a_layer_alone_it_is_all_epochs(self):
        spans = [span(1, n, 0, n - 1, n) for n in (1, 2, 3)]
        assert critical_path(timeline(*spans, layers=(4, 2))) == tuple(spans)

    def test_a_slow_layer_below_is_on_it_and_a_fast_one_above_at_its_end(self):
        below = [span(1, n, 0, 2 * n - 2, 2 * n) for n in (1, 2, 3)]
        above = [span(2, n, n, 2 * n, 2 * n + 1) for n in (1, 2, 3)]
        path = critical_path(timeline(*below, *above))
        assert path == (*below, above[2])
        assert path_seconds(path, 2) == [6, 1]

    def test_a_slow_layer_above_is_on_it_from_its_first_epoch(self):
        below = [span(1, n, 0, n - 1, n) for n in (1, 2, 3)]
        above = [span(2, n, n, 1 + 2 * (n - 1), 1 + 2 * n) for n in (1, 2, 3)]
        assert critical_path(timeline(*below, *above)) == (below[0], *above)

    def test_a_layer_that_waits_for_a_worker_has_that_worker_on_it(self):
        spans = [span(1, 1, 0, 0, 2), span(1, 2, 0, 2, 5), span(2, 1, 1, 5, 6)]
        assert critical_path(timeline(*spans)) == tuple(spans)

    def test_of_a_streamed_run_there_is_none(self):
        assert critical_path(timeline(span(1, 1, 0, 0, 2), handoff="minibatch")) == ()

    @pytest.mark.parametrize("pace", ["lockstep", "free"])
    def test_of_a_run_it_is_a_chain_from_its_first_epoch_to_its_last(self, bits, pace):
        history = History()
        pretrain(bits, layers=[16, 9, 7, 5], epochs=4, pace=pace, observers=[history])
        found = timeline_of(history.events)
        path = critical_path(found)
        assert path[0].layer == path[0].epoch == 1
        assert path[-1].end == max(x.end for x in found.spans)
        starts = [x.start for x in path]
        assert starts == sorted(set(starts))
        assert np.sum(path_seconds(path, 3)) <= 1.1 * found.seconds

    def test_a_run_that_has_begun_has_none(self):
        start = RunStarted(1.0, LAYERS, (1, 1), "greedy", "lockstep", "threads", 1, 9)
        assert critical_path(timeline_of([start])) == ()
