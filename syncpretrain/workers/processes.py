"""Workers in processes of this machine, and the runtime of whole epochs on them.

Guarantees:

* A sleeping process waits for its socket and uses no CPU.
* A process that dies is replaced, if the run has restarts left, and the new process goes on from
  the newest state that the dead one kept. The result has the same bits as without the death. A
  death leaves no lock behind: there is none.
* Shared arrays are in memory without a name; orders and answers are sent through sockets.
* The end of the run ends every process, within a deadline. The death of the parent ends all too.

A process is started afresh, not forked: after a fork, BLAS may wait for threads that only the
parent has. It does not run the caller's script again, so that a script needs no
``if __name__ == "__main__"``. One socket connects the process with the parent; the closed socket
tells one of the two that the other has ended.

A layer's state is kept in the middle of an epoch, and at the end of the epoch together with the
answer, before the answer is sent. After a kill, the new process therefore either goes on in the
epoch that the driver asks for, or has the answer already.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np

from syncpretrain.errors import WorkerError
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.learners.epoch import Cursor
from syncpretrain.parallel.blas import blas_environment, blas_limit
from syncpretrain.parallel.descriptors import above_standard, standard_stream
from syncpretrain.parallel.signals import STOPPING
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.activations import ActivationSource, Split
from syncpretrain.workers.epochs import Finished, LinkedEpochs, Message
from syncpretrain.workers.link import Context, Job, Obey, Place, serve
from syncpretrain.workers.restarts import Keeping, KeptStates, Replacement, Restarts
from syncpretrain.workers.shared_memory import SharedArrays, SharedSplits
from syncpretrain.workers.state import LayerState
from syncpretrain.workers.versions import MAX_BUFFERS
from syncpretrain.workers.worker import EpochsRun, LayerWorker, WorkerFactory

Shared = SharedArrays | SharedSplits
SharedT = TypeVar("SharedT", bound=Shared)
DUMP_SIGNAL = signal.SIGUSR1  # asks for the stacks of all threads on stderr
PARENT_LOOK_SECONDS = 5.0  # between two checks of a sleeping process that its parent lives
FAILED_STATUS = 1
DUMP_SECONDS = 0.3
TRANSFER_SECONDS = 30  # without a byte, in the middle of a message
# The parent's path finds the same modules; with -c alone Python looks in the current folder first.
START = (
    "import sys; sys.path[:] = sys.argv[3:]; from syncpretrain.workers.processes import"
    " main; main(int(sys.argv[2]))"
)


class ProcessLink:
    """Link to a worker in a process of this machine, which it starts.

    Parameters
    ----------
    number : int
        Number of the worker.
    descriptors : iterable of int
        File descriptors that the process inherits under the same numbers.
    blas_threads : int
    times : Timeouts
        Only ``join`` is used: a killed process ends at once, unless the system is stuck.

    Attributes
    ----------
    channel : Connection or None
        Connection with the process; None once the end of the process is known.
    """

    offset = 0.0

    def __init__(
        self, number: int, descriptors: Iterable[int], blas_threads: int, times: Timeouts
    ) -> None:
        self._times = times
        ours, theirs = (
            socket.socket(fileno=above_standard(end.detach())) for end in socket.socketpair()
        )
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            # Time limits of the kernel, not of Python: with the latter the socket would not block,
            # and a message could be cut in the middle.
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TRANSFER_SECONDS, 0))
            path = [entry for entry in sys.path if isinstance(entry, str)]
            # Nobody reads the name: it is for lists of processes, as ps prints them.
            name, descriptor = f"syncpretrain-layer-{number}", str(theirs.fileno())
            # Blocked: no signal may end a process that has not yet set itself to ignore them.
            found = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
            try:
                self._process = subprocess.Popen(
                    [spawn.get_executable(), "-c", START, name, descriptor, *path],
                    stdin=subprocess.DEVNULL,
                    stdout=standard_stream(1),
                    stderr=standard_stream(2),
                    env={**os.environ, **blas_environment(blas_threads)},
                    pass_fds=(theirs.fileno(), *descriptors),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, found)
            undo.pop_all()
        self.channel: Connection | None = Connection(ours.detach())

    @property
    def has_ended(self) -> bool:
        """True if the process has ended; a fork may still hold its end of the socket."""
        return self._process.poll() is not None

    def send(self, thing: Any) -> None:
        """Send an object; if the process has died or is stuck, :meth:`receive` returns None."""
        if self.channel is None:
            return
        with contextlib.suppress(OSError):  # the process has died
            try:
                self.channel.send(thing)
            except BlockingIOError:  # the process reads nothing any more
                self._process.kill()

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the end of the process; return True if one of the two came."""
        return self.channel is None or self.channel.poll(seconds) or self.has_ended

    def receive(self) -> Any:
        """Return the next answer of the process, or None if no answer can come any more."""
        # A fork of this process may hold the other end of the socket open after the worker's death.
        if self.channel is None or (self.has_ended and not self.channel.poll()):
            return None
        try:
            return self.channel.recv()
        except BlockingIOError:  # stuck in the middle of a message
            self._process.kill()
            return None
        except (EOFError, OSError):
            return None

    def ending(self) -> str:
        """Close the channel, and return how the process ended."""
        self.close()
        try:
            status = self._process.wait(self._times.join)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return f"its process {self._process.pid} {_described(status)}"

    def dump_stacks(self) -> None:
        """Ask for the stacks of all threads of the process on stderr."""
        self._process.send_signal(DUMP_SIGNAL)

    def close(self) -> None:
        """Close the channel."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def kill(self) -> None:
        """End the process at once: it has nothing to clean up."""
        self._process.kill()

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the process; return the process identifier if it still lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        return self._process.pid if self._process.returncode is None else None


def _described(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"


class Processes(Place):
    """Processes of this machine as a place; see :class:`syncpretrain.workers.link.Place`.

    Every process inherits the descriptors of all memory that is shared when it starts.

    Parameters
    ----------
    times : Timeouts
    blas_threads : int
        BLAS threads of each process.
    restarts : Restarts, optional
        For processes that die.
    """

    def __init__(
        self, times: Timeouts, *, blas_threads: int = 1, restarts: Restarts | None = None
    ) -> None:
        self._times, self._blas_threads = times, blas_threads
        self._replacement = Replacement(restarts or Restarts())
        self._shared: list[Shared] = []
        self._jobs: Sequence[Any] = ()
        self._memory: SharedArrays | None = None
        self._stopping = self.progress = self.workers = np.zeros(1)
        self._lock = threading.Lock()  # guards the fields below: several threads replace processes
        self._links: dict[int, ProcessLink] = {}
        self._is_ending = False

    def share(self, memory: SharedT) -> SharedT:
        """Return the given shared memory; :meth:`end` closes it."""
        self._shared.append(memory)
        return memory

    def start(self, jobs: Sequence[Any]) -> list[ProcessLink]:
        """Start a process for each job."""
        self._jobs, self._is_ending = jobs, False
        # The last two are indexed by the numbers of workers, from 1.
        sizes = 1, len(jobs) + 1, len(jobs) + 1
        self._memory = self.share(SharedArrays.create(*(("<f8", (size,)) for size in sizes)))
        self._stopping, self.progress, self.workers = self._memory.map(write=True)
        self.workers[1:] = 1
        self._replacement.open(len(jobs))
        numbers = range(1, len(jobs) + 1)
        with self._lock:
            # All start before the first job is sent, so that the interpreters import at the same
            # time.
            for number in numbers:
                self._start(number)
            for number in numbers:
                self._send_job(number)
        return [self._links[number] for number in numbers]

    def replace(self, number: int, death: WorkerError) -> ProcessLink | None:
        """Start a process in place of a dead one; return None without a restart left.

        Any thread may call it.
        """
        with self._lock:
            if self._is_ending or not self._replacement.takes(number, death):
                return None
            with contextlib.suppress(OSError):  # there is no room for another process
                self._start(number)
                self._send_job(number)
                return self._links[number]
            return None

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        self._stopping[0] = 1.0

    def dump_stacks(self) -> None:
        """Write the stacks of all threads of every process on stderr."""
        for link in self._links.values():
            link.dump_stacks()
            time.sleep(DUMP_SECONDS)  # one after another: all write on the same stderr

    def kill(self) -> None:
        """End every process at once; replace no process from now on."""
        with self._lock:
            self._is_ending = True
            for link in self._links.values():
                link.kill()

    def end(self) -> list[str]:
        """End every process and release the memory; return the processes that still live."""
        for link in self._links.values():
            link.close()
        self.kill()
        deadline = time.monotonic() + self._times.join
        alive = [link.wait(deadline - time.monotonic()) for link in self._links.values()]
        # Copies, since the mappings go with the memory: the driver still reads the progress.
        self._stopping, self.progress = self._stopping.copy(), self.progress.copy()
        self.workers = self.workers.copy()
        for memory in self._shared:
            memory.close()
        self._shared.clear()
        self._replacement.close()
        return [f"process {pid}" for pid in alive if pid is not None]

    def _start(self, number: int) -> None:
        """Start a process; it waits for its job."""
        kept = self._replacement.kept(number)
        shared = [*(x.descriptor for x in self._shared), *(kept.descriptors if kept else ())]
        self._links[number] = ProcessLink(number, shared, self._blas_threads, self._times)

    def _send_job(self, number: int) -> None:
        assert self._memory is not None
        kept, job = self._replacement.kept(number), self._jobs[number - 1]
        own = (self._memory, kept, self._blas_threads, self._times, os.getpid())
        self._links[number].send(Start(number, job, *own))


@dataclass(frozen=True, slots=True)
class Start:
    """First message to a process: number and job of the worker, and what all processes share.

    ``numbers`` holds a flag, 1 once the workers are to stop, the progress of each worker, and the
    number of threads of each worker. ``parent`` is a process identifier.
    """

    number: int
    job: Job
    numbers: SharedArrays
    kept: KeptStates | None
    blas_threads: int
    times: Timeouts
    parent: int

    def context(self) -> Context:
        """Return the environment of the worker."""
        stopping, *others = self.numbers.map(write=True)
        progress, workers = (array[self.number : self.number + 1] for array in others)
        own = self.number, progress, workers
        return Context(*own, lambda: bool(stopping[0]), self.times, self.kept)


def main(descriptor: int) -> None:
    """Work for the parent at the other end of a socket, until the parent closes the socket."""
    # A terminal's Ctrl-C reaches all processes; the parent gets it too, and decides what to do. The
    # parent blocked these signals when it started this process.
    for signum in STOPPING:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    # A handler of Python's would wait for the main thread, which may be the stalled one.
    faulthandler.register(DUMP_SIGNAL)
    parent, orders = Connection(descriptor), queue.SimpleQueue[Any]()
    with contextlib.suppress(OSError):  # the parent has closed the socket
        serve(partial(_opened, parent, orders), orders.get, parent.send)
    # Not sys.exit: it would wait for threads and run handlers of a process that has failed.
    os._exit(FAILED_STATUS)


@contextmanager
def _opened(parent: Connection, orders: queue.SimpleQueue[Any]) -> Iterator[Obey]:
    """Build the worker that the parent's first message describes, and receive its orders."""
    start: Start = parent.recv()
    # A separate thread reads the socket all the time, and so notices the end of the parent in the
    # middle of an epoch too, not only between two orders.
    threading.Thread(target=_receive, args=(parent, orders, start.parent), daemon=True).start()
    with blas_limit(start.blas_threads), start.job.open(start.context()) as obey:
        yield obey


