"""Record of a run, finished or not, read from its folder: state, figures, course and model.

The course of a run is read back from its events, with the epochs that its time depended on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from syncpretrain.errors import DataError, SyncpretrainError
from syncpretrain.events import Event
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.models.stack import Stack, load
from syncpretrain.observers.event_log import as_dict
from syncpretrain.runs.folder import CONFIG_NAME, EVENTS_NAME, IDENTITY_NAME, METRICS_NAME, owner_of
from syncpretrain.runs.identity import RunIdentity, read_identity
from syncpretrain.settings import Settings, read_settings

KILLED = "its process left no reason: it was killed, or lost its machine"
ByPart = dict[str, float | None]
TUNING_ROW = 0  # the layer of an epoch of fine-tuning
# Share of a run: an epoch may seem to begin before the message that lets it begin.
CLOCK_ERROR = 0.002


class RunState(NamedTuple):
    """State of a run: whether and how it ended.

    Attributes
    ----------
    name : str
        ``finished``, ``running``, ``stopped`` (by a signal, or its process is gone), ``failed`` or
        ``damaged``.
    reason : str
        Why a run failed, stopped or is damaged; the owner of a running one; empty if finished.
    """

    name: str
    reason: str = ""


def state_of(folder: Path, stopped: tuple[bool, str] | None, damage: str = "") -> RunState:
    """Return the state of a run.

    Parameters
    ----------
    folder : Path
    stopped : tuple of bool and str, or None
        Content of the last event, if the run ended early: whether it failed, and the reason.
    damage : str
        Why the settings, or the figures of a finished run, cannot be read.
    """
    if not damage and (folder / METRICS_NAME).exists():
        return RunState("finished")
    owner = owner_of(folder)
    if owner is not None:  # it may be writing the settings that seem damaged
        return RunState("running", owner)
    if damage:
        return RunState("damaged", damage)
    if stopped is None:
        return RunState("stopped", KILLED)
    failed, reason = stopped
    return RunState("failed" if failed else "stopped", reason)


class Figures(msgspec.Struct):
    """The fields of ``metrics.json`` that the shelf and the report show; others are ignored."""

    reconstruction_error: ByPart
    seconds: dict[str, float]
    mean_error: ByPart | None = None
    accuracy: ByPart | None = None
    majority: ByPart | None = None
    regression_error: dict[str, _Regression | None] | None = None
    layers: list[_Layer] = []
    verdict: list[str] | None = None
    data: _Data | None = None
    parameters_sha256: str | None = None


def read_figures(path: Path) -> tuple[Figures, dict[str, Any]]:
    """Return the figures in ``metrics.json``, and its whole content.

    Raises
    ------
    DataError
        If the file cannot be read, or has another form.
    """
    try:
        everything: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        return msgspec.convert(everything, Figures), everything
    except OSError as error:
        raise DataError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}") from None


class _Layer(msgspec.Struct):
    layer: int
    shape: str
    reconstruction_error: ByPart
    mean_error: ByPart | None = None


class _Regression(msgspec.Struct):
    rmse: float
    r2: float | None = None


class _Data(msgspec.Struct):
    name: str
    train: int | None = None
    validation: int | None = None
    test: int | None = None


S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Content of a run folder; None in place of a file that is missing or damaged.

    Attributes
    ----------
    folder : Path
    name : str
        Name of the run in a report.
    state : RunState
    settings : Settings or None
    identity : RunIdentity or None
    metrics : dict or None
        Metrics of a finished run.
    timeline : Timeline
    stack : Stack or None
    problems : tuple of str
        Reasons why files could not be read.
    checkpoints : tuple of Path
    """

    folder: Path
    name: str
    state: RunState
    settings: Settings | None
    identity: RunIdentity | None
    metrics: dict[str, Any] | None
    timeline: Timeline
    stack: Stack | None
    problems: tuple[str, ...]
    checkpoints: tuple[Path, ...]


def read_run(run: Path, *, name: str = "") -> RunRecord:
    """Read the files of a run, from its folder or from the model file in it.

    ``name`` is the name of the run in a report, by default the name of its folder.

    Raises
    ------
    DataError
        If there is no such folder, or it has no file of a run.
    """
    folder = run.parent if run.name == MODEL_NAME else run
    own_name = name or folder.resolve().name
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if not there & {CONFIG_NAME, EVENTS_NAME, MODEL_NAME}:
        raise DataError(f"run: got {run}, expected the folder of a run, with {CONFIG_NAME} in it")
    problems: list[str] = []

    def read(file: str, reader: Callable[[Path], S], *, is_needed: bool = False) -> S | None:
        if file not in there and not is_needed:
            return None
        try:
            return reader(folder / file)
        except (SyncpretrainError, OSError, ValueError) as error:
            problems.append(str(error))
            return None

    settings = read(CONFIG_NAME, read_settings, is_needed=IDENTITY_NAME in there)
    metrics = read(METRICS_NAME, lambda path: read_figures(path)[1])
    damage = problems[0] if problems else ""
    timeline = read(EVENTS_NAME, read_timeline) or Timeline()
    return RunRecord(
        folder=folder,
        name=own_name,
        state=state_of(folder, timeline.stopped, damage),
        settings=settings,
        identity=read(IDENTITY_NAME, read_identity),
        metrics=metrics,
        timeline=timeline,
        stack=read(MODEL_NAME, load),
        problems=tuple(problems),
        checkpoints=tuple(sorted((folder / "checkpoints").glob("*.safetensors"))),
    )


