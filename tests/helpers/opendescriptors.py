"""The descriptors of this process on a machine with a GPU."""

from pathlib import Path

# A GPU's driver opens these at a first stream, event, graph or library, and keeps them.
DRIVERS = ("/dev/nvidia", "anon_inode:", "socket:", "pipe:")


def files_but_drivers(folder: Path = Path("/proc/self/fd")) -> int:
    """Return how many of the descriptors that are links in a folder may not be a driver's."""
    targets = [str(path.readlink()) for path in folder.iterdir() if path.is_symlink()]
    return sum(not target.startswith(DRIVERS) for target in targets)
