"""Draw a training run and the faults that it meets; the same seed gives the same ones."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.settings import Settings, settings_from

__all__ = ["BETWEEN", "LIVE", "Draw", "Live", "Moment", "draw_for"]

WIDTH, ROWS = 24, 300
LIVE = {  # while a command works, by how often they are drawn
    "kill parent": 8,
    "kill child": 5,
    "kill group": 4,
    "SIGTERM": 5,
    "SIGINT": 5,
    "disk full at start": 3,
    "disk full later": 5,
    "file limit at start": 3,
    "file limit later": 4,
    "resume beside it": 3,
}
BETWEEN = {  # before a stopped run is resumed
    "flipped bit": 4,
    "truncated checkpoint": 3,
    "stray file": 2,
    "stale temporary file": 2,
    "two resumes at once": 2,
    "changed row": 2,
    "changed label": 2,
    "other kernels": 2,
    "other kernels, --inexact": 1,
    "half a line": 3,
}
MODELS = ("rbm", "rbm", "rbm", "autoencoder", "denoising", "contractive")
RUNTIMES = ("threads", "threads", "processes", "serial")


@dataclass(frozen=True)
class Moment:
    """When a fault strikes.

    ``kind`` is "time" (``share`` of a second after the start), "event" (that share of the lines
    still expected of the event log were written), "checkpoint" (a new one appeared) or "model"
    (``model.safetensors`` changed); ``delay`` are seconds more.
    """

    kind: str
    share: float
    delay: float


@dataclass(frozen=True)
class Live:
    """A fault while a command works, and what is done to the folder once it has ended.

    ``room`` are the bytes that a full disk or a limit of file sizes leaves; ``is_freed`` tells
    whether there is room again while the command still works.
    """

    kind: str
    moment: Moment
    room: int
    is_freed: bool
    between: tuple[str, ...]


@dataclass(frozen=True)
class Draw:
    """A run of the command line and its faults.

    ``pretrain``, ``finetune`` and ``run`` are settings by name, ``layers`` the widths.
    """

    seed: int
    layers: tuple[int, ...]
    pretrain: dict[str, Any]
    finetune: dict[str, Any]
    run: dict[str, Any]
    is_replay: bool
    faults: tuple[Live, ...]
    chance: random.Random = field(repr=False, compare=False)

    def settings(self, data: str) -> Settings:
        """Return the settings of the run on a file of data."""
        return settings_from(
            self.layers, data={"name": data}, finetune=self.finetune, run=self.run, **self.pretrain
        )

    def options(self) -> list[str]:
        """Return the settings as options of ``train``."""
        tuning = {f"finetune_{name}": value for name, value in self.finetune.items()}
        if "objective" in self.finetune:
            tuning["finetune"] = tuning.pop("finetune_objective")
        given = {"layers": self.layers, **self.pretrain, **tuning, **self.run}
        options = []
        for name, value in given.items():
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            options += [f"--{name.replace('_', '-')}", text]
        return options

    @property
    def is_free(self) -> bool:
        """Whether the bits depend on timing: a free run that is not a replay."""
        return self.pretrain["pace"] == "free" and not self.is_replay


def draw_for(seed: int) -> Draw:
    """Draw a run and its faults; settings that do not go together are drawn again."""
    chance = random.Random(seed)
    while True:
        depth = chance.choice([2, 3, 3, 4])
        layers = (WIDTH, *(chance.randrange(16, 65, 4) for _ in range(depth)))
        pretrain = _pretraining(chance, depth)
        finetune = _finetuning(chance)
        run = {
            "keep": chance.randint(1, 4),
            "checkpoint_every": chance.choice(["1", "1", "2", "3", "0.05s"]),
            "max_restarts": chance.choice([0, 0, 0, 1, 3]),
        }
        is_replay = pretrain["pace"] == "free" and chance.random() < 0.4
        made = Draw(seed, layers, pretrain, finetune, run, is_replay, _faults(chance), chance)
        try:
            made.settings("data.npz")
        except SettingsError:
            continue
        return made


def _pretraining(chance: random.Random, depth: int) -> dict[str, Any]:
    """Draw what may or may not go together."""
    drawn: dict[str, Any] = {
        "model": chance.choice(MODELS),
        "schedule": chance.choice(["synchronized", "synchronized", "greedy", "rounds"]),
        "pace": chance.choice(["lockstep", "free"]),
        "finish": chance.choice(["drain", "drain", "first-layer"]),
        "runtime": chance.choice(RUNTIMES),
        "epochs": tuple(chance.randint(3, 9) for _ in range(depth)),
        "refresh_epochs": tuple(chance.randint(0, 2) for _ in range(depth)),
        "early_stopping": chance.choice(
            ["none", "none", "free-energy-gap", "pseudo-likelihood", "validation-error"]
        ),
        "batch_size": chance.choice([10, 20, 50]),
        "seed": chance.randrange(1000),
    }
    if drawn["early_stopping"] != "none":
        drawn["patience"] = chance.randint(1, 3)
    if chance.random() < 0.2:
        drawn["workers"] = chance.randint(1, 4)
    if drawn["schedule"] == "synchronized" and chance.random() < 0.5:
        drawn |= _streaming(chance, depth)
    return drawn


def _streaming(chance: random.Random, depth: int) -> dict[str, Any]:
    return {
        "handoff": "minibatch",
        "delay": chance.choice([0.0, 0.3, 1.0, 2.5]),
        "replicas": (chance.randint(1, 2), *[1] * (depth - 1)),
        "shards": (2, *[1] * (depth - 1)),
        "pace": "lockstep",
        "finish": "drain",
        "refresh_epochs": (0,) * depth,
    }


def _finetuning(chance: random.Random) -> dict[str, Any]:
    objective = chance.choice(["none", "none", "reconstruction", "classification"])
    if objective == "none":
        return {}
    drawn = {"objective": objective, "epochs": chance.randint(2, 8), "batch_size": 20}
    if chance.random() < 0.3:
        drawn["patience"] = chance.randint(1, 3)
    return drawn


def _faults(chance: random.Random) -> tuple[Live, ...]:
    return tuple(_fault(chance) for _ in range(chance.choice([1, 1, 1, 2, 2, 3])))


def _fault(chance: random.Random) -> Live:
    kind = _pick(chance, LIVE)
    moments = ["event"] * 5 + ["checkpoint"] * 3 + ["model"]
    if kind.startswith("kill"):
        moments.append("time")  # also before anything is written
    delay = chance.choice([0.0, 0.0, 0.003, 0.02])
    moment = Moment(chance.choice(moments), chance.random(), delay * chance.random())
    room = chance.choice([0, 1000, 4096, 10_000, 20_000, 40_000, 80_000])
    between = [_pick(chance, BETWEEN) for _ in range(chance.choice([0, 1, 1, 2]))]
    return Live(kind, moment, room, chance.random() < 0.3, tuple(between))


def _pick(chance: random.Random, weights: dict[str, int]) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]
