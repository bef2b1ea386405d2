"""Runs that tests start with time limits of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from syncpretrain import Stack
from syncpretrain.events import Observer
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import settings_from


def pretrain_within(
    times: Timeouts, X: np.ndarray, *, observers: Sequence[Observer] = (), **settings: Any
) -> Stack:
    """Pretrain as ``syncpretrain.pretrain`` does, with time limits of its own."""
    own = settings_from(**settings).pretrain
    return Pretraining(own, X, observers=observers, times=times).run()
