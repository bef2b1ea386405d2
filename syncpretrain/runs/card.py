"""Model card of a run: its numbers, and the command that repeats it, as ``README.md``."""

from __future__ import annotations

from shlex import quote
from typing import Any

from syncpretrain.data.dataset import PARTS
from syncpretrain.runs.folder import CONFIG_NAME
from syncpretrain.runs.identity import RunIdentity
from syncpretrain.schedule.kinds import UNTRAINED
from syncpretrain.settings import Settings


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
        wrong = {n: None if x is None else 100 * (1 - x) for n, x in report["accuracy"].items()}
        most = {n: None if x is None else 100 * (1 - x) for n, x in report["majority"].items()}
        rows.append(("wrong classes, %", _numbers(wrong)))
        rows.append(("wrong by the most frequent class, %", _numbers(most)))
    apart = report.get("regression_error")
    if apart is not None:
        roots = {name: found and found["rmse"] for name, found in apart.items()}
        rows.append(("root mean squared error of the regression", _numbers(roots)))
    seconds = report["seconds"]
    spent = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("pretrain", "finetune", "total"))
    table = _table(("figure", *PARTS), [(name, *cells) for name, cells in rows])
    return f"{table}\n\nSeconds: {spent}."


def _numbers(figures: dict[str, float | None]) -> list[str]:
    return [_number(figures.get(part)) for part in PARTS]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _layers(report: dict[str, Any]) -> str:
    rows = []
    for row in report["layers"]:
        errors = row["reconstruction_error"]
        cells = (row["layer"], row["shape"], row["epochs"])
        rows.append((*cells, _number(errors.get("train")), _number(errors.get("validation"))))
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
