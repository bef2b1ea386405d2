"""Runtimes, hand-overs and learners of the contract suite: a new runtime is a line of RUNTIMES."""

import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from convolutionalruns import MODELS
from layerprocesses import workers
from localranks import LocalRanks, local_ranks
from pretrainingkinds import KINDS, VARIANTS
from scipy import sparse
from streamedruns import VARIANTS as STREAMED
from trialruns import notices_of

from syncpretrain.cluster.transport import last_beat
from syncpretrain.events import DriftJudged, EpochFinished, Event
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.runtimes import RUNTIMES as KNOWN
from syncpretrain.pretraining.training import Driver
from syncpretrain.schedule.schedule import Train
from syncpretrain.settings import settings_from
from syncpretrain.workers.epochs import Message
from syncpretrain.workers.state import ASYNC_STATE, EPOCHS_STATE, STREAM_STATE
from syncpretrain.workers.worker import LayerWorker

TEXT = "1x4x4,conv:4x2,conv:6x2,5"
MIXTURE = "bernoulli:2,gaussian:2,softmax:3x3,counts:3"
HANDOFFS = {
    "epoch": {"handoff": "epoch", "workers": 3},
    "minibatch": {"handoff": "minibatch", "delay": 0.4, "workers": 3},
    "async": {"schedule": "async"},  # one replica, which reads what it wrote
    "async minibatch": {"schedule": "async", "handoff": "minibatch", "push_every": 4},
}
STATES = {"epoch": EPOCHS_STATE, "minibatch": STREAM_STATE}
STATES |= {"async": ASYNC_STATE, "async minibatch": ASYNC_STATE}
EPOCH, STREAM, ASYNC = ("epoch",), ("epoch", "minibatch"), ("async", "async minibatch")
LEARNERS: dict[str, dict[str, Any]] = {
    "rbm": {},
    "autoencoder": {"model": "autoencoder", "hidden_units": "tanh", "learning_rate": 0.01},
    "denoising": {"model": "denoising", "tied": False, "loss": "squared"},
    "convolutional": {"layers": "1x4x4,conv:4x2,10,5"},
}
POOLED = "1x4x4,conv:3x3,pool:2{},8,5"
WITH_POOLS = {"layers": POOLED.format("")}
CONVOLUTIONS = {f"convolutional {name}": WITH_POOLS | model for name, model in MODELS.items()}
ROUNDED = {"precision": "bfloat16"}
DENOISING = {"model": "denoising", "corruption": "masking:0.3", "tied": False}
VALIDATED = {"model": "denoising", "early_stopping": "validation-error", "patience": 1}
VALIDATED |= {"epochs": 12, "learning_rate": 0.5}
BY_DRIFT = {"learning_rate": 0.3, "momentum": "0.5:2,0.9", "batch_size": 20}
WAKING = {"epochs": (9, 2, 2), "refresh_epochs": (0, 2, 1), "refresh_when": "drift:0.2", **BY_DRIFT}
SETTLING = {"epochs": "auto:20", "settle": (0.15, 0.2, 0.02), "refresh_epochs": 0, **BY_DRIFT}
# The last of the minibatches is smaller than there are shards.
CHAINS = {"persistent": True, "chains": (50, 7, 33), "chain_start": ("data", "noise", "data")}
CHAINS |= {"centred": (True, False, True), "cd_steps": (1, 2, 1), "batch_size": 33}
BOTH: dict[str, dict[str, Any]] = {
    **CONVOLUTIONS,
    "pooling by draws": {"layers": POOLED.format(":prob")},
    "bfloat16": {**ROUNDED, "persistent": True, "hidden_dropout": (0.5, 0, 0.2)},
    "bfloat16 denoising": ROUNDED | DENOISING,
    # Layer 2 is wide enough for steps in pieces.
    "pieces": {"layers": (16, 300, 300, 5), "batch_size": 50, "products": "own", "cd_steps": 2},
    "bfloat16 convolutions": WITH_POOLS | ROUNDED,
    "sparse counts": {"data": "sparse", "visible_units": "counts"},
    "sparse gaussian": {"data": "sparse", "visible_units": "gaussian", "sample_visible": True},
    "missing": {"data": "holes"},
    "missing denoising": {"data": "holes", "model": "denoising"},
    "blocks of units": {"data": "mixed", "visible_units": MIXTURE},
    "sampled input": {"sample_input": True},
    "sampled input, missing": {"data": "holes", "sample_input": True, "persistent": True},
    "sampled input of convolutions": WITH_POOLS | {"sample_input": True},
    "chains": CHAINS,
    "chains of blocks": {"data": "mixed", "visible_units": MIXTURE, **CHAINS},
    "chains of convolutions": WITH_POOLS | {"persistent": True, "hidden_dropout": (0.3, 0.2, 0)},
    "chains, missing": {"data": "holes", **CHAINS},
    "chains, sparse counts": {"data": "sparse", "visible_units": "counts", **CHAINS},
    "blocks of an autoencoder": {"data": "mixed", "visible_units": MIXTURE, "model": "autoencoder"},
}
# What decides when layers train, and what they remember.
PLANS: dict[str, dict[str, dict[str, Any]]] = {
    "epoch": {
        **BOTH,
        **VARIANTS,
        **KINDS,
        "weights": {"weights": tuple(i % 4 for i in range(200)), "cd_steps": 2},
        "weights and chains": {"weights": tuple(i % 3 for i in range(200)), **CHAINS, "shards": 2},
        "validated": VALIDATED,
        "stopped early": {"early_stopping": "pseudo-likelihood", "patience": 1, "epochs": 6},
        "rounds": {"schedule": "rounds", "epochs": (4, 2, 1), "refresh_epochs": (0, 2, 1)},
        "rounds to the end of layer 1": {
            **{"schedule": "rounds", "epochs": (4, 2, 3)},
            **{"refresh_epochs": 2, "finish": "first-layer"},
        },
        "waking": WAKING,
        "waking, rounds": WAKING | {"schedule": "rounds"},
        "waking, to the end of layer 1": WAKING | {"finish": "first-layer"},
        "settling": SETTLING,
        "settling convolutions": SETTLING | WITH_POOLS | {"model": "denoising"},
        "settling, greedy": SETTLING | {"schedule": "greedy", "blas_threads": 1},
        "both": SETTLING | {"refresh_epochs": 1, "refresh_when": "drift:0.05"},
    },
    "minibatch": {
        **BOTH,
        **STREAMED,
        "no delay": {"epochs": (3, 1, 2), "delay": 0},
        "one epoch": {"epochs": (3, 1, 2), "delay": 1},
        "a long delay": {"epochs": (1, 2, 1), "delay": 1.5},
        "validated": VALIDATED,
    },
}
# What several workers of a layer share.
FILTERS = {"split": "filters", "layers": TEXT, "shards": (4, 4, 1)}
SPLIT: dict[str, dict[str, Any]] = {
    "units": {"split": "units", "cd_steps": 2},
    "examples": {"persistent": True},
    "sampled input": {"sample_input": True},
    "chains": CHAINS,
    "chains of blocks": {"data": "mixed", "visible_units": MIXTURE, **CHAINS},
    "centred": {"centred": True, "sparsity_cost": 0.1},
    "dropout": {"hidden_dropout": 0.3, "sparsity_cost": 0.1},
    "denoising": DENOISING,
    "odd shards": {"shards": (7, 3, 5)},
    "bfloat16 units": {"split": "units", **ROUNDED},
    "bfloat16": ROUNDED,
    "bfloat16 denoising": ROUNDED | DENOISING,
    "counts": {"data": "sparse", "visible_units": "counts"},
    "filters": FILTERS,
    "filters of a denoising layer": FILTERS | {"model": "denoising"},
    "hybrid": {"split": "hybrid", "layers": TEXT},
    "bfloat16 filters": FILTERS | ROUNDED,
    **CONVOLUTIONS,
}
OF_DRIVERS = {"weights", "observers", "replay", "times", "restarts"}
USUAL: dict[str, Any] = {"layers": (16, 12, 8, 5), "epochs": (2, 1, 2), "batch_size": 40, "seed": 3}


