"""Activations that ranks send instead of parameters: where, the same bits, failures told."""

import numpy as np
import pretrainingkinds
import pytest
from localranks import local_ranks
from moments import At
from scipy import sparse

from syncpretrain import pretrain
from syncpretrain.cluster.transport import Transport, last_beat
from syncpretrain.errors import ScheduleError, WorkerError
from syncpretrain.events import EpochFinished
from syncpretrain.models.layer import DenseLayer
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import settings_from
from syncpretrain.workers.activations import Split
from syncpretrain.workers.ranks import epochs as rank_epochs
from syncpretrain.workers.ranks.epochs import KeptVersions, RankOrder, layers_sent_activations
from syncpretrain.workers.state import EPOCHS_STATE

LAYERS = (16, 12, 8, 5)
VARIANTS = {
    **pretrainingkinds.VARIANTS,
    "shared": {"epochs": 3, "replicas": (2, 1, 2)},
    "rounds": {"epochs": 2, "schedule": "rounds", "group_size": 2},
    "denoising": {"model": "denoising", "tied": False},
    "convolution": {"layers": "1x4x4,conv:4x2,10,5"},
    "stopping early": {"early_stopping": "pseudo-likelihood", "epochs": 6},
    "by drift": {"epochs": (2, 3, 3), "refresh_epochs": (0, 2, 2), "refresh_when": "drift:0.01"},
}


def run(bits, *, runtime="mpi", layers=LAYERS, observers=(), **options):
    usual = {"epochs": 3, "batch_size": 30, "seed": 3, "runtime": runtime}
    settings = settings_from(layers, **(usual | options)).pretrain
    return Pretraining(settings, bits, bits[:10], observers=observers)


@pytest.fixture
def always(monkeypatch):
    """Have every layer but the first get activations."""
    every = lambda rows, hidden, parameters: frozenset(range(2, len(hidden) + 1))  # noqa: E731
    monkeypatch.setattr(rank_epochs, "layers_sent_activations", every)


@pytest.fixture
def sent(monkeypatch):
    """Return how the input of every order is to come, filled as it is sent."""
    found, original = [], Transport.send

    def send(self, to, port, thing):
        if isinstance(thing, RankOrder):
            way = "activations" if thing.are_sent else "chain" if thing.chain else "there"
            found.append((thing.command.layer, thing.command.reads, way))
        original(self, to, port, thing)

    monkeypatch.setattr(Transport, "send", send)
    return found


@pytest.mark.parametrize(
    ("rows", "hidden", "parameters", "layers"),
    [
        (2000, (2000, 2000, 30), (1_570_784, 4_004_000, 62_030), {3}),
        (60_000, (1000, 500, 250, 30), (785_784, 501_500, 125_750, 7780), set()),
        (500, (1000, 500, 250, 30), (785_784, 501_500, 125_750, 7780), {2, 3, 4}),
        (2000, (1000, 500, 250, 30), (785_784, 501_500, 125_750, 7780), {3, 4}),
        (10, (5,), (50,), set()),
        (10, (5, 5), (50, 30), set()),  # as many
        (10, (5, 5), (51, 30), {2}),
    ],
)
def test_the_input_is_sent_in_the_form_of_fewer_numbers(rows, hidden, parameters, layers):
    assert layers_sent_activations(rows, hidden, parameters) == layers


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("size", "names"), [(2, ["plain"]), (5, list(VARIANTS)), (7, ["shared"])])
def test_the_bits_are_those_of_one_thread(bits, sent, size, names):
    for name in names:
        alone = run(bits, runtime="serial", **VARIANTS[name]).run().parameters_sha256
        sent.clear()
        with local_ranks(size):
            assert run(bits, **VARIANTS[name]).run().parameters_sha256 == alone, name
        assert {way for layer, _, way in sent if layer > 1} <= {"activations", "there"}, name


def test_few_rows_go_up_as_activations(bits, sent):
    own = {"layers": (16, 40, 24, 10), "batch_size": 10}
    few = bits[:20]
    alone = run(few, runtime="serial", **own).run().parameters_sha256
    with local_ranks(4):
        assert run(few, **own).run().parameters_sha256 == alone
    ways = {layer: {way for n, _, way in sent if n == layer} for layer in (1, 2, 3)}
    assert ways == {1: {"there"}, 2: {"chain"}, 3: {"activations"}}


