"""The C extension. Each function is called by its form in native.py, with positions only."""

from typing import Any

UNITS: dict[str, int]
DRAWN: tuple[str, ...]

def means(x: Any, bias: Any, units: str, /) -> Any: ...
def sample_states(
    x: Any, bias: Any, out: Any, key: tuple[int, ...], counter: tuple[int, ...], /
) -> Any: ...
def sample_choices(
    x: Any, bias: Any, out: Any, choices: int, key: tuple[int, ...], counter: tuple[int, ...], /
) -> Any: ...
def uniform(out: Any, key: tuple[int, ...], counter: tuple[int, ...], /) -> Any: ...
def normal(out: Any, key: tuple[int, ...], counter: tuple[int, ...], /) -> Any: ...
def phase_differences(v: Any, h: Any, da: Any, db: Any, examples: int, /) -> Any: ...
def binary_product(states: Any, weight: Any, out: Any, /) -> Any: ...
def sparse_product(v: Any, weight: Any, out: Any, /) -> Any: ...
def transposed_product(v: Any, h: Any, out: Any, adds: bool, /) -> Any: ...
def multiply_bfloat16(a: Any, b: Any, out: Any, form: str | None, /) -> Any: ...
def bfloat16_forms() -> tuple[str, ...]: ...
def keep_bfloat16_form(form: str, /) -> None: ...
def multiply_float32(a: Any, b: Any, out: Any, form: str | None, /) -> Any: ...
def float32_forms() -> tuple[str, ...]: ...
def keep_float32_form(form: str, /) -> None: ...
def multiply_in_registers(rounds: int, form: str | None, /) -> int: ...
def draw_documents(shares: Any, points: Any, ends: Any, /) -> Any: ...
def reconstruct_documents(inputs: Any, bias: Any, like: Any, points: Any, ends: Any, /) -> Any: ...
def csr_product(data: Any, weight: Any, out: Any, indices: Any, indptr: Any, /) -> Any: ...
def momentum_step(
    parameter: Any,
    gradient: Any,
    velocity: Any,
    momentum: float,
    learning_rate: float,
    weight_decay: float,
    l1: float,
    /,
) -> Any: ...
def sgd_step(
    parameters: Any,
    gradient: Any,
    velocity: Any,
    learning_rate: float,
    momentum: float,
    nesterov: bool,
    /,
) -> Any: ...
def adam_step(
    parameters: Any,
    gradient: Any,
    first: Any,
    second: Any,
    beta1: float,
    beta2: float,
    size: float,
    floor: float,
    /,
) -> Any: ...
def squared_error(x: Any, y: Any, out: Any, /) -> Any: ...
def times_derivative(delta: Any, a: Any, units: str, /) -> Any: ...
def convolve(
    x: Any, weight: Any, bias: Any, out: Any, places: Any, scratch: Any, numbers: tuple[int, ...], /
) -> Any: ...
def convolve_gradient(
    x: Any, delta: Any, places: Any, out: Any, scratch: Any, numbers: tuple[int, ...], /
) -> Any: ...
def convolve_back(
    delta: Any, places: Any, weight: Any, out: Any, scratch: Any, numbers: tuple[int, ...], /
) -> Any: ...
def visible_means(x: Any, bias: Any, numbers: tuple[int, ...], /) -> Any: ...
def scratch_size(numbers: tuple[int, ...], /) -> int: ...
def wait_for_counters(
    counters: Any,
    first: int,
    count: int,
    target: int,
    broken: int,
    spin_seconds: float,
    timeout_seconds: float,
    stagger_seconds: float,
    /,
) -> int: ...
def store_counter(counters: Any, index: int, value: int, /) -> None: ...
def arrive_and_wait(
    counters: Any,
    rank: int,
    first: int,
    count: int,
    target: int,
    broken: int,
    spin_seconds: float,
    timeout_seconds: float,
    stagger_seconds: float,
    /,
) -> int: ...
def program(phases: Any, sgemm: int, wide: bool, /) -> Any: ...
def run_program(
    program: Any,
    numbers: Any,
    words: Any,
    results: Any,
    counters: Any,
    rank: int,
    workers: int,
    first: int,
    behind: int,
    broken: int,
    spin_seconds: float,
    look_seconds: float,
    timeout_seconds: float,
    /,
) -> int: ...
def share_program(
    program: Any,
    numbers: Any,
    words: Any,
    results: Any,
    counters: Any,
    first: int,
    base: int,
    broken: int,
    is_owner: bool,
    spin_seconds: float,
    look_seconds: float,
    timeout_seconds: float,
    /,
) -> int: ...
