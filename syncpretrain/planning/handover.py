"""The time of handing over a minibatch in a streamed run, which counts where steps are tiny."""

from __future__ import annotations

from statistics import median

import numpy as np

from syncpretrain.events import Event, RunFinished
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.planning.probes import Steps
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.streamed.driver import StreamedPretraining
from syncpretrain.settings import settings_from

__all__ = ["handover_seconds"]

WIDTHS = (8, 8, 8)  # so little work that what is around it shows
MINIBATCHES = 400
TIMES = 3


def handover_seconds() -> float:
    """Return the seconds of a minibatch of one layer in a stream, beside its step.

    Most of them are spent in Python, whose interpreter runs one thread at a time.
    """
    settings = settings_from(
        WIDTHS, handoff="minibatch", delay=0.0, epochs=1, batch_size=1, workers=1, backend="numpy"
    ).pretrain
    X = np.random.default_rng(0).random((MINIBATCHES, WIDTHS[0]), dtype=np.float32)
    streamed: list[float] = []

    def record(event: Event) -> None:
        if isinstance(event, RunFinished):
            streamed.append(event.seconds)

    steps = [Steps(learner, X).work() for learner in build_learners(settings)]
    bare = []
    for _ in range(TIMES):
        StreamedPretraining(settings, X, observers=[record]).run()
        with blas_limit(1):
            bare.append(sum(work(MINIBATCHES) for work in steps))
    return max(0.0, median(streamed) - median(bare)) / (MINIBATCHES * len(steps))