def kill_process(around: None) -> None:
    """Kill the process of layer 1."""
    child = workers()[1]
    child.send_signal(signal.SIGSTOP)  # so that it cannot be done before it is killed
    child.kill()


def lose_rank(around: LocalRanks) -> None:
    """Have rank 2 seem to have ended."""
    peers, deadline = around.own.transport.peers, time.monotonic() + 10
    while 2 not in peers.beats:  # the first epoch may start before its first sign of life
        assert time.monotonic() < deadline, "rank 2 gave no sign of life"
        time.sleep(0.001)
    peers.record(2, last_beat(peers.beats[2]))


@dataclass(frozen=True)
class Runtime:
    """A runtime, with what surrounds its runs, and what its errors say."""

    name: str
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    options: Mapping[str, Any] = field(default_factory=dict)
    handoffs: Sequence[str] = tuple(HANDOFFS)
    plans: tuple[int, int] = (0, 1)  # of PLANS: from this one on, every so many
    place: str = ""  # in an error of a layer, behind its epoch
    kill: Callable[[Any], None] | None = None
    death: str = ""  # in the error where a worker of a layer was killed
    replaces: bool = False  # whether it starts another in place of a worker that was killed


SERIAL = Runtime("serial")


class Futures:
    """The toy: a runtime of the standard library's futures."""

    def __init__(self, workers: Sequence[LayerWorker], stop: Callable[[], bool]) -> None:
        self._workers, self._asked, self._stops = workers, stop, False
        self._pool = ThreadPoolExecutor(len(workers))
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._pool.shutdown()

    def submit(self, command: Train) -> None:
        self._pool.submit(self._execute, command)

    def _execute(self, command: Train) -> None:
        worker = self._workers[command.layer - 1]
        self._messages.put(worker.execute(command, lambda: self._stops or self._asked()))

    def set_workers(self, layer: int, workers: int) -> None:
        pass

    def fraction(self, layer: int) -> float:
        return float(self._workers[layer - 1].progress[0])

    def stop(self) -> None:
        self._stops = True

    def dump_stacks(self) -> None:
        pass

    def wait(self, timeout: float) -> Message | None:
        try:
            return self._messages.get(timeout=timeout)
        except queue.Empty:
            return None


