"""Membership of this process in a job: how it joins, and how it leaves with whatever happens.

Launchers such as Hydra of MPICH kill every other rank with SIGKILL as soon as one dies. So each
host of the job has a *witness*: a process in a session of its own, which lives on and can say which
rank was first. The witness of rank 0 prints what all see, and ends with rank 0; the others report
to it over the network. Where the system has no descriptors of processes there is no witness, and
the launcher's words have to do.

Guarantees:

* A process joins its job once, on first use, and leaves it when it ends, before MPI is finalized.
* An error of one rank that the others do not know ends them too: no rank waits for a dead one.
* An error that every rank knows is printed by rank 0 alone.
* A rank that says goodbye is never reported by a witness.

Assumptions: every rank makes the same call, ``pretrain()`` or ``finetune()``; a rank that does not
come within the time for a stall ends the job. A rank connects to its witness before it can fail in
a way that is worth a report.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import spawn
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from syncpretrain.cluster import witness as witness_program
from syncpretrain.cluster.launched import START_HINT, launched
from syncpretrain.cluster.mpi import MPIEngine
from syncpretrain.cluster.transport import Port, Transport
from syncpretrain.cluster.witness import ABORTS, LEAVES
from syncpretrain.errors import SettingsError, WorkerError
from syncpretrain.kernels.native import ORDER_VARIABLE, bfloat16_order
from syncpretrain.parallel.descriptors import closed_first, standard_stream
from syncpretrain.parallel.timeouts import TIMEOUTS

START_SECONDS = 5.0  # for the witness to start
LAST_LOOK_SECONDS = 1.0  # for its last look before the job is aborted
# Open as long as this process lives: a witness learns of its end when the system closes them.
_seen: list[socket.socket] = []


def be_seen(address: str) -> None:
    """Connect to the witness, so that it learns of this process's end before the launcher does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        own = socket.socket(socket.AF_UNIX)
        try:
            own.connect(address)
        except OSError:  # it has not started yet
            own.close()
            time.sleep(0.01)
        else:
            # Linux closes high numbers first: this socket before the pipes to the launcher.
            _seen.append(socket.socket(fileno=closed_first(own.detach())))
            return


def notify_witness(word: bytes) -> None:
    """Tell the witness that this process is about to end, or to end the job: it is not reported.

    Before it ends the job, wait until the witness has looked for the last time.
    """
    for own in _seen:
        with suppress(OSError):  # the witness has ended, or is stopped
            own.send(word)
            # The abort kills the ranks, and a rank that died before is its cause: that is reported
            # only if the witness looks before the others are killed as well.
            if word == ABORTS:
                own.settimeout(LAST_LOOK_SECONDS)
                own.recv(1)


def new_address() -> str:
    """Return the name of a socket, which is no file, for the processes of a host."""
    return f"\0syncpretrain-{secrets.token_hex(8)}"


class Door(NamedTuple):
    """Host and port of the first witness, and the secret word that lets other witnesses in."""

    host: str
    port: int
    word: str


