"""The check of a GPU that users run: every part of it, on the stand-in for CuPy."""

import contextlib
import json
import os
import re
import sys
import time
from types import ModuleType, SimpleNamespace

import fakecublas
import fakecupy
import numpy as np
import psutil
import pytest
import sabotagedcheck
from backends import backend_of
from binaryunits import logistic

from syncpretrain.backends import cupy_backend

SMALL = ["--layers", "20,12,7", "--batch-size", "10", "--rows", "120", "--epochs", "1"]
SMALL += ["--blocks", "2", "--repeats", "1"]
LAYERS = ["20-12", "12-7"]
SOME_PARTS = "--parts: got 'speed', expected some of versions, doctor"
SANITIZER = """#!/bin/sh
while [ "$1" != --log-file ]; do shift; done
echo "========= ERROR SUMMARY: 0 errors" > "$2"
echo "checked: $*"
exit "${FOUND:-0}"
"""


@pytest.fixture
def capability(request) -> str:
    return str(getattr(request, "param", "75"))


@pytest.fixture
def check(capability, monkeypatch) -> ModuleType:
    monkeypatch.setattr(fakecupy, "CAPABILITY", capability)
    monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", sabotagedcheck.STEPS_AT_ONCE)
    monkeypatch.syspath_prepend(str(sabotagedcheck.EXAMPLES))
    monkeypatch.delenv("SYNCPRETRAIN_DATA", raising=False)
    backend_of("double", monkeypatch)
    import gpu_check

    return gpu_check


@pytest.fixture
def inner(check, monkeypatch):
    """Return the modules of the parts; those that measure each precision measure one."""
    modules = {
        name.partition(".")[2]: module
        for name, module in sys.modules.items()
        if name.startswith("gpu_checks.")
    }
    one = {"float32": modules["accuracy"].PRECISIONS["float32"]}
    for name in ("steps", "tuning", "versions"):
        monkeypatch.setattr(modules[name], "PRECISIONS", one)
    return SimpleNamespace(**modules)


@pytest.fixture
def worked(check, inner, tmp_path):
    """Return a function that measures a part in this process: its status, head and rows."""

    def work(name: str) -> tuple[int, list[str], list[list[str]]]:
        bench = check.bench_of(check._parser().parse_args(SMALL), tmp_path)
        status = inner.processes.work(name, check.PARTS[name], bench)
        head, rows = check.table_of(tmp_path, name)
        return status, head, rows

    return work


with_whole_steps = pytest.mark.parametrize("capability", ["90"], indirect=True)
with_and_without = pytest.mark.parametrize("capability", ["75", "90"], indirect=True)