@contextmanager
def futures() -> Iterator[None]:
    """Add the toy to the table of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KNOWN, "futures", lambda run: Futures(run.workers(), run.stop))
        yield


SHARED = {"options": {"shards": (4, 2, 1), "replicas": (4, 2, 1)}, "handoffs": STREAM}
SHARED_BY_FOUR = SHARED | {"options": SHARED["options"] | {"workers": 4}}
ON_RANK = {"place": r" on rank \d on .*", "kill": lose_rank}
ON_RANK["death"] = r"rank \d on .* \(process \d+\) has left"
IN_PROCESS = {"kill": kill_process, "death": r"its process \d+ was killed by SIGKILL"}
IN_PROCESS["replaces"] = True
RUNTIMES = {
    "threads": Runtime("threads"),
    "threads that share layers": Runtime("threads", **SHARED_BY_FOUR),
    "processes": Runtime("processes", **IN_PROCESS),
    "processes that share layers": Runtime("processes", **SHARED, **IN_PROCESS),
    "ranks": Runtime("mpi", partial(local_ranks, 4), plans=(0, 2), **ON_RANK),
    "ranks that share layers": Runtime("mpi", partial(local_ranks, 7), **SHARED, **ON_RANK),
    "layers that share ranks": Runtime(
        "mpi", partial(local_ranks, 3), handoffs=STREAM, plans=(1, 2), **ON_RANK
    ),
    "futures": Runtime("futures", futures, handoffs=EPOCH, plans=(0, 4)),
}


def runs_of(*handoffs, serial=False, shared=True, mortal=False, replaced=False):
    """Parametrize a test by every runtime, and by those of some hand-overs that it has.

    ``serial`` adds the oracle itself, and without ``shared`` no layer has several workers.
    ``mortal`` leaves out the runtimes whose workers cannot be killed alone, ``replaced`` those
    that start no other worker then.
    """
    rows = ({"serial": SERIAL} if serial else {}) | RUNTIMES
    found = [
        pytest.param(row, handoff, id=f"{name}-{handoff}")
        for (name, row), handoff in product(rows.items(), handoffs or HANDOFFS)
        if handoff in row.handoffs
        and (shared or not row.options)
        and (row.kill is not None or not mortal)
        and (row.replaces or not replaced)
    ]
    return pytest.mark.parametrize(("runtime", "handoff"), found)


def mixed(bits: np.ndarray) -> np.ndarray:
    """Return rows that MIXTURE permits."""
    draws, n = np.random.default_rng(1), len(bits)
    choices = [np.eye(3)[draws.integers(3, size=n)] for _ in range(3)]
    parts = [bits[:, :2], draws.normal(size=(n, 2)), *choices, draws.poisson(2, (n, 3))]
    return np.hstack(parts).astype(np.float32)


def with_holes(bits: np.ndarray) -> np.ndarray:
    """Return rows with missing values."""
    X = bits.copy()
    X[:9, 0] = X[3:12, 4:7] = np.nan
    return X


DATA: dict[str, Callable[[np.ndarray], Any]] = {
    "bits": lambda bits: bits,
    "sparse": sparse.csr_matrix,
    "holes": with_holes,
    "mixed": mixed,
}


def driver(bits: np.ndarray, runtime: Runtime, handoff: str, **options) -> Driver:
    """Return what pretrains; some options are the driver's own, and "data" names its input."""
    own = {name: options.pop(name) for name in OF_DRIVERS & options.keys()}
    given = USUAL | HANDOFFS[handoff] | runtime.options | options
    X = DATA[given.pop("data", "bits")](bits)
    settings = settings_from(given.pop("layers"), **given).pretrain
    settings = msgspec.structs.replace(settings, runtime=runtime.name)  # unchecked: or no toy
    return driver_for(settings, X, X[:50], **own)


