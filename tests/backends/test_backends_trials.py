"""Trials of whole steps before they are taken: those that are wrong are told and left out."""

import fakecupy
import numpy as np
import pytest
from backends import backend_of, with_tensor_cores
from trialruns import notices_of

from syncpretrain import finetune, pretrain
from syncpretrain.backends import cuda_fused
from syncpretrain.backends.cuda_fused import CudaFused, CudaTuning
from syncpretrain.backends.cuda_source import CudaSource, cuda_source

STEPS = {"pretraining": "steps", "fine-tuning": "steps of fine-tuning"}
WHOLE = {"draw_hidden", "reconstruct", "find_hidden", "move_parameters"}
WHOLE |= {"forward_layer", "forward_output", "delta_of_layer", "move_network"}
OF_LAYER = "own = times_slope(sum_at<Few>(parts, row, column), kept(e), units);"
SUMS = "sum_columns({}, sums, m0, j, width);\n}}"
WRONG = {  # a precision, and what a wrong source has in the place of the right
    "pretraining": [
        ("float32", "if (!HAS_LOW) {", "if (true) {"),  # sums of tensor cores alone
        ("tf32", "*high = nearest_tf32(x);", "*high = __float_as_uint(x);"),
        ("bfloat16", "*high = bfloat16_of(x);", "*high = __float_as_uint(x) & 0xffff0000;"),
        ("bfloat16", "*high = bfloat16_of(x);", "*high = nearest_tf32(x);"),
    ],
    "fine-tuning": [
        ("float32", "*low = __float_as_uint(x - __uint_as_float(*high));", "*low = 0;"),
        ("tf32", "*high = nearest_tf32(x);", "*high = __float_as_uint(x);"),
        ("bfloat16", "*high = bfloat16_of(x);", "*high = nearest_tf32(x);"),
        ("float32", "p[e] = p[e] * by.shrink;", ""),
        ("float32", "own = times_slope(own, y, units);", ""),
        ("float32", OF_LAYER, "own = sum_at<Few>(parts, row, column);"),
        ("float32", "error += (double)difference * difference;", "error += difference;"),
        ("float32", SUMS.format("sum"), SUMS.format("0.0f")),
    ],
}
CASES = [(goal, *case) for goal, cases in WRONG.items() for case in cases]
every_goal = pytest.mark.parametrize("goal", STEPS)


@pytest.fixture(autouse=True)
def double(monkeypatch):
    return with_tensor_cores("double", monkeypatch)


def notices(bits, goal, precision="float32") -> list[str]:
    events: list = []
    own = {"epochs": 1, "backend": "cupy", "precision": precision, "observers": [events.append]}
    if goal == "pretraining":
        pretrain(bits, layers=(16, 8), **own)
    else:
        finetune(pretrain(bits, layers=(16, 8), epochs=1, backend="numpy"), bits, **own)
    return [message for message in notices_of(events) if "GPU" in message]


def told(goal, why) -> str:
    return f"GPU 0 makes its {STEPS[goal]} in parts, since whole ones {why}"


@pytest.mark.parametrize(("goal", "precision", "right", "wrong"), CASES)
def test_a_wrong_source_is_told(monkeypatch, bits, goal, precision, right, wrong):
    assert notices(bits, goal, precision) == []

    def source(*given):
        found, code = CudaSource(*given), cuda_source(*given[1:])
        assert code.count(right) == 1
        code = code.replace(right, wrong)
        found._module = double.xp.RawModule(code=code, options=("--fmad=false",))
        return found

    monkeypatch.setattr(cuda_fused, "_source", source)
    double = backend_of("double", monkeypatch)
    (notice,) = notices(bits, goal, precision)
    assert notice.startswith(told(goal, "are off by "))


@every_goal
def test_steps_that_cannot_run_are_told(monkeypatch, bits, goal):
    real = fakecupy.RawKernel.__call__

    def launch(self, *given, **options):
        if self._name in WHOLE:
            raise fakecupy.CompileException("no such instruction")
        real(self, *given, **options)

    monkeypatch.setattr(fakecupy.RawKernel, "__call__", launch)
    assert notices(bits, goal) == [told(goal, "fail: no such instruction")]


@pytest.mark.parametrize("name", ["weight", "state", "error"])
def test_wrong_steps_of_pretraining_are_told(monkeypatch, bits, name):
    real = CudaFused.__call__

    def wrong(self, X, *given):
        error = real(self, X, *given)
        arrays = {"weight": self._arrays.parameters[0], "state": self._arrays.states}
        array = arrays.get(name, error)
        at = (0,) * array.ndim
        array[at] = 1 - array[at] if name == "state" else array[at] * 1.01 + 0.1
        return error

    monkeypatch.setattr(CudaFused, "__call__", wrong)
    (notice,) = notices(bits, "pretraining")
    assert notice.startswith(told("pretraining", "are off by "))


def test_numbers_that_are_none_are_off(monkeypatch, bits):
    real = CudaTuning.__call__

    def wrong(self, *given):
        error = real(self, *given)
        self._arrays.moments[-1][1:2] = np.float32(np.nan)
        return error

    monkeypatch.setattr(CudaTuning, "__call__", wrong)
    assert notices(bits, "fine-tuning") == [told("fine-tuning", "are off by nan")]


@every_goal
def test_nothing_is_tried_without_tensor_cores(monkeypatch, bits, goal):
    monkeypatch.setattr(fakecupy, "CAPABILITY", "75")
    for name in ("_difference", "_tuning_difference"):
        monkeypatch.setattr(cuda_fused, name, None)
    backend = backend_of("double", monkeypatch)
    assert notices(bits, goal) == []
    assert cuda_fused.why_not_fused(backend.xp, 0, tunes=goal == "fine-tuning") is None
