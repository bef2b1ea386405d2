"""Timings of a task's layers where its settings say that they compute: on cores, or on GPUs."""

from __future__ import annotations

from syncpretrain.errors import SettingsError
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.device_measure import measure_devices
from syncpretrain.planning.measure import measure
from syncpretrain.planning.timings import Timings

__all__ = ["is_on_gpus", "timings_of"]


def is_on_gpus(task: Task) -> bool:
    """Return whether the settings of a task name GPUs."""
    return task.settings.backend.startswith("cupy")


def timings_of(task: Task, *, workers: int | None, seconds: float) -> Timings:
    """Measure the layers of a task.

    Parameters
    ----------
    task : Task
    workers : int or None
        Largest number of workers; None for the settings' number, or the usable cores.
    seconds : float
        About how long to measure.

    Raises
    ------
    SettingsError
        If a minibatch has more examples than there are, or the stack cannot be measured.
    """
    settings = task.settings
    if settings.batch_size > task.examples:
        raise SettingsError(
            f"batch_size: got {settings.batch_size}, expected at most {task.examples}, the"
            " examples to train on"
        )
    workers = workers or settings.workers
    if is_on_gpus(task):
        if workers is not None:
            raise SettingsError(
                f"workers: got {workers} with backend {settings.backend}, expected none: the GPUs"
                " that the backend names are timed"
            )
        return measure_devices(
            settings, examples=task.examples, held_out=task.held_out, seconds=seconds
        )
    return measure(
        settings,
        workers=workers or usable_cores(),
        examples=task.examples,
        held_out=task.held_out,
        seconds=seconds,
    )
