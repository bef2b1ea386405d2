"""Progress: what live and plain lines say, how often they are drawn, and what they forecast."""

import errno
import os
import re
import threading
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    FinetuneEpochFinished,
    FinetuneStarted,
    LayerFinished,
    Notice,
    Progress,
    RunFinished,
    RunStarted,
)
from syncpretrain.observers.progress import Forecast, PlainProgress, progress_observer

RUN = RunStarted(100.0, (784, 1000, 500), (4, 10), "synchronized", "lockstep", "threads", 2, 500)
RESUMED = replace(RUN, past_reads=((0, 0, 0, 0), (1, 2)))
FRAME = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
CODE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def finished(time, layer, epoch, reads, *, error=11.42, validation=11.1, seconds=1.3):
    return EpochFinished(time, layer, epoch, reads, time - seconds, 0.1, error, validation)


class Screen:
    """A terminal whose redrawings can be looked at; its clock jumps a second a look."""

    def __init__(self, width=100, tick=1.0, height=25):
        self.file = StringIO()
        own = {"force_terminal": True, "color_system": None, "legacy_windows": False}
        own |= {"width": width, "height": height, "_environ": {"TERM": "xterm"}}
        self.console = Console(file=self.file, **own)
        self.now, self.tick = 0.0, tick

    def clock(self):
        self.now += self.tick
        return self.now

    def __enter__(self):
        self.context = progress_observer(self.console, live=True, clock=self.clock)
        self.observer = self.context.__enter__()
        return self

    def __exit__(self, *error):
        self.context.__exit__(*error)

    def show(self, *events):
        """Observe events; return the lines that are drawn then."""
        for event in events:
            self.observer(event)
        return self.rows

    @property
    def frames(self):
        return [CODE.sub("", frame) for frame in FRAME.split(self.file.getvalue())]

    @property
    def rows(self):
        """The lines of the last frame, without their bars, with single spaces."""
        lines = [re.sub("[━╸╺]", "", line) for line in self.frames[-1].splitlines()]
        return [re.sub(" +", " ", line).strip() for line in lines]


@pytest.fixture
def screen():
    with Screen() as screen:
        yield screen


