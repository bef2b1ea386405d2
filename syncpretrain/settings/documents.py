"""Values of settings that suit documents, whose visible units are counts of words.

The words' shares are known before training starts: the biases begin with them. A gradient is a sum
over the words of a document, so that the learning rate is divided by their mean number.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.units.kinds import kind_of

__all__ = ["of_documents"]

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
