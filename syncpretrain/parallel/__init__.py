"""Average gradients in shared memory: data parallelism for any model with arrays as parameters.

>>> def work(handle):  # doctest: +SKIP
...     with handle as worker:  # this thread or process is that worker now
...         for batch in batches:
...             for shard in worker.shards:  # worker 0 of 2: shards 0, 1; worker 1: 2, 3
...                 dW, db = your_gradients(*worker.parameters, batch[shard::4])
...                 worker.gradients[shard][0][...], worker.gradients[shard][1][...] = dW, db
...             worker.average(lambda p, mean, where: np.subtract(p, 0.1 * mean, out=p))
>>> with GradientAverager([W, b], shards=4, workers=2) as averager:  # doctest: +SKIP
...     # start work(averager.worker(0)) and work(averager.worker(1)), each in a thread or in a
...     # Process of multiprocessing.get_context("spawn"); wait for both
...     W, b = (array.copy() for array in averager.parameters)

The same shards give the same bits with any number of workers, threads and processes alike. If a
worker fails or dies, all others raise :class:`~syncpretrain.errors.AveragingError` that says why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from syncpretrain.errors import AveragingError
from syncpretrain.kernels.averaging import tree_mean

if TYPE_CHECKING:
    from syncpretrain.parallel.averager import GradientAverager, Handle, Update, Worker

__all__ = ["AveragingError", "GradientAverager", "Handle", "Update", "Worker", "tree_mean"]


def __getattr__(name: str) -> Any:  # on first use: trainings need this package, not the averager
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("syncpretrain.parallel.averager"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
