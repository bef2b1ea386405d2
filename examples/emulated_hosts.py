"""Run a command on hosts that are network namespaces of this machine, as a cluster would be.

    sudo python examples/emulated_hosts.py --hosts 2 -- \
        mpiexec -n 5 syncpretrain train --layers 784,1000,500 --runtime mpi
    sudo python examples/emulated_hosts.py --hosts 3 --rate 1gbit -- \
        python examples/faults.py ranks --times 20

Each host has a name, an address, and a link of its own to all others, whose rate in each direction
``--rate`` limits. They share cores, files and processes. The command runs on the first host; an
``mpiexec`` in it starts ranks on all of them in turn, since the environment has the hosts, and an
agent in the place of ssh, for MPICH, Intel MPI and Open MPI.

It needs Linux, root, and the programs ``ip`` and ``tc`` of iproute2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["emulated_hosts", "environment", "missing"]

SHORT = "sph"  # names of interfaces have 15 characters at most
NETWORK = "10.213.{}.{}"
BURST = "128kb"  # two of the largest packets that the system hands to a link
ETC = Path("/etc/netns")  # ``ip netns exec`` shows files from there in the place of those in /etc
# Called as ssh is: options, the host, and words for its shell.
AGENT = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$1" && exec sh -c "$2"' sh "$host" "$*"
"""


def missing() -> str | None:
    """Return what this machine lacks for emulated hosts, None if it has all."""
    if sys.platform != "linux" or os.geteuid():
        return "needs Linux, and root"
    lacking = [name for name in ("ip", "tc", "unshare", "hostname") if not shutil.which(name)]
    if lacking:
        return f"needs {', '.join(lacking)}"
    probe = f"{SHORT}{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "needs the right to add network namespaces"
    run("ip", "netns", "delete", probe)
    return None


@contextmanager
def emulated_hosts(count: int, rate: str = "") -> Iterator[list[str]]:
    """Return the names of some hosts, which exist as long as the context.

    Parameters
    ----------
    count : int
    rate : str
        Of each host's link, as ``tc`` understands it; "" for as fast as it may be.
    """
    own = f"{SHORT}{os.getpid()}"
    names = [f"{own}-{number + 1}" for number in range(count)]
    addresses = [NETWORK.format(os.getpid() % 256, number + 1) for number in range(count)]
    lines = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
    with ExitStack() as undo:
        run("ip", "link", "add", own, "type", "bridge")
        undo.callback(run, "ip", "link", "delete", own)
        run("ip", "link", "set", own, "up")
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            run("ip", "netns", "add", name)
            undo.callback(run, "ip", "netns", "delete", name)
            undo.callback(shutil.rmtree, ETC / name)
            (ETC / name).mkdir(parents=True)
            (ETC / name / "hosts").write_text("\n".join(lines) + "\n")
            outer = f"{own}{chr(ord('a') + number)}"
            pair = ["type", "veth", "peer", "name", "eth0", "netns", name]
            run("ip", "link", "add", outer, *pair)
            run("ip", "link", "set", outer, "master", own, "up")
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            if rate:
                queue = ["root", "tbf", "rate", rate, "burst", BURST, "latency", "100ms"]
                run("tc", "qdisc", "add", "dev", outer, *queue)
                run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *queue)
        yield names


def environment(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return variables by which ``mpiexec`` starts ranks on the hosts in turn; files for it."""
    agent, hosts, slots = folder / "agent", folder / "hosts", folder / "slots"
    agent.write_text(AGENT)
    agent.chmod(0o700)
    hosts.write_text("".join(f"{name}\n" for name in names))
    slots.write_text("".join(f"{name} slots=64\n" for name in names))
    return {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_HOST_FILE": str(hosts),
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent),
        "I_MPI_HYDRA_HOST_FILE": str(hosts),
        "I_MPI_PERHOST": "1",
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_prte_default_hostfile": str(slots),
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        "OMPI_MCA_btl_tcp_if_include": "eth0",
    }


def run(*command: str) -> None:
    """Run a command of the system."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def status_of(command: list[str], found: dict[str, str]) -> int:
    """Run the command, which gets the signals that this process gets; return its status."""
    with subprocess.Popen(command, env=found) as running:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda signum, _: running.send_signal(signum))
        status = running.wait()
    return status if status >= 0 else 128 - status


def main() -> int:
    """Run the command; return its status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2, choices=range(1, 26), metavar="N")
    parser.add_argument("--rate", default="", help="of a link, as tc has it: 1gbit")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if lacks := missing():
        parser.error(lacks)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and tidy up
    with (
        emulated_hosts(options.hosts, options.rate) as names,
        tempfile.TemporaryDirectory() as folder,
    ):
        found = os.environ | environment(names, Path(folder))
        first = ["ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c"]
        shell = 'hostname "$0" && exec "$@"'
        return status_of([*first, shell, names[0], *options.command], found)


if __name__ == "__main__":
    sys.exit(main())
