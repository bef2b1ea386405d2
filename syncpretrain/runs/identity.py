"""Identity of a run: the settings, data and kernels that must not change if its bits must not.

It is written to ``run.json`` in the run folder before training starts, and into every checkpoint,
so that a run never goes on silently with other data, settings, kernels or recorded reads.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from syncpretrain.array_files import read_record
from syncpretrain.data.dataset import DataRecord, Dataset, record_of
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.readers import FileStamp, KnownFile
from syncpretrain.errors import CheckpointError, SettingsError
from syncpretrain.kernels.native import ORDER_VARIABLE, ORDERS, available, bfloat16_order
from syncpretrain.parallel.blas import loaded_libraries
from syncpretrain.schedule.kinds import Reads
from syncpretrain.settings import ELSEWHERE, Settings, off_ranks

RUN_FORMAT = "syncpretrain run 1"
BFLOAT16_SUMS = "bfloat16 sums"
BLAS_FIELDS = ("internal_api", "version", "architecture")
FILES = ("name", "test", "unlabelled")  # names of data, which may move: their hash counts
AN_OLDER_VERSION = (
    "if the file is the same, this version reads it otherwise: resume with the version that began"
    " the run; else put the former data back in its place"
)


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the bits of a run.

    Attributes
    ----------
    settings : dict
        The sections ``pretrain`` (without settings of its execution), ``finetune`` and ``data`` as
        JSON values.
    data : DataRecord
    kernels : str
        ``compiled`` or ``numpy``: their sigmoids and tangents differ in the last bits.
    arithmetic : dict
        Versions of NumPy and its BLAS, the kind of CPU that BLAS computes for, and the order of
        sums of bfloat16 in a run that has such products. A change may change the last bits; it is
        reported, and not refused.
    replay : tuple of tuple of int, optional
        The recorded reads that the run repeats.
    stamp : FileStamp, optional
        Stamp of a mapped data file. While it is the same, the file is not read again for its hash.
    start : str, optional
        The SHA-256 of the parameters of an earlier run that this one fine-tunes.
    meaning : Meaning, optional
        The meaning of the numbers in the data, by which they are read again.
    """

    settings: dict[str, Any]
    data: DataRecord
    kernels: str
    arithmetic: dict[str, str]
    replay: Reads | None = None
    stamp: FileStamp | None = None
    start: str | None = None
    meaning: Meaning | None = None
    format: str = RUN_FORMAT

    @property
    def file(self) -> KnownFile:
        """The data file as it was when it was checked."""
        return KnownFile(self.stamp, self.data.sha256)


class Difference(msgspec.Struct, frozen=True):
    """A difference of two identities; ``kind`` is data, settings, kernels or replay."""

    kind: str
    was: str
    now: str


def identity_of(settings: Settings, data: Dataset, replay: Reads | None = None) -> RunIdentity:
    """Return the identity of a run that starts now."""
    decisive = msgspec.structs.replace(settings, finetune=off_ranks(settings.finetune))
    sections = msgspec.json.decode(msgspec.json.encode(decisive))
    return RunIdentity(
        settings={
            "pretrain": {k: v for k, v in sections["pretrain"].items() if k not in ELSEWHERE},
            "finetune": sections["finetune"],
            "data": {k: v for k, v in sections["data"].items() if k not in FILES},
        },
        data=record_of(data),
        kernels="compiled" if available() else "numpy",
        arithmetic=_arithmetic() | _bfloat16_sums(settings),
        replay=replay,
        stamp=data.stamp,
        meaning=data.meaning,
    )


def read_identity(path: Path) -> RunIdentity | None:
    """Return the identity in a ``run.json``; None where there is no such file.

    Raises
    ------
    CheckpointError
        If the file cannot be read.
    """
    return read_record(path, RunIdentity, CheckpointError)


def differences(was: RunIdentity, now: RunIdentity) -> list[Difference]:
    """Return the differences between the former and the present identity of a run.

    Settings that ``was`` lacks came with a later version; their defaults change nothing.
    """
    found = []
    if was.data.sha256 != now.data.sha256:
        found.append(Difference("data", str(was.data), str(now.data)))
    for section, fields in was.settings.items():
        for name, value in fields.items():
            current = now.settings.get(section, {}).get(name)
            if current != value:
                label = f"{section}.{name}"
                found.append(Difference("settings", f"{label} {value}", f"{label} {current}"))
    if was.kernels != now.kernels:
        found.append(Difference("kernels", was.kernels, now.kernels))
    if was.replay != now.replay:
        found.append(Difference("replay", _reads_text(was.replay), _reads_text(now.replay)))
    return found


