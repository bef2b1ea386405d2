"""Loggers of experiments by name, as ``--log`` takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.events import Event, Observer
from syncpretrain.observers.figures import check_package

LOGGERS = {"tensorboard": "tensorboardX", "mlflow": "mlflow"}  # the packages that they need
TENSORBOARD_FOLDER = "tensorboard"  # in the run folder


def check_loggers(names: Sequence[str]) -> None:
    """Refuse an unknown logger, and a logger without its package.

    Raises
    ------
    SettingsError
    """
    for name in names:
        if name not in LOGGERS:
            raise SettingsError(f"log: got {name!r}, expected {' or '.join(LOGGERS)}")
        check_package(name, LOGGERS[name])


def flat_settings(sections: dict[str, Any]) -> dict[str, str]:
    """Return settings as texts by section and name: "10,10" for ``pretrain.epochs``.

    Lists are written as on the command line. Settings that are None or empty are left out.
    """
    found = {}
    for section, fields in sections.items():
        for name, value in fields.items():
            if value not in (None, ""):
                is_list = isinstance(value, (list, tuple))
                found[f"{section}.{name}"] = ",".join(map(str, value)) if is_list else str(value)
    return found


@contextmanager
def logging_to(
    names: Sequence[str], folder: Path, settings: Mapping[str, str], report: Callable[[str], Any]
) -> Iterator[list[Observer]]:
    """Yield the observers that log a run, and end their records with the context.

    A logger that fails falls silent, and ``report`` is called with a sentence; the run goes on.

    Parameters
    ----------
    names : sequence of str
        Names in :data:`LOGGERS`; a repeated name counts once.
    folder : Path
        The run folder, which gives a record its name.
    settings : mapping of str to str
        As of :func:`flat_settings`.
    report : callable
    """
    with ExitStack() as stack:
        yield [
            stack.enter_context(_SilencedByFailure(name, _logger(name, folder, settings), report))
            for name in dict.fromkeys(names)
        ]


def _logger(name: str, folder: Path, settings: Mapping[str, str]) -> Any:
    if name == "tensorboard":
        from syncpretrain.observers.tensorboard import TensorBoardLog

        return TensorBoardLog(folder / TENSORBOARD_FOLDER, settings)
    from syncpretrain.observers.mlflow import MLflowLog

    return MLflowLog(folder.resolve().name, settings)


class _SilencedByFailure:
    """Logger that falls silent when it fails, whatever its library or its server raises."""

    def __init__(self, name: str, logger: Any, report: Callable[[str], Any]) -> None:
        self._name, self._logger, self._report = name, logger, report
        self._is_silent = False

    def __enter__(self) -> _SilencedByFailure:
        self._try(self._logger.__enter__)
        return self

    def __exit__(self, *ended: Any) -> None:
        self._try(self._logger.__exit__, *ended)

    def __call__(self, event: Event) -> None:
        self._try(self._logger, event)

    def _try(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self._is_silent:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._is_silent = True
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self._report(f"warning: {self._name} takes no more of this run: {reason}")
