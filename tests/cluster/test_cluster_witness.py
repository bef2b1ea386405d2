"""The witness of a job: it names the processes that die, in the order of their ends."""

import os
import secrets
import select
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest

from syncpretrain.cluster import job, witness

WAIT = 20.0
pytestmark = pytest.mark.skipif(
    not job._has_pidfd(), reason="needs descriptors of processes, which Linux has"
)


SEEN = """
import socket, sys
own = socket.socket(socket.AF_UNIX)
own.connect(sys.argv[1].replace("@", chr(0)))
print(flush=True)
own.send(sys.stdin.readline().strip().encode())
"""


@contextmanager
def watching():
    """A witness in this process, and the end of the pipe to which names are written."""
    reads, writes = os.pipe()
    name = f"syncpretrain-{secrets.token_hex(8)}"
    own = witness.Witness(name, reads)
    own.address = f"@{name}"
    try:
        yield own, writes
    finally:
        own._looks.close()
        for seen in (own._listener, *own._sockets.values()):
            seen.close()
        os.close(reads)
        os.close(writes)


def speaker(address):
    """A process that connects to the witness, and sends it the line that is written to it."""
    command = [sys.executable, "-I", "-S", "-c", SEEN, address.replace("\0", "@")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("last", ["", "l", "a"])
def test_the_witness_tells_of_who_dies_and_not_of_who_leaves(capfd, last):
    """The second process is killed, or leaves as well, or ends the job."""
    own = job.Witness(job.new_address())
    # Connects as soon as the witness listens.
    job.be_seen(own.address)
    processes = [speaker(own.address) for _ in range(2)]
    for name, process, word in zip(("first", "second"), processes, ("l", last), strict=True):
        own.watch(process.pid, name)
        process.stdout.readline()
        if word:
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
        else:
            process.kill()
    if not last:
        own._process.wait(WAIT)
    own.close()
    for process in processes:
        process.communicate(timeout=WAIT)
    job._seen.pop().close()
    told = capfd.readouterr().err
    assert "first" not in told
    assert ("Error: second was killed" in told) == (not last), told


@pytest.mark.parametrize("known", [["; go\non", ""], [""], ["", "; go\non"]])
def test_the_witness_adds_how_to_go_on(known, capfd):
    """The newest words count, and an empty sentence takes them back."""
    own = job.Witness(job.new_address())
    job.be_seen(own.address)
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    for words in known:
        own.end_with(words)
    own.watch(process.pid, "second")
    process.kill()
    own._process.wait(WAIT)
    own.close()
    process.communicate(timeout=WAIT)
    job._seen.pop().close()
    assert capfd.readouterr().err == f"Error: second was killed by SIGKILL{known[-1]}\n"


@pytest.mark.parametrize(("word", "said"), [("l", None), ("", "second was killed or has crashed")])
def test_a_word_behind_the_first_look_explains_an_end(word, said):
    """A poll reads one descriptor after the other: the first one missed the word."""
    with watching() as (own, names):
        process = speaker(own.address)
        process.communicate(f"{word}\n", timeout=WAIT)
        own._names[process.pid] = "second"
        own._missed.append(process.pid)
        real, times = own._looks, []

        def poll(wait):
            times.append(wait)
            return real.poll(0) if len(times) > 1 else []

        own._looks = SimpleNamespace(poll=poll, register=real.register, unregister=real.unregister)
        os.write(names, b"over\n")
        assert own.wait() == said
        own._looks = real


def test_the_witness_names_a_process_that_ended_before_another_ends_the_job():
    """Both are seen in one look: the second could not communicate with the first any more."""
    with watching() as (own, _):
        for name, word in (("first", ""), ("second", "a")):
            process = speaker(own.address)
            process.communicate(f"{word}\n", timeout=WAIT)
            own._names[process.pid] = name
        assert own.wait() == "first was killed or has crashed"


def test_the_witness_names_processes_in_the_order_of_their_ends():
    """All have ended before it looks, where the launcher is faster than it."""
    with watching() as (own, _):
        processes = [speaker(own.address) for _ in range(3)]
        for place, process in enumerate(processes):
            process.stdout.readline()
            own._names[process.pid] = str(place)
            own._accept()
        for place in (1, 2, 0):
            processes[place].kill()
            processes[place].communicate(timeout=WAIT)
        said = own.wait()
        assert [part.split()[0] for part in said.split(", and ")] == ["1", "2", "0"]


WAITS = """
import sys
from syncpretrain.cluster.job import be_seen
be_seen(sys.argv[1].replace("@", chr(0)))
print(flush=True)
sys.stdin.read()
"""


def test_the_witness_learns_of_a_death_before_the_launcher():
    """Whose connection to the process was open before, here with a higher number."""
    name = f"syncpretrain-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(WAIT)
        listener.bind(f"\0{name}")
        listener.listen()
        command = [sys.executable, "-c", WAITS, f"@{name}"]
        process = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()]
            )
        )
        stack.callback(process.kill)
        theirs.close()
        seen = stack.enter_context(listener.accept()[0])
        looks = stack.enter_context(select.epoll())
        for own in (ours, seen):
            looks.register(own, select.EPOLLIN)
        process.stdout.readline()
        process.kill()
        process.wait(WAIT)
        assert [own for own, _ in looks.poll(WAIT)] == [seen.fileno(), ours.fileno()]


