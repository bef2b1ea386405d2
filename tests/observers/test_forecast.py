"""The forecast of a running pretraining, in small cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from syncpretrain.events import EpochFinished, EpochStarted, LayerFinished, Progress, RunStarted
from syncpretrain.observers.progress import Forecast

# Two layers of equal weights with 4 epochs each, and 100 examples.
RUN = RunStarted(0.0, (10, 10, 10), (4, 4), "synchronized", "lockstep", "threads", 2, 100)


def finished(time, layer, epoch, seconds):
    return EpochFinished(time, layer, epoch, 0, time - seconds, 0.0, 1.0, None)


def test_nothing_is_known_before_there_is_work():
    forecast = Forecast(RUN)
    assert (forecast.share, forecast.rate, forecast.seconds_left) == (0.0, None, None)


def test_a_layer_that_has_not_trained_is_as_fast_as_the_others():
    forecast = Forecast(RUN)
    forecast(EpochStarted(0.0, 1, 1, 0))
    forecast(finished(2.0, 1, 1, 2.0))
    assert forecast.share == 1 / 8
    assert forecast.rate == 50.0
    assert forecast.seconds_left == 8.0  # layer 2: 4 epochs of 2 s; layer 1: 3 of them


@pytest.mark.parametrize(("schedule", "workers"), [("greedy", 2), ("synchronized", 1)])
def test_one_layer_at_a_time_takes_the_sum(schedule, workers):
    forecast = Forecast(replace(RUN, schedule=schedule, workers=workers))
    forecast(finished(2.0, 1, 1, 2.0))
    assert forecast.seconds_left == 14.0  # 7 epochs of 2 s


def test_a_running_epoch_counts_by_its_fraction():
    forecast = Forecast(RUN)
    forecast(EpochStarted(0.0, 1, 1, 0))
    forecast(Progress(1.0, 1, 1, 0.5))
    assert forecast.share == 1 / 16
    assert forecast.seconds_left == 8.0


def test_a_resumed_run_is_as_fast_as_it_is_now():
    forecast = Forecast(replace(RUN, past_reads=((0, 0), ())))
    assert forecast.share == 2 / 8
    forecast(finished(3.0, 1, 3, 3.0))
    assert forecast.rate == pytest.approx(100 / 3)
    assert forecast.seconds_left == 12.0


def test_a_layer_that_stops_early_is_done():
    forecast = Forecast(RUN)
    forecast(finished(1.0, 1, 1, 1.0))
    forecast(finished(2.0, 2, 1, 1.0))
    forecast(LayerFinished(2.0, 2))
    forecast(LayerFinished(2.0, 1))
    assert forecast.share == 1.0
    assert forecast.seconds_left == 0.0
