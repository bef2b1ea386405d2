"""Values of settings that follow from the data, where the user gave none.

What trains a network is the number of its updates. Ten epochs are 5,000 updates with the 50,000
digits of MNIST in minibatches of 100, and 40 with a table of 400 rows, which train nothing. So
small data takes smaller minibatches and more epochs, until it has as many updates; data as large
as MNIST keeps the usual values. Everything is a function of a few numbers: no arrays here.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from syncpretrain.settings.defaults import PER_LAYER, usual_rates
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.settings.replacing import replaced
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.settings.visible_units import why_not_in_blocks
from syncpretrain.shapes import LayerShape
from syncpretrain.units.kinds import kind_of

__all__ = ["Facts", "Given", "finetune_by_data", "in_words", "pretrain_by_data"]

FinetuneT = TypeVar("FinetuneT", bound=FinetuneSettings)
BATCH_SHARE = 100  # minibatches of an epoch, at least, as long as they are not too small
SMALLEST_MINIBATCH = 10  # the gradient of fewer examples is mostly noise
ENOUGH_UPDATES = 5000  # as ten epochs of MNIST are
ENOUGH_EPOCHS = 500  # whatever is in so few rows is learned by then
MOST_WORK = 10**12  # rows times weights, of all epochs: those of MNIST in 784-1000-500-250-30
# Sigmoids take thousands of updates at the usual rate. A higher one has to fall in the end, and few
# rows are learned by heart without a decay.
OF_FEW_ROWS = {"learning_rate": 0.003, "rate_schedule": "cosine", "weight_decay": 0.1}
# A few labels are fitted by any few of the units, so no unit may be relied on: half of the hidden
# units and a fifth of the inputs are left out (Hinton et al. 2012).
OF_FEW_LABELS = {"dropout": 0.5, "input_dropout": 0.2}
FEW_LABELS = 0.2  # of the rows
# Columns whose deviations are a fifth of those of zeros and ones hardly move a binary unit.
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
STEPPING_OPTIMIZERS = ("adam", "sgd")  # the others search along lines, on large minibatches


class Given(NamedTuple):
    """Names of the settings that the user gave, which stay as they are, by section."""

    pretrain: frozenset[str] = frozenset()
    finetune: frozenset[str] = frozenset()

    @property
    def leaves_units(self) -> bool:
        """Whether the visible units may follow from the values."""
        return "visible_units" not in self.pretrain


class Facts(NamedTuple):
    """Numbers about the data that settings follow from.

    Attributes
    ----------
    rows, columns : int
        To train on; for fine-tuning only the rows that have a target.
    low, high : float
        The smallest and the largest value; of bytes as they are trained on.
    unlabelled : int
        Rows beside these that have no target.
    are_counts : bool
        Whether the values are how often words occur.
    row_sum : float
        The mean sum of a row, of documents their mean length; 0 or NaN where it is not known.
    spread : float
        The variance of the values as a share of that of zeros and ones with the same means.
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
        """Whether all values can be probabilities."""
        return self.low >= 0 and self.high <= 1

    @property
    def are_probabilities(self) -> bool:
        """Whether they also vary enough to move binary units."""
        return self.is_unit_interval and self.spread >= ENOUGH_SPREAD

    @property
    def has_few_labels(self) -> bool:
        """Whether most rows have no target."""
        return self.rows < FEW_LABELS * (self.rows + self.unlabelled)