def test_a_rank_that_ends_the_job_waits_for_the_last_look_of_the_witness():
    def answer():
        other, _ = listener.accept()
        with other:
            looked.append(other.recv(1))

    looked, address = [], f"\0syncpretrain-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        looking = threading.Thread(target=answer)
        looking.start()
        job.be_seen(address)
        job.notify_witness(witness.ABORTS)
        assert looked == [witness.ABORTS]
        looking.join(WAIT)
    job._seen.pop().close()


def test_the_witness_names_a_process_that_ended_before_it_was_named(capfd):
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    process.wait(WAIT)
    own = job.Witness(job.new_address())
    own.watch(process.pid, "rank 7")
    own._process.wait(WAIT)
    own.close()
    assert capfd.readouterr().err == "Error: rank 7 was killed or has crashed\n"


@contextmanager
def two_hosts():
    """The witnesses of two hosts, of which the second tells the first."""
    first = job.Witness(job.new_address(), several=True)
    second = job.Witness(job.new_address(), first=first.door)
    try:
        yield first, second
    finally:
        second.close()
        first.close()


@contextmanager
def rank_of(own):
    """A process that a witness sees, and knows by its identifier."""
    address = own.address.replace("\0", "@")
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        own.watch(process.pid, f"process {process.pid}")
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("place", [0, 1])
def test_the_first_death_on_any_host_is_told_once(capfd, place):
    with two_hosts() as hosts, rank_of(hosts[0]) as near, rank_of(hosts[1]) as far:
        dies, other = (near, far) if place == 0 else (far, near)
        dies.kill()
        hosts[0]._process.wait(WAIT)
        other.kill()  # as a launcher does it
        hosts[1]._process.wait(WAIT)
        pid = dies.pid
    told = capfd.readouterr().err
    assert told.startswith(f"Error: process {pid} was killed")
    assert told.count("Error") == 1, told


def test_a_rank_that_ends_the_job_silences_the_witnesses_of_all_hosts(capfd):
    with two_hosts() as (first, second), rank_of(first) as near:
        job.be_seen(second.address)
        job.notify_witness(witness.ABORTS)
        first._process.wait(WAIT)
        second._process.wait(WAIT)
        near.kill()
    job._seen.pop().close()
    assert capfd.readouterr().err == ""


def test_the_witnesses_of_other_hosts_end_with_the_first_one(capfd):
    with two_hosts() as (first, second), rank_of(second) as far:
        first.close()
        second._process.wait(WAIT)
        far.kill()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("said", [b"wrong\nrank 1 was killed\n", b"x" * 100_000, b"", b"\xff\n!\n"])
def test_strangers_are_not_listened_to(capfd, said):
    with two_hosts() as (first, second), rank_of(second) as far:
        with socket.create_connection(("localhost", first.door.port)) as stranger:
            with suppress(OSError):  # it hangs up on long lines
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        far.kill()
        first._process.wait(WAIT)
        pid = far.pid
    assert capfd.readouterr().err.startswith(f"Error: process {pid} was killed")


def test_a_witness_that_cannot_reach_the_first_tells_by_itself(capfd):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]  # where nobody listens in a moment
    door = job.Door("localhost", port, "word")
    own = job.Witness(job.new_address(), first=door)
    with rank_of(own) as process:
        process.kill()
        own._process.wait(WAIT)
        pid = process.pid
    own.close()
    assert capfd.readouterr().err.startswith(f"Error: process {pid} was killed")
