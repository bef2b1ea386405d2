"""Libraries that tests compile: once a run of the suite, for all its processes."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FOLDER = "SYNCPRETRAIN_TESTS_COMPILED"  # which the processes of a run inherit


def begin() -> None:
    """Make the folder for the libraries of a run."""
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="syncpretrain-tests-")


def end() -> None:
    """Remove the folder; what is loaded stays."""
    shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


def library(source: str, command: list[object]) -> Path:
    """Return the library of a source, which one process builds while the others wait.

    ``source`` is all that the library depends on, and what the compiler's command may read.
    """
    path = Path(os.environ[FOLDER], f"{hashlib.sha256(source.encode()).hexdigest()[:20]}.so")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_suffix(".part")
            words = [*map(str, command), "-o", str(part)]
            done = subprocess.run(words, input=source.encode(), capture_output=True, timeout=200)
            assert done.returncode == 0, done.stderr.decode()
            part.rename(path)
    return path