class Witness:
    """The witness of the ranks on one host; none where the system has no pidfd.

    Parameters
    ----------
    address : str
        Address of the socket to which each rank connects.
    several : bool
        True if there are other hosts; their witnesses report to this one.
    first : Door, optional
        The door of the witness that this one reports to.

    Attributes
    ----------
    address : str or None
        None without a witness.
    door : Door or None
        The door for the witnesses of other hosts.
    """

    def __init__(self, address: str, *, several: bool = False, first: Door | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.address: str | None = None
        self.door: Door | None = None
        if not _has_pidfd():
            return
        self.address = address
        # Isolated and without site: it starts in a moment, and no package of the user can break it.
        program = str(Path(witness_program.__file__))
        command = [spawn.get_executable(), "-I", "-S", program, address[1:]]
        with ExitStack() as stack:
            passed = []
            if several:
                own = stack.enter_context(socket.create_server(("", 0)))
                self.door = Door(socket.gethostname(), own.getsockname()[1], secrets.token_hex(16))
                passed.append(own.fileno())
                command += ["--door", str(own.fileno()), "--word", self.door.word]
            if first is not None:
                command += ["--first", first.host, str(first.port), "--word", first.word]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=standard_stream(2),
                # Launchers signal the process group of a rank; the witness is not in it.
                start_new_session=True,
                pass_fds=passed,
            )

    def watch(self, pid: int, name: str) -> None:
        """Watch a process, or give it another name."""
        self._write(f"{pid}\t{name}\n")

    def end_with(self, words: str) -> None:
        """End the report of a death with these words; the newest count."""
        self._write(f"0\t{words.encode('unicode_escape').decode()}\n")

    def close(self) -> None:
        """Let the witness leave: from now on ranks may end."""
        self._write("over\n")
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _write(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError):  # it has reported and ended
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def _has_pidfd() -> bool:
    """Return whether the system reports the end of a process that is no child."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # another system, or an old or emulated kernel
        return False
    return True


ABORT_STATUS = 1
# For the launcher to pass on the output: it drops the rest once it is told to abort.
PASS_ON_SECONDS = 0.2
FAREWELL_SECONDS = 1.0  # for the last words of the others: MPI may warn of messages not received
MISSING_SECONDS = 10.0  # for the other ranks, before a message names the missing ones
# Ports of run 0, which is the job itself: no run drops them.
HELLO: Port = (0, "hello")
WITNESS: Port = (0, "witness")
RANK_NAMES: Port = (0, "names")


class Membership:
    """Membership of this process in a job.

    Attributes
    ----------
    transport : Transport
    runs : int
        Runs begun on the ranks so far.
    known : BaseException or None
        The error that ended the last run and that every rank knows.
    broken : bool
        True if a rank does not answer, so that no orderly end is left.
    witness : Witness or None
        The witness of the ranks on this host, if this is the first of them.
    sums : dict of int to str
        The order of sums of bfloat16 products, by rank; on rank 0 of all.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.runs = 0
        self.known: BaseException | None = None
        self.broken = False
        self.witness: Witness | None = None
        self.sums = {transport.rank: bfloat16_order()}  # by the ranks that came

    def gather(self, seconds: float) -> None:
        """Wait, on rank 0, until every rank has come.

        Raises
        ------
        WorkerError
            If one does not.
        """
        if self.transport.rank:
            self.transport.send(0, HELLO, self.sums[self.transport.rank])
            found = self.transport.take(WITNESS, seconds)
            if found is not None and found[1] is not None:
                self._join_witness(*found[1])
            return
        self._wait_for_others(seconds)
        # Rank 0 chooses every address before the other witnesses run: so each rank is told at once
        # where to be seen, and tries until the witness there has started.
        leaders = self.transport.peers.first_on_machines()
        addresses = {leader: new_address() for leader in leaders.values()}
        self.witness = Witness(addresses[0], several=len(addresses) > 1)
        if self.witness.address is None:
            addresses.clear()
        for rank in range(1, self.transport.size):
            leader = leaders[rank]
            door = self.witness.door if rank == leader else None
            place = (addresses[leader], door) if leader in addresses else None
            self.transport.send(rank, WITNESS, place)
        for rank in range(self.transport.size):
            self.describe(rank)
        if self.witness.address is not None:
            be_seen(self.witness.address)

    def _join_witness(self, address: str, first: Door | None) -> None:
        """Be seen by the witness of this host; the first rank here starts it."""
        if first is not None:
            self.witness = witness = Witness(address, first=first)
            self.transport.listen(RANK_NAMES, lambda _, named: witness.watch(*named))
        be_seen(address)

    def _wait_for_others(self, seconds: float) -> None:
        missing = set(range(1, self.transport.size))
        started, is_reported = time.monotonic(), False
        while missing:
            waited = time.monotonic() - started
            limit = seconds if is_reported else min(seconds, MISSING_SECONDS)
            found = self.transport.take(HELLO, max(0.0, limit - waited))
            name = f"rank {min(missing)}"
            if found is not None:
                missing.discard(found[0])
                self.sums[found[0]] = found[1]
            elif limit == seconds:
                raise WorkerError(f"{name} did not come within {seconds:g} s, to the same call")
            else:
                is_reported = True
                sys.stderr.write(f"waiting for {name}: every rank has to make the same call\n")

    def describe(self, rank: int, holds: str = "") -> None:
        """Give the witness of a rank's host a name for that rank, with the layers that it holds."""
        if self.witness is None:
            return
        peers = self.transport.peers
        pid = peers.beats[rank].pid
        named = pid, f"{holds}{peers.name(rank)} (process {pid})"
        leader = peers.first_on_machines()[rank]
        if leader == 0:
            self.witness.watch(*named)
        elif self.witness.door is not None:
            self.transport.send(leader, RANK_NAMES, named)

    def check_sums(self) -> None:
        """Refuse ranks that add up products of bfloat16 in different orders.

        Raises
        ------
        SettingsError
        """
        for rank, order in sorted(self.sums.items()):
            if order != self.sums[0]:
                raise SettingsError(
                    f"runtime: got mpi with precision bfloat16 on CPUs that add up in different"
                    f" orders: {self.transport.peers.name(rank)} by {order},"
                    f" {self.transport.peers.name(0)} by {self.sums[0]}; set {ORDER_VARIABLE}=pairs"
                    " for all of them, or take precision float32"
                )

    def leave(self) -> None:
        """Send the messages in the outbox; abort the job if a rank does not answer."""
        # The witness first: from here on a rank that ends is no news.
        if self.witness is not None:
            self.witness.close()
        if self.broken or not self.transport.close(FAREWELL_SECONDS):
            self.abort()
        notify_witness(LEAVES)

    def abort(self) -> None:
        """End every rank at once, when the launcher has had time to pass on the output."""
        # The output first: the launcher may kill this process before it can flush.
        sys.stdout.flush()
        sys.stderr.flush()
        notify_witness(ABORTS)
        if self.witness is not None:
            self.witness.close()
        time.sleep(PASS_ON_SECONDS)
        self.transport.abort(ABORT_STATUS)

    def watch_errors(self) -> None:
        """Abort the job at an error that nothing catches and that the other ranks do not know."""
        found = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            is_known = error is self.known
            if not is_known or self.transport.rank == 0:
                found(kind, error, traceback)
            if not is_known:
                self.abort()

        sys.excepthook = hook


