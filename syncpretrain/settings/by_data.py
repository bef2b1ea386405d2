"""Settings that follow from the data, if the user gave no values.

A network learns by its number of updates. Ten epochs are 5,000 updates with the 50,000 digits of
MNIST in minibatches of 100, but 40 with a table of 400 rows, which train nothing. So small data
takes smaller minibatches and more epochs, until it has as many updates; data as large as MNIST
keeps the usual values. Everything is a function of a few numbers: no arrays here.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from syncpretrain.settings.checks import why_not_in_blocks
from syncpretrain.settings.fields import PER_LAYER, usual_rates
from syncpretrain.settings.finetuning import FinetuneSettings, steps_with_unlabelled
from syncpretrain.settings.sections import PretrainSettings, replaced
from syncpretrain.shapes import LayerShape
from syncpretrain.units.kinds import kind_of

FinetuneT = TypeVar("FinetuneT", bound=FinetuneSettings)
S = TypeVar("S", bound=msgspec.Struct)
BATCH_SHARE = 100  # smallest number of minibatches in an epoch, unless they become too small
SMALLEST_MINIBATCH = 10  # the gradient of fewer examples is mostly noise
ENOUGH_UPDATES = 5000  # ten epochs of MNIST
ENOUGH_EPOCHS = 500  # few rows are learned completely by then
MOST_WORK = 10**12  # rows times weights times epochs: as for MNIST in 784-1000-500-250-30
# Sigmoids take thousands of updates at the usual rate. A higher rate must fall in the end, and
# without decay few rows are learned by heart.
OF_FEW_ROWS = {"learning_rate": 0.003, "rate_schedule": "cosine", "weight_decay": 0.1}
# Any few units can fit a few labels, so no unit may be relied on: half of the hidden units and a
# fifth of the inputs are left out (Hinton et al. 2012).
OF_FEW_LABELS = {"dropout": 0.5, "input_dropout": 0.2}
# Pseudo-labels: minibatches of 64 rows with a label and 256 without, for 1,500 steps.
GUESS_BATCH = 320
OF_UNLABELLED = {"batch_size": GUESS_BATCH, "learning_rate": 0.002, "rate_schedule": "cosine"}
UNLABELLED_STEPS = 1500
FEW_LABELS = 0.2  # a smaller share of labelled rows is few
# Columns with a fifth of the deviation of zeros and ones hardly move a binary unit.
ENOUGH_SPREAD = 0.04
WORDED = {
    "batch_size": "batch size {}",
    "epochs": "{} epochs",
    "learning_rate": "learning rate {}",
    "rate_schedule": "falling as a {}",
    "weight_decay": "weight decay {}",
    "dropout": "dropout {}",
    "input_dropout": "input dropout {}",
    "visible_bias": "visible biases from the {}",
    "cd_steps": "CD-{}",
}
STEPPING_OPTIMIZERS = ("adam", "sgd")  # other optimizers search along lines, on large minibatches


class Given(NamedTuple):
    """Names of the settings that the user gave, by section; their values are kept."""

    pretrain: frozenset[str] = frozenset()
    finetune: frozenset[str] = frozenset()


class Facts(NamedTuple):
    """Numbers about the data that settings follow from.

    Attributes
    ----------
    rows, columns : int
        Rows to train on, and their columns; for fine-tuning only the rows with a target.
    low, high : float
        Smallest and largest value; bytes count as they are trained on.
    unlabelled : int
        Number of further rows, without a target.
    are_counts : bool
        True if the values are counts of words.
    row_sum : float
        Mean sum of a row (for documents the mean length); 0 or NaN if unknown.
    spread : float
        Variance of the values divided by the variance of bits with the same means.
    """

    rows: int
    columns: int
    low: float = 0.0
    high: float = 1.0
    unlabelled: int = 0
    are_counts: bool = False
    row_sum: float = 0.0
    spread: float = 1.0

    @property
    def is_unit_interval(self) -> bool:
        """True if all values can be probabilities."""
        return self.low >= 0 and self.high <= 1

    @property
    def are_probabilities(self) -> bool:
        """True if the values can be probabilities, and vary enough to move binary units."""
        return self.is_unit_interval and self.spread >= ENOUGH_SPREAD


def pretrain_by_data(
    settings: PretrainSettings, given: Iterable[str], facts: Facts
) -> tuple[PretrainSettings, dict[str, Any]]:
    """Return settings with the values that follow from the data, and these values by name.

    Parameters
    ----------
    settings : PretrainSettings
        Settings with the usual values, except for the given ones.
    given : iterable of str
        Names of the settings that the user gave; their values are kept.
    facts : Facts

    Raises
    ------
    SettingsError
        If the values do not go together with the given ones.
    """
    given = set(given)
    found: dict[str, Any] = {}
    if "visible_units" not in given and not facts.are_probabilities:
        by_blocks = why_not_in_blocks(settings) is None and not settings.backend.startswith("cupy")
        units = f"counts:{facts.columns}" if facts.are_counts and by_blocks else "gaussian"
        found["visible_units"] = units
        if "learning_rate" not in given:
            found["learning_rate"] = usual_rates(units, settings.hidden_units)
    units = found.get("visible_units", settings.visible_units)
    found |= of_documents(settings, units, given, facts.row_sum)
    shards = max(map(settings.shards_of, range(1, len(settings.layers))))
    batch = settings.batch_size
    if "batch_size" not in given:
        found["batch_size"] = batch = _batch(facts.rows, settings.batch_size, shards)
    if "epochs" not in given:
        epochs = _epochs(facts.rows, batch, PER_LAYER["epochs"], settings.shapes)
        found["epochs"] = [epochs] * len(settings.epochs)
    return _changed(settings, found)


def finetune_by_data(
    settings: FinetuneT, given: Iterable[str], facts: Facts, shapes: Iterable[LayerShape]
) -> tuple[FinetuneT, dict[str, Any]]:
    """Return settings of fine-tuning with values that follow from the data, and these by name.

    Parameters
    ----------
    settings : FinetuneSettings
        Settings with the usual values; the result has the same type.
    given : iterable of str
        Names of the settings that the user gave; their values are kept.
    facts : Facts
    shapes : iterable of LayerShape
        Shapes of the layers.
    """
    given = set(given)
    found: dict[str, Any] = {}
    if settings.unlabelled != "none" and facts.unlabelled:
        return _changed(settings, _for_unlabelled(settings, given, facts))
    if settings.optimizer not in STEPPING_OPTIMIZERS:
        if "batch_size" not in given and 0 < facts.rows < settings.batch_size:
            found["batch_size"] = facts.rows
        return _changed(settings, found)
    batch = settings.batch_size
    if "batch_size" not in given:
        shards = max(settings.shards, settings.replicas or 1)
        found["batch_size"] = batch = _batch(facts.rows, settings.batch_size, shards)
    if "epochs" not in given:
        found["epochs"] = _epochs(facts.rows, batch, settings.epochs, shapes)
    has_targets = settings.objective in ("classification", "regression")
    is_small = facts.rows < BATCH_SHARE * FinetuneSettings().batch_size
    if "epochs" not in given and has_targets and is_small and settings.optimizer == "adam":
        are_few = facts.rows < FEW_LABELS * (facts.rows + facts.unlabelled)
        usual = OF_FEW_ROWS | (OF_FEW_LABELS if are_few else {})
        found |= {name: value for name, value in usual.items() if name not in given}
    return _changed(settings, found)


def _for_unlabelled(settings: FinetuneSettings, given: set[str], facts: Facts) -> dict[str, Any]:
    """Return settings for training on rows without a label too."""
    usual: dict[str, Any] = dict(OF_UNLABELLED)
    usual["batch_size"] = min(usual["batch_size"], facts.rows + facts.unlabelled)
    if settings.optimizer != "adam":
        del usual["learning_rate"]
    found = {name: value for name, value in usual.items() if name not in given}
    batch = found.get("batch_size", settings.batch_size)
    if "epochs" not in given:
        steps = steps_with_unlabelled(batch, facts.rows, facts.unlabelled)
        found["epochs"] = math.ceil(UNLABELLED_STEPS / steps)
    return found


def in_words(facts: Facts, found: Mapping[str, Any]) -> str:
    """Return one line about settings that followed from the data."""
    units = found.get("visible_units", "")
    words, goes_with_data = [], units != "gaussian"
    for name, value in found.items():
        if name == "visible_units":
            how = "which are standardized" if units == "gaussian" else "whole numbers"
            span = f"values from {facts.low:g} to {facts.high:g}"
            words.append(f"visible units {value} ({span}, {how})")
        elif name != "learning_rate" or goes_with_data:
            words.append(WORDED[name].format(value[0] if isinstance(value, list) else value))
    return f"settings for {facts.rows:,} rows of {facts.columns:,} numbers: {', '.join(words)}"


def _batch(rows: int, usual: int, shards: int) -> int:
    """Return the minibatch size: a hundredth of the rows, at least 10, at most the usual size."""
    wanted = min(usual, max(SMALLEST_MINIBATCH, rows // BATCH_SHARE))
    return max(min(wanted, rows), shards, 1)


def _epochs(rows: int, batch: int, usual: int, shapes: Iterable[LayerShape]) -> int:
    """Return the epochs for enough updates, but with no more work than for large data."""
    steps = max(math.ceil(rows / batch), 1)
    work = max(rows, 1) * sum(shape.products for shape in shapes)
    return max(usual, min(math.ceil(ENOUGH_UPDATES / steps), ENOUGH_EPOCHS, MOST_WORK // work))


def _changed(settings: S, found: Mapping[str, Any]) -> tuple[S, dict[str, Any]]:
    """Return settings with the found ones, and the found ones that differ."""
    plain = msgspec.to_builtins(settings)
    own = {name: value for name, value in found.items() if _listed(plain[name]) != _listed(value)}
    return (replaced(settings, **own), own) if own else (settings, own)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


# The gradient of documents is a sum over their words, so the rate is divided by the mean number of
# words. The biases begin with the words' shares, which are known before training.
RATE_OF_A_WORD = 0.3
DOCUMENT_CD_STEPS = 5


def of_documents(
    settings: PretrainSettings, units: str, given: Container[str], words: float
) -> dict[str, Any]:
    """Return settings for documents by name; none if no visible units are counts.

    Parameters
    ----------
    settings : PretrainSettings
        Settings with the usual values, except for the given ones.
    units : str
        Visible units.
    given : container of str
        Names of the settings that the user gave; their values are kept.
    words : float
        Mean number of words in a document; 0 or NaN if unknown.
    """
    kind = kind_of(units)
    if not kind.counts:
        return {}
    found: dict[str, Any] = {"visible_bias": "log-odds"}
    if settings.model == "rbm" and kind.are_counts:
        found["cd_steps"] = [DOCUMENT_CD_STEPS, *settings.cd_steps[1:]]
        if 0 < words < math.inf:
            rate = float(f"{RATE_OF_A_WORD / max(words, 1):.1g}")
            found["learning_rate"] = [rate, *settings.learning_rate[1:]]
    return {name: value for name, value in found.items() if name not in given}
