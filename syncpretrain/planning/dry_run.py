"""Dry run: the memory and the time that a run would take here, with nothing trained.

A few steps of each layer are timed on random numbers, and the run's own schedule is played through
with them (``planning/simulate.py``). Of fine-tuning some minibatches are trained and thrown away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from syncpretrain.backends.choice import backend_for
from syncpretrain.backends.rows import HostRows
from syncpretrain.data.blocks import bytes_of
from syncpretrain.data.dataset import PARTS, Dataset
from syncpretrain.data.order import steps_per_epoch
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.available_memory import available_bytes
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.planning.asynchronous import async_seconds
from syncpretrain.planning.candidates import Task, simulated
from syncpretrain.planning.measure import is_on_gpus, measure, timings_of
from syncpretrain.planning.probes import exchanges, handover_seconds
from syncpretrain.planning.timings import CORE
from syncpretrain.planning.tuning import async_stage, minibatch_seconds
from syncpretrain.pretraining import memory
from syncpretrain.pretraining.driver import Pretraining, placement_of
from syncpretrain.pretraining.runtimes import workers_of
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.pretraining.training import Driver
from syncpretrain.schedule.kinds import ASYNC, UNTRAINED
from syncpretrain.settings import PretrainSettings, Settings

# A dry run is looked at before a run of minutes or hours: seconds are short beside it, and give
# each of some layers a few timings of 20 ms.
MEASURED_SECONDS = 3.0
TUNED_SECONDS = 1.0


class DeviceMemory(NamedTuple):
    """Bytes of the GPUs: needed besides the data, taken by the data, and free besides the data.

    With ``data_on_host`` the bytes of the data are the bytes of the buffers they come through.
    """

    run: int
    data: int
    free: int
    data_on_host: bool


class DryRun(NamedTuple):
    """Prediction for a run.

    Attributes
    ----------
    settings : Settings
    data_seconds : float
        Seconds that loading the data took.
    pretrain_seconds, finetune_seconds : float or None
        Expected seconds; None if they cannot be predicted, and 0 if there is nothing to train.
    reason : str
        Reason why something is not predicted.
    bytes : int
        Bytes of memory besides the data, at most.
    data_bytes, free_bytes : int
        Bytes of the data, which are in memory already, and of the memory that is free besides.
    device : DeviceMemory or None
        The same for the GPUs; None for a pretraining without them.
    placement : str or None
        The layers of each of several GPUs, in words.
    """

    settings: Settings
    data_seconds: float
    pretrain_seconds: float | None
    finetune_seconds: float | None
    reason: str
    bytes: int
    data_bytes: int
    free_bytes: int
    device: DeviceMemory | None = None
    placement: str | None = None

    @property
    def seconds(self) -> float | None:
        """Expected seconds of the whole run, without the figures that are measured at its end."""
        if self.pretrain_seconds is None or self.finetune_seconds is None:
            return None
        return self.data_seconds + self.pretrain_seconds + self.finetune_seconds

    def report(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        pretrain = self.settings.pretrain
        return {
            "layers": list(pretrain.layers),
            "schedule": pretrain.schedule,
            "epochs": list(pretrain.epochs),
            "finetune": self.settings.finetune.objective,
            "seconds": {
                "data": self.data_seconds,
                "pretrain": self.pretrain_seconds,
                "finetune": self.finetune_seconds,
                "total": self.seconds,
            },
            "reason": self.reason,
            "bytes": {"run": self.bytes, "data": self.data_bytes, "free": self.free_bytes},
            "gpu_bytes": None if self.device is None else self.device._asdict(),
            "placement": self.placement,
        }


def dry_run(
    settings: Settings,
    data: Dataset,
    driver: Driver,
    tuning: Finetuning | None,
    data_seconds: float,
) -> DryRun:
    """Predict the seconds and the memory of a run, given its driver and its fine-tuning.

    ``data_seconds`` are the seconds that loading the data took.
    """
    seconds, reason = _pretraining(driver.settings, data)
    tuned: float | None = 0.0
    if tuning is not None:
        tuned = _finetuning(tuning, driver.stack())
        reason = reason or ("fine-tuning by cg or lbfgs" if tuned is None else "")
    own = _bytes(driver.settings, data)
    return DryRun(
        settings,
        data_seconds,
        seconds,
        tuned,
        reason,
        own if tuning is None else max(own, tuning.bytes),
        sum(_size(getattr(data, part)) for part in PARTS),
        available_bytes(),
        _device_memory(driver, data),
        placement_of(driver),
    )


def _pretraining(settings: PretrainSettings, data: Dataset) -> tuple[float | None, str]:
    """Return the seconds of pretraining, or why they are not predicted."""
    if settings.schedule == UNTRAINED:
        return 0.0, ""
    if settings.runtime == "mpi":
        return None, "the runtime mpi; see syncpretrain simulate"
    task = Task(settings, len(data.train), len(data.validation))
    if is_on_gpus(task):
        task = replace(task, settings=msgspec.structs.replace(settings, workers=None))
        try:
            timings = timings_of(task, workers=None, seconds=MEASURED_SECONDS)
        except SettingsError as error:  # the data are there already, and the rest has no room
            return None, f"the layers cannot be timed beside the data: {error}"
    else:
        workers = settings.workers or usable_cores()
        timings = measure(task, workers=workers, seconds=MEASURED_SECONDS)
    if settings.schedule == ASYNC:
        return async_seconds(task, replace(timings, exchanges=exchanges(settings))), ""
    settings = msgspec.structs.replace(settings, workers=workers_of(settings))
    if settings.handoff == "minibatch" and timings.unit == CORE:  # GPUs queue whole blocks
        timings = replace(timings, handover=handover_seconds())
    try:
        return simulated(task, settings, timings).seconds, ""
    except KeyError:
        return None, f"replicas {settings.replicas}, which plan does not measure"


def _finetuning(tuning: Finetuning, stack: Stack) -> float | None:
    """Return the seconds of fine-tuning, by some minibatches of a stack that is thrown away."""
    options = tuning.options
    if options.schedule == ASYNC:
        workers, steps = usable_cores(), tuning.steps
        stage = async_stage(tuning, stack, workers=workers, steps=steps, seconds=TUNED_SECONDS)
        at_once = 1 if options.runtime == "serial" else options.replicas or 1
        return options.epochs * stage.training(workers, at_once)
    minibatch = minibatch_seconds(tuning, stack, seconds=TUNED_SECONDS)
    return None if minibatch is None else minibatch * tuning.steps * options.epochs


def _bytes(settings: PretrainSettings, data: Dataset) -> int:
    sizes, backend = (len(data.train), len(data.validation)), backend_for(settings.backend)
    rows = memory.run_rows(settings, backend, *sizes)
    own = memory.pretraining_bytes(settings.shapes, examples=rows, batch_size=settings.batch_size)
    return own + memory.other_bytes(settings, steps_per_epoch(sizes[0], settings.batch_size))


def _device_memory(driver: Driver, data: Dataset) -> DeviceMemory | None:
    """Return what a pretraining needs of the GPUs, where its data are already."""
    free = backend_for(driver.settings.backend).free_bytes()
    if free is None or not isinstance(driver, (Pretraining, StreamedPretraining)):
        return None
    inputs, settings = driver.inputs, driver.settings
    own, on_host = sum(map(bytes_of, inputs)), isinstance(inputs.train, HostRows)
    if on_host and settings.handoff == "minibatch":
        steps = steps_per_epoch(len(data.train), settings.batch_size)
        own += memory.room_bytes(settings, backend_for(settings.backend), steps)
    return DeviceMemory(_bytes(settings, data) + memory.shard_bytes(settings), own, free, on_host)


def _size(X: Any) -> int:
    """Return the bytes of examples in memory; examples in a file take none."""
    if hasattr(X, "csr"):
        return sum(array.nbytes for array in X.csr)
    return int(X.nbytes) if hasattr(X, "nbytes") else 0
