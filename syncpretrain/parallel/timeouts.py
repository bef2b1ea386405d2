"""Time limits of the threads and processes that train together."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TIMEOUTS", "Timeouts"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the parts of a run wait for each other, in seconds.

    Parameters
    ----------
    stall : float
        Without a minibatch anywhere, before the run fails; and for the other workers in one phase
        of a step, before the step fails.
    tick : float
        Between two looks of the driver at the progress and at a request to stop.
    drain : float
        For the running epochs after a request to stop, which is seen after one minibatch.
    failed_drain : float
        The same after a failure, which is reported at once: no checkpoint is written then.
    iterable : float
        For an iterable to give the next array after a request to stop or a failure.
    join : float
        For the end of threads and processes.
    sleep : float
        Of a layer's thread, before it looks whether its caller still lives.
    spin : float
        Of a pool's worker, without a nap. The parts of a phase are about equal: a nap would cost
        more than it saves.
    stagger : float
        Of one worker after another: what the interpreter does before a product.
    linger : float
        For the next step, before a worker sleeps.
    look : float
        Of one uninterrupted wait, after which signals are taken; a longer one means that the
        process was suspended, and counts only this much.
    """

    stall: float = 600.0
    tick: float = 0.1
    drain: float = 10.0
    failed_drain: float = 0.3
    iterable: float = 1.0
    join: float = 10.0
    sleep: float = 60.0
    spin: float = 2e-3
    stagger: float = 10e-6
    linger: float = 0.02
    look: float = 1.0


TIMEOUTS = Timeouts()
