"""The commands of the documents, made small: fewer units, epochs and examples, the same options."""

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from trialruns import Abort, DieAt

from syncpretrain.events import EpochFinished
from syncpretrain.runs.run import train_run
from syncpretrain.settings import preset_path, read_settings, settings_from

CAPS = {  # of the numbers that an option is given
    "--layers": 12,
    "--hidden": 12,
    "--epochs": 2,
    "--batch-size": 100,
    "--refresh-epochs": 1,
    "--finetune-epochs": 1,
    "--labels": 100,
    "--rounds": 1,
    "--seeds": 1,
    "--steps": 5,
}
ADDED = {  # to a command that does not say it
    "train": {"--epochs": "2"},
    "finetune": {"--finetune-batch-size": "10"},
    "compare": {"--preset": "label-budget", "--epochs": "1", "--seeds": "1"},
    "plan": {"--seconds": "0", "--examples": "200"},
    "simulate": {"--seconds": "0", "--examples": "200", "--epochs": "1"},
    "bench": {"--examples": "200", "--epochs": "1"},
}
SMALL_TUNING = {"--finetune-epochs": "1"}
LAYERS = (784, 12, 8)


@dataclass(frozen=True)
class Program:
    """A ``syncpretrain`` command line of the documents."""

    arguments: tuple[str, ...]

    @property
    def run(self) -> str:
        """The kind of run that ``runs/NAME`` stands for in it."""
        kinds = {"--resume": "stopped", "--replay": "free", "sample": "pretrained"}
        kinds |= {"predict": "classifier", "finetune": "table", "score": "table"}
        if "new.csv" in self.arguments:
            kinds["encode"] = "table"
        return next((kind for word, kind in kinds.items() if word in self.arguments), "tuned")

    def small(self) -> list[str]:
        """Return the arguments with smaller numbers, and with those that it leaves open."""
        given = [
            _capped(option, value)
            for option, value in zip(("", *self.arguments), self.arguments, strict=False)
        ]
        if {"--resume", "--replay"} & set(given):
            return given
        added = dict(ADDED.get(given[0], {}))
        if (preset := self._preset(added)) and "--hidden" not in given:
            added["--layers"] = _capped("--layers", preset)
        if given[0] in ("compare", "finetune") or {"--finetune", "--preset"} & set(given):
            added |= SMALL_TUNING
        more = [word for option in added if option not in given for word in (option, added[option])]
        return [*given, *more]

    def _preset(self, added: dict[str, str]) -> str:
        """Return the layers of its preset, if it has one and no layers of its own."""
        words = [*self.arguments, "--preset", added.get("--preset", "")]
        name = words[words.index("--preset") + 1]
        if not name or self.arguments[0] == "presets":
            return ""
        pretrain = read_settings(preset_path(name)).pretrain
        return pretrain.architecture or ",".join(map(str, pretrain.layers))


def _capped(option: str, value: str) -> str:
    if option not in CAPS:
        return value
    parts = value.split(",")
    kept = 1 if option == "--layers" else 0  # the data's width
    small = [_small(x, CAPS[option]) for x in parts[kept:]]
    if option == "--labels":
        small = list(dict.fromkeys(small))
    return ",".join([*parts[:kept], *small])


def _small(text: str, most: int) -> str:
    """Return a number, or one behind a word, as it is or smaller; words alone as they are."""
    if filters := re.fullmatch(r"conv:(\d+)(x.*)", text):
        return f"conv:{min(int(filters[1]), most // 3)}{filters[2]}"
    word, colon, number = text.rpartition(":")
    return f"{word}{colon}{min(int(number), most)}" if number.isdigit() else text


def words_of(line: str) -> list[str]:
    """Return the words of a command line without comment, variables and the environment's path."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return [words[0].removeprefix(".venv/bin/"), *words[1:]]


def make_folder(folder: Path) -> None:
    """Write the files that the documents name, and runs of each kind, in ``kinds/``."""
    draws = np.random.default_rng(0)
    X = draws.random((300, LAYERS[0]), dtype=np.float32)
    np.save(folder / "X.npy", X)
    np.save(folder / "any-numbers.npy", 10 * X - 5)
    np.savez(folder / "labelled.npz", X=X, y=draws.integers(0, 3, len(X)))
    _write_tables(folder)
    tuned = {"objective": "reconstruction", "epochs": 1}
    kinds = {
        "tuned": {"finetune": tuned},
        "pretrained": {},
        "free": {"pace": "free"},
        "stopped": {"run": {"checkpoint_every": "1"}},
    }
    for kind, own in kinds.items():
        observers = [DieAt(EpochFinished, epoch=2)] if kind == "stopped" else []
        settings = settings_from(LAYERS, data={"name": "mnist"}, epochs=2, **own)
        with suppress(Abort):
            train_run(settings, out=folder / "kinds" / kind, observers=observers)


def _write_tables(folder: Path) -> None:
    """Write a table, one without its last column, and runs on the first."""
    draws = np.random.default_rng(1)
    rows = [[f"{x:.3f}" for x in draws.normal(5, 2, 4)] for _ in range(200)]
    classes = [["red", "green"][i % 2] for i in range(len(rows))]
    lines = [",".join([*row, name]) for row, name in zip(rows, classes, strict=True)]
    (folder / "table.csv").write_text("\n".join(["a,b,c,d,class", *lines]) + "\n")
    (folder / "new.csv").write_text("\n".join(["a,b,c,d", *map(",".join, rows)]) + "\n")
    classification = {"finetune": {"objective": "classification", "epochs": 1}}
    data = {"name": str(folder / "table.csv")}
    for kind, own, others in (
        ("table", {"drop": "class"}, {}),
        ("classifier", {"target": "class"}, classification),
    ):
        given = {"data": data | own, "visible_units": "gaussian", "epochs": 1, **others}
        train_run(settings_from((4, 6), **given), out=folder / "kinds" / kind)
