"""Progress on the console: live lines, one a layer, with a forecast; or a plain line an epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from syncpretrain import events
from syncpretrain.schedule.kinds import SCHEDULES

REFRESH_SECONDS = 0.12
MAX_WIDTH = 100
ENOUGH_TO_ESTIMATE = 0.1  # epochs of a layer; less says little about its speed
THINNED_LINES = 50  # fewest lines of a layer that has so many epochs
STYLES = {"waiting": "dim", "training": "green", "sleeping": "yellow", "done": "blue"}


@contextmanager
def progress_observer(
    console: Console, *, live: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[events.Observer]:
    """Show a run's progress on the console as long as the context lasts.

    Parameters
    ----------
    console : rich.console.Console
        Console to print on; standard error where standard output carries results.
    live : bool
        True draws one line a layer and redraws it in place, at most 8 times a second and only
        when an event arrives, so training needs no extra thread. As long as the run lasts, only
        the lines that the console has room for are drawn, from the lowest layer that is not done.
        False prints one short line an epoch, for files and pipes. If printing fails for another
        reason than a closed pipe, progress ends and the run goes on.
    clock : callable
        Clock that paces the redrawing, in seconds.

    Yields
    ------
    Observer
        To be called with each event of the run.
    """
    if not live:
        yield _silenced_by_failure(PlainProgress(console))
        return
    observer = _Live(console, clock)
    try:
        yield _silenced_by_failure(observer)
    finally:
        with suppress(OSError):
            observer.stop()


def _silenced_by_failure(observer: events.Observer) -> events.Observer:
    """Return an observer that falls silent if progress cannot be printed: full disk, lost terminal.

    A pipe without a reader ends the run: rich turns that into SystemExit.
    """
    is_silent = False

    def observe(event: events.Event) -> None:
        nonlocal is_silent
        try:
            if not is_silent:
                observer(event)
        except OSError:
            is_silent = True

    return observe


@dataclass(slots=True)
class _Row:
    """A layer, or the fine-tuning: its work, and its live line.

    ``done`` counts finished epochs, and may pass ``epochs``, the stipulated ones, by refreshing.
    """

    name: str
    epochs: int
    weights: int = 0
    done: int = 0
    before: int = 0  # epochs of an earlier run that this one resumes
    state: str = "waiting"
    fraction: float = 0.0  # of the running epoch
    error: float | None = None
    began: float = 0.0
    epoch_began: float | None = None  # None if no epoch is running
    busy: float = 0.0  # seconds of the finished epochs
    last: str = ""  # last cell, where no time is shown
    source: str = ""  # of the running epoch: the data, or a version
    minibatches: float = 0  # of an epoch, in a streamed run

    def start(self, epoch: int, now: float, source: str = "") -> None:
        if self.state == "waiting":
            self.began, self.before = now, epoch - 1
        self.source, self.epoch_began = source, now
        self.state, self.done, self.fraction, self.last = "training", epoch - 1, 0.0, ""

    def finish(self, epoch: int, error: float, seconds: float) -> None:
        self.state, self.done, self.fraction, self.error = "sleeping", epoch, 0.0, error
        self.busy, self.epoch_began = self.busy + seconds, None

    def end(self) -> None:
        self.state, self.fraction, self.last, self.epoch_began = "done", 0.0, "", None

    @property
    def completed(self) -> float:
        return min(self.done + self.fraction, self.epochs)

    @property
    def trained(self) -> float:
        """Epochs of this run so far."""
        return self.done - self.before + self.fraction

    @property
    def left(self) -> float:
        """Stipulated epochs that are still to come."""
        return 0.0 if self.state == "done" else self.epochs - self.completed

    def epoch_seconds(self, now: float) -> float | None:
        """Return the seconds of an epoch, sleep excluded; None before enough of an epoch."""
        if self.trained < ENOUGH_TO_ESTIMATE:
            return None
        running = 0.0 if self.epoch_began is None or not self.fraction else now - self.epoch_began
        return (self.busy + running) / self.trained

    @property
    def doing(self) -> str:
        """State of the layer, with its input while it trains."""
        if self.state != "training" or not (self.source or self.minibatches):
            return self.state
        if self.minibatches:
            return f"on minibatch {max(1, round(self.fraction * self.minibatches))}"
        return f"on {self.source}"

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds of the remaining epochs at the pace so far, sleep included."""
        progress = self.completed - self.before
        if self.state == "waiting" or progress < ENOUGH_TO_ESTIMATE:
            return None
        return self.left / progress * (now - self.began) or None

    def cells(self, now: float) -> tuple[Text, Text, Text, ProgressBar, Text, Text]:
        left = self.seconds_left(now)
        running = self.done + (self.state == "training")
        return (
            Text(self.name),
            Text(self.doing, style=STYLES[self.state]),
            Text(_count_text(running, self.epochs)),
            ProgressBar(total=self.epochs, completed=self.completed),
            Text("" if self.error is None else f"error {_error_text(self.error)}"),
            Text(self.last if left is None else f"{_duration(left)} left"),
        )


