"""Results of a run: as JSON values, for ``metrics.json`` and ``--json``, and as a model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import PARTS, UNLABELLED, Dataset, is_labelled
from syncpretrain.data.examples import evenly_spaced, has_missing
from syncpretrain.data.scaling import spread
from syncpretrain.models.diagnosis import (
    accuracies,
    baselines,
    digits,
    regression_errors,
    stack_error,
)
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import History
from syncpretrain.parallel.blas import blas_limit, blas_threads
from syncpretrain.runs.folder import CONFIG_NAME
from syncpretrain.runs.identity import RunIdentity
from syncpretrain.schedule.kinds import UNTRAINED
from syncpretrain.settings import Settings

TRAIN_ROWS = 10_000  # evenly spaced: all rows would take as long as an epoch, for little more


def measure(
    stack: Stack,
    data: Dataset,
    *,
    pretrained: Stack | None = None,
    layer_parts: Sequence[str] = ("train", "validation"),
    blas: int | None = None,
) -> dict[str, Any]:
    """Return the data's size, the reconstruction errors on its parts and a classifier's accuracy.

    Errors of single layers, on ``layer_parts``, are measured on ``pretrained``, since fine-tuning
    gives the layers up for the whole; default the stack itself. A classifier has no decoder: the
    error of its whole stack is also measured on ``pretrained``, and None without it. Layers of
    ``pretrained`` with random weights have None, since their errors say nothing. ``mean_error`` is
    the error of predicting the mean of a layer's input, or of the data. ``majority`` is the share
    that is right by always naming the most frequent class of the training examples. Errors of the
    training part are measured on 10,000 of its examples, evenly spaced; a classifier or a
    regression is judged on 10,000 of its examples with a target.
    """
    sizes = {part: len(getattr(data, part)) for part in PARTS}
    sha256 = data.sha256
    rows, targets = np.arange(len(data.train)), _rows_with_target(data)
    judged = _with_train(data, targets if len(targets) else rows)
    data = judged if len(targets) == len(rows) else _with_train(data, rows)
    with blas_limit(blas_threads(blas)):
        trained = _trained(stack, pretrained)
        unrolled = stack if stack.head is None else pretrained if any(trained) else None
        whole = {part: unrolled and stack_error(unrolled, getattr(data, part)) for part in PARTS}
        right, apart = accuracies(stack, judged), regression_errors(stack, judged)
        layered, parts = pretrained or stack, {part: getattr(data, part) for part in layer_parts}
        by_part = {part: baselines(layered, X) for part, X in parts.items()}
        mean_error = {part: _mean_error(stack, getattr(data, part)) for part in PARTS}
    layers = [
        {
            "layer": i + 1,
            "visible": stack.widths[i],
            "hidden": stack.widths[i + 1],
            "shape": str(layer.shape),
            "reconstruction_error": {
                part: found[i].error if found and trained[i] else None
                for part, found in by_part.items()
            },
            "mean_error": {
                part: found[i].mean_error if found else None for part, found in by_part.items()
            },
        }
        for i, layer in enumerate(stack.layers)
    ]
    return {
        "data": {"name": data.name, "source": data.source, **sizes, "sha256": sha256},
        "layers": layers,
        "reconstruction_error": whole,
        "mean_error": mean_error,
        "accuracy": right,
        "majority": None if right is None else {part: _majority(judged, part) for part in PARTS},
        **({} if apart is None else {"regression_error": apart}),
    }


def _trained(stack: Stack, pretrained: Stack | None) -> list[bool]:
    """Return for each layer whether it was trained to reconstruct, here or elsewhere."""
    epochs = None if pretrained is None else pretrained.info.get("epochs")
    is_left = (pretrained or stack).head is not None  # targets are trained for without decoders
    return [count != 0 and not is_left for count in epochs or [None] * len(stack.layers)]


def _mean_error(stack: Stack, X: Any) -> float | None:
    if has_missing(X):
        return baselines(stack, X)[0].mean_error
    return spread(stack.prepared(X)) if len(X) else None


def _majority(data: Dataset, part: str) -> float | None:
    """Return the share of a part that the most frequent class of the training part has."""
    train, labels = data.train_labels, getattr(data, f"{part}_labels")
    if train is None or labels is None or not (labels != UNLABELLED).any():
        return None
    classes, counts = np.unique(train[train != UNLABELLED], return_counts=True)
    if not len(classes):
        return None
    return float((labels[labels != UNLABELLED] == classes[counts.argmax()]).mean())


def _rows_with_target(data: Dataset) -> NDArray[np.intp]:
    """Return the training rows that have a target."""
    labels = data.targets("train")
    return np.flatnonzero([] if labels is None else is_labelled(labels))


def _with_train(data: Dataset, rows: NDArray[np.intp]) -> Dataset:
    """Return data with few of the given training rows; rows of a file stay in the file."""
    if len(rows) == len(data.train) <= TRAIN_ROWS:
        return data
    return data.with_train_rows(evenly_spaced(rows, TRAIN_ROWS))


def report_of(
    settings: Settings,
    workers: int,
    metrics: dict[str, Any],
    history: History,
    stack: Stack,
    seconds: dict[str, float],
    out: Path,
) -> dict[str, Any]:
    """Return the report of a run that ``--json`` prints."""
    pretrain = settings.pretrain
    nothing = (0.0,) * len(metrics["layers"])  # where a resumed run had only to fine-tune
    busy, idle = history.busy_seconds or nothing, history.idle_seconds or nothing
    layers = [
        row | {"epochs": stack.info["epochs"][i], "busy_seconds": busy[i], "idle_seconds": idle[i]}
        for i, row in enumerate(metrics["layers"])
    ]
    names = ("schedule", "pace", "handoff", "delay", "runtime", "backend")
    return {
        **{name: getattr(pretrain, name) for name in names},
        "workers": workers,
        "seed": pretrain.seed,
        **metrics,
        "layers": layers,
        "verdict": stack.info.get("verdict", []),
        "seconds": seconds,
        "parameters_sha256": stack.parameters_sha256,
        "out": str(out),
    }


def card_of(
    report: dict[str, Any], settings: Settings, identity: RunIdentity, command: str | None = None
) -> str:
    """Return the model card of a finished run in Markdown.

    Parameters
    ----------
    report : dict
        The figures of the run, as ``metrics.json`` has them.
    settings : Settings
        Settings of the run, as they were used.
    identity : RunIdentity
    command : str, optional
        Command that began the run.
    """
    parts = [
        f"# {settings.pretrain.stack_text}, {settings.pretrain.model}",
        _summary(report, settings),
        "## Repeat it\n\n" + _repetition(report, settings, identity, command),
        "## Results\n\n" + _results(report),
        "## Layers\n\n" + _layers(report),
        "## Data and environment\n\n" + _environment(report, identity),
        _use(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(report: dict[str, Any], settings: Settings) -> str:
    pretrain, tuned = settings.pretrain, settings.finetune
    if pretrain.schedule == UNTRAINED:
        words = ["Not pretrained: trained from random weights by syncpretrain"]
    else:
        words = [f"Pretrained by syncpretrain, schedule {pretrain.schedule}"]
        words += [f"{pretrain.pace} pace"] if pretrain.pace else []
        words += [f"hand-over by {pretrain.handoff}"]
    text = ", ".join([*words, f"seed {pretrain.seed}"])
    if tuned.objective != "none":
        text += f"; fine-tuned for {tuned.objective}, epochs: {tuned.epochs}"
    verdict = "".join(f"\n\n**{sentence}**" for sentence in report["verdict"])
    return f"{text}.{verdict}"


def _repetition(
    report: dict[str, Any], settings: Settings, identity: RunIdentity, command: str | None
) -> str:
    """Return the command that repeats the run, and how far the result is the same."""
    folder = quote(report["out"])
    if identity.start is not None:
        line = command or "syncpretrain finetune RUN"
        return _block(line) + f"\n\nIt fine-tunes the stack with SHA-256 `{identity.start}`."
    again = f"syncpretrain train --config {quote(report['out'] + '/' + CONFIG_NAME)}"
    if identity.replay is not None or settings.pretrain.pace == "free":
        again = f"syncpretrain train --replay {folder}"
    text = _block(again)
    if command is not None:
        text += f"\n\nIt was begun by\n\n{_block(command)}"
    return text + f"\n\nThe parameters have SHA-256 `{report['parameters_sha256']}`."


def _block(command: str) -> str:
    return f"```shell\n{command}\n```"


def _results(report: dict[str, Any]) -> str:
    rows = []
    whole = {part: report["reconstruction_error"].get(part) for part in PARTS}
    if any(x is not None for x in whole.values()):
        label = "reconstruction error" + (", pretrained" if report["accuracy"] else "")
        rows.append((f"{label} (squared, summed over values)", _numbers(whole)))
        rows.append(("error of predicting the mean", _numbers(report["mean_error"])))
    if report["accuracy"] is not None:
        names = {"accuracy": "wrong classes, %", "majority": "wrong by the most frequent class, %"}
        for name, label in names.items():
            wrong = {n: None if x is None else 100 * (1 - x) for n, x in report[name].items()}
            rows.append((label, _numbers(wrong)))
    apart = report.get("regression_error")
    if apart is not None:
        roots = {name: found and found["rmse"] for name, found in apart.items()}
        rows.append(("root mean squared error of the regression", _numbers(roots)))
    seconds = report["seconds"]
    spent = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("pretrain", "finetune", "total"))
    table = _table(("figure", *PARTS), [(name, *cells) for name, cells in rows])
    return f"{table}\n\nSeconds: {spent}."


def _numbers(figures: dict[str, float | None]) -> list[str]:
    return [digits(figures.get(part)) for part in PARTS]


def _layers(report: dict[str, Any]) -> str:
    rows = []
    for row in report["layers"]:
        errors = row["reconstruction_error"]
        cells = (row["layer"], row["shape"], row["epochs"])
        rows.append((*cells, digits(errors.get("train")), digits(errors.get("validation"))))
    return _table(("layer", "units", "epochs", "train error", "validation error"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _environment(report: dict[str, Any], identity: RunIdentity) -> str:
    arithmetic = ", ".join(f"{name} {value}" for name, value in identity.arithmetic.items())
    return (
        f"- {identity.data}\n- runtime {report['runtime']}, backend {report['backend']},"
        f" {report['workers']} workers, {identity.kernels} kernels\n- {arithmetic}"
    )


def _use(report: dict[str, Any]) -> str:
    folder = report["out"]
    method = "encode(X)" if report["accuracy"] is None else "predict(X)"
    code = f'from syncpretrain import load\n\nresult = load("{folder}").{method}'
    return f"## Use it\n\n```python\n{code}\n```"