class TestParts:
    @with_and_without
    def test_versions_name_the_device_and_its_trials(self, worked, capability):
        status, _, rows = worked("versions")
        assert status == 0
        assert dict(rows)["GPU"] == f"stand-in, compute capability {capability}"
        trials = {what: says for what, says in rows if what.startswith("whole steps")}
        right = "yes" if capability == "90" else "not before compute capability 8.0"
        names = ("whole steps, float32", "whole steps of fine-tuning, float32")
        assert trials == dict.fromkeys(names, right)

    @with_and_without
    def test_accuracy_has_products_steps_and_draws(self, worked, capability):
        status, head, rows = worked("accuracy")
        assert status == 0 and head == ["What is checked", "Relative error", "Right"]
        kinds = ["steps in parts", "whole steps"][: 2 if capability == "90" else 1]
        steps = [f"3 {kind} of {layer}" for kind in kinds for layer in LAYERS]
        assert [row[0] for row in rows if row[0].startswith("3 ")] == steps
        assert {row[-1] for row in rows} == {"yes"} and len(rows) == 2 + 2 * len(steps) + 2

    @pytest.mark.parametrize(("name", "least"), [("tf32", 1e-4), ("bfloat16", 0)])
    def test_accuracy_of_rounded_factors(self, worked, name, least):
        status, _, rows = worked(name)
        assert status == 0 and len(rows) == 2 + 2 * 2
        assert least < float(rows[0][1]) < 2e-3, "the stand-in's cuBLAS cuts digits off for TF32"

    @pytest.mark.parametrize("group", ["bits", "rounded", "streamed", "convolutions", "kinds"])
    def test_runs_have_the_same_bits_and_are_recorded(self, worked, inner, group):
        status, _, rows = worked(group)
        assert status == 0 and [row[0] for row in rows] == list(inner.same_bits.GROUPS[group])
        assert [len(set(row[1:4])) for row in rows] == [1] * len(rows)
        assert min(int(row[4]) for row in rows) > 0
        assert max(float(row[5]) for row in rows) < 1e-2, "beside NumPy"

    def test_shards_have_the_same_bits_on_one_device_and_on_two(self, worked):
        status, _, (one, two) = worked("shards")
        assert status == 0 and len({*one[1:4], *two[1:4]}) == 1

    def test_rows_that_stay_on_the_host_are_not_recorded(self, worked):
        status, _, rows = worked("host-rows")
        assert status == 0 and "rows come from the host" in rows[0][4]

    @with_and_without
    def test_steps_of_each_layer_are_timed(self, worked, capability):
        status, _, rows = worked("layer")
        assert status == 0 and [row[:2] for row in rows] == [[layer, "float32"] for layer in LAYERS]
        times = [float(cell) for row in rows for cell in row[2:]]
        assert len(times) == (12 if capability == "90" else 6) and min(times) > 0

    @with_and_without
    def test_rounds_of_all_layers_are_timed(self, worked, capability):
        status, _, rows = worked("layers")
        names = ["in parts, as they are", "in parts, recorded", "whole, as they are"]
        names.append("whole, recorded")
        assert status == 0 and [row[0] for row in rows] == names[: 4 if capability == "90" else 2]
        assert all(float(cell) > 0 for row in rows for cell in row[1:])

    def test_whole_runs_are_timed(self, worked):
        status, head, rows = worked("epochs")
        assert status == 0 and head == ["Run", "seconds", *LAYERS, "MiB left"]
        runs = ["greedy", "synchronized, in turns", "synchronized, in threads", "fine-tuning"]
        assert [row[0] for row in rows] == [f"{run}, 1 epochs" for run in runs]

    @with_and_without
    def test_fine_tuning_is_timed_and_beside_numpys(self, worked, capability):
        status, _, rows = worked("tuning")
        kinds = ["in parts", "whole"][: 2 if capability == "90" else 1]
        assert status == 0 and [row[:2] for row in rows] == [[kind, "float32"] for kind in kinds]
        assert all(row[5] == row[7] == "yes" and float(row[6]) < 1e-6 for row in rows)

    def test_the_papers_run_where_there_is_mnist(self, worked, inner, monkeypatch, tmp_path):
        assert worked("paper")[2] == [["not run: SYNCPRETRAIN_DATA names no folder with MNIST"]]
        np.save(tmp_path / "x.npy", np.random.default_rng(0).random((60, 20), dtype=np.float32))
        small = ["--data", str(tmp_path / "x.npy"), "--layers", "20,7", "--epochs", "1"]
        one = ["--finetune-epochs", "1"]
        monkeypatch.setattr(inner.runs, "PAPER", [*small, "--finetune", "reconstruction", *one])
        monkeypatch.setattr(inner.runs, "_why_no_mnist", lambda: None)
        monkeypatch.setattr(inner.runs, "ERRORS", ("train", "validation"))
        status, _, rows = worked("again")
        seconds, errors = rows[0][1:5], rows[0][5:]  # seconds of so small a run may round to 0
        assert status == 0 and min(map(float, seconds)) >= 0 and min(map(float, errors)) > 0

    def test_pytorch_is_timed_or_is_not_installed(self, worked):
        assert worked("pytorch")[0] == 0