def pretrain_by_data(
    settings: PretrainSettings, given: Iterable[str], facts: Facts
) -> tuple[PretrainSettings, dict[str, Any]]:
    """Return settings with the values that follow from the data, and these values.

    Parameters
    ----------
    settings : PretrainSettings
        With the usual values where none were given.
    given : iterable of str
        Names of the settings that the user gave, which stay as they are.
    facts : Facts

    Raises
    ------
    SettingsError
        If they do not go together with the others.
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
        usual = PER_LAYER["epochs"]
        epochs = _epochs(facts.rows, batch, usual, settings.shapes)
        found["epochs"] = [epochs] * len(settings.epochs)
    found = _changes(settings, found)
    return (replaced(settings, **found), found) if found else (settings, found)


def finetune_by_data(
    settings: FinetuneT,
    given: Iterable[str],
    facts: Facts,
    shapes: Iterable[LayerShape],
) -> tuple[FinetuneT, dict[str, Any]]:
    """Return settings of fine-tuning with the values that follow from the data, and these values.

    Parameters
    ----------
    settings : FinetuneSettings
        Or settings with more fields, whose type is kept.
    given : iterable of str
        Names of the settings that the user gave, which stay as they are.
    facts : Facts
    shapes : iterable of LayerShape
        Of the layers.
    """
    given = set(given)
    found: dict[str, Any] = {}
    if settings.optimizer not in STEPPING_OPTIMIZERS:
        if "batch_size" not in given and 0 < facts.rows < settings.batch_size:
            found["batch_size"] = facts.rows
        return (replaced(settings, **found), found) if found else (settings, found)
    batch = settings.batch_size
    if "batch_size" not in given:
        shards = max(settings.shards, settings.replicas or 1)
        found["batch_size"] = batch = _batch(facts.rows, settings.batch_size, shards)
    if "epochs" not in given:
        found["epochs"] = _epochs(facts.rows, batch, settings.epochs, shapes)
    has_targets = settings.objective in ("classification", "regression")
    is_small = facts.rows < BATCH_SHARE * FinetuneSettings().batch_size
    if "epochs" not in given and has_targets and is_small and settings.optimizer == "adam":
        usual = OF_FEW_ROWS | (OF_FEW_LABELS if facts.has_few_labels else {})
        found |= {name: value for name, value in usual.items() if name not in given}
    found = _changes(settings, found)
    return (replaced(settings, **found), found) if found else (settings, found)


def in_words(facts: Facts, found: Mapping[str, Any]) -> str:
    """Return one line about settings that followed from the data."""
    units = found.get("visible_units", "")
    words, goes_with_data = [], units != "gaussian"
    for name, value in found.items():
        if name == "visible_units":
            how = "which are standardized" if units == "gaussian" else "whole numbers"
            words.append(
                f"visible units {value} (values from {facts.low:g} to {facts.high:g}, {how})"
            )
        elif name != "learning_rate" or goes_with_data:
            number = value[0] if isinstance(value, list) else value
            words.append(WORDED[name].format(number))
    return f"settings for {facts.rows:,} rows of {facts.columns:,} numbers: {', '.join(words)}"


def _batch(rows: int, usual: int, shards: int) -> int:
    """Return the minibatch size: a hundredth of the rows, of at least 10, and the usual at most."""
    wanted = min(usual, max(SMALLEST_MINIBATCH, rows // BATCH_SHARE))
    return max(min(wanted, rows), shards, 1)


def _epochs(rows: int, batch: int, usual: int, shapes: Iterable[LayerShape]) -> int:
    """Return the epochs that make enough updates, but no more work than large data is."""
    steps = max(math.ceil(rows / batch), 1)
    work = max(rows, 1) * sum(shape.products for shape in shapes)
    return max(usual, min(math.ceil(ENOUGH_UPDATES / steps), ENOUGH_EPOCHS, MOST_WORK // work))


def _changes(settings: msgspec.Struct, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that are others than the settings have."""
    plain = msgspec.to_builtins(settings)
    return {name: value for name, value in found.items() if _listed(plain[name]) != _listed(value)}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


# A gradient of documents is a sum over their words, so that the rate is divided by the mean number
# of words. The biases begin with the words' shares, which are known before training.
RATE_OF_A_WORD = 0.3
DOCUMENT_CD_STEPS = 5


def of_documents(
    settings: PretrainSettings, units: str, given: Container[str], words: float
) -> dict[str, Any]:
    """Return settings of documents by name; none where no visible units are counts.

    Parameters
    ----------
    settings : PretrainSettings
        With the usual values where none were given.
    units : str
        The visible units.
    given : container of str
        Names of the settings that the user gave, which stay as they are.
    words : float
        The mean number of words of a document; 0 or NaN where it is not known.
    """
    blocks = kind_of(units).blocks
    if blocks is None or not blocks.counts:
        return {}
    found: dict[str, Any] = {"visible_bias": "log-odds"}
    if settings.model == "rbm" and not blocks.has_bias:
        found["cd_steps"] = [DOCUMENT_CD_STEPS, *settings.cd_steps[1:]]
        if 0 < words < math.inf:
            rate = float(f"{RATE_OF_A_WORD / max(words, 1):.1g}")
            found["learning_rate"] = [rate, *settings.learning_rate[1:]]
    return {name: value for name, value in found.items() if name not in given}