def _receive(connection: Connection, orders: queue.SimpleQueue[Any], parent: int) -> None:
    """Receive orders; end this process at once when the parent has ended."""
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


class ProcessesRuntime(LinkedEpochs):
    """One process per layer; the data and the activations are in shared memory.

    Parameters
    ----------
    run : EpochsRun
        Its worker factories can be sent to another process. While this runtime runs, the arrays of
        its versions are in the runtime's shared memory.
    """

    def __init__(self, run: EpochsRun) -> None:
        self._processes = Processes(run.times, blas_threads=run.blas_threads, restarts=run.restarts)
        super().__init__(self._processes, run.times, run.restarts)
        self._worker_factories, self._versions = run.worker_factories, run.versions
        self._splits: list[SharedSplits] = []

    def _jobs(self) -> list[EpochJob]:
        """Copy the data and allocate the activations in shared memory; return the jobs."""
        versions, share = self._versions, self._processes.share
        rows = len(versions.data.train), len(versions.data.validation)
        self._splits.append(share(SharedSplits.of(versions.data)))
        for units in versions.hidden[:-1]:  # no layer reads those of the top layer
            self._splits.append(share(SharedSplits.create(rows, units, MAX_BUFFERS)))
        versions.allocate = lambda i, number: self._splits[i].map(write=True)[number]
        # A layer reads its input, and the input of the layer below, from which its own is computed.
        return [
            EpochJob(factory, {i: self._splits[i] for i in range(max(0, layer - 2), layer)})
            for layer, factory in enumerate(self._worker_factories, start=1)
        ]

    def _order(self, command: Train) -> Order:
        source = self._versions.source(command.layer - 1, command.reads, command.below_reads)
        return Order(command, source)

    def _record(self, message: Message) -> None:
        if message.computed:
            command = message.command
            self._versions.record_computed(command.layer - 1, command.reads)

    def _close(self) -> list[str]:
        self._versions.allocate = None
        return super()._close()


