"""History of a run, kept for its metrics, its trace and its replay."""

from __future__ import annotations

from syncpretrain.events import EpochFinished, Event, Progress, RunFinished, RunStarted


class History:
    """Observer that collects the events of one run; each figure has one entry a layer.

    The figures may be asked for at any time, also of a run that failed halfway; before the run
    started they are empty.

    Attributes
    ----------
    events : list of Event
        All but the Progress events, in the order they happened.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._started: RunStarted | None = None
        self._run_finished: RunFinished | None = None
        self._finished: list[list[EpochFinished]] = []
        self._last_time = 0.0

    def __call__(self, event: Event) -> None:
        """Record an event."""
        self._last_time = max(self._last_time, event.time)
        if isinstance(event, Progress):
            return
        self.events.append(event)
        if isinstance(event, RunStarted):
            self._started = event
            self._finished = [[] for _ in event.epochs]
        elif isinstance(event, EpochFinished):
            self._finished[event.layer - 1].append(event)
        elif isinstance(event, RunFinished):
            self._run_finished = event

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs done, including epochs before this run was resumed."""
        return tuple(epochs[-1].epoch if epochs else 0 for epochs in self._finished)

    @property
    def train_errors(self) -> tuple[float | None, ...]:
        """Training error of the last finished epoch; None before the first."""
        return tuple(epochs[-1].train_error if epochs else None for epochs in self._finished)

    @property
    def validation_errors(self) -> tuple[float | None, ...]:
        """Validation error of the last finished epoch; None before the first or without data."""
        return tuple(epochs[-1].validation_error if epochs else None for epochs in self._finished)

    @property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Version of the layer below that each finished epoch read, for a replay."""
        past = self._started.past_reads if self._started is not None else ()
        own = [tuple(epoch.reads for epoch in epochs) for epochs in self._finished]
        return tuple(a + b for a, b in zip(past or ((),) * len(own), own, strict=True))

    @property
    def pretrain_seconds(self) -> float:
        """Seconds from the start of pretraining to its end, or to the last event so far."""
        if self._run_finished is not None:
            return self._run_finished.seconds
        return self._last_time - self._started.time if self._started is not None else 0.0

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Seconds that each layer trained; in an unfinished run, seconds of its finished epochs."""
        if self._run_finished is not None:
            return self._run_finished.busy_seconds
        return tuple(sum(x.time - x.started for x in epochs) for epochs in self._finished)

    @property
    def idle_seconds(self) -> tuple[float, ...]:
        """Seconds of pretraining that each layer did not train."""
        return tuple(max(0.0, self.pretrain_seconds - busy) for busy in self.busy_seconds)
