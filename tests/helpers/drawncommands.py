"""Strategies for the fuzz of ``train``: a small file of data, and a command line about it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from drawnoptions import BESIDE, MODELS, ODD, STEEP, TUNING, options, rare, subset, table_of, words
from hypothesis import strategies as st

from syncpretrain.settings import preset_names
from syncpretrain.settings.architecture import architecture_of
from syncpretrain.shapes import ImageShape

NO_LAYERS = (
    *("1x1x1,conv:1x2", "1x2x2,conv:2x1,pool:3", "1x2x2,conv:999999999x1", "1x2x2,pool:2"),
    *("4,conv:2x1", "1x2x2,3,conv:2x1", "1x2", "1x2x2,conv", "1x2x2,conv:2x1:9", "conv:2x1,3"),
    *("1x2x2,conv:2x2:same", "1x9999x9999,conv:2x1", "1x2x2,conv:900000x1", "8x1x1,conv:2x1"),
)


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

    @property
    def bounded(self) -> bool:
        return self.X.dtype == np.uint8 or bool(self.X.min() >= 0 and self.X.max() <= 1)


@st.composite
def files(draw) -> File:
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


@dataclass(frozen=True)
class Draw:
    """A command line after ``train``, and the file that it names."""

    file: File
    arguments: tuple[str, ...]


@st.composite
def draws(draw) -> Draw:
    """Draw a file and options of ``train`` for it; half of them are meant to fit each other."""
    file, sound = draw(files()), draw(st.booleans())
    rows, width = file.X.shape
    depth = draw(st.integers(1, 6))
    layers = [width, *draw(st.lists(st.integers(1, 8), min_size=depth, max_size=depth))]
    text = ",".join(map(str, layers))
    if rare(draw, 4):
        text = convolutions(draw, width)
        layers = list(architecture_of(text)[0])
        depth = len(layers) - 1
    model = draw(st.sampled_from(["rbm", *MODELS]))
    given = {"--data": file.name, "--layers": text, "--model": model}
    given["--batch-size"] = str(draw(st.integers(1, max(1, rows // 2))))
    table = table_of(model)
    names = set(table) - ({"--labels"} if file.labels is None else set())
    given |= options(draw, ["--epochs", *subset(draw, names, 12)], table, depth, sound=sound)
    if not file.bounded:
        given["--visible-units"] = "gaussian"
    if draw(st.booleans()):
        given |= tuning(draw, file, depth, sound)
    if rare(draw, 8):
        given |= preset(draw, given)
    if sound:
        settle(given, file, layers)
    else:
        given |= wrong(draw, layers)
    return Draw(file, words(given))


def convolutions(draw, width: int) -> str:
    """Draw the text of one or two convolutions of images of so many values, and dense layers."""
    channels = draw(st.sampled_from([n for n in (1, 2, 3) if width % n == 0]))
    pixels = width // channels
    height = draw(st.sampled_from([n for n in range(1, pixels + 1) if pixels % n == 0]))
    images = ImageShape(channels, height, pixels // height)
    parts = [str(images)]
    for _ in range(draw(st.integers(1, 2))):
        side = min(images.height, images.width)
        size = draw(st.integers(1, min(side, 3)))
        pad = draw(st.integers(0, size - 1))
        rows, columns = (n + 2 * pad - size + 1 for n in (images.height, images.width))
        pool = draw(st.sampled_from([n for n in (1, 2, 3) if rows % n == columns % n == 0]))
        filters = draw(st.integers(1, 5))
        kind = draw(st.sampled_from(["", ":max", ":mean", ":prob"]))
        parts += [f"conv:{filters}x{size}:{pad}", f"pool:{pool}{kind}"]
        images = ImageShape(filters, rows // pool, columns // pool)
    return ",".join([*parts, *map(str, draw(st.lists(st.integers(1, 8), max_size=2)))])


def tuning(draw, file: File, depth: int, sound: bool) -> dict[str, str]:
    """Draw options of fine-tuning."""
    objectives = ["reconstruction", *["classification"] * 2 * (file.labels is not None)]
    if not sound:
        objectives += ["none", "classification", "regression"]
    given = {"--finetune": draw(st.sampled_from(objectives))}
    given["--finetune-batch-size"] = str(draw(st.integers(1, max(1, len(file.X) // 2))))
    if given["--finetune"] == "classification":
        given["--finetune-batch-size"] = "1"
    names = ["--finetune-epochs", *subset(draw, TUNING, 6)]
    return given | options(draw, names, TUNING, depth, sound=sound)


def preset(draw, given: dict[str, str]) -> dict[str, str]:
    """Draw a preset, with what small data needs of it."""
    small = {"--finetune-batch-size": "1", "--finetune-epochs": "1"}
    if draw(st.booleans()):
        del given["--model"]
    if "--finetune" not in given:
        small = {"--finetune": "none"}
    return {"--preset": draw(st.sampled_from(preset_names())), **small}


def wrong(draw, layers: list[int]) -> dict[str, str]:
    """Draw up to 2 options that hardly fit anything."""
    others = {
        "--layers": draw(
            st.sampled_from([*ODD, str(layers[0]), f"{layers[0]},1000000", "99,2", *NO_LAYERS])
        ),
        "--batch-size": draw(st.sampled_from(["100", "31", *ODD])),
        "--finetune-batch-size": draw(st.sampled_from(["1", "100", *ODD])),
        "--labels": "3",
        "--preset": draw(st.sampled_from(["fast", "label-budget", "none"])),
        "--config": "missing.toml",
        "--untied": "on",
        "--contraction": "0.1",
        "--persistent": "on",
    }
    return {name: others[name] for name in subset(draw, others, 2)}


def settle(given: dict[str, str], file: File, layers: list[int]) -> None:
    """Take options away that contradict others, so that a run is not refused for them."""
    model, units, held = given.get("--model"), given.get("--split"), given.get("--validation")
    gaussian = given.get("--visible-units") == "gaussian"
    away = set()
    if given.get("--schedule") != "rounds":
        away |= {"--group-size"}
    if given.get("--schedule", "synchronized") != "synchronized":
        away |= {"--pace"}
    if given.get("--schedule") == "auto":
        away |= {"--replicas", "--shards", "--split"}
    if given.get("--split") == "units" and (
        model != "rbm" or {"--persistent", "--sparsity-cost", "--hidden-dropout"} & set(given)
    ):
        away |= {"--split"}
    if "--persistent" not in given or {"--hidden-dropout", "--replicas", "--shards"} & set(given):
        away |= {"--chains"}
    away |= {"--chain-start"} if "--chains" not in set(given) - away else set()
    away |= {"--centred"} if units == "units" or given.get("--schedule") == "async" else set()
    if units == "units" or "--hidden-units" in given:
        away |= {"--sample-input"}
    away |= {"--shards"} if "--replicas" in given else set()
    if "x" in given["--layers"]:
        away |= {"--split", "--contraction", "--chains", "--chain-start", "--centred"}
        away |= {"--early-stopping"} if model in (None, "rbm") else set()
        away |= {"--model"} if model == "contractive" else set()
    if ":prob" in given["--layers"]:
        away |= {"--model", "--hidden-units", "--hidden-dropout"}
    most = min(layers) if units == "units" else int(given["--batch-size"])
    away |= {"--replicas", "--shards"} if most < 3 else set()
    if len(file.X) < 10 and held in (None, "0", "1e-300"):
        away |= {"--early-stopping", "--finetune-patience"}
    if given.get("--early-stopping", "none") != "none":
        away |= {"--finish", "--validation"}
        if given["--early-stopping"] == "pseudo-likelihood":
            away |= {"--hidden-units"} if not gaussian else {"--early-stopping"}
    if held == "0":
        away |= {"--finetune-patience"}
    away |= {"--hidden-units"} if "--sparsity-cost" in given else set()
    away |= {"--loss", "--finetune-loss"} if gaussian else set()
    away |= {"--finetune-loss"} if given.get("--finetune") == "classification" else set()
    if given.get("--finetune-optimizer") != "sgd":
        away |= {"--finetune-momentum", "--finetune-nesterov"}
    if given.get("--finetune-optimizer") in ("cg", "lbfgs"):
        away |= {"--finetune-replicas", "--finetune-shards"}
    away |= {"--finetune-shards", "--finetune-split"} if "--finetune-replicas" in given else set()
    away |= {"--finetune-split"} if "--finetune-shards" in given else set()
    for name in away & set(given):
        del given[name]
    if "--finetune-nesterov" in given:
        given["--finetune-momentum"] = "0.9"


def others(draw, file: File, depth: int) -> tuple[str, ...]:
    """Draw another model, other layers and options of any kind, to go on top of settings."""
    model = draw(st.sampled_from(MODELS))
    given = {"--model": model} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        depth = draw(st.integers(1, 6))
        given["--layers"] = ",".join(["3"] * depth) if rare(draw, 8) else layers_of(file, depth)
    table = table_of(model) | TUNING
    given |= options(draw, subset(draw, table, 3), table, depth, sound=draw(st.booleans()))
    return words(given)


def layers_of(file: File, depth: int) -> str:
    """Return layers of falling widths."""
    return ",".join(map(str, [file.X.shape[1], *range(depth + 1, 1, -1)]))


@st.composite
def steep(draw) -> Draw:
    """Draw a file and options of which one at least is absurd for a rate, a cost or a decay."""
    file = draw(files())
    rows, width = file.X.shape
    model = draw(st.sampled_from(MODELS))
    depth = draw(st.integers(1, 4))
    layers = [width, *draw(st.lists(st.integers(1, 8), min_size=depth, max_size=depth))]
    given = {"--data": file.name, "--layers": ",".join(map(str, layers)), "--model": model}
    given["--batch-size"] = str(draw(st.integers(1, max(1, rows // 2))))
    given["--epochs"] = str(draw(st.integers(1, 5)))
    table = table_of(model)
    if draw(st.booleans()):
        table |= TUNING
        given |= {"--finetune": "reconstruction", "--finetune-batch-size": str(max(1, rows // 3))}
    given |= options(draw, subset(draw, set(BESIDE) & set(table), 4), table, depth, sound=True)
    if not file.bounded:
        given["--visible-units"] = "gaussian"
    settle(given, file, layers)
    absurd = sorted(set(STEEP) & set(table))
    names = draw(st.lists(st.sampled_from(absurd), unique=True, min_size=1, max_size=3))
    return Draw(file, words(given | options(draw, names, STEEP, depth, sound=True)))
