"""TensorBoard: the figures of a run as its event files, written by tensorboardX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from syncpretrain.events import Event, Notice
from syncpretrain.observers.figures import check_package, figures_of, wall_time

__all__ = ["TensorBoardLog"]


class TensorBoardLog:
    """Observer that writes figures for TensorBoard while its ``with`` block lasts.

    Each layer, and fine-tuning, has a group of curves by epoch; notices are texts.

    Parameters
    ----------
    folder : str or Path
        Folder of its files, for ``tensorboard --logdir``; made if it is missing.
    settings : mapping of str to str, optional
        Settings of the run, shown as a table.

    Raises
    ------
    SettingsError
        If tensorboardX is missing.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, str] | None = None) -> None:
        check_package("tensorboard", "tensorboardX")
        self._folder, self._settings = Path(folder), dict(settings or {})
        self._notices = 0

    def __enter__(self) -> TensorBoardLog:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), flush_secs=5)
        if self._settings:
            rows = [f"| {name} | {value} |" for name, value in self._settings.items()]
            table = "\n".join(["| setting | value |", "| --- | --- |", *rows])
            self._writer.add_text("settings", table)
        return self

    def __exit__(self, *ended: object) -> None:
        self._writer.close()

    def __call__(self, event: Event) -> None:
        """Write the figures of an event, if it has any."""
        if isinstance(event, Notice):
            self._notices += 1
            self._writer.add_text("notices", event.message, self._notices, wall_time(event))
            return
        figures = figures_of(event)
        if figures is None:
            return
        for name, value in figures.values.items():
            self._writer.add_scalar(name, value, figures.step, wall_time(event))
