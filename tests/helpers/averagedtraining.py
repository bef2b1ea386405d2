"""Training with averaged gradients, in threads."""

from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from syncpretrain.parallel import GradientAverager

SHAPES = [(7, 5), (3,), (), (2, 3, 11), (0, 4)]  # 7 * 5 + 3 + 1 + 66 = 105 numbers
SECONDS = 20  # for what takes milliseconds


def beginning(shapes=SHAPES):
    rng = np.random.default_rng(1)
    return [np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes]


def gradient(step: int, shard: int, i: int, parameter: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng([step, shard, i])
    return (parameter - rng.standard_normal(parameter.shape)).astype(np.float32)


def momentum(worker):
    """Return an update with memory of its own slice."""
    velocity = np.zeros(worker.slice.stop - worker.slice.start, np.float32)

    def update(parameters, mean, where):
        assert where == worker.slice
        assert len(parameters) == len(mean) == len(velocity)
        np.multiply(velocity, np.float32(0.9), out=velocity)
        velocity[...] -= np.float32(0.1) * mean
        parameters += velocity

    return update


def train(handle, steps=5, weights=None):
    with handle as worker:
        update = momentum(worker)
        for step in range(steps):
            for shard in worker.shards:
                for i, own in enumerate(worker.gradients[shard]):
                    own[...] = gradient(step, shard, i, worker.parameters[i])
            own_weights = weights and [weights[shard] for shard in worker.shards]
            worker.average(update, weights=own_weights)


def together(averager, workers, work):
    """Run ``work(handle)`` in a thread a worker; return what each returned or raised."""
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, averager.worker(rank)) for rank in range(workers)]
        assert not wait(futures, SECONDS).not_done
        return [future.exception() or future.result() for future in futures]


def trained(workers, *, shards=4, arrays=None, weights=None):
    arrays = beginning() if arrays is None else arrays
    with GradientAverager(arrays, shards=shards, workers=workers, timeout=SECONDS) as averager:
        outcomes = together(averager, workers, lambda handle: train(handle, weights=weights))
        assert outcomes == [None] * workers
        return [array.copy() for array in averager.parameters]


def assert_equal_bits(have, want):
    for a, b in zip(have, want, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
