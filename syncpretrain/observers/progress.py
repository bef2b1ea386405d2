"""Progress on the console: one live line a layer, or one plain line an epoch."""

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

from syncpretrain.events import (
    DriftJudged,
    EpochFinished,
    EpochStarted,
    Event,
    FinetuneEpochFinished,
    FinetuneStarted,
    LayerFinished,
    Notice,
    Observer,
    Progress,
    RunFinished,
    RunStarted,
)
from syncpretrain.observers.forecast import Forecast
from syncpretrain.observers.plain_progress import (
    PlainProgress,
    count_text,
    error_text,
    print_line,
)

__all__ = ["progress_observer"]

REFRESH_SECONDS = 0.12
MAX_WIDTH = 100
ENOUGH_TO_ESTIMATE = 0.1  # epochs; less says little about the time left
STYLES = {"waiting": "dim", "training": "green", "sleeping": "yellow", "done": "blue"}


@contextmanager
def progress_observer(
    console: Console, *, live: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Observer]:
    """Show a run's progress on the console as long as the context lasts.

    Parameters
    ----------
    console : rich.console.Console
        Where to; standard error where standard output carries results.
    live : bool
        True draws one line a layer and redraws it in place, at most 8 times a second and only
        when an event arrives, so no thread runs beside the training. As long as the run lasts, only
        the lines that the console has room for are drawn, from the lowest layer that is not done.
        False prints one short line an epoch, for files and pipes. Either ends, and the run goes on,
        where printing fails for another reason than a closed pipe.
    clock : callable
        What the redrawing is paced by, in seconds.

    Yields
    ------
    Observer
        To be called with each event of the run.
    """
    if not live:
        yield _Lasting(PlainProgress(console))
        return
    observer = _Live(console, clock)
    try:
        yield _Lasting(observer)
    finally:
        with suppress(OSError):
            observer.stop()


class _Lasting:
    """Falls silent where progress cannot be printed any more: a full disk, a terminal that is gone.

    A pipe without a reader ends the run: rich turns that into SystemExit.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._is_silent = False

    def __call__(self, event: Event) -> None:
        if self._is_silent:
            return
        try:
            self._observer(event)
        except OSError:
            self._is_silent = True


@dataclass(slots=True)
class _Row:
    """What one live line shows; ``epochs`` are stipulated, ``done`` may pass them (refreshing)."""

    name: str
    epochs: int
    state: str = "waiting"
    done: int = 0
    fraction: float = 0.0  # of the running epoch
    error: float | None = None
    began: float = 0.0
    done_before: int = 0  # epochs of an earlier run that this one resumes
    last: str = ""  # cell, without a time to show
    source: str = ""  # of the running epoch: the data, or a version
    minibatches: float = 0  # of an epoch, where layers train on those of others

    def start(self, epoch: int, now: float, source: str = "") -> None:
        if self.state == "waiting":
            self.began, self.done_before = now, epoch - 1
        self.source = source
        self.state, self.done, self.fraction, self.last = "training", epoch - 1, 0.0, ""

    def finish(self, epoch: int, error: float) -> None:
        self.state, self.done, self.fraction, self.error = "sleeping", epoch, 0.0, error

    @property
    def completed(self) -> float:
        return min(self.done + self.fraction, self.epochs)

    @property
    def doing(self) -> str:
        """The state, of a layer that trains with what it trains on."""
        if self.state != "training" or not (self.source or self.minibatches):
            return self.state
        if self.minibatches:
            return f"on minibatch {max(1, round(self.fraction * self.minibatches))}"
        return f"on {self.source}"

    def seconds_left(self, now: float) -> float | None:
        """Return what the remaining epochs take at the pace so far, sleep included."""
        progress = self.completed - self.done_before
        if self.state == "waiting" or progress < ENOUGH_TO_ESTIMATE:
            return None
        left = (self.epochs - self.completed) / progress * (now - self.began)
        return left if left > 0 else None

    def cells(self, now: float) -> tuple[Text, Text, Text, ProgressBar, Text, Text]:
        left = self.seconds_left(now)
        running = self.done + (self.state == "training")
        return (
            Text(self.name),
            Text(self.doing, style=STYLES[self.state]),
            Text(count_text(running, self.epochs)),
            ProgressBar(total=self.epochs, completed=self.completed),
            Text("" if self.error is None else f"error {error_text(self.error)}"),
            Text(self.last if left is None else f"{_duration(left)} left"),
        )


class _Live:
    """Keeps a row a layer up to date and redraws those in sight now and then."""

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

    def __call__(self, event: Event) -> None:
        self._now = max(self._now, event.time)
        self._update(event)
        match event:
            case Notice(message=message):
                print_line(self._console, message)
            case RunStarted() | FinetuneStarted():
                self._live.start()
                self._draw()
            case LayerFinished() | RunFinished():
                self._draw()
            case EpochFinished():
                pass  # the next epoch mostly follows at once: drawing now would flash "sleeping"
            case _ if self._clock() - self._drawn >= REFRESH_SECONDS:
                self._draw()

    def stop(self) -> None:
        """Draw the last state of every layer and give the terminal back."""
        self._stopped = True
        self._live.stop()

    def _update(self, event: Event) -> None:
        if self._forecast is not None:
            self._forecast(event)
        match event:
            case RunStarted(layers=layers, epochs=epochs):
                self._forecast = Forecast(event) if len(epochs) > 1 else None
                streams = event.handoff == "minibatch" and event.batch_size > 0
                self._rows = {
                    n: _Row(f"layer {n}  {layers[n - 1]}-{layers[n]}", total, done=event.done(n))
                    for n, total in enumerate(epochs, start=1)
                }
                for row in self._rows.values() if streams else ():
                    row.minibatches = event.examples / event.batch_size
            case EpochStarted(layer=layer, epoch=epoch, reads=reads):
                source = "the data" if layer == 1 else f"version {reads}"
                self._rows[layer].start(epoch, event.time, source)
            case Progress(layer=layer, fraction=fraction):
                self._rows[layer].fraction = fraction
            case EpochFinished(layer=layer, epoch=epoch, train_error=error):
                self._rows[layer].finish(epoch, error)
            case DriftJudged(layer=layer, drift=drift):
                self._rows[layer].last = f"drift {drift:.2g}"
            case LayerFinished(layer=layer):
                self._rows[layer].state, self._rows[layer].last = "done", ""
            case RunFinished():
                self._forecast = None
                for row in self._rows.values():
                    row.state = "done"
            case FinetuneStarted(epochs=total):
                self._rows[0] = _Row("fine-tuning", total)
                self._rows[0].start(1, event.time)
            case FinetuneEpochFinished(epoch=epoch, epochs=total, train_error=error):
                self._rows[0].finish(epoch, error)
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
        if self._forecast is not None and not self._stopped:
            table.add_row(*_summary(self._forecast))
        return table

    def _in_sight(self, rows: Sequence[_Row]) -> range:
        """Return the rows to draw, since drawing takes as long as there are rows."""
        room = self._console.height - (1 if self._forecast is None else 2)
        if self._stopped or len(rows) <= room:
            return range(len(rows))
        room = max(1, room - 2)  # the rest is summarized in a line below and a line above
        first = next((i for i, row in enumerate(rows) if row.state != "done"), len(rows))
        start = min(first, len(rows) - room)
        return range(start, start + room)


def _summary(forecast: Forecast) -> tuple[Text, Text, Text, ProgressBar, Text, Text]:
    """Return the row of the whole pretraining: how long it takes, its share, examples a second."""
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