class _Live:
    """Observer that keeps a row for each layer, and redraws the rows in sight now and then."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._rows: dict[int, _Row] = {}  # by layer; fine-tuning is row 0
        self._forecast: Forecast | None = None  # while pretraining lasts
        self._now = 0.0
        self._drawn = -REFRESH_SECONDS
        self._stopped = False
        # Redirecting a piped standard output would send its text to the console instead.
        self._live = Live(
            console=console,
            auto_refresh=False,
            get_renderable=self._table,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def __call__(self, event: events.Event) -> None:
        self._now = max(self._now, event.time)
        self._update(event)
        match event:
            case events.Notice(message=message):
                _print_line(self._console, message)
            case events.RunStarted() | events.FinetuneStarted():
                self._live.start()
                self._draw()
            case events.LayerFinished() | events.RunFinished():
                self._draw()
            case events.EpochFinished():
                pass  # the next epoch mostly follows at once: drawing now would flash "sleeping"
            case _ if self._clock() - self._drawn >= REFRESH_SECONDS:
                self._draw()

    def stop(self) -> None:
        """Draw the last state of every layer and give the terminal back."""
        self._stopped = True
        self._live.stop()

    def _update(self, event: events.Event) -> None:
        if self._forecast is not None:
            self._forecast(event)
        match event:
            case events.RunStarted():
                self._forecast = Forecast(event)
                self._rows = dict(self._forecast.rows)
            case events.RunFinished():
                self._forecast = None
                for row in self._rows.values():
                    row.state = "done"
            case events.Progress(layer=0, fraction=fraction):
                self._rows[0].fraction = fraction
            case events.FinetuneStarted(epochs=total):
                self._rows[0] = _Row("fine-tuning", total)
                self._rows[0].start(1, event.time)
            case events.FinetuneEpochFinished(epoch=epoch, epochs=total, train_error=error):
                self._rows[0].finish(epoch, error, event.seconds)
                self._rows[0].state = "training" if epoch < total else "done"

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._live.refresh()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.width = min(self._console.width - 3, MAX_WIDTH)  # room for the echo of ^C
        for width in (None, 15, 10):  # fixed, so that the bars keep their place
            table.add_column(no_wrap=True, min_width=width)
        table.add_column(ratio=1)  # the bar takes what the text leaves
        for width in (11, 9):
            table.add_column(no_wrap=True, min_width=width)
        rows = list(self._rows.values())
        shown = self._in_sight(rows)
        if shown.start:
            table.add_row(Text(f"{shown.start} layers done", style=STYLES["done"]))
        for row in rows[shown.start : shown.stop]:
            table.add_row(*row.cells(self._now))
        if shown.stop < len(rows):
            table.add_row(Text(f"{len(rows) - shown.stop} more", style=STYLES["waiting"]))
        if self._forecast is not None and len(rows) > 1 and not self._stopped:
            table.add_row(*_summary(self._forecast))
        return table

    def _in_sight(self, rows: Sequence[_Row]) -> range:
        """Return the range of rows to draw; each row takes time to draw."""
        room = self._console.height - (2 if self._forecast is not None and len(rows) > 1 else 1)
        if self._stopped or len(rows) <= room:
            return range(len(rows))
        room = max(1, room - 2)  # a line above and a line below summarize the other rows
        first = next((i for i, row in enumerate(rows) if row.state != "done"), len(rows))
        start = min(first, len(rows) - room)
        return range(start, start + room)


def _summary(forecast: Forecast) -> tuple[Text, Text, Text, ProgressBar, Text, Text]:
    """Return the row of the whole pretraining: duration, share done, examples a second."""
    left, rate = forecast.seconds_left, forecast.rate
    takes = "" if left is None else f"takes {_duration(forecast.elapsed + left)}"
    return (
        Text("all layers"),
        Text(takes),
        Text(f"{100 * forecast.share:.0f} %"),
        ProgressBar(total=1.0, completed=forecast.share),
        Text("" if rate is None else f"{rate:,.0f}/s"),
        Text("" if not left else f"{_duration(left)} left"),
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class PlainProgress:
    """Observer that prints a line for each event that a log should keep.

    Parameters
    ----------
    console : Console
    thinned : bool
        True to print of a layer's hundreds of epochs 50 to 100, at equal distances.
    """

    def __init__(self, console: Console, *, thinned: bool = False) -> None:
        self._console = console
        self._thinned = thinned
        self._start: events.RunStarted | None = None
        self._done: dict[int, int] = {}  # epochs of the layers that trained some

    def __call__(self, event: events.Event) -> None:
        """Print the line of an event, if it has one."""
        match event:
            case events.RunStarted():
                self._start, self._done = event, {}
            case events.Notice(message=message):
                _print_line(self._console, message)
            case events.EpochFinished() if self._start is not None:
                self._done[event.layer] = event.epoch
                if not self._keeps(event.epoch, self._start.epochs[event.layer - 1]):
                    return
                count = _count_text(event.epoch, self._start.epochs[event.layer - 1])
                source = "" if self._start.handoff == "minibatch" else f"  on version {event.reads}"
                label = f"layer {event.layer}  {count}{source}"
                self._epoch(label, event, event.time - event.started)
            case events.DriftJudged(layer=layer):
                _print_line(self._console, f"layer {layer}  {event}")
            case events.LayerFinished(layer=layer):
                before = self._start.done(layer) if self._start is not None else 0
                done = self._done.get(layer, before)
                end = "was complete, after" if layer not in self._done else "done after"
                plural = "" if done == 1 else "s"
                _print_line(self._console, f"layer {layer}  {end} {done} epoch{plural}")
            case events.FinetuneEpochFinished() if self._keeps(event.epoch, event.epochs):
                label = f"fine-tuning  {_count_text(event.epoch, event.epochs)}"
                self._epoch(label, event, event.seconds)

    def _keeps(self, epoch: int, epochs: int) -> bool:
        step = max(epochs // THINNED_LINES, 1) if self._thinned else 1
        return epoch in (1, epochs) or epoch % step == 0

    def _epoch(
        self, label: str, event: events.EpochFinished | events.FinetuneEpochFinished, seconds: float
    ) -> None:
        parts = [label, f"error {_error_text(event.train_error)}"]
        if event.validation_error is not None:
            parts.append(f"validation {_error_text(event.validation_error)}")
        if isinstance(event, events.EpochFinished) and event.drift is not None:
            parts.append(f"change {event.drift:.3g}")
        _print_line(self._console, "  ".join([*parts, f"{seconds:.1f} s"]))


def _print_line(console: Console, text: str) -> None:
    """Print a line as it is."""
    # soft_wrap keeps a line whole in a log; the rest keeps brackets and numbers as they are
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _count_text(epoch: int, epochs: int) -> str:
    """Return the progress of a layer; epochs beyond the stipulated ones are refreshes."""
    extra = f" +{epoch - epochs}" if epoch > epochs else ""
    return f"epoch {min(epoch, epochs)}/{epochs}{extra}"


def _error_text(value: float) -> str:
    """Return an error as it is printed."""
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


class Forecast:
    """Observer that keeps a row for each layer, and predicts the end of pretraining.

    A layer that has not trained yet is assumed to be as fast as the others, by its weights.
    Pretraining ends no sooner than its slowest layer, and no sooner than all slots together can do
    the rest; time in which layers wait for each other comes on top. Epochs on refreshed versions
    are not counted.

    Parameters
    ----------
    start : RunStarted
    """

    def __init__(self, start: events.RunStarted) -> None:
        kind = SCHEDULES.get(start.schedule)
        alone = kind is not None and kind.one_at_a_time
        self._slots = 1 if alone else max(1, min(start.workers, len(start.epochs)))
        self._examples, self._started, self._now = start.examples, start.time, start.time
        streams = start.handoff == "minibatch" and start.batch_size > 0
        minibatches = start.examples / start.batch_size if streams else 0
        self.rows: dict[int, _Row] = {}
        for n, epochs in enumerate(start.epochs, start=1):
            below, above = start.layers[n - 1 : n + 1]
            own = below * above, start.done(n), start.done(n)
            self.rows[n] = _Row(f"layer {n}  {below}-{above}", epochs, *own)
            self.rows[n].minibatches = minibatches

    def __call__(self, event: events.Event) -> None:
        """Take note of an event."""
        self._now = max(self._now, event.time)
        match event:
            case events.EpochStarted(layer=layer, epoch=epoch, reads=reads):
                source = "the data" if layer == 1 else f"version {reads}"
                self.rows[layer].start(epoch, event.time, source)
            case events.Progress(layer=layer, fraction=fraction):
                self.rows[layer].fraction = fraction
            case events.EpochFinished(layer=layer, epoch=epoch, train_error=error):
                self.rows[layer].finish(epoch, error, event.time - event.started)
            case events.DriftJudged(layer=layer, drift=drift):
                self.rows[layer].last = f"drift {drift:.2g}"
            case events.LayerFinished(layer=layer):
                self.rows[layer].end()

    @property
    def share(self) -> float:
        """Share of the work that is done; each epoch counts by its layer's weights."""
        left = sum(row.weights * row.left for row in self.rows.values())
        done = sum(row.weights * (row.done + row.fraction) for row in self.rows.values())
        return done / (done + left) if done + left else 1.0

    @property
    def rate(self) -> float | None:
        """Examples that all layers together train on in a second; None before there are any."""
        trained = sum(row.trained for row in self.rows.values())
        return self._examples * trained / self.elapsed if trained > 0 and self.elapsed > 0 else None

    @property
    def elapsed(self) -> float:
        """Seconds since the start of this run."""
        return self._now - self._started

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end; None before any layer's speed is known."""
        seconds = {n: row.epoch_seconds(self._now) for n, row in self.rows.items()}
        known = {n: own for n, own in seconds.items() if own is not None}
        weights = sum(self.rows[n].weights for n in known)
        if not weights:
            return None
        per_weight = sum(known.values()) / weights
        rest = [x.left * known.get(n, per_weight * x.weights) for n, x in self.rows.items()]
        return max(max(rest), sum(rest) / self._slots)