def check_resumable(
    folder: Path, was: RunIdentity, now: RunIdentity, *, inexact: bool = False
) -> list[str]:
    """Refuse to resume a run if its result would not be bit-identical; return warnings.

    With ``inexact``, kernels of another kind are a warning instead.

    Raises
    ------
    SettingsError
        The message names both sides, and what to do.
    """
    warnings = []
    remedies = {
        "data": "put the former data back in its place",
        "settings": "put the former setting back",
        "kernels": "set SYNCPRETRAIN_KERNELS or install syncpretrain again, with a C compiler for"
        " compiled kernels; or add --inexact to go on to other last bits",
        "replay": "put run.json back",
    }
    for found in differences(was, now):
        if inexact and found.kind == "kernels":
            warnings.append(
                f"warning: the run was begun with {found.was} kernels and goes on with {found.now}"
                " ones: its last bits differ from those of a run that was not stopped"
            )
            continue
        is_older = found.kind == "data" and was.meaning is None
        remedy = AN_OLDER_VERSION if is_older else remedies[found.kind]
        raise SettingsError(
            f"resume: the run in {folder} cannot go on to the same bits: its {found.kind} was"
            f" {found.was}, and is now {found.now}; {remedy}, or begin a new run"
        )
    changed = [
        f"{name} {value}, now {now.arithmetic.get(name)}"
        for name, value in was.arithmetic.items()
        if now.arithmetic.get(name) != value
    ]
    if changed:
        warnings.append(
            f"warning: the run was begun with {'; '.join(changed)}: its last bits may differ from"
            f" those of a run that was not stopped{_remedy(was, now)}"
        )
    return warnings


def check_header(header: dict[str, Any], now: RunIdentity) -> None:
    """Refuse a checkpoint of another run by the identity in its header.

    Kernels are not compared: with ``--inexact`` a run has checkpoints of both kinds.

    Raises
    ------
    CheckpointError
        The message names both sides.
    """
    for found in differences(identity_from(header), now):
        if found.kind != "kernels":
            change = f"{found.kind} was {found.was}, now {found.now}"
            raise CheckpointError(f"is of another run: {change}")


def identity_from(header: dict[str, Any]) -> RunIdentity:
    """Return the identity in the header of a checkpoint.

    Raises
    ------
    CheckpointError
        If the header has no valid identity.
    """
    try:
        return msgspec.convert(header, RunIdentity)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"its identity is damaged: {error}") from error


def _arithmetic() -> dict[str, str]:
    """Return the versions of NumPy and of its BLAS."""
    libraries = [info for info in loaded_libraries().info() if info["user_api"] == "blas"]
    libraries.sort(key=lambda info: "numpy" not in info["filepath"])  # SciPy brings its own
    own = libraries[0] if libraries else {BLAS_FIELDS[0]: "unknown"}
    fields = (str(own[name]) for name in BLAS_FIELDS if own.get(name))
    return {"numpy": np.__version__, "blas": " ".join(fields)}


def _remedy(was: RunIdentity, now: RunIdentity) -> str:
    """Return how to keep the former order of sums of bfloat16, if it changed and can be kept."""
    orders = [found.arithmetic.get(BFLOAT16_SUMS, "").removeprefix("by ") for found in (was, now)]
    if orders[0] == orders[1] or not set(orders) <= set(ORDERS):
        return ""
    return f"; {ORDER_VARIABLE}={orders[0]} keeps the former sums"


def _bfloat16_sums(settings: Settings) -> dict[str, str]:
    """Return the order of sums of bfloat16, for a run that has such sums."""
    if "bfloat16" not in {settings.pretrain.precision, settings.finetune.precision}:
        return {}
    is_on_gpu = settings.pretrain.backend.startswith("cupy")
    return {BFLOAT16_SUMS: "by a GPU" if is_on_gpu else f"by {bfloat16_order()}"}


def _reads_text(reads: Reads | None) -> str:
    if reads is None:
        return "none"
    digest = hashlib.sha256(str(reads).encode()).hexdigest()[:12]
    return f"{sum(map(len, reads))} recorded reads ({digest})"
