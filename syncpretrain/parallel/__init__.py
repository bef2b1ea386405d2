"""Average gradients in shared memory: data parallelism for any model whose parameters are arrays.

>>> def work(handle):  # doctest: +SKIP
...     with handle as member:  # this thread or process is that member now
...         for batch in batches:
...             for shard in member.shards:  # member 0 of 2: shards 0, 1; member 1: 2, 3
...                 dW, db = your_gradients(*member.parameters, batch[shard::4])
...                 member.gradients[shard][0][...], member.gradients[shard][1][...] = dW, db
...             member.average(lambda p, mean, where: np.subtract(p, 0.1 * mean, out=p))
>>> with GradientAverager([W, b], shards=4, members=2) as averager:  # doctest: +SKIP
...     # start work(averager.member(0)) and work(averager.member(1)), each in a thread or in a
...     # Process of multiprocessing.get_context("spawn"); wait for both
...     W, b = (array.copy() for array in averager.parameters)

The same shards give the same bits with any number of members, threads and processes alike. If a
member fails or dies, all others raise :class:`~syncpretrain.errors.AveragingError` that says why.
"""

from __future__ import annotations

from syncpretrain.errors import AveragingError
from syncpretrain.kernels.averaging import tree_mean
from syncpretrain.parallel.averager import GradientAverager, Handle, Member, Update

__all__ = ["AveragingError", "GradientAverager", "Handle", "Member", "Update", "tree_mean"]
