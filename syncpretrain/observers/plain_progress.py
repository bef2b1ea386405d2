"""Progress as plain lines, for files and pipes: one line an epoch."""

from __future__ import annotations

from rich.console import Console

from syncpretrain.events import (
    DriftJudged,
    EpochFinished,
    Event,
    FinetuneEpochFinished,
    LayerFinished,
    Notice,
    RunStarted,
)

__all__ = ["PlainProgress", "count_text", "error_text", "print_line"]


class PlainProgress:
    """Prints a line for each event that a log should keep."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start: RunStarted | None = None
        self._done: dict[int, int] = {}  # epochs of the layers that trained some

    def __call__(self, event: Event) -> None:
        """Print the line of an event, if it has one."""
        match event:
            case RunStarted():
                self._start, self._done = event, {}
            case Notice(message=message):
                print_line(self._console, message)
            case EpochFinished() if self._start is not None:
                self._done[event.layer] = event.epoch
                count = count_text(event.epoch, self._start.epochs[event.layer - 1])
                source = "" if self._start.handoff == "minibatch" else f"  on version {event.reads}"
                label = f"layer {event.layer}  {count}{source}"
                self._epoch(label, event, event.time - event.started)
            case DriftJudged(layer=layer):
                print_line(self._console, f"layer {layer}  {event}")
            case LayerFinished(layer=layer):
                before = self._start.done(layer) if self._start is not None else 0
                done = self._done.get(layer, before)
                end = "was complete, after" if layer not in self._done else "done after"
                plural = "" if done == 1 else "s"
                print_line(self._console, f"layer {layer}  {end} {done} epoch{plural}")
            case FinetuneEpochFinished():
                label = f"fine-tuning  {count_text(event.epoch, event.epochs)}"
                self._epoch(label, event, event.seconds)

    def _epoch(
        self, label: str, event: EpochFinished | FinetuneEpochFinished, seconds: float
    ) -> None:
        parts = [label, f"error {error_text(event.train_error)}"]
        if event.validation_error is not None:
            parts.append(f"validation {error_text(event.validation_error)}")
        if isinstance(event, EpochFinished) and event.drift is not None:
            parts.append(f"change {event.drift:.3g}")
        print_line(self._console, "  ".join([*parts, f"{seconds:.1f} s"]))


def print_line(console: Console, text: str) -> None:
    """Print a line as it is."""
    # soft_wrap keeps a line whole in a log; the rest keeps brackets and numbers as they are
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def count_text(epoch: int, epochs: int) -> str:
    """Return how far a layer is: beyond the stipulated epochs it refreshes."""
    extra = f" +{epoch - epochs}" if epoch > epochs else ""
    return f"epoch {min(epoch, epochs)}/{epochs}{extra}"


def error_text(value: float) -> str:
    """Return an error as it is printed."""
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"