@pytest.mark.usefixtures("always")
def test_sparse_rows_go_up_as_activations(bits, sent):
    rows = sparse.csr_matrix(bits)
    own = {"layers": LAYERS, "epochs": 2, "batch_size": 30, "warn": False}
    alone = pretrain(rows, runtime="serial", **own).parameters_sha256
    with local_ranks(4):
        assert pretrain(rows, runtime="mpi", **own).parameters_sha256 == alone
    assert {way for layer, _, way in sent if layer > 1} == {"activations"}


@pytest.mark.usefixtures("always")
def test_a_resumed_run_computes_what_is_not_kept(bits, sent, tmp_path):
    options = {"epochs": (8, 5, 6), "persistent": True}
    wanted = run(bits, runtime="serial", **options).run().parameters_sha256
    states = []
    with local_ranks(4):
        first = run(bits, **options)
        first.save = lambda state, *, done, final: states.append(state())
        assert first.run().parameters_sha256 == wanted
    EPOCHS_STATE.write(tmp_path / "state", states[len(states) // 2], {})
    sent.clear()
    with local_ranks(3):
        again = run(bits, **options)
        again.resume = EPOCHS_STATE.read(tmp_path / "state")
        assert again.run().parameters_sha256 == wanted
    assert {"chain", "activations"} <= {way for _, _, way in sent}


@pytest.mark.usefixtures("always")
def test_nothing_is_kept_that_nobody_reads(bits, monkeypatch):
    kept, original = [], KeptVersions.__init__

    def note(self, data, *, keeps):
        original(self, data, keeps=keeps)
        self.most = 0
        kept.append(self)

    def take(self, version, activations):
        taken(self, version, activations)
        self.most = max(self.most, len(self._inputs))

    taken = KeptVersions.take_input
    monkeypatch.setattr(KeptVersions, "__init__", note)
    monkeypatch.setattr(KeptVersions, "take_input", take)
    with local_ranks(4):
        run(bits, epochs=12).run()
    assert len(kept) == 3
    for own in kept:
        assert own.most <= 5  # version 0, three that the schedule holds, one yet to be dropped
        assert len(own._snapshots) <= 2


@pytest.mark.usefixtures("always")
def test_an_error_as_a_version_is_handed_up_is_told(bits, monkeypatch):
    def fail(*arguments):
        raise ValueError("out of luck")

    monkeypatch.setattr(rank_epochs, "transform", fail)
    told = r"^layer 1 failed in epoch \d on rank 1 on .*: ValueError: out of luck"
    with local_ranks(4) as ranks, pytest.raises(WorkerError, match=told):
        run(bits).run()
    assert not ranks.own.broken


@pytest.mark.usefixtures("always")
def test_the_loss_of_the_rank_below_ends_the_run(bits):
    with local_ranks(4) as ranks:
        peers = ranks.own.transport.peers
        lose = At(EpochFinished, lambda: peers.record(1, last_beat(peers.beats[1])), layer=1)
        with pytest.raises(WorkerError, match=r"^layer 1 failed .*: rank 1 on .* has left$"):
            run(bits, observers=[lose], epochs=5000).run()


def test_what_is_not_held_is_not_handed_up():
    data = Split(np.zeros((3, 4), np.float32), np.zeros((0, 4), np.float32))
    own = KeptVersions(data, keeps=True)
    with pytest.raises(ScheduleError, match="version 1 was to be handed up"):
        own.activations(1, bool)
    layer = DenseLayer(*(np.zeros(n, np.float32) for n in ((4, 2), 2, 4)))
    own.publish(1, layer, 0)
    assert own.activations(1, lambda: True) is None
    np.testing.assert_array_equal(own.activations(1, bool).train, np.full((3, 2), 0.5))
    own.drop_input(0)
    with pytest.raises(ScheduleError, match="version 1 was to be handed up"):
        own.activations(1, bool)
