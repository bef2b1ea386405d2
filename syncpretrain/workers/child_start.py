"""Start of a layer's process: its signals, its orders, and its end when its parent ends.

The process is a new interpreter that imports only what its layer needs, never the caller's script.
One socket connects it with its parent; each detects the end of the other by the closed socket.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from syncpretrain.errors import WorkerError
from syncpretrain.learners.epoch import Stopped

__all__ = ["DUMP_SIGNAL", "sendable", "serve"]

DUMP_SIGNAL = signal.SIGUSR1  # asks for the stacks of all threads on stderr
PARENT_LOOK_SECONDS = 5.0  # how often a sleeping process looks whether its parent still lives
FAILED_STATUS = 1


def serve(
    descriptor: int,
    work: Callable[[Any, Callable[[], Any], Callable[[Any], None]], None],
    failed: Callable[[BaseException], Any],
) -> None:
    """Work for the parent at the other end of a socket, until it closes that.

    Parameters
    ----------
    descriptor : int
        Number of the socket's descriptor.
    work : callable
        Given three things: the parent's first message, with its process identifier as ``parent``;
        a function that returns the next message; a function that sends the parent an answer.
    failed : callable
        Returns the answer after an error of ``work``, with which the process ends.
    """
    # A terminal's Ctrl-C reaches all processes; the parent, which gets it too, says what to do.
    # Both signals were blocked when it started this process.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    faulthandler.register(DUMP_SIGNAL)
    connection = Connection(descriptor)
    try:
        try:
            job = connection.recv()
        except EOFError:
            os._exit(0)  # the run ended before this began
        orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A thread of its own reads the socket all the time: so the end of the parent is noticed in
        # the middle of an epoch, not only between two orders.
        arguments = (connection, orders, job.parent)
        threading.Thread(target=_receive, args=arguments, daemon=True).start()
        work(job, orders.get, connection.send)
    # Not sys.exit: it would wait for threads and run handlers of a process that has failed.
    except BaseException as error:  # construction failed; the parent reports it
        with contextlib.suppress(OSError):
            connection.send(failed(error))
        os._exit(FAILED_STATUS)


def sendable(error: BaseException, layer: int, epoch: int) -> tuple[BaseException, str]:
    """Return an error that can be sent, itself if it can be made again, and its traceback."""
    trace = "" if isinstance(error, Stopped) else "".join(traceback.format_exception(error))
    # Many errors can be pickled and not made again: their constructor wants other arguments.
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except BaseException:  # whatever its own methods raise
        text = f"layer {layer} failed in epoch {epoch}: {type(error).__name__}: {error!r}"
        return WorkerError(text), trace
    return error, trace


def _receive(connection: Connection, orders: queue.SimpleQueue[Any], parent: int) -> None:
    """Take orders; end the process at once, whatever it does, when the parent has ended."""
    try:
        while True:
            # A fork of the parent may hold the socket open after its death.
            while not connection.poll(PARENT_LOOK_SECONDS):
                if os.getppid() != parent:
                    os._exit(0)
            orders.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(FAILED_STATUS)
