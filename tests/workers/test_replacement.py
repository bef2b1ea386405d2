"""A layer's process that is killed is replaced: the bits of an undisturbed run, nothing left."""

import re
import signal
from functools import partial

import pytest
from killings import killed_streamed_layer, killed_worker
from layerprocesses import workers
from moments import At
from trialruns import notices_of, settings_on

from syncpretrain.errors import RunInterrupted, WorkerError
from syncpretrain.events import EpochFinished, EpochStarted
from syncpretrain.pretraining import build as building
from syncpretrain.pretraining import streamed as streaming
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import settings_from
from syncpretrain.workers import processes
from syncpretrain.workers.restarts import Restarts

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)
HANDOFFS = ("epoch", "minibatch")
BOTH = pytest.mark.parametrize("handoff", HANDOFFS)
NEVER = 1e9  # seconds between two states that are kept
STEPS = 10  # minibatches of an epoch


class Run:
    """A run with processes, some of which kill themselves, and the same run in one thread."""

    def __init__(self, bits, handoff, restarts=9, **options):
        usual = {"epochs": 3, "batch_size": 20, "seed": 3, "handoff": handoff, "workers": 3}
        self.options = usual | {"runtime": "processes"} | options
        self.bits = bits
        self.messages = []
        self.restarts = Restarts(restarts, self.messages.append)

    def driver(self, observers=(), **other):
        settings = settings_from(LAYERS, **(self.options | other)).pretrain
        restarts = self.restarts if settings.runtime == "processes" else None
        own = {"observers": observers, "restarts": restarts}
        return driver_for(settings, self.bits, self.bits[:50], **own)

    def sha256(self, **options):
        return self.driver(**options).run().parameters_sha256

    @property
    def replaced(self):
        pattern = (
            r"warning: layer (\d) failed (?:in epoch \d+|after epoch \d+|before its first epoch):"
            r" its process \d+ was killed by SIGKILL; a new process goes on from its last state"
            rf" \(restart (\d+) of {self.restarts.most}\)"
        )
        found = [re.fullmatch(pattern, message) for message in self.messages]
        assert all(found), self.messages
        assert [int(x[2]) for x in found if x] == list(range(1, len(found) + 1))
        return sorted(int(x[1]) for x in found if x)


def arrange(monkeypatch, folder, kills, pause=0.0):
    """Have processes that start from now on kill themselves; see ``killings``."""
    given = (folder, frozenset(kills), pause)
    monkeypatch.setattr(building, "build_worker", partial(killed_worker, *given))
    streamed = partial(killed_streamed_layer, *given)
    monkeypatch.setattr(streaming, "build_streamed_layer", streamed)


CHAINS = {"persistent": True, "visible_bias": "log-odds", "shards": 2, "replicas": (2, 1, 1)}
STOPPING = {"early_stopping": "pseudo-likelihood", "epochs": 8, "patience": 1}
DRIFT = {"refresh_when": "drift:0.05", "settle": 0.02, "epochs": 8}
RUNS = {
    "two layers at once": ("epoch", {}, [(1, "step", STEPS + 5), (2, "step", STEPS + 5)]),
    "again and again": ("minibatch", {}, [(2, "step", n) for n in (1, 3, 4)]),
    "the last minibatch": ("both", {}, [(1, "step", 3 * STEPS), (3, "step", 3 * STEPS)]),
    "before the first state": ("both", {}, [(1, "start", 1), (3, "write", 1)]),
    "in the middle of a state": ("epoch", {}, [(2, "write", 5), (1, "write", 7)]),
    "between a state and its answer": ("both", {}, [(2, "kept", 7), (3, "kept", 2)]),
    "chains": ("epoch", CHAINS, [(1, "write", 24), (2, "kept", 3), (3, "step", 15)]),
    "early stopping": ("minibatch", STOPPING, [(1, "kept", 3), (2, "step", 11), (3, "write", 5)]),
    "drift": ("epoch", DRIFT, [(1, "kept", 14), (2, "step", 25), (3, "step", 31)]),
}


@pytest.mark.parametrize(
    ("handoff", "name"), [(h, x) for h in HANDOFFS for x in RUNS if RUNS[x][0] in (h, "both")]
)
def test_the_bits_are_those_of_an_undisturbed_run(bits, monkeypatch, tmp_path, handoff, name):
    """Also of one that has nothing but the first state of each layer to go on from."""
    _, options, kills = RUNS[name]
    run = Run(bits, handoff, **options)
    wanted = run.sha256(runtime="serial")
    arrange(monkeypatch, tmp_path, kills, NEVER if name == "again and again" else 0.0)
    assert run.sha256() == wanted
    assert run.replaced == sorted(layer for layer, _, _ in kills)


@BOTH
def test_a_layer_that_was_taken_back_is_told_of_once(bits, monkeypatch, tmp_path, handoff):
    def warnings(**options):
        events = []
        run.driver([events.append], **options).run()
        return sorted(notices_of(events))

    run = Run(bits, handoff, learning_rate=(0.1, 3e3, 0.1))
    wanted = warnings(runtime="serial")
    assert wanted, "it diverges"
    arrange(monkeypatch, tmp_path, [(2, "step", n) for n in (2, 5, 9, 11)])
    assert warnings() == wanted
    assert run.replaced == [2, 2, 2, 2]


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.5])
def test_a_streamed_layer_reads_again_what_it_read(bits, monkeypatch, tmp_path, delay):
    """As far as the ring reaches; a layer that only computes hidden means need not."""
    monkeypatch.setattr(streaming, "REREAD_MINIBATCHES", 5)
    monkeypatch.setattr(streaming, "REREAD_BYTES", 0)
    run = Run(bits, "minibatch", epochs=(2, 4, 5), delay=delay)
    wanted = run.sha256(runtime="serial")
    kills = [(2, "step", n) for n in (3, 7, 11, 13)] + [(3, "step", 8), (1, "step", 19)]
    arrange(monkeypatch, tmp_path, kills, NEVER)
    assert run.sha256() == wanted
    assert len(run.replaced) == 6


