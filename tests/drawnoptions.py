"""Strategies for the fuzz of ``train``: small files of data, and options that may fit them or not.

Most values are sound and most options fit each other, so that most draws train. Every option has
odd values beside them: of the wrong kind, on a boundary, absurdly large or small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

__all__ = ["HUGE", "ODD", "Draw", "File", "draws", "others", "rare", "steep"]

HUGE = "9" * 30
ODD = ("", "x", "-1", "0", "1.5", "nan", "inf", "1e400", HUGE, "1,2,3,4,5,6,7", " ", "\u0663")


class Option(NamedTuple):
    """Sound texts and odd ones; ``each`` separates the values of layers, if they may differ."""

    sound: Sequence[str]
    odd: Sequence[str] = ()
    each: str = ""
    models: str = "rbm autoencoder denoising contractive"


RBMS, ENCODERS = "rbm", "autoencoder denoising contractive"
# As large as a float32 can hold, larger, and the least that a float64 can.
RATES = ("1e4", "1e6", "1e20", "1e38", "3.5e38", "1e300", "1.7e308", "1e-45", "5e-324")
COMMON = {
    "--visible-units": Option(["bernoulli", "gaussian"], ["relu"]),
    "--hidden-units": Option(["bernoulli", "gaussian", "relu"], ["softmax"], ","),
    "--schedule": Option(["synchronized", "greedy", "rounds", "greedy", "rounds", "auto"]),
    "--group-size": Option(["1", "2", "100", HUGE]),
    "--pace": Option(["lockstep", "free"]),
    "--runtime": Option(["serial", "threads"], ["processes"]),
    "--backend": Option(["auto", "numpy"], ["cupy", "cupy:0", "cupy:x", "cupy:" + HUGE]),
    "--workers": Option(["1", "2", "4"], ["1024", "1025", "1000000000"]),
    "--replicas": Option(["1", "2", "3"], ["1000"], ","),
    "--split": Option(["examples", "units"]),
    "--shards": Option(["0", "1", "2", "3"], ["1000"], ","),
    "--epochs": Option(["1", "2", "3"], ["1000001"], ","),
    "--refresh-epochs": Option(["0", "1", "2"], ["1000001"], ","),
    "--finish": Option(["drain", "first-layer"]),
    "--early-stopping": Option(["none"], ["free-energy-gap"]),
    "--patience": Option(["1", "2", HUGE]),
    "--learning-rate": Option(["0.1", "0.001", "1", "1e-45", "5e-324"], RATES, ","),
    "--momentum": Option(
        ["0", "0.5:1,0.9", "0.9", "0.9999", "0.1:1,0.2:1,0.3"],
        ["1", "0.5:0,0.9", "0.5:5", ":", "0.5:5,", f"0.5:{HUGE},0", ";", "0.5:1:1,0"],
        ";",
    ),
    "--weight-decay": Option(["0", "0.0002", "0.1", "1e-300"], RATES, ","),
    "--l1": Option(["0", "0.001", "1e-300"], RATES, ","),
    "--visible-bias": Option(["zero", "log-odds"]),
    "--blas-threads": Option(["1", "2", "3"], ["1025", "3000000000"]),
    "--seed": Option(["1", str(2**63 - 1), str(2**32)], [str(2**63), str(2**64)]),
    "--validation": Option(["0", "0.1", "0.5", "0.999", "1e-300"], ["1"]),
    "--labels": Option(["1", "2", "5"], ["1000"]),
    "--checkpoint-every": Option(["1", "60s", "0.001s", "1e308s", HUGE], ["s", "nans", "1m"]),
    "--keep": Option(["1", "2", "3", HUGE]),
    "--max-restarts": Option(["0", "2", HUGE]),
    "--stall-timeout": Option(["600", "60.5", "1e308"]),
}
OF_MODELS = {
    "--early-stopping": Option(["free-energy-gap", "pseudo-likelihood"], [], "", RBMS),
    "--cd-steps": Option(["1", "2", "3"], ["1001"], ",", RBMS),
    "--sparsity-target": Option(["0.1", "0", "0.999"], ["1"], ",", RBMS),
    "--sparsity-cost": Option(["0", "0.1"], RATES, ",", RBMS),
    "--hidden-dropout": Option(["0", "0.5", "0.99", "0.9999999999999999"], ["1"], ",", RBMS),
    "--persistent": Option(["on"], [], "", RBMS),
    "--not-persistent": Option(["on"]),
    "--tied": Option(["on"]),
    "--untied": Option(["on"], [], "", ENCODERS),
    "--loss": Option(["squared", "cross-entropy"], [], "", ENCODERS),
    "--corruption": Option(
        ["none", "masking:0.25", "salt-and-pepper:0.999", "gaussian:0.1"],
        ["masking", "masking:1", "gaussian:0", "gaussian:1e300", "masking:1e-320", ":", "none:1"],
        ",",
        "denoising",
    ),
    "--contraction": Option(["0", "0.1", "10"], RATES, ",", "contractive"),
}
TUNING = {
    "--finetune-epochs": Option(["1", "2", "3"], ["1000001"]),
    "--finetune-optimizer": Option(["adam", "sgd", "cg", "lbfgs"]),
    "--finetune-learning-rate": Option(["0.001", "0.1", "1", "5e-324"], RATES),
    "--finetune-rate-schedule": Option(["constant", "linear", "cosine"]),
    "--finetune-momentum": Option(["0", "0.9", "0.9999999999999999"], ["1"]),
    "--finetune-nesterov": Option(["on"]),
    "--no-finetune-nesterov": Option(["on"]),
    "--finetune-weight-decay": Option(["0", "0.01"], RATES),
    "--finetune-loss": Option(["squared", "cross-entropy"]),
    "--finetune-dropout": Option(["0", "0.5", "0.99", "0.9999999999999999"], ["1"]),
    "--finetune-input-dropout": Option(["0", "0.5", "0.99"], ["1"]),
    "--finetune-patience": Option(["1", "2", HUGE]),
    "--finetune-replicas": Option(["1", "2", "3"], ["1025", "1000000"]),
    "--finetune-split": Option(["units", "examples"]),
    "--finetune-shards": Option(["0", "1", "2", "3"], ["1024", "1025", "100000000"]),
}


@dataclass(frozen=True)
class File:
    """A file of examples, not yet written."""

    name: str
    X: np.ndarray
    labels: np.ndarray | None

    def write(self, folder: Path) -> None:
        path = folder / self.name
        if path.suffix == ".npz":
            arrays = {"X": self.X} | ({} if self.labels is None else {"y": self.labels})
            np.savez(path, **arrays)
        elif path.suffix == ".csv":
            np.savetxt(path, self.X, delimiter=",", fmt="%.9g")
        else:
            np.save(path, self.X)

    def __repr__(self) -> str:
        found = "no" if self.labels is None else sorted(set(self.labels.tolist()))
        low, high = self.X.min(), self.X.max()
        return f"{self.name}: {self.X.dtype} {self.X.shape}, {low} to {high}, labels {found}"


@dataclass(frozen=True)
class Draw:
    """A command line after ``train``, and the file that it names."""

    file: File
    arguments: tuple[str, ...]


@st.composite
def files(draw: Any) -> File:
    """Draw 1 to 30 examples of 1 to 8 values."""
    shape = draw(st.integers(1, 30)), draw(st.integers(1, 8))
    chance = np.random.default_rng(draw(st.integers(0, 2**16)))
    uniform = chance.random(shape)
    X = draw(
        st.sampled_from(
            [
                uniform.astype(np.float32),
                uniform,
                (uniform < 0.3).astype(np.float32),
                uniform < 0.3,
                (256 * uniform).astype(np.uint8),
                (uniform < 0.5).astype(np.int64),
                np.zeros(shape, np.float32),
                np.ones(shape, np.float16),
                (1e-42 * uniform).astype(np.float32),
                chance.standard_normal(shape).astype(np.float32),
                1e17 * chance.standard_normal(shape),
                3 + 1e-7 * chance.standard_normal(shape),
            ]
        )
    )
    name = draw(st.sampled_from(["x.npy", "x.npz", "labelled.npz", "labelled.npz", "x.csv"]))
    labels = None
    if name == "labelled.npz":
        classes = draw(st.integers(1, 4))
        labels = chance.integers(0, classes, shape[0])
        if draw(st.booleans()):
            labels[chance.random(shape[0]) < 0.4] = -1
    return File(name, X.astype(np.float32) if name == "x.csv" else X, labels)


def rare(draw: Any, one_in: int) -> bool:
    """Draw true once in so many times."""
    return draw(st.integers(0, one_in - 1)) == one_in - 1


def value(draw: Any, option: Option, depth: int) -> str:
    """Draw the text of an option, for so many layers if they may differ."""
    texts = st.sampled_from(option.sound)
    if rare(draw, 16):
        texts = st.sampled_from([*option.odd, *ODD])
    if not option.each or draw(st.booleans()):
        return draw(texts)
    count = draw(st.integers(1, 7)) if rare(draw, 16) else depth
    return option.each.join(draw(texts) for _ in range(count))


def options(draw: Any, names: Sequence[str], table: dict[str, Option], depth: int) -> list[str]:
    """Draw texts for options of these names."""
    given: list[str] = []
    for name in names:
        flag = table[name].sound == ["on"]
        given += [name] if flag else [f"{name}={value(draw, table[name], depth)}"]
    return given


def subset(draw: Any, names: Sequence[str], most: int) -> list[str]:
    return draw(st.lists(st.sampled_from(names), unique=True, max_size=most))


@st.composite
def draws(draw: Any) -> Draw:
    """Draw a file and options of ``train`` for it."""
    file = draw(files())
    rows, width = file.X.shape
    depth = draw(st.integers(1, 6))
    hidden = draw(st.lists(st.integers(1, 8), min_size=depth, max_size=depth))
    layers = ",".join(map(str, [width + rare(draw, 24), *hidden]))
    if rare(draw, 40):
        layers = draw(st.sampled_from([*ODD, str(width), f"{width},1000000", "8,0,8"]))
    model = draw(st.sampled_from(["rbm", "rbm", *ENCODERS.split()]))
    batch = draw(st.integers(1, max(1, rows * 9 // 10)))
    given = [f"--data={file.name}", f"--layers={layers}", f"--model={model}"]
    given += [] if rare(draw, 40) else [f"--batch-size={batch + 100 * rare(draw, 30)}"]
    given += options(draw, ["--epochs"], COMMON, depth) if not rare(draw, 40) else []
    if (file.X.min() < 0 or file.X.max() > 1) and file.X.dtype != np.uint8:
        given += [] if rare(draw, 10) else ["--visible-units=gaussian"]
    table = COMMON | {
        name: option
        for name, option in OF_MODELS.items()
        if model in option.models.split() or rare(draw, 30)
    }
    names = sorted(set(table) - {"--epochs", "--visible-units", "--labels"})
    given += options(draw, subset(draw, names, 6), table, depth)
    if file.labels is not None or rare(draw, 30):
        given += options(draw, subset(draw, ["--labels"], 1), table, depth)
    if draw(st.booleans()):
        given += tuning(draw, file, batch, depth)
    if rare(draw, 60):
        given += [draw(st.sampled_from(["--preset=fast", "--preset=none", "--config=x", "--tied"]))]
    return Draw(file, tuple(given))


def others(draw: Any, depth: int) -> list[str]:
    """Draw up to 3 options of any kind, to go on top of a file of settings."""
    table = COMMON | OF_MODELS | TUNING
    return options(draw, subset(draw, sorted(table), 3), table, depth)


def tuning(draw: Any, file: File, batch: int, depth: int) -> list[str]:
    """Draw options of fine-tuning."""
    objectives = ["reconstruction"] + ["classification"] * (file.labels is not None)
    if rare(draw, 16):
        objectives = ["none", "classification", "regression"]
    given = [f"--finetune={draw(st.sampled_from(objectives))}"]
    given += [] if rare(draw, 20) else [f"--finetune-batch-size={draw(st.integers(1, batch))}"]
    given += [] if rare(draw, 20) else options(draw, ["--finetune-epochs"], TUNING, depth)
    names = sorted(set(TUNING) - {"--finetune-epochs"})
    return given + options(draw, subset(draw, names, 4), TUNING, depth)


STEEP = {
    "--learning-rate": Option(RATES, RATES, ","),
    "--weight-decay": Option(RATES, RATES, ","),
    "--l1": Option(RATES, RATES, ","),
    "--sparsity-cost": Option(RATES, RATES, ",", RBMS),
    "--contraction": Option(RATES, RATES, ",", "contractive"),
    "--corruption": Option(
        [f"gaussian:{rate}" for rate in RATES], ["gaussian:1e30"], ",", "denoising"
    ),
    "--finetune-learning-rate": Option(RATES),
    "--finetune-weight-decay": Option(RATES),
}
BESIDE = (
    *("--visible-units", "--hidden-units", "--momentum", "--runtime", "--visible-bias"),
    *("--schedule", "--pace", "--cd-steps", "--persistent", "--hidden-dropout", "--untied"),
    *("--loss", "--finetune-optimizer", "--finetune-dropout", "--finetune-loss"),
)


@st.composite
def steep(draw: Any) -> Draw:
    """Draw a file and options of which one at least is absurd for a rate, a cost or a decay."""
    file = draw(files())
    rows, width = file.X.shape
    model = draw(st.sampled_from([RBMS, *ENCODERS.split()]))
    depth = draw(st.integers(1, 4))
    hidden = draw(st.lists(st.integers(1, 8), min_size=depth, max_size=depth))
    given = [f"--data={file.name}", f"--layers={','.join(map(str, [width, *hidden]))}"]
    given += [f"--model={model}", f"--batch-size={draw(st.integers(1, max(1, rows // 2)))}"]
    given += [f"--epochs={draw(st.integers(1, 5))}"]
    tuned = draw(st.booleans())
    if tuned:
        given += ["--finetune=reconstruction", f"--finetune-batch-size={max(1, rows // 3)}"]
    if (file.X.min() < 0 or file.X.max() > 1) and file.X.dtype != np.uint8:
        given += ["--visible-units=gaussian"]
    table = {
        name: option
        for name, option in (COMMON | OF_MODELS | TUNING | STEEP).items()
        if model in option.models.split() and (tuned or not name.startswith("--finetune"))
    }
    chosen = draw(
        st.lists(st.sampled_from(sorted(set(STEEP) & set(table))), min_size=1, max_size=3)
    )
    beside = subset(draw, sorted(set(BESIDE) & set(table)), 3)
    return Draw(file, (*given, *options(draw, [*chosen, *beside], table, depth)))
