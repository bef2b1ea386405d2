"""Waits for counters in memory that other threads or processes share.

Guarantees:

* A counter is a whole number of 64 bits in one place: it is never seen half written.
* Whoever sees a value that :func:`store_counter` put there also sees all that its thread wrote
  before it (release and acquire). So a counter hands over arrays without a lock.
* A wait ends at its target, when it is broken, or at its deadline, and takes signals meanwhile.

Assumption: a counter that is waited for only grows, so that a wait for *at least* a value cannot
miss that value.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.native import extension

Cells = NDArray[np.int64]
READY, LATE = 0, 2  # results of a wait; 1 is broken
FEW = 100  # looks that only yield, before the first nap
NAP = 50e-6  # Linux prolongs shorter ones to about this (the timer slack of a thread)


def wait_for_counters(
    counters: Cells,
    first: int,
    count: int,
    target: int,
    broken: int,
    spin_seconds: float,
    timeout_seconds: float,
    stagger_seconds: float = 0.0,
    *,
    arrives: int | None = None,
) -> int:
    """Wait, without the interpreter's lock, until some counters have all reached a target.

    It spins, then yields to others, then sleeps. A thread that sees a value that
    :func:`store_counter` put into a counter also sees all that was written before it. Where the
    extension is missing, this looks and sleeps in turn.

    Parameters
    ----------
    counters : ndarray of int64, of shape (n,)
        May lie in memory shared by processes.
    first, count, target : int
        Until ``counters[first : first + count]`` are all at least ``target``.
    broken : int
        Or until ``counters[broken]`` is not 0.
    spin_seconds, timeout_seconds : float
        Time to spin, and to wait in all.
    stagger_seconds : float
        Time to spin once the target is reached, so that threads that waited together do not
        all want the interpreter's lock at once: to be woken for it takes some 40 us. Only the
        extension does so.
    arrives : int, optional
        Store the target in this counter first, as :func:`store_counter` does.

    Returns
    -------
    int
        0 if the target was reached, 1 if the wait was broken, 2 if the time was over.

    Raises
    ------
    IndexError, ValueError
        If there are no such counters, or they are not int64 side by side; then nothing was stored.
    KeyboardInterrupt
        Or what else a signal's handler raises.
    """
    if extension is not None:
        waits = first, count, target, broken, spin_seconds, timeout_seconds, stagger_seconds
        if arrives is None:
            return int(extension.wait_for_counters(counters, *waits))
        return int(extension.arrive_and_wait(counters, arrives, *waits))
    # Checked before anything is stored: an arrival that raises must not count for the others.
    _check_counters(counters, first, count)
    _check_counters(counters, broken, 1)
    if arrives is not None:
        store_counter(counters, arrives, target)
    awaited, deadline = counters[first : first + count], time.monotonic() + timeout_seconds
    looks = 0
    while True:
        # Broken first: after a failure a target may still be reached, and must not count.
        if counters[broken]:
            return 1
        if (awaited >= target).all():
            return 0
        if time.monotonic() >= deadline:
            return 2
        looks += 1
        time.sleep(0 if looks < FEW else NAP)


def store_counter(counters: Cells, index: int, value: int) -> None:
    """Store a value in a counter, after all that this thread has written so far.

    Without the extension, the processor keeps that order: x86-64 does, and every processor between
    the threads of one interpreter.

    Raises
    ------
    IndexError, ValueError
        As :func:`wait_for_counters`.
    """
    if extension is not None:
        extension.store_counter(counters, index, value)
        return
    _check_counters(counters, index, 1)
    counters[index] = value


def _check_counters(counters: Cells, first: int, count: int) -> None:
    if counters.dtype != np.int64 or counters.ndim != 1 or not counters.flags.c_contiguous:
        raise ValueError(
            f"got counters of {counters.ndim} dimensions and type {counters.dtype}; expected one of"
            " int64: take np.zeros(n, dtype=np.int64), or a view like it of shared memory"
        )
    if first < 0 or count < 0 or first + count > len(counters):
        raise IndexError(
            f"got counters {first} to {first + count - 1}; there are {len(counters)}, counted"
            " from 0"
        )