_lock = threading.Lock()  # held while joining: two threads must not start MPI twice
_members: list[Membership] = []  # at most one


def joined() -> Transport:
    """Return the transport of this process, which joins its MPI job if it has not yet.

    Raises
    ------
    SettingsError
        If MPI is missing, or this is the only rank.
    """
    return member().transport


def member() -> Membership:
    """Return the membership of this process; as :func:`joined`."""
    with _lock:
        if not _members:
            engine = MPIEngine()
            if engine.size == 1:
                raise SettingsError(f"runtime: {_alone(engine)}")
            own = Membership(Transport(engine))
            own.watch_errors()
            atexit.register(own.leave)  # before MPI_Finalize, which was registered earlier
            _members.append(own)
            own.gather(TIMEOUTS.stall)
        return _members[0]


def _alone(engine: MPIEngine) -> str:
    """Return why this process is the only rank."""
    place = launched()
    if place is None:
        return (
            "got mpi in a single process, expected two ranks or more: rank 0 leads, the others"
            f" train the layers; start it with: {START_HINT}"
        )
    return (
        f"got mpi in {place.size} processes that do not know each other, because mpiexec is not of"
        f" the MPI library that mpi4py loads ({engine.library}); take the mpiexec of that library"
    )


def is_member() -> bool:
    """Return whether this process has joined a job."""
    return bool(_members)


@contextmanager
def reporting_deaths_with(words: str) -> Iterator[None]:
    """End the report of a rank that dies within the context with these words, in a job."""
    witness = _members[0].witness if _members else None
    if witness is not None:
        witness.end_with(words)
    try:
        yield
    finally:
        if witness is not None:
            witness.end_with("")


def check_ranks(name: str, precision: str, setting: str = "runtime") -> None:
    """Refuse the runtime mpi where there are no ranks for it, or this one does not lead them.

    Parameters
    ----------
    name : str
        Name of a runtime.
    precision : str
        Precision of products: the ranks have to add up bfloat16 products in one order.
    setting : str
        The setting that names the runtime.

    Raises
    ------
    SettingsError
    """
    if name != "mpi":
        return
    try:
        own = member()
        rank = own.transport.rank
        if rank:
            raise SettingsError(
                f"runtime: got mpi on rank {rank}, where only pretrain() and finetune() may be"
                f" called; start a whole run with: {START_HINT}"
            )
        if precision == "bfloat16":
            own.check_sums()
    except SettingsError as error:
        text = str(error).replace("runtime:", f"{setting}:", 1)
        option = setting.replace("_", "-")
        raise SettingsError(text.replace("--runtime", f"--{option}")) from None


def check_windows(exchange: str) -> None:
    """Refuse windows if the windows of the job's MPI library cannot be relied on.

    Raises
    ------
    SettingsError
    """
    if exchange == "windows" and (where := joined().windows.engine.windows_unreliable_on()):
        raise SettingsError(
            f"exchange: got windows with {where}, whose one-sided calls crash there, expected"
            " messages; or take MPICH or Open MPI"
        )


@contextmanager
def using(transport: Transport) -> Iterator[Membership]:
    """Take part in a job through a transport, as long as the context lasts."""
    own = Membership(transport)
    with _lock:
        _members.append(own)
    try:
        yield own
    finally:
        with _lock:
            _members.remove(own)
        transport.close()
