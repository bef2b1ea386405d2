"""The check of a GPU that users run: every part of it, on the stand-in for CuPy."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import fakecublas
import fakecupy
import numpy as np
import pytest
from backends import backend_of
from binaryunits import logistic

from syncpretrain.backends import cupy_backend

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--layers", "20,12,7", "--batch-size", "10", "--rows", "120", "--epochs", "1"]
SMALL += ["--blocks", "2", "--repeats", "1"]
ALL = ["versions", "accuracy", "bits", "layer", "layers", "epochs", "pytorch"]


@pytest.fixture
def capability(request) -> str:
    return str(getattr(request, "param", "90"))


@pytest.fixture
def check(capability, monkeypatch):
    monkeypatch.setattr(fakecupy, "CAPABILITY", capability)
    monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 3)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    backend_of("double", monkeypatch)
    import gpu_check

    return gpu_check


def tables(out: str) -> dict[str, list[list[str]]]:
    """Return the rows of each part, their cells divided by two spaces or more."""
    found: dict[str, list[list[str]]] = {}
    for block in out.split("\n\n"):
        if " s)" in block:
            found[block.strip().partition(" ")[0]] = rows = []
        elif block.startswith("=="):
            lines = [line for line in block.splitlines() if not line.startswith("==")]
            rows += [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return found


@pytest.mark.parametrize("capability", ["75", "90"], indirect=True)
def test_every_part(check, capsys):
    status = check.main(SMALL)
    captured = capsys.readouterr()
    assert status == 0, captured.err
    found = tables(captured.out)
    assert list(found) == ALL == list(check.PARTS)
    has_whole = fakecupy.CAPABILITY == "90"
    assert found["versions"][1] == [
        "GPU",
        f"stand-in, compute capability {fakecupy.CAPABILITY}",
    ]
    head, *rows = found["accuracy"]
    assert head == ["What is checked", "Relative error", "Right"]
    assert {row[-1] for row in rows} == {"yes"} and len(rows) == 2 + 2 * 2 + 2
    kind = "whole steps" if has_whole else "steps in parts"
    assert [row[0] for row in rows if "steps" in row[0]] == [
        f"3 {kind} of {layer}" for layer in ("20-12", "12-7")
    ]
    assert [len(set(row[1:])) for row in found["bits"][1:]] == [1, 1, 1]
    _, *layers = found["layer"]
    assert [row[0] for row in layers] == ["20-12", "12-7"]
    times = [float(cell) for row in layers for cell in row[1:] if cell != "\\"]
    assert len(times) == (12 if has_whole else 6) and min(times) > 0
    names = ["in parts, as they are", "in parts, recorded", "whole, as they are", "whole, recorded"]
    assert [row[0] for row in found["layers"][1:]] == names[: 4 if has_whole else 2]
    runs = [row[0] for row in found["epochs"][1:]]
    assert runs == [
        *("greedy, 1 epochs", "synchronized, in turns, 1 epochs"),
        *("synchronized, in threads, 1 epochs", "fine-tuning, 1 epochs"),
    ]
    assert found["pytorch"]
    assert captured.out.endswith("all is well\n")


class TestFailures:
    def test_a_part_that_fails_leaves_the_others_alone(self, check, capsys, monkeypatch):
        def fail(bench):
            raise ZeroDivisionError("a defect")

        monkeypatch.setitem(check.PARTS, "layer", fail)
        assert check.main([*SMALL, "--parts", "layer,versions"]) == 1
        captured = capsys.readouterr()
        assert "ZeroDivisionError: a defect" in captured.err
        assert "nothing was measured" in captured.out and "stand-in" in captured.out
        assert captured.out.endswith("failed: layer\n")

    def test_products_and_steps_that_are_wrong_are_told(self, check, capsys, monkeypatch):
        real = fakecublas.cublasSgemm_v2

        def without_a_term(handle, of_a, of_b, m, n, k, *given):
            return real(handle, of_a, of_b, m, n, k - (k > 2), *given)

        monkeypatch.setattr(fakecublas, "cublasSgemm_v2", without_a_term)
        assert check.main([*SMALL, "--parts", "accuracy"]) == 1
        captured = capsys.readouterr()
        assert "AssertionError: wrong: products of 20-12, by cuBLAS, products of" in captured.err
        assert [row[2] for row in tables(captured.out)["accuracy"][1:3]] == ["NO", "NO"]

    def test_other_bits_are_told(self, check, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules["gpu_checks.runs"].WAYS["in threads"], "seed", 1)
        assert check.main([*SMALL, "--parts", "bits"]) == 1
        captured = capsys.readouterr()
        assert "AssertionError: other bits: binary units, rectified units" in captured.err
        assert len(tables(captured.out)["bits"]) == 1 + 3, "what was found is printed"

    def test_blocks_that_are_not_recorded_are_told(self, check, capsys, monkeypatch):
        def fail(self):
            raise fakecupy.CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported")

        monkeypatch.setattr(fakecupy.Stream, "begin_capture", fail)
        assert check.main([*SMALL, "--parts", "layer"]) == 1
        assert "20-12 is not recorded: cudaErrorStreamCapture" in capsys.readouterr().err

    def test_options_that_are_wrong(self, check, capsys):
        with pytest.raises(SystemExit):
            check.main(["--parts", "layers,speed"])
        assert (
            "--parts: got 'speed', expected some of versions, accuracy" in capsys.readouterr().err
        )
        assert check.main(["--device", "7"]) == 2
        assert "there is no GPU number 7" in capsys.readouterr().err


class TestPyTorch:
    """The part about PyTorch on a CPU, and what it calls on a GPU with nothing behind it."""

    @pytest.fixture
    def torch(self, check):
        return pytest.importorskip("torch", reason="its steps are timed where it is installed")

    def test_a_step_against_float64(self, torch, check):
        part = sys.modules["gpu_checks.pytorch"]
        machine, X, rows = part._Machine(torch, 20, 12, 10, "cpu"), torch.rand(30, 20), range(5, 15)
        before = [p.double().numpy() for p in (machine.W, machine.a, machine.b)]
        with torch.inference_mode():
            machine.step(X, torch.tensor(rows))
        W, a, b = before
        v0, states = X[rows].double().numpy(), machine._states.double().numpy()
        h0 = logistic(v0 @ W + b)
        v1 = logistic(states @ W.T + a)
        h1 = logistic(v1 @ W + b)
        expected = (
            W + part.RATE * ((v0.T @ h0 - v1.T @ h1) / 10 - part.DECAY * W),
            a + part.RATE * (v0 - v1).mean(axis=0),
            b + part.RATE * (h0 - h1).mean(axis=0),
        )
        for ours, right in zip((machine.W, machine.a, machine.b), expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), right, atol=1e-7)

    def test_a_graph_is_recorded_after_a_first_time_and_replayed(self, torch, check, monkeypatch):
        calls = []

        @contextlib.contextmanager
        def entered(what):
            calls.append(what)
            yield

        names = ("synchronize", "Stream", "stream", "graph", "CUDAGraph", "is_available")
        assert all(hasattr(torch.cuda, name) for name in names)
        graph = SimpleNamespace(replay=lambda: calls.append("replay"))
        for name, double in {
            "synchronize": lambda: None,
            "Stream": lambda: "a stream",
            "CUDAGraph": lambda: graph,
            "stream": entered,
            "graph": entered,
            "is_available": lambda: True,
        }.items():
            monkeypatch.setattr(torch.cuda, name, double)
        for name in ("rand", "randint", "zeros", "ones"):
            real = getattr(torch, name)
            made = lambda *sizes, real=real, device: real(*sizes)  # noqa: E731
            monkeypatch.setattr(torch, name, made)
        assert check.main([*SMALL, "--parts", "pytorch"]) == 0
        replays = 2 * (1 + 1)  # of two blocks, for the first time and for the one repeat
        assert calls == ["a stream", graph, *["replay"] * replays] * 2 * 2