class TestLive:
    def test_layers_wait_first(self, screen):
        assert screen.show(RUN) == [
            "layer 1 784-1000 waiting epoch 0/4",
            "layer 2 1000-500 waiting epoch 0/10",
            "all layers 0 %",
        ]

    def test_a_layer_trains_sleeps_and_is_done(self, screen):
        rows = screen.show(RUN, EpochStarted(100.0, 1, 1, 0))
        assert rows[0] == "layer 1 784-1000 on the data epoch 1/4"
        rows = screen.show(finished(101.3, 1, 1, 0), EpochStarted(101.3, 2, 1, 1))
        assert rows[0] == "layer 1 784-1000 sleeping epoch 1/4 error 11.42 0:04 left"
        assert rows[1] == "layer 2 1000-500 on version 1 epoch 1/10"
        rows = screen.show(LayerFinished(105.0, 1))
        assert rows[0].startswith("layer 1 784-1000 done epoch 1/4 error 11.42")

    def test_a_streamed_layer_shows_its_minibatch(self, screen):
        run = replace(RUN, handoff="minibatch", batch_size=10)
        rows = screen.show(run, EpochStarted(100.0, 2, 1, 0), Progress(100.5, 2, 1, 0.5))
        assert rows[1].startswith("layer 2 1000-500 on minibatch 25 epoch 1/10")

    def test_the_last_line_predicts_the_whole_run(self, screen):
        screen.show(RUN)
        for epoch in (1, 2):
            screen.show(EpochStarted(98.0 + 2 * epoch, 1, epoch, 0))
            screen.show(finished(100.0 + 2 * epoch, 1, epoch, 0, seconds=2.0))
        rows = screen.show(EpochStarted(104.0, 2, 1, 2))
        # 2 of 4 epochs in 4 s; layer 2 has 64 % of its weights, and 10 epochs to go
        assert rows[-1] == "all layers takes 0:17 19 % 250/s 0:13 left"
        rows = screen.show(RunFinished(110.0, 10.0, (5.0, 5.0)))
        assert not any(row.startswith("all layers") for row in rows)

    def test_no_colours_where_none_are_wanted(self, monkeypatch):
        monkeypatch.setenv("NO_COLOR", "1")
        file = StringIO()
        console = Console(file=file, force_terminal=True, width=100)
        with progress_observer(console, live=True) as observer:
            observer(RUN)
            observer(EpochStarted(100.0, 1, 1, 0))
        assert "waiting" in file.getvalue()
        assert not re.findall(r"\x1b\[[0-9;]*3[0-7][0-9;]*m", file.getvalue())

    def test_the_bar_has_the_fraction_of_the_running_epoch(self, screen):
        def bar():
            return screen.frames[-1].splitlines()[0].count("━")

        screen.show(RUN, EpochStarted(100.0, 1, 3, 0), Progress(100.5, 1, 3, 0.0))
        half = bar()
        screen.show(finished(101.0, 1, 4, 0), RunFinished(101.0, 1.0, (1.0, 1.0)))
        assert abs(half - bar() / 2) <= 1

    def test_time_left_counts_sleep_but_not_the_epochs_of_a_resumed_run(self, screen):
        screen.show(RUN, EpochStarted(110.0, 2, 5, 4), finished(112.0, 2, 5, 4))  # after 4 of 10
        rows = screen.show(EpochStarted(130.0, 2, 6, 4))  # 1 of 6 in 20 s: 5 of them take 100 s
        assert rows[1].endswith("on version 4 epoch 6/10 error 11.42 1:40 left")

    def test_a_resumed_run_shows_what_was_done_before(self, screen):
        assert screen.show(RESUMED) == [
            "layer 1 784-1000 waiting epoch 4/4",
            "layer 2 1000-500 waiting epoch 2/10",
            "all layers 51 %",  # by their weights
        ]
        assert screen.show(LayerFinished(100.5, 1))[0] == "layer 1 784-1000 done epoch 4/4"

    def test_epochs_that_refresh_pass_the_stipulated_ones(self, screen):
        rows = screen.show(RUN, EpochStarted(100.0, 1, 6, 0), Progress(101.0, 1, 6, 0.5))
        assert rows[0] == "layer 1 784-1000 on the data epoch 4/4 +2"

    def test_a_finished_run_leaves_every_layer_done(self):
        with Screen() as screen:
            screen.show(RUN, finished(101.0, 1, 4, 0), RunFinished(101.0, 1.0, (1.0, 0.0)))
        assert [" done " in row for row in screen.rows[:2]] == [True, True]

    def test_finetuning_has_its_line_also_without_pretraining(self):
        with Screen() as screen:
            rows = screen.show(FinetuneStarted(0.0, "reconstruction", "adam", 3))
            assert rows == ["fine-tuning training epoch 1/3"]
            rows = screen.show(FinetuneEpochFinished(7200.0, 1, 3, 7200.0, 0.5, None))
            assert rows == ["fine-tuning training epoch 2/3 error 0.5000 4:00:00 left"]
            screen.show(FinetuneEpochFinished(7300.0, 3, 3, 2.0, 0.25, None))
        assert screen.rows[0] == "fine-tuning done epoch 3/3 error 0.2500"

    def test_a_notice_stands_above_as_it_was_written(self, screen):
        rows = screen.show(
            Notice(99.0, "before [the] run"), RUN, Notice(101.0, "5,000 digits [bold]:smile:")
        )
        assert screen.frames[-1].splitlines()[0] == "5,000 digits [bold]:smile:"
        assert rows[1].startswith("layer 1")
        assert screen.frames[0].splitlines()[0] == "before [the] run"

    def test_draws_at_most_eight_times_a_second(self):
        with Screen(tick=0.0) as screen:
            screen.show(RUN, EpochStarted(100.0, 1, 1, 0))
            before = len(screen.frames)
            screen.show(*(Progress(100.0 + step, 1, 1, step / 100) for step in range(100)))
            assert len(screen.frames) == before
            screen.now = 0.125
            screen.show(Progress(201.0, 1, 1, 1.0))
            assert len(screen.frames) == before + 1

    def test_the_last_state_is_drawn_when_the_run_fails(self):
        with pytest.raises(RuntimeError), Screen(tick=0.0) as screen:
            screen.show(RUN, finished(101.0, 1, 2, 0, error=5.0))
            raise RuntimeError
        assert screen.rows[0].startswith("layer 1 784-1000 sleeping epoch 2/4 error 5.00")
        assert screen.file.getvalue().endswith("\x1b[?25h")  # the cursor is back

    @pytest.mark.parametrize("width", [20, 60, 80, 300])
    def test_every_width_gives_one_line_a_layer(self, width):
        with Screen(width=width) as screen:
            screen.show(RUN, finished(101.0, 1, 2, 0), EpochStarted(101.0, 1, 3, 0))
            lines = screen.frames[-1].splitlines()
        assert len(lines) == 3  # with that of all layers
        assert max(map(len, lines)) <= min(width, 100)

    @pytest.mark.parametrize(
        ("done", "first", "more"), [(0, 1, 194), (150, 151, 44), (199, 195, 0)]
    )
    def test_a_deep_run_draws_the_layers_at_work_and_all_in_the_end(self, done, first, more):
        with Screen(height=10) as screen:
            screen.show(RunStarted(100.0, (4,) * 201, (3,) * 200, "greedy", "", "threads", 1, 500))
            screen.show(*(LayerFinished(100.0, layer) for layer in range(1, done + 1)))
            rows = screen.show(EpochStarted(100.0, done + 1, 1, 3))
            source = "version 3" if done else "the data"
            assert f"layer {done + 1} 4-4 on {source} epoch 1/3" in rows
            named = [int(row.split()[1]) for row in rows if row.startswith("layer")]
            assert named == list(range(first, first + 6))
            assert (f"{first - 1} layers done" == rows[0]) == (first > 1)
            assert (f"{more} more" == rows[-2]) == (more > 0)
            assert rows[-1].startswith("all layers")
            assert len(rows) <= 9
        assert len(screen.frames[-1].splitlines()) == 200

    def test_no_thread_and_nothing_printed_without_events(self):
        threads = threading.active_count()
        with Screen() as screen:
            assert threading.active_count() == threads
        assert screen.file.getvalue() == ""


