"""Workers that fail on purpose; the layers' processes import this module to be failed."""

import ctypes
import os
import sys
import threading
import time

from killings import original_streamed_layer, original_worker

PLACE = (2, 3)  # epoch and step


class Unpicklable(Exception):  # noqa: N818
    def __reduce__(self):
        raise TypeError("never")


class OneWay(Exception):  # noqa: N818
    """Can be sent, but not made again."""

    def __init__(self, one, two):
        super().__init__(one)


def fail(kind: str) -> None:
    match kind:
        case "error" | "broken":
            raise ValueError("out of luck")
        case "memory":
            raise MemoryError("out of luck")
        case "unpicklable":
            raise Unpicklable("out of luck")
        case "no way back":
            raise OneWay("out of luck", 2)
        case "exit":
            sys.exit(3)
        case "status 0" | "status 7":
            os._exit(int(kind[-1]))
        case "segfault":
            os.close(2)  # or faulthandler would tell of it
            ctypes.string_at(0)
        case "stuck":
            time.sleep(1000)


def sabotaged(training, kind: str):
    """Return the step of a failing layer."""
    train_step = training.train_step

    def step(X, rows, *, epoch, step, **how):
        if (epoch, step) == PLACE:
            if kind == "broken":
                training.learner.weight.fill(float("nan"))
            fail(kind)
        return train_step(X, rows, epoch=epoch, step=step, **how)

    training.train_step = step
    return training


def build_worker(kind, failing, settings, layer, *rest):
    if kind == "worker_factory" and layer == failing:
        raise MemoryError("out of luck")
    worker = original_worker(settings, layer, *rest)
    if kind == "alone":
        worker._pool._wake = lambda rank: None
    if layer == failing:
        sabotaged(worker.layer.step, kind)
    return worker


def build_streamed_layer(kind, failing, settings, place, *rest, **how):
    if kind == "worker_factory" and place.layer == failing:
        raise MemoryError("out of luck")
    layer = original_streamed_layer(settings, place, *rest, **how)
    if place.layer == failing:
        (tell_of_helpers if kind == "helped" else sabotaged)(layer.layer.step, kind)
    return layer


def tell_of_helpers(training, kind: str):
    """Fail once a thread other than the main one has run a shard, with its name."""
    train_step, names = training.train_step, set()

    def note(shard: int) -> None:
        names.add(threading.current_thread().name)

    def step(X, rows, *, epoch, step, run):
        run([note], 2)
        if helpers := names - {threading.main_thread().name}:
            raise ValueError(f"helped by {', '.join(helpers)}")
        return train_step(X, rows, epoch=epoch, step=step, run=run)

    training.train_step = step
