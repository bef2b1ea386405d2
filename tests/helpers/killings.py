"""Processes of layers that kill themselves, once, at an exact moment; imported there."""

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

from syncpretrain.pretraining import build as building
from syncpretrain.pretraining import streamed as streaming
from syncpretrain.workers import restarts

# "start" of a process; after its n-th "step"; in the n-th "write" of a part of a state, half of
# which is there; after it "kept" its n-th state, before it reports.
Kill = tuple[int, str, int]  # layer, moment, n

original_worker = building.build_worker
original_streamed_layer = streaming.build_streamed_layer


def killed_worker(*given, **how):
    return killed(original_worker, *given, **how)


def killed_streamed_layer(*given, **how):
    return killed(original_streamed_layer, *given, **how)


def killed(original, folder, kills, pause, settings, place, *rest, **how):
    """Return what trains a layer; ``pause`` are the seconds between two states that are kept."""
    at = arranged(folder, kills, pause, place if isinstance(place, int) else place.layer)
    built = original(settings, place, *rest, **how)
    kill_after_steps(built.layer.step, at("step"))
    return built


def arranged(folder, kills, pause, layer):
    """Arrange the kills of a layer in this process; return what has one at a moment."""

    def at(moment: str) -> Callable[[], bool]:
        """Return a function that says whether to die now, each time that it is called."""
        numbers = itertools.count(1)

        def is_due() -> bool:
            kill = layer, moment, next(numbers)
            return kill in kills and is_first(folder / "-".join(map(str, kill)))

        return is_due

    if at("start")():
        die()
    restarts.LEAST_PAUSE, restarts.PAUSES = pause, 0
    write, keep = restarts.write_array, restarts.Keeping.keep
    in_write, when_kept = at("write"), at("kept")

    def write_array(descriptor: int, array, offset: int) -> None:
        if in_write():
            write(descriptor, array[: len(array) // 2], offset)
            die()
        write(descriptor, array, offset)

    def kept(self: restarts.Keeping, state) -> None:
        keep(self, state)
        if when_kept():
            die()

    restarts.write_array = write_array
    restarts.Keeping.keep = kept
    return at


def kill_after_steps(training, is_due: Callable[[], bool]) -> None:
    train_step = training.train_step

    def step(*arguments, **how):
        error = train_step(*arguments, **how)
        if is_due():
            die()
        return error

    training.train_step = step


def is_first(file: Path) -> bool:
    """Return whether no process has asked for this file before; "always" in its folder: yes."""
    if (file.parent / "always").exists():
        return True
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