ERRORS = "error 11.42  validation 11.10  1.3 s"


class TestPlain:
    @pytest.mark.parametrize(
        ("events", "printed"),
        [
            (
                [RUN, EpochStarted(1.0, 2, 3, 3), finished(2.3, 2, 3, 3)],
                [f"layer 2  epoch 3/10  on version 3  {ERRORS}"],
            ),
            (  # without validation, and past the stipulated epochs
                [RUN, finished(2.3, 1, 5, 0, error=0.12345, validation=None)],
                ["layer 1  epoch 4/4 +1  on version 0  error 0.1235  1.3 s"],
            ),
            (
                [Notice(0.0, "[not all] :smile:"), RUN, finished(2, 1, 4, 0), LayerFinished(2, 1)],
                [
                    "[not all] :smile:",
                    f"layer 1  epoch 4/4  on version 0  {ERRORS}",
                    "layer 1  done after 4 epochs",
                ],
            ),
            (
                [RESUMED, LayerFinished(101, 1), finished(102, 2, 3, 3), LayerFinished(102, 2)],
                [
                    "layer 1  was complete, after 4 epochs",
                    f"layer 2  epoch 3/10  on version 3  {ERRORS}",
                    "layer 2  done after 3 epochs",
                ],
            ),
            (
                [
                    FinetuneStarted(0.0, "reconstruction", "adam", 10),
                    FinetuneEpochFinished(2.0, 1, 10, 2.0, 8.5, 8.75),
                ],
                ["fine-tuning  epoch 1/10  error 8.50  validation 8.75  2.0 s"],
            ),
            ([RUN, Progress(1.0, 1, 1, 0.5), RunFinished(2.0, 1.0, (1.0, 1.0))], []),
        ],
        ids=["epoch", "past the epochs", "notice and end", "resumed", "fine-tuning", "progress"],
    )
    def test_lines_are_whole_in_a_narrow_window(self, events, printed):
        file = StringIO()
        with progress_observer(Console(file=file, width=30), live=False) as observer:
            for event in events:
                observer(event)
        assert file.getvalue().splitlines() == printed

    @pytest.mark.parametrize(("epochs", "kept"), [(50, 50), (99, 99), (120, 61), (500, 51)])
    def test_thinned_it_is_a_hundred_lines_at_most_with_both_ends(self, epochs, kept):
        file = StringIO()
        observer = PlainProgress(Console(file=file), thinned=True)
        for epoch in range(1, epochs + 1):
            observer(FinetuneEpochFinished(epoch, epoch, epochs, 1.0, 8.5, None))
        printed = file.getvalue().splitlines()
        assert len(printed) == kept
        assert printed[0].startswith(f"fine-tuning  epoch 1/{epochs} ")
        assert printed[-1].startswith(f"fine-tuning  epoch {epochs}/{epochs} ")