@dataclass(frozen=True)
class Ended:
    """What a run ended in, but for times."""

    parameters: str
    epochs: list[int]
    curves: Any
    decisions: set[Any]  # the version below that each epoch read, and drifts
    warnings: list[str]

    @property
    def outcome(self):
        """What a run that was resumed ends in as well."""
        return self.parameters, self.epochs, self.curves


def ended(bits, runtime, handoff, *, resume=None, **options):
    """Train to the end."""
    events: list[Event] = []
    with runtime.around():
        run = driver(bits, runtime, handoff, observers=[events.append], **options)
        run.resume = resume
        stack = run.run()
    warnings = sorted(text for text in notices_of(events) if text.startswith("warning"))
    decisions = {decision_of(event) for event in events}
    chains = [dict(layer.arrays()).get("chains") for layer in stack.layers]
    parts = [stack.parameters_sha256, *(x.tobytes().hex() for x in chains if x is not None)]
    parameters = sha256("".join(parts).encode()).hexdigest() if parts[1:] else parts[0]
    return Ended(parameters, stack.info["epochs"], run.history, decisions, warnings)


def decision_of(event: Event):
    """Return what an epoch read, and what was made of a drift."""
    match event:
        case EpochFinished(layer=layer, epoch=epoch, reads=reads, drift=drift):
            return layer, epoch, reads, drift
        case DriftJudged(layer=layer, version=version, drift=drift, wakes=wakes):
            return layer, version, event.since, drift, wakes
    return None


def of_one_layer(runtime: Runtime, epochs: int) -> dict[str, Any]:
    """Return the options of a run of one layer, with the workers that it has in a runtime."""
    own = {name: each[0] for name, each in runtime.options.items() if name != "workers"}
    return {"layers": (16, 9), "epochs": epochs, **own}