def kill(layer):
    child = workers()[layer]
    child.send_signal(signal.SIGSTOP)  # so that it cannot be done before
    child.kill()


@BOTH
def test_so_are_processes_that_have_nothing_to_do_or_are_done(bits, handoff):
    """Layer 3 has not begun when it is killed, and layer 1 has ended."""
    run = Run(bits, handoff, epochs=(2, 60, 60), **({"delay": 1} if handoff == "minibatch" else {}))
    run.options["workers"] = 2
    wanted = run.sha256(runtime="serial")
    kills = [
        At(EpochStarted, partial(kill, 3), layer=1, epoch=1),
        At(EpochFinished, partial(kill, 1), layer=2, epoch=9),
        At(EpochFinished, partial(kill, 2), layer=3, epoch=8),
    ]
    assert run.sha256(observers=kills) == wanted
    assert all(at.since for at in kills)
    assert set(run.replaced) <= {1, 2, 3}
    assert 3 in run.replaced, "what dies after the last minibatch need not be replaced"


@BOTH
def test_a_run_that_lost_processes_resumes_to_the_same_bits(bits, monkeypatch, tmp_path, handoff):
    run = Run(bits, handoff, epochs=40)
    wanted = run.sha256(runtime="serial")
    states = []

    interrupt = At(EpochFinished, partial(signal.raise_signal, signal.SIGINT), layer=2, epoch=12)
    arrange(monkeypatch, tmp_path, [(2, "step", 37), (1, "step", 55), (3, "kept", 30)])
    stopped = run.driver([interrupt])
    stopped.save = lambda state, *, done, final: states.append(state()) if final else None
    with pytest.raises(RunInterrupted):
        stopped.run()
    assert run.replaced
    again = Run(bits, handoff, epochs=40)
    (tmp_path / "again").mkdir()
    arrange(monkeypatch, tmp_path / "again", [(1, "kept", 1), (2, "step", 1), (3, "write", 3)])
    driver = again.driver()
    (driver.resume,) = states
    assert driver.run().parameters_sha256 == wanted
    assert again.replaced


class TestRuns:
    """What follows where a process cannot be replaced."""

    def train(self, tmp_path, bits, handoff, restarts):
        """Train in a folder; return the warnings."""
        own = {"runtime": "processes", "handoff": handoff, "finetune": {"objective": "none"}}
        own |= {"run": {"checkpoint_every": "1", "max_restarts": restarts}}
        settings = settings_on(tmp_path, bits, LAYERS, **own)
        events = []
        try:
            self.report = train_run(settings, out=tmp_path / "run", observers=[events.append])
        finally:
            self.warnings = [x for x in notices_of(events) if x.startswith("warning")]
        return self.warnings

    @BOTH
    def test_one_that_dies_at_every_start_ends_the_run(self, bits, monkeypatch, tmp_path, handoff):
        (tmp_path / "always").touch()
        arrange(monkeypatch, tmp_path, [(2, "start", 1)])
        died = (
            r"^layer 2 failed (before its first|in) epoch.*: its process \d+ was killed by SIGKILL"
        )
        with pytest.raises(WorkerError, match=f"{died}; no restart is left. What was learned"):
            self.train(tmp_path, bits, handoff, 5)
        whole = ["goes on from its last state", "going on from the last checkpoint"]
        told = [next(x for x in whole if x in warning) for warning in self.warnings]
        assert told == [whole[0]] * 3 + [whole[1], whole[0]]
        assert all(f"restart {n} of 5" in text for n, text in enumerate(self.warnings, start=1))

    def test_an_error_restarts_the_run_as_before(self, bits, monkeypatch, tmp_path):
        arrange(monkeypatch, tmp_path / "missing", [(2, "step", 4)])  # which raises, there
        with pytest.raises(WorkerError, match=r"layer 2 failed in epoch \d: FileNotFoundError"):
            self.train(tmp_path, bits, "minibatch", 1)
        (warning,) = self.warnings
        assert "going on from the last checkpoint (restart 1 of 1)" in warning

    @BOTH
    def test_where_no_process_can_be_started_the_run_fails_with_the_death(
        self, bits, monkeypatch, tmp_path, handoff
    ):
        started = []
        original = processes.subprocess.Popen

        def popen(*arguments, **named):
            if len(started) == 3:
                raise BlockingIOError("no more processes")
            started.append(original(*arguments, **named))
            return started[-1]

        monkeypatch.setattr(processes.subprocess, "Popen", popen)
        arrange(monkeypatch, tmp_path, [(1, "step", 7)])
        run = Run(bits, handoff)
        with pytest.raises(WorkerError, match=r"^layer 1 failed in epoch \d: its process"):
            run.sha256()


def test_the_settings_of_a_run_say_how_often_as_before(bits, tmp_path, monkeypatch):
    """Without restarts, the first death is the end, and the run is resumed by hand."""
    settings = settings_on(tmp_path, bits, LAYERS, runtime="processes")
    wanted = train_run(settings, out=tmp_path / "whole")["parameters_sha256"]
    with monkeypatch.context() as patch:
        arrange(patch, tmp_path, [(2, "step", 13)])
        with pytest.raises(WorkerError, match=r"was killed by SIGKILL\. What was learned so far"):
            train_run(settings, out=tmp_path / "run")
    assert settings.run.max_restarts == 0
    assert resume_run(tmp_path / "run")["parameters_sha256"] == wanted