class EpochSpan(NamedTuple):
    """One epoch on the clock of the run.

    Attributes
    ----------
    layer : int
        Counted from 1; 0 is fine-tuning.
    epoch, reads : int
        Its number, and the version of the layer below that it trained on.
    start, end : float
        Seconds since the run began.
    transform : float
        Seconds of the epoch that computed its input.
    train_error, validation_error : float or None
    """

    layer: int
    epoch: int
    reads: int
    start: float
    end: float
    transform: float
    train_error: float | None
    validation_error: float | None

    @property
    def seconds(self) -> float:
        """Duration of the epoch."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Course of a run: its epochs with their times, and its end.

    Attributes
    ----------
    layers, epochs : tuple of int
        Units of the input and of each layer, and the epochs that were stipulated.
    schedule, pace, runtime, handoff, objective : str
        As in the settings; empty if the run did not come so far.
    workers, examples : int
    spans, tuning : tuple of EpochSpan
        Finished epochs of pretraining and of fine-tuning, by start.
    notices : tuple of str
    resumed : tuple of float
        Seconds at which a resumed run went on; the time between two processes is left out.
    busy : tuple of float
        Seconds of work of each layer, as the run measured them, or else summed over its epochs.
    began, ended : float
        First and last second of pretraining so far.
    is_pretrained : bool
        Whether pretraining ended by itself.
    stopped : tuple of bool and str, or None
        Whether a run that ended early failed, and the reason.
    """

    layers: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()
    schedule: str = ""
    pace: str = ""
    runtime: str = ""
    handoff: str = ""
    objective: str = ""
    workers: int = 0
    examples: int = 0
    spans: tuple[EpochSpan, ...] = ()
    tuning: tuple[EpochSpan, ...] = ()
    notices: tuple[str, ...] = ()
    resumed: tuple[float, ...] = ()
    busy: tuple[float, ...] = ()
    began: float = 0.0
    ended: float = 0.0
    is_pretrained: bool = False
    stopped: tuple[bool, str] | None = None

    @property
    def seconds(self) -> float:
        """Seconds of pretraining so far."""
        return max(0.0, self.ended - self.began)

    @property
    def is_streamed(self) -> bool:
        """Whether layers trained on minibatches, so that there are no versions."""
        return self.handoff == "minibatch"

    def of_layer(self, layer: int) -> list[EpochSpan]:
        """Return the epochs of a layer, or with 0 of fine-tuning, in their order."""
        spans = self.spans if layer else self.tuning
        return sorted((x for x in spans if x.layer == layer), key=lambda span: span.epoch)


