"""Data in a file that is larger than the memory, or given by an iterable."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disturbedsteps import before_steps
from trialruns import library_threads

from syncpretrain import Minibatches
from syncpretrain.errors import RunInterrupted, WorkerError
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.settings import settings_from

LAYERS = (30, 12, 5)
STREAM = {
    "layers": LAYERS,
    "handoff": "minibatch",
    "epochs": 2,
    "batch_size": 32,
    "seed": 3,
    "delay": 0,
}
ROWS = 1003


def example_rows(dtype: str, rows: int = ROWS) -> np.ndarray:
    X = np.random.default_rng(0).random((rows, LAYERS[0]))
    return {"uint8": 255 * X, "?": X < 0.4}.get(dtype, X).astype(dtype)


def mapped(folder: Path, X: np.ndarray) -> np.ndarray:
    """Return the rows in a file, as a user maps it."""
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


def passes(place: tuple[int, int], wait: Callable[[], object]) -> Callable[[int], Iterator[Any]]:
    """Return what yields the rows of each pass; ``wait`` is called at a place: pass, minibatch."""
    X = example_rows("float32", 200)

    def one_pass(number):
        for i in range(5):
            if (number, i) == place:
                wait()
            yield X[40 * i : 40 * i + 40]

    return one_pass


def wait_for_threads() -> None:
    """Wait until the library's threads have ended."""
    deadline = time.monotonic() + 60
    while library_threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Blocking:
    """Tests of an iterable that waits for something, such as a socket, when the run is to stop."""

    TIMES = Timeouts(drain=100.0, join=100.0, iterable=0.2)

    def run(self, source, *, times=TIMES, **options):
        settings = settings_from(**{**STREAM, "delay": 0.5, **options}).pretrain
        return StreamedPretraining(settings, Minibatches(source, n_examples=200), times=times)

    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    @pytest.mark.parametrize("place", [(1, 3), (2, 0), (3, 2)])
    def test_it_is_not_waited_for(self, place, runtime):
        main = threading.main_thread().ident
        blocks, leave, states = threading.Event(), threading.Event(), []

        def block():
            blocks.set()
            deadline = time.monotonic() + 60
            while not leave.wait(0.05):  # one long wait may begin right after a signal
                assert time.monotonic() < deadline

        def interrupt():
            assert blocks.wait(60)
            signal.pthread_kill(main, signal.SIGINT)

        one_pass = passes(place, block)
        run = self.run(one_pass, runtime=runtime, workers=2, epochs=4)
        run.save = lambda state, *, done, final: states.append((final, state()))
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        started = time.monotonic()
        with pytest.raises(RunInterrupted, match="epochs finished: layer 1: "):
            run.run()
        assert time.monotonic() - started < 30
        leave.set()
        interrupting.join(60)
        wait_for_threads()
        final, state = states[-1]
        assert final, "nothing changes while an array is waited for"
        whole = self.run(one_pass, epochs=4).run().parameters_sha256
        again = self.run(one_pass, epochs=4)
        again.resume = state
        assert again.run().parameters_sha256 == whole

    def test_one_that_is_slow_is_waited_for_a_moment(self):
        def interrupt():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)

        times = replace(self.TIMES, iterable=60.0)
        run = self.run(passes((2, 2), interrupt), workers=2, times=times)
        with pytest.raises(RunInterrupted):
            run.run()
        assert not library_threads()

    def test_a_failure_elsewhere_does_not_wait_for_it(self, monkeypatch):
        blocks, leave = threading.Event(), threading.Event()

        def block():
            blocks.set()
            assert leave.wait(60)

        def before(learner, epoch, step):
            if learner.layer == 2:
                assert blocks.wait(60)
                raise ZeroDivisionError("staged")

        before_steps(monkeypatch, before)
        started = time.monotonic()
        try:
            with pytest.raises(WorkerError, match="layer 2 failed in epoch 1: ZeroDivisionError"):
                self.run(passes((2, 0), block), workers=2, delay=0).run()
            assert time.monotonic() - started < 30
        finally:
            leave.set()
        wait_for_threads()