class TestTools:
    def test_the_doctor(self, worked):
        assert worked("doctor")[2][0] == ["status 0"]

    @pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
    def test_the_sanitizer_is_said_to_be_missing(self, worked, monkeypatch, tmp_path, tool):
        monkeypatch.setenv("PATH", str(tmp_path))
        missing = "compute-sanitizer is not found: nothing was looked for"
        assert worked(tool) == (0, ["compute-sanitizer", ""], [[tool, missing]])

    @pytest.mark.parametrize("found", [0, 9])
    def test_what_the_sanitizer_finds(self, worked, monkeypatch, tmp_path, capfd, found):
        program = tmp_path / "compute-sanitizer"
        program.write_text(SANITIZER)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("FOUND", str(found))
        status, _, rows = worked("memcheck")
        assert status == int(found > 0) and rows == [["memcheck", "ERROR SUMMARY: 0 errors"]]
        assert "gpu_check.py --part accuracy --out" in capfd.readouterr().out

    @pytest.mark.parametrize(("body", "status"), [("pass", 0), ("assert False, 'a defect'", 1)])
    def test_tests_that_fail_are_named(self, worked, inner, monkeypatch, tmp_path, body, status):
        (tmp_path / "test_small.py").write_text(f"def test_cupy():\n    {body}\n")
        monkeypatch.setattr(inner.tools, "FOLDER", tmp_path)
        monkeypatch.setattr(inner.tools, "find_spec", lambda name: name == "pytest" or None)
        found, _, rows = worked("tests")
        assert found == status and ("1 failed" if status else "1 passed") in rows[-1][1]
        assert [row[1] for row in rows[:-1]] == ["AssertionError: a defect"] * status

    def test_a_program_that_hangs_is_interrupted_before_the_limit(self, check, inner, tmp_path):
        bench = check.bench_of(check._parser().parse_args([*SMALL, "--limit", "2"]), tmp_path)
        code = (
            "import time\n"
            "try:\n    print('begun', flush=True); time.sleep(1000)\n"
            "except KeyboardInterrupt:\n    print('found so far'); raise SystemExit(3)"
        )
        command = [sys.executable, "-c", code]
        assert inner.tools.told(bench, command) == (3, ["begun", "found so far"])

    def test_the_profiler_is_said_to_be_missing(self, check, worked, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert worked("ncu")[2] == [["ncu is not found"]] and "ncu" not in check.USUAL


class TestFailures:
    def test_products_and_steps_that_are_wrong_are_told(self, worked, capsys, monkeypatch):
        real = fakecublas.cublasSgemm_v2

        def without_a_term(handle, of_a, of_b, m, n, k, *given):
            return real(handle, of_a, of_b, m, n, k - (k > 2), *given)

        monkeypatch.setattr(fakecublas, "cublasSgemm_v2", without_a_term)
        status, _, rows = worked("accuracy")
        assert status == 1 and [row[2] for row in rows[:2]] == ["NO", "NO"]
        assert "failed: products of 20-12 by cuBLAS, products of" in capsys.readouterr().out

    def test_other_bits_are_told(self, worked, inner, capsys, monkeypatch):
        monkeypatch.setitem(inner.same_bits.WAYS["in threads"], "seed", 1)
        status, _, rows = worked("bits")
        assert status == 1 and len(rows) == 3, "what was found is printed"
        assert "binary units has other bits, rectified units has" in capsys.readouterr().out

    def test_blocks_that_are_not_recorded_are_told(self, worked, capsys, monkeypatch):
        def fail(self):
            raise fakecupy.CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported")

        monkeypatch.setattr(fakecupy.Stream, "begin_capture", fail)
        status, _, rows = worked("streamed")
        assert status == 1 and rows[0][4] == "NONE: cudaErrorStreamCaptureUnsupported"
        assert "streamed is not recorded" in capsys.readouterr().out

    def test_a_measurement_that_fails_costs_its_cells(self, worked, inner, capsys, monkeypatch):
        real = inner.bench.BlocksOfSteps.times

        def times(self):
            if self.rbm.layer == 1 and self.recorder.reason is None:
                raise ZeroDivisionError("a defect")
            return real(self)

        monkeypatch.setattr(inner.bench.BlocksOfSteps, "times", times)
        status, _, (first, second) = worked("layer")
        assert status == 1 and first[4] == "FAILED" and "FAILED" not in [*first[:4], *second]
        assert "ZeroDivisionError: a defect" in capsys.readouterr().err

    @with_whole_steps
    def test_whole_steps_that_fail_their_trial_are_measured(self, worked, inner, monkeypatch):
        from syncpretrain.backends import cuda_fused

        monkeypatch.setattr(cuda_fused, "MOST_OFF", dict.fromkeys(cuda_fused.MOST_OFF, 0.0))
        status, _, rows = worked("versions")
        assert status == 1 and "since whole ones are off by" in dict(rows)["whole steps, float32"]
        assert rows[-1][0] == "date", "the rest is there"
        status, _, rows = worked("accuracy")
        assert status == 0 and "3 whole steps of 12-7" in [row[0] for row in rows]


class TestProcesses:
    """Parts in processes of their own, which may end as they like."""

    @pytest.fixture
    def sabotage(self, check, inner, monkeypatch):
        """Return a function that checks with some parts sabotaged."""

        def run(faults: dict[str, str], *arguments: str) -> int:
            named = ",".join(f"{name}={fault}" for name, fault in faults.items())
            own = [sys.executable, sabotagedcheck.__file__, named]
            monkeypatch.setattr(inner.processes, "command", lambda: own)
            for name, fault in faults.items():
                seconds = 12 if fault == "hang" else 60
                monkeypatch.setitem(check.PARTS, name, check.Part(None, seconds))
            return check.main([*SMALL, *arguments])

        return run

    def test_a_fault_leaves_all_other_parts(self, sabotage, capsys, tmp_path):
        faults = {"bits": "crash", "layer": "hang", "layers": "fail"}
        parts, started = ["versions", *faults, "accuracy"], time.monotonic()
        options = ["--parts", ",".join(parts), "--limit", "110", "--out", str(tmp_path)]
        assert sabotage(faults, *options) == 1 and time.monotonic() - started < 110
        kept = [(tmp_path / f"{name}.jsonl").read_text().splitlines() for name in parts]
        assert [len(rows) for rows in kept[1:]] == [2, 2, 2, 1 + 2 + 2 * 2 + 2]
        assert json.loads(kept[2][1]) == ["before", "hang"]
        summary = (tmp_path / "summary.txt").read_text()
        ends = ["passed", "ENDED BY SIGSEGV", r"OUT OF TIME \(1\d s\)"]
        ends += [r"FAILED \(status 1\)", "passed"]
        for name, end in zip(parts, ends, strict=True):
            assert re.search(rf"^{name} +{end} +\d", summary, re.MULTILINE)
        out = capsys.readouterr().out
        assert out.endswith("failed: bits, layer, layers\n")
        assert out == (tmp_path / "log.txt").read_text()
        assert "ZeroDivisionError: a defect" in (tmp_path / "layers.txt").read_text()
        assert "in hang" in (tmp_path / "layer.txt").read_text(), "where it hung"
        sleeper = int((tmp_path / sabotagedcheck.SLEEPER).read_text())
        assert not psutil.pid_exists(sleeper) or psutil.Process(sleeper).status() == "zombie"

    def test_what_is_printed_comes_at_once(self, check, inner, capsys, monkeypatch, tmp_path):
        seen: list[str] = []
        out = ["--out", str(tmp_path)]
        (tmp_path / "versions.jsonl").write_text('["What"]\n["from an earlier check"]\n')
        is_seen = tmp_path / "seen"
        code = "import os, time; print('a row', flush=True)\n"
        code += f"while not os.path.exists({str(is_seen)!r}): time.sleep(0.01)\nraise SystemExit(1)"
        monkeypatch.setattr(inner.processes, "command", lambda: [sys.executable, "-c", code])

        def look(_: float) -> None:
            seen.append(capsys.readouterr().out)
            if "a row\n" in "".join(seen):  # a slow reader finds it behind the heading
                is_seen.touch()

        monkeypatch.setattr(inner.processes, "sleep", look)
        assert check.main(["--parts", "versions", "--limit", "60", *out]) == 1
        assert is_seen.exists()
        assert "nothing was measured" in capsys.readouterr().out

    def test_a_machine_without_a_gpu(self, check, capsys, tmp_path):
        assert check.main(["--device", "99", "--out", str(tmp_path)]) == 2
        assert "GPU 99 cannot be checked: " in capsys.readouterr().out
        assert not (tmp_path / "accuracy.txt").exists()

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--parts", "layers,speed"], SOME_PARTS),
            (["--limit", "0"], "--limit: got 0, expected seconds above 0"),
            (["--limit", "nan"], "--limit: got nan, expected seconds above 0"),
            (["--layers", "784"], "--layers: got 784, expected two widths at least"),
            (["--batch-size", "0"], "--batch-size: got 0, expected 1 or more"),
            (["--out", __file__], "expected a folder, or a place for one"),
        ],
    )
    def test_options_that_are_wrong(self, check, capsys, options, said):
        with pytest.raises(SystemExit, match="2"):
            check.main(options)
        assert said in capsys.readouterr().err

    def test_no_part_is_started_when_no_time_is_left(self, check, capsys, tmp_path):
        assert check.main(["--limit", "0.1", "--out", str(tmp_path)]) == 1
        assert "accuracy: NOT RUN: no time is left, 0 s" in capsys.readouterr().out
        assert not (tmp_path / "versions.txt").exists()

    @pytest.mark.parametrize("limit", [1.0, 60.0, 600.0, 5000.0])
    def test_every_part_gets_its_share_of_the_limit(self, inner, check, limit):
        own = [part.seconds for part in check.PARTS.values()]
        least = [min(seconds / 4, limit * seconds / sum(own)) for seconds in own]
        left = limit
        for number, (seconds, fair) in enumerate(zip(own, least, strict=True)):
            share = inner.processes.share(left, seconds, own[number + 1 :])
            assert fair * (1 - 1e-9) <= share <= left * (1 + 1e-9)
            left -= share  # all of it is used up

    def test_time_that_is_left_over_is_for_later_parts(self, inner):
        assert inner.processes.share(100, 60, [200]) == 50
        assert inner.processes.share(90, 60, []) == 90


