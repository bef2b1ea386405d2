"""Streamed pretraining on devices: NumPy's minibatches of the same versions in the same order."""

from __future__ import annotations

import numpy as np
import pytest
from backends import backend_of
from test_stream import DELAYS, VARIANTS, streamed

from syncpretrain.backends import cupy_backend

ON_DEVICES = [v for v in VARIANTS if not {"shards"} & VARIANTS[v].keys()]


@pytest.fixture(params=["double", "deferred"])
def device(request, monkeypatch):
    """The stand-in, with rings of 4 minibatches in blocks of 2."""
    monkeypatch.setattr("syncpretrain.backends.gpu_check.missing", lambda device: None)
    monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 4)
    return backend_of(request.param, monkeypatch)


def alike(actual, expected, tolerance=3e-6):
    for ours, theirs in zip(actual.layers, expected.layers, strict=True):
        for (_, a), (_, b) in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert type(a) is np.ndarray
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("variant", ON_DEVICES)
def test_every_learner_comes_to_numpys_weights(bits, device, variant, delay):
    oracle = streamed(bits, variant, delay=delay, backend="numpy", runtime="serial").run()
    found = [
        streamed(bits, variant, delay=delay, backend="cupy", runtime=runtime, workers=workers).run()
        for runtime, workers in (("serial", 1), ("threads", 3))
    ]
    assert found[0].parameters_sha256 == found[1].parameters_sha256
    assert found[0].info["epochs"] == oracle.info["epochs"]
    alike(found[0], oracle)