class Refusing(StringIO):
    def __init__(self, error):
        super().__init__()
        self.error, self.asked = error, 0

    def write(self, text):
        self.asked += 1
        raise self.error


class TestWhatCannotBePrinted:
    @pytest.mark.parametrize("live", [False, True])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
    def test_does_not_stop_a_run(self, number, live):
        file = Refusing(OSError(number, os.strerror(number)))
        console = Console(file=file, force_terminal=live, _environ={"TERM": "xterm"})
        with progress_observer(console, live=live) as observer:
            for event in (RUN, Notice(100.5, "read me"), finished(102.0, 1, 1, 0)):
                observer(event)
            asked = file.asked
            observer(Notice(103.0, "read me"))
            assert file.asked == asked > 0


# Two layers of equal weights with 4 epochs each, and 100 examples.
EQUAL = RunStarted(0.0, (10, 10, 10), (4, 4), "synchronized", "lockstep", "threads", 2, 100)


RESUMED_EQUAL = replace(EQUAL, past_reads=((0, 0), ()))
BEGUN = EpochStarted(0.0, 1, 1, 0)


def ended(time, layer, epoch, seconds):
    return finished(time, layer, epoch, 0, seconds=seconds)


@pytest.mark.parametrize(
    ("start", "events", "share", "rate", "seconds_left"),
    [
        (EQUAL, [], 0.0, None, None),
        # Layer 2 has 4 epochs of 2 s to go, layer 1 has 3 of them; one after another they are 7.
        (EQUAL, [BEGUN, ended(2.0, 1, 1, 2.0)], 1 / 8, 50.0, 8.0),
        (replace(EQUAL, schedule="greedy"), [ended(2.0, 1, 1, 2.0)], 1 / 8, 50.0, 14.0),
        (replace(EQUAL, workers=1), [ended(2.0, 1, 1, 2.0)], 1 / 8, 50.0, 14.0),
        (EQUAL, [BEGUN, Progress(1.0, 1, 1, 0.5)], 1 / 16, 50.0, 8.0),
        (RESUMED_EQUAL, [], 2 / 8, None, None),
        (RESUMED_EQUAL, [ended(3.0, 1, 3, 3.0)], 3 / 8, 100 / 3, 12.0),
        (
            EQUAL,
            [ended(1, 1, 1, 1), ended(2, 2, 1, 1), LayerFinished(2, 2), LayerFinished(2, 1)],
            *(1.0, 100.0, 0.0),
        ),
    ],
    ids=[
        *("no work yet", "two layers", "greedy", "one worker", "a running epoch"),
        *("resumed", "resumed, as fast as it is now", "stopped early"),
    ],
)
def test_the_forecast(start, events, share, rate, seconds_left):
    forecast = Forecast(start)
    for event in events:
        forecast(event)
    assert (forecast.share, forecast.seconds_left) == (share, seconds_left)
    assert forecast.rate == (rate and pytest.approx(rate))
