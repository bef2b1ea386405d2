"""Runs of this library in the settings of the publications, at a size that a few cores can do."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
import yadan as convolutions
from _papers_simulated import YADAN_DAYS, YADAN_ONE

from syncpretrain import finetune
from syncpretrain.data import load_dataset
from syncpretrain.data.dataset import Dataset
from syncpretrain.events import Event, RunFinished
from syncpretrain.models.stack import Stack
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.runs.run import train_run
from syncpretrain.settings import PretrainSettings, preset_path, read_settings, settings_from

__all__ = ["MEASURED", "Size", "Table"]

CMU_LAYERS = 4
CMU_BATCHES = (100, 500, 1000, 2500, 5000, 7000)
CMU_CORES = 2  # that share minibatches or train layers
SANTARA_RUNS = {  # preset: printed training error, test error, hours of pretraining, of fine-tuning
    "santara2016-greedy": ("8.00", "8.19", "3:14:43", "2:16:59"),
    "santara2016": ("8.39", "8.57", "1:49:11", "2:15:42"),
}
YADAN_NET = "AlexNet-like, 2 columns"


@dataclass(frozen=True)
class Size:
    """How much is trained: digits, epochs of a layer, units of CMU's layers."""

    rows: int
    epochs: int
    units: int


@dataclass(frozen=True)
class Table:
    """A table for print: its title, its head and its rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def santara(size: Size) -> list[Table]:
    """Return errors, times and idle shares of the presets, with fewer digits and epochs."""
    rows, idle = [], []
    for preset, (train, test, hours, tuning) in SANTARA_RUNS.items():
        report = _preset(preset, size)
        say(f"{preset}: {report['seconds']['total']:.0f} s")
        error, seconds = report["reconstruction_error"], report["seconds"]
        rows.append(
            [
                "greedy" if preset.endswith("greedy") else "synchronized",
                *(train, f"{error['train']:.2f}", test, f"{error['test']:.2f}"),
                *(hours, f"{seconds['pretrain']:.1f} s", tuning, f"{seconds['finetune']:.1f} s"),
            ]
        )
        shares = [_idle(layer) for layer in report["layers"]]
        idle.append([rows[-1][0], *(f"{100 * share:.0f} %" for share in shares)])
    parts = ("training error", "test error", "pretraining", "fine-tuning")
    head = ["", *(word for part in parts for word in (part, "here"))]
    layers = [f"layer {n}" for n in range(1, len(idle[0]))]
    return [
        Table("Tables 2 and 3, here on fewer digits and cores", head, rows),
        Table("Idle shares here (the paper draws its own in figure 3)", ["", *layers], idle),
    ]


def _preset(preset: str, size: Size) -> dict[str, Any]:
    settings = read_settings(preset_path(preset))
    depth = len(settings.pretrain.epochs)
    settings = msgspec.structs.replace(
        settings,
        pretrain=msgspec.structs.replace(settings.pretrain, epochs=(size.epochs,) * depth),
        finetune=msgspec.structs.replace(settings.finetune, epochs=max(1, size.epochs // 2)),
    )
    with tempfile.TemporaryDirectory() as folder:
        return train_run(settings, out=Path(folder) / "run", data=_digits(size.rows))


def _idle(layer: dict[str, Any]) -> float:
    whole = layer["busy_seconds"] + layer["idle_seconds"]
    return layer["idle_seconds"] / whole if whole else 0.0


def cmu(size: Size) -> list[Table]:
    """Return times and accuracies by the way to train, and times by the minibatch size."""
    data = _digits(size.rows)
    layers = (784, *[size.units] * CMU_LAYERS)
    ways: dict[str, dict[str, Any]] = {
        "greedy, 1 core": {"schedule": "greedy", "workers": 1},
        "synchronized in turn, 1 core": {"runtime": "serial"},
        f"model parallel, {CMU_CORES} cores": {"workers": CMU_CORES},
        f"{CMU_CORES} layers at a time": {
            **{"schedule": "rounds", "group_size": CMU_CORES, "workers": CMU_CORES}
        },
        f"data parallel, {CMU_CORES} cores": {
            **{"schedule": "greedy", "workers": CMU_CORES, "replicas": CMU_CORES}
        },
    }
    published = ("96.62 %", "", "1.3; batch 5000: 2.1 (4 GPUs)", "", "74.72 to 81.62 % (4 GPUs)")
    rows, base = [], 0.0
    for (name, how), printed in zip(ways.items(), published, strict=True):
        settings = _cmu_settings(layers, size, 100, how)
        seconds, stack = timed(settings, data)
        base = base or seconds
        right = _accuracy(stack, data, size.epochs)
        say(f"{name}: {seconds:.1f} s, {right:.2f} %")
        rows.append([name, f"{seconds:.1f}", f"{base / seconds:.2f}", f"{right:.2f} %", printed])
    shape = "-".join(map(str, layers))
    title = f"{shape}, minibatches of 100, {size.epochs} epochs of {len(data.train):,} digits"
    head = ["", "seconds", "times", "test digits right", "published"]
    return [Table(title, head, rows), _by_minibatch(layers, size, data)]


def _by_minibatch(layers: Sequence[int], size: Size, data: Dataset) -> Table:
    """Return times of an epoch of layer 1, and accuracies, by the size of the minibatch.

    The accuracy is that of the whole stack, pretrained and fine-tuned with such minibatches.
    """
    rows = []
    for batch in (n for n in CMU_BATCHES if n <= len(data.train)):
        seconds = {}
        for cores in (1, CMU_CORES):
            how = {"schedule": "greedy", "workers": cores, "replicas": cores}
            settings = _cmu_settings(layers[:2], size, batch, {**how, "shards": CMU_CORES})
            settings = msgspec.structs.replace(settings, epochs=(2,))
            seconds[cores] = timed(settings, data)[0] / 2
        gain = seconds[1] / seconds[CMU_CORES]
        whole = _cmu_settings(layers, size, batch, {"schedule": "greedy", "workers": 1})
        right = _accuracy(timed(whole, data)[1], data, size.epochs, batch_size=batch)
        say(f"minibatches of {batch}: {right:.2f} %")
        times = (f"{s:.2f}" for s in seconds.values())
        rows.append([f"{batch:,}", *times, f"{gain:.2f}", f"{right:.2f} %"])
    head = ["minibatch", "1 core, s", f"{CMU_CORES} cores, s", "times", "test digits right"]
    return Table("An epoch of layer 1, data parallel (published: fastest at 7,000)", head, rows)


def _cmu_settings(
    layers: Sequence[int], size: Size, batch: int, how: dict[str, Any]
) -> PretrainSettings:
    return settings_from(
        layers,
        model="denoising",
        corruption="masking:0.25",
        epochs=size.epochs,
        batch_size=batch,
        blas_threads=1,
        **how,
    ).pretrain


def timed(settings: PretrainSettings, data: Dataset) -> tuple[float, Stack]:
    """Return the seconds of pretraining on a data set, and the stack."""
    seconds: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, RunFinished):
            seconds.append(event.seconds)

    stack = driver_for(settings, data.train, data.validation[:1], observers=[note]).run()
    return seconds[0], stack


def _accuracy(stack: Stack, data: Dataset, epochs: int, *, batch_size: int = 100) -> float:
    """Return the per cent of test digits that the stack, fine-tuned, has right."""
    assert data.test_labels is not None
    tuned = finetune(stack, data.train, data.train_labels, epochs=epochs, batch_size=batch_size)
    return 100 * float((tuned.predict(data.test) == data.test_labels).mean())


def _digits(rows: int) -> Dataset:
    data = load_dataset("mnist")
    assert data.train_labels is not None
    return replace(data, train=data.train[:rows], train_labels=data.train_labels[:rows])


def yadan(size: Size) -> list[Table]:
    """Return the time of a step by split on two cores, beside days on two GPUs."""
    batch = 256 if size.rows >= 10_000 else 32
    started = perf_counter()
    turns = convolutions.turns(YADAN_NET, batch, 2)
    found = [next(turns) for _ in range(3 if batch == 256 else 1)]
    say(f"{YADAN_NET}: {perf_counter() - started:.0f} s")
    four = convolutions.foretold_times(YADAN_NET, batch, 4, ("examples", "columns"))
    rows = [
        ["1", "10.5", "1.00", f"{1000 * median(turn['1 worker'] for turn in found):.0f} ms", ""]
    ]
    for name, split, days in (
        ("2, model", "columns", YADAN_DAYS["2 GPUs, model"]),
        ("2, data", "examples", YADAN_DAYS["2 GPUs, data"]),
        ("4, data", "examples", YADAN_DAYS["4 GPUs, data"]),
        ("4, model and data", "columns", YADAN_DAYS["4 GPUs, hybrid"]),
    ):
        if name.startswith("2"):
            gain = median(turn["1 worker"] / turn[split] for turn in found)
            own = ["measured", f"{gain:.2f}"]
        else:
            own = ["predicted", f"{four[split]:.2f}"]
        rows.append([name, f"{days}", f"{YADAN_ONE / days:.2f}", own[1], own[0]])
    head = ["GPUs; here cores", "published days", "published times", "times here", ""]
    return [Table(f"{YADAN_NET}, minibatches of {batch}", head, rows)]


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


MEASURED = {"santara": santara, "cmu": cmu, "yadan": yadan}
