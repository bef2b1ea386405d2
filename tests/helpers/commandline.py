"""Calls of the command line in this process."""

from functools import partial

import pytest

from syncpretrain.cli import main
from syncpretrain.cli.setting_options import planned


def exit_status(*arguments: object) -> int:
    """Call ``syncpretrain`` with arguments of any type; return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)), prog_name="syncpretrain")
    return ended.value.code or 0


def measure_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``--schedule auto`` measure one round only."""
    monkeypatch.setattr("syncpretrain.cli.train.planned", partial(planned, measure_seconds=0))