@dataclass(frozen=True, slots=True)
class EpochJob:
    """Job of a process that trains a layer.

    ``splits`` holds by number the data (0) and the activations of the layers below that this layer
    reads; the process writes the activations of the layer directly below.
    """

    worker_factory: WorkerFactory
    splits: dict[int, SharedSplits]

    @contextmanager
    def open(self, context: Context) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        inputs = _SharedInputs(self.splits, context.number)
        worker = self.worker_factory(inputs)
        # From now on the parent reads the progress, and sets the workers, without a message.
        worker.progress, worker.worker_count = context.progress, context.workers

        def obey(order: Order) -> Message:
            inputs.source, inputs.computed = order.source, False
            return replace(worker.execute(order.command, context.stop), computed=inputs.computed)

        yield obey if context.kept is None else KeptEpochs(worker, context.kept, obey)


@dataclass(frozen=True, slots=True)
class Order:
    """An epoch to train, and the place of its input."""

    command: Train
    source: ActivationSource


@dataclass(frozen=True, slots=True)
class _Kept:
    """State of a layer in the middle of an epoch, or at its end with the report of the epoch."""

    epoch: int
    state: LayerState
    warnings: tuple[str, ...] = ()
    report: Finished | None = None


class KeptEpochs:
    """A worker that keeps its states, and begins at the newest kept one.

    Parameters
    ----------
    worker : LayerWorker
    kept : KeptStates
    obey : callable
        Trains the epoch of an order with the worker; returns the report.
    """

    def __init__(
        self, worker: LayerWorker, kept: KeptStates, obey: Callable[[Order], Message]
    ) -> None:
        self._worker, self._obey, self._keeping = worker, obey, Keeping(kept)
        self._epoch = 0  # the running epoch
        self._before: tuple[str, ...] = ()  # warnings of the running epoch from earlier processes
        found: _Kept | None = kept.newest()
        if found is None:  # the start is kept too, so that a kill in epoch 1 is no failure
            found = _Kept(0, worker.state())
            self._keeping.keep(found)
        else:
            worker.load_state(found.state)
        self._found: _Kept | None = found
        worker.keep = self.keep

    def __call__(self, order: Order) -> Message:
        """Train the epoch of an order, or the rest of the epoch; return its report."""
        found, self._found = self._found, None
        self._epoch, self._before = order.command.epoch, ()
        if found is not None and found.epoch == self._epoch:
            # The earlier process was killed after it kept the report and before it sent it.
            if found.report is not None:
                return found.report
            # The earlier process was killed in the epoch: the input is computed already.
            order = replace(order, source=replace(order.source, snapshot=None))
            self._before = found.warnings
        message = self._obey(order)
        message = replace(message, warnings=(*self._before, *message.warnings))
        if isinstance(message, Finished):
            state = message.state or self._worker.layer.state(Cursor())
            # Before the report is sent: the parent must never know more than the kept state has.
            self._keeping.keep(_Kept(self._epoch, state, report=message))
        return message

    def keep(self, minibatches: int, error: float) -> None:
        """Keep the state in the middle of the running epoch, if a state is due."""
        if self._keeping.is_due:
            layer = self._worker.layer
            state, own = layer.state(Cursor(minibatches, float(error))), layer.warnings
            self._keeping.keep(_Kept(self._epoch, state, (*self._before, *own)))


class _SharedInputs:
    """Inputs of a worker, at the place that the order names."""

    def __init__(self, shared: Mapping[int, SharedSplits], layer: int) -> None:
        self._splits = {
            # Writable only where this process fills the arrays: a stray write elsewhere is then an
            # error.
            number: splits.map(write=0 < number == layer - 1)
            for number, splits in shared.items()
        }
        self.source = ActivationSource(0)
        self.computed = False

    def activations(
        self, layer: int, version: int, below: int, stop: Callable[[], bool], run: PhaseRunner
    ) -> Split | None:
        """Return the activations that the order describes, or None if ``stop`` turned true."""
        found = self.source.activations(lambda number, i: self._splits[number][i], stop, run)
        self.computed = found is not None
        return found
