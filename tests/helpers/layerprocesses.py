"""The processes of layers, found among those of the system."""

import re

import psutil
from forkedlayers import started


def workers(parent: int | None = None) -> dict[int, psutil.Process]:
    """Return the processes of the layers that have not ended, by layer."""
    found = {}
    for child in psutil.Process(parent).children():
        try:
            name = re.search(r"syncpretrain-layer-(\d+)", " ".join(child.cmdline()))
            layer = started.get(child.pid) or (name and int(name[1]))
        except psutil.NoSuchProcess:  # or one that nobody has waited for, which is a kind of it
            continue
        if layer:
            found[layer] = child
    return found


def ended(process: psutil.Process) -> bool:
    """Return whether a process has ended; whoever inherited it may not have noticed yet."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