class TestPyTorch:
    """The part about PyTorch on a CPU, and what it calls on a GPU with nothing behind it."""

    @pytest.fixture
    def torch(self, check):
        return pytest.importorskip("torch", reason="its steps are timed where it is installed")

    def test_a_step_against_float64(self, torch, inner):
        part = inner.pytorch
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

    def test_a_graph_is_recorded_after_a_first_time_and_replayed(self, torch, worked, monkeypatch):
        calls = []

        @contextlib.contextmanager
        def entered(what):
            calls.append(what)
            yield

        graph = SimpleNamespace(replay=lambda: calls.append("replay"))
        for name, double in {
            "synchronize": lambda: None,
            "Stream": lambda: "a stream",
            "CUDAGraph": lambda: graph,
            "stream": entered,
            "graph": entered,
            "is_available": lambda: True,
        }.items():
            monkeypatch.setattr(torch.cuda, name, double)  # which must have it
        for name in ("rand", "randint", "zeros", "ones"):
            real = getattr(torch, name)
            made = lambda *sizes, real=real, device: real(*sizes)  # noqa: E731
            monkeypatch.setattr(torch, name, made)
        assert worked("pytorch")[0] == 0
        replays = 2 * (1 + 1)  # of two blocks, for the first time and for the one repeat
        assert calls == ["a stream", graph, *["replay"] * replays] * 2 * 2
