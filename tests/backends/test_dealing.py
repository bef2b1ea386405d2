"""Layers dealt to GPUs by their multiplications."""

from __future__ import annotations

import itertools
import json

import fakecuda
import fakecupy
import numpy as np
import pytest
from backends import backend_of
from hypothesis import given
from hypothesis import strategies as st
from trialruns import notices_of

from syncpretrain import pretrain
from syncpretrain.backends.base import deal
from syncpretrain.cli import main
from syncpretrain.pretraining.build import backend_of_layers, layer_costs
from syncpretrain.pretraining.driver import driver_for, placement_of
from syncpretrain.settings import settings_from

PAPER = (784, 1000, 500, 250, 30)


@pytest.mark.parametrize(
    ("costs", "places", "shares", "expected"),
    [
        ((5, 4, 3, 3, 3), (0, 1), (), [(0,), (1,), (1,), (0,), (1,)]),  # 8 and 10; 9 is possible
        ((784, 500, 125, 7), (0, 1), (), [(0,), (1,), (1,), (1,)]),
        ((784, 500, 125, 7), (3, 1, 2), (), [(3,), (1,), (2,), (2,)]),
        ((1, 1, 1), (0, 1), (), [(0,), (1,), (0,)]),
        ((1, 2), (4,), (), [(4,), (4,)]),
        ((9, 2, 3), (0, 1, 2), (2, 1, 1), [(0, 1), (2,), (2,)]),
        ((9, 2), (0, 1), (3, 1), [(0, 1), (0,)]),
        ((), (0,), (), []),
    ],
)
def test_the_costliest_goes_first_to_where_there_is_least(costs, places, shares, expected):
    assert deal(costs, places, shares) == tuple(expected)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 3))
def test_no_place_has_more_than_a_third_above_the_least_possible(costs, places):
    def longest(found) -> int:
        loads = [0] * places
        for cost, place in zip(costs, found, strict=True):
            loads[place] += cost
        return max(loads)

    dealt = [place for (place,) in deal(costs, range(places))]
    best = min(map(longest, itertools.product(range(places), repeat=len(costs))))
    assert 3 * places * longest(dealt) <= (4 * places - 1) * best


def test_the_costs_of_layers():
    own = settings_from((8, 4, 2), epochs=(3, 5), cd_steps=(1, 2)).pretrain
    assert layer_costs(own) == (8 * 4 * 3 * 5, 4 * 2 * 5 * 7)
    own = settings_from((8, 4, 2), epochs=2, model="autoencoder").pretrain
    assert layer_costs(own) == (8 * 4 * 2 * 5, 4 * 2 * 2 * 5)
    (convolution, dense) = layer_costs(settings_from("1x4x4,conv:2x3,pool:2,5", epochs=1).pretrain)
    assert (convolution, dense) == (5 * 4 * 2 * 9, 5 * 2 * 5)


@pytest.mark.skipif(fakecuda.COMPILER is None, reason="no g++ here to compile the kernels")
class TestOnGpus:
    @pytest.fixture(autouse=True)
    def machine(self, unexamined, monkeypatch):
        monkeypatch.setattr(fakecupy.install, "__defaults__", (3,))
        monkeypatch.setattr("syncpretrain.backends.cupy_backend.STEPS_AT_ONCE", 4)
        backend_of("double", monkeypatch)

    def places(self, layers=PAPER, **settings) -> list[list[str]]:
        own = settings_from(layers, **({"backend": "cupy"} | settings)).pretrain
        backend = backend_of_layers(own)
        return [
            [each.name for each in backend.for_layer(layer).for_replicas(own.replicas[layer - 1])]
            for layer in range(1, len(own.layers))
        ]

    def test_layers_are_dealt_by_their_multiplications(self):
        assert self.places() == [["cupy:0"], ["cupy:1"], ["cupy:2"], ["cupy:2"]]
        assert self.places(backend="cupy:1") == [["cupy:1"]] * 4

    def test_replicas_are_dealt_to_several(self):
        found = self.places(replicas=(2, 1, 1, 1))
        assert found == [["cupy:1", "cupy:2"], ["cupy:0"], ["cupy:1"], ["cupy:2"]]
        assert self.places((16, 8), replicas=5) == [["cupy:0", "cupy:1", "cupy:2"]]

    def test_a_stream_says_so_too(self):
        X = np.random.default_rng(0).random((60, 16), dtype=np.float32)
        own = {"layers": (16, 8, 4), "batch_size": 20, "backend": "cupy", "handoff": "minibatch"}
        driver = driver_for(settings_from(**own).pretrain, X)
        assert placement_of(driver) == "layers on GPUs: 1 on 0, 2 on 1"

    def test_a_run_and_a_dry_run_say_so(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("syncpretrain.planning.dry_run.MEASURED_SECONDS", 0)
        X = np.random.default_rng(0).random((60, 16), dtype=np.float32)
        events, text = [], "layers on GPUs: 1 on 0, 2 on 1 and 2"
        own = {"layers": (16, 8, 4), "epochs": 1, "replicas": (1, 2), "batch_size": 20}
        pretrain(X, **own, backend="cupy", observers=[events.append])
        assert text in notices_of(events)
        for backend in ("cupy:1", "numpy"):
            events.clear()
            pretrain(X, **own, backend=backend, observers=[events.append])
            assert not any("layers on GPUs" in text for text in notices_of(events))
        np.save(tmp_path / "x.npy", X)
        options = ["--layers", "16,8,4", "--epochs", "1", "--replicas", "1,2", "--batch-size", "20"]
        options += ["--data", str(tmp_path / "x.npy"), "--backend", "cupy", "--dry-run"]
        main(["train", *options], standalone_mode=False)
        assert text in capsys.readouterr().out
        main(["train", *options, "--json"], standalone_mode=False)
        assert json.loads(capsys.readouterr().out)["placement"] == text