def read_timeline(run: str | Path) -> Timeline:
    """Return the course of a run from its folder, or from an ``events.jsonl``.

    Lines that cannot be read are left out, such as half a line at the end.

    Raises
    ------
    DataError
        If there is no such file.
    """
    path = Path(run)
    path = path / EVENTS_NAME if path.is_dir() else path
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"run: cannot read {path}: {reason}; name the folder of a run") from None
    reader = _Reader()
    for line in lines:
        try:
            decoded = msgspec.json.decode(line, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        reader.take(decoded)
    return reader.timeline()


def timeline_of(events: Iterable[Event]) -> Timeline:
    """Return the course of a run from its events, such as ``History().events``."""
    reader, origin = _Reader(), None
    for event in events:
        origin = event.time if origin is None else origin
        values = as_dict(event, origin)
        reader.take(Line(**{x: values[x] for x in Line.__struct_fields__ if x in values}))
    return reader.timeline()


def critical_path(timeline: Timeline) -> tuple[EpochSpan, ...]:
    """Return the epochs on the critical path, from the first to the last.

    The last epoch of the path ended last of all. Before each epoch stands the epoch that it waited
    for: the previous epoch of its layer, the epoch that published the version it reads, or, if all
    workers or buffers were taken, the epoch that ended just before it began. A streamed run has no
    path, since its layers wait for minibatches.
    """
    if timeline.is_streamed or not timeline.spans:
        return ()
    slack = CLOCK_ERROR * timeline.seconds
    by_end = sorted(timeline.spans, key=lambda span: (span.end, span.layer))
    path = [by_end[-1]]
    while (before := _waited_for(path[-1], by_end, slack)) is not None:
        path.append(before)
    return tuple(reversed(path))


def path_seconds(path: Sequence[EpochSpan], layers: int) -> list[float]:
    """Return the seconds of a path in each layer."""
    return [sum(x.seconds for x in path if x.layer == n) for n in range(1, layers + 1)]


class Line(msgspec.Struct):
    """The fields of a line of ``events.jsonl`` that are read back; others are ignored."""

    event: str
    time: float
    message: str = ""
    failed: bool = False
    reason: str = ""
    layers: tuple[int, ...] = ()
    epochs: Any = None
    schedule: str = ""
    pace: str = ""
    runtime: str = ""
    handoff: str = "epoch"
    workers: int = 0
    examples: int = 0
    past_reads: tuple[tuple[int, ...], ...] | None = None  # None in the oldest logs
    objective: str = ""
    layer: int = 0
    epoch: int = 0
    reads: int = 0
    started: float = 0.0
    transform_seconds: float = 0.0
    seconds: float = 0.0
    train_error: float | None = None
    validation_error: float | None = None
    busy_seconds: tuple[float, ...] = ()


@dataclass
class _Reader:
    """Builder of a timeline, which takes one line after the other."""

    start: Line | None = None
    began: float = 0.0
    spans: dict[tuple[int, int], EpochSpan] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    measured: tuple[float, ...] = ()  # the run's own figures of how long each layer worked
    finished: float | None = None
    objective: str = ""
    stopped: tuple[bool, str] | None = None
    offset: float = 0.0
    last: float = 0.0

    def take(self, line: Line) -> None:
        if line.time == 0 and self.last > self.offset:  # another process begins at 0 again
            self.offset = self.last
            self.resumed.append(self.offset)
        now = self.offset + line.time
        self.last = max(self.last, now)
        self.stopped = (line.failed, line.reason) if line.event == "RunStopped" else None
        match line.event:
            case "Notice":
                self.notices.append(line.message)
            case "RunStarted":
                self._begin(line, now)
            case "EpochFinished":
                self._add(line, self.offset + line.started, now, line.transform_seconds)
            case "RunFinished" if self.start is not None:
                self.finished, self.measured = now, line.busy_seconds
            case "FinetuneStarted":
                self.objective = line.objective
            case "FinetuneEpochFinished":
                self._add(line, now - line.seconds, now, 0.0)

    def _begin(self, line: Line, now: float) -> None:
        """Begin pretraining, or go on with it: epochs after the checkpoint are void."""
        if self.start is None:
            self.began = now
        self.start, self.finished, self.measured = line, None, ()
        if line.past_reads is not None:
            done = [len(reads) for reads in line.past_reads] or [0] * len(line.layers)
            self.spans = {
                (layer, epoch): span
                for (layer, epoch), span in self.spans.items()
                if layer == TUNING_ROW or epoch <= done[layer - 1]
            }

    def _add(self, line: Line, start: float, end: float, transform: float) -> None:
        errors = line.train_error, line.validation_error
        span = EpochSpan(line.layer, line.epoch, line.reads, start, end, transform, *errors)
        self.spans[line.layer, line.epoch] = span

    def timeline(self) -> Timeline:
        by_start = sorted(self.spans.values(), key=lambda span: (span.start, span.layer))
        start = self.start or Line("", 0.0, handoff="")  # where pretraining has not begun
        depth = len(start.layers) - 1
        spans = tuple(span for span in by_start if span.layer != TUNING_ROW and depth > 0)
        busy = [sum(x.seconds for x in spans if x.layer == n) for n in range(1, depth + 1)]
        whole = len(self.measured) == depth and not self.resumed  # the figures of one process
        copied = ("layers", "schedule", "pace", "runtime", "handoff", "workers", "examples")
        return Timeline(
            epochs=tuple(start.epochs or ()),
            spans=spans,
            tuning=tuple(span for span in by_start if span.layer == TUNING_ROW),
            notices=tuple(self.notices),
            resumed=tuple(self.resumed),
            objective=self.objective,
            stopped=self.stopped,
            busy=self.measured if whole else tuple(busy),
            began=self.began,
            ended=self.finished or max((x.end for x in spans), default=self.began),
            is_pretrained=self.finished is not None,
            **{name: getattr(start, name) for name in copied},
        )


def _waited_for(span: EpochSpan, by_end: Sequence[EpochSpan], slack: float) -> EpochSpan | None:
    """Return the epoch that ended last before ``span`` began; of several the most related."""
    able: list[EpochSpan] = []
    for place in reversed(range(bisect_right(by_end, span.start + slack, key=attrgetter("end")))):
        before = by_end[place]
        if able and before.end < able[0].end - slack:
            break
        if before.start < span.start:
            able.append(before)
    return max(able, key=lambda x: (_relation(x, span), x.end, x.layer), default=None)


def _relation(before: EpochSpan, span: EpochSpan) -> int:
    """Return 2 for epochs of one layer, 1 if ``span`` reads the version of ``before``, else 0."""
    if before.layer == span.layer:
        return 2
    return int((before.layer, before.epoch) == (span.layer - 1, span.reads))
