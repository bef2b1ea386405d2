"""AMX's tiles, emulated: their reads and writes, and training with them.

The bits of products in tiles are those of the definition in ``test_kernels_products.py``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import emulatedtiles
import numpy as np
import pytest
from compiledproducts import BFLOAT16_FORMS, PACKED

from syncpretrain.kernels import native

LACKING = emulatedtiles.lacking()
pytestmark = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
HAS_TILES = "tiles" in BFLOAT16_FORMS
PANEL_COLUMNS = 128
ROW = 4 * PANEL_COLUMNS  # bytes of a panel's


@pytest.fixture(scope="module")
def emulated():
    """The extension with emulated tiles."""
    return emulatedtiles.loaded(emulatedtiles.library())


@pytest.fixture
def tiles(emulated):
    """The functions beside it; a test ends without a fault, and without tiles in use."""
    functions = emulatedtiles.functions_of(emulatedtiles.library())
    yield functions
    functions.watch_nothing()
    assert functions.take_fault() is None
    assert not functions.tiles_in_use()


def packed(x: np.ndarray, columns: int) -> np.ndarray:
    """Return whole numbers as bfloat16, two side by side, in the first of some columns."""
    upper = x.astype(np.float32).view(np.uint32) >> 16
    pairs = upper[:, ::2] | upper[:, 1::2] << 16
    room = np.full((len(pairs), columns), 0x7FC07FC0, dtype=np.uint32)  # no numbers
    room[:, : pairs.shape[1]] = pairs
    return room


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 97, 128])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33, 50, 64])
def test_only_the_factors_are_read_and_the_sums_written(tiles, rows, columns, begins):
    rng = np.random.default_rng(rows * columns)
    a, b = rng.integers(-9, 10, (rows, 96)), rng.integers(-9, 10, (96, columns))
    left, right = packed(a, 48), packed(b.T, 48).T  # pairs lie down the columns
    panel = np.full((48, PANEL_COLUMNS), 0x7FC07FC0, dtype=np.uint32)
    panel[:, :columns] = right
    sums = np.full((rows, columns + 3), 5, dtype=np.float32)
    tiles.watch_matrix(left.ctypes.data, rows, 4 * 48, 4 * 48, 0)
    tiles.watch_matrix(panel.ctypes.data, 48, 4 * columns, ROW, 0)
    tiles.watch_matrix(sums.ctypes.data, rows, 4 * columns, 4 * (columns + 3), 1)
    places = left.ctypes.data, panel.ctypes.data
    tiles.add_packed_product(*places, rows, 48, columns, sums.ctypes.data, columns + 3, int(begins))
    np.testing.assert_array_equal(sums[:, :columns], a @ b + (0 if begins else 5))
    assert (sums[:, columns:] == 5).all()


def config(shapes: dict[int, tuple[int, int]], palette: int = 1) -> np.ndarray:
    """Return a configuration of some tiles of rows and bytes."""
    made = np.zeros(64, dtype=np.uint8)
    made[0] = palette
    for tile, (rows, size) in shapes.items():
        made[48 + tile] = rows
        made[16 + 2 * tile : 18 + 2 * tile] = np.array([size], dtype="<u2").view(np.uint8)
    return made


def changed(made: np.ndarray, place: int) -> np.ndarray:
    made[place] = 1
    return made


REFUSED = {
    "another palette": (config({}, palette=2), "config: palette"),
    "too many rows": (config({0: (17, 64)}), "config: a tile too large"),
    "too long rows": (config({3: (16, 68)}), "config: a tile too large"),
    "rows of nothing": (config({2: (1, 0)}), "config: rows of nothing"),
    "no rows": (config({2: (0, 4)}), "config: rows of nothing"),
    "a ninth tile": (config({8: (16, 64)}), "config: reserved bytes"),
    "a reserved byte": (changed(config({0: (16, 64)}), 5), "config: reserved bytes"),
    "a row to begin at": (changed(config({0: (16, 64)}), 1), "config: reserved bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_configurations_are_faults(tiles, what):
    given, fault = REFUSED[what]
    tiles.load_config(given.ctypes.data)
    assert tiles.take_fault() == fault.encode()
    tiles.release_tiles()


def test_tiles_without_a_configuration_or_of_other_shapes_are_faults(tiles):
    room = np.zeros((16, 16), dtype=np.float32)
    at = room.ctypes.data
    for use in (
        lambda: tiles.zero_tile(0),
        lambda: tiles.load_tile(0, at, 64),
        lambda: tiles.store_tile(0, at, 64),
        lambda: tiles.multiply_tiles(0, 1, 2),
    ):
        use()
        assert tiles.take_fault() == b"a tile without a configuration"
    given = config({0: (4, 8), 1: (4, 12), 2: (3, 8), 3: (3, 12), 4: (5, 12), 5: (2, 6)})
    tiles.load_config(given.ctypes.data)
    for numbers, fault in {
        (0, 1, 2): None,
        (0, 1, 3): b"other shapes",  # of columns
        (0, 4, 2): b"other shapes",  # of rows
        (0, 3, 2): b"other shapes",
        (0, 1, 1): b"a tile multiplied twice",
        (1, 1, 2): b"a tile multiplied twice",
        (0, 1, 6): b"an unused tile",
        (0, 1, 5): b"an unused tile",  # rows of no whole pairs
    }.items():
        tiles.multiply_tiles(*numbers)
        assert tiles.take_fault() == fault, numbers
    tiles.release_tiles()
    tiles.zero_tile(0)
    assert tiles.take_fault() == b"a tile without a configuration"


def test_reads_and_writes_outside_of_the_watched_matrices_are_faults(tiles):
    room = np.arange(64, dtype=np.float32).reshape(8, 8)
    tiles.watch_matrix(room.ctypes.data, 8, 16, 32, 0)
    tiles.load_config(config({0: (8, 16), 1: (8, 20), 2: (2, 16)}).ctypes.data)
    for what, fault in {
        (0, 0): None,
        (0, 4): b"a read outside of a matrix",  # into the columns beside it
        (1, 0): b"a read outside of a matrix",
        (0, -32): b"a read outside of a matrix",
        (2, 6 * 32): None,
        (2, 7 * 32): b"a read outside of a matrix",
    }.items():
        tiles.load_tile(what[0], room.ctypes.data + what[1], 32)
        assert tiles.take_fault() == fault, what
    tiles.store_tile(0, room.ctypes.data, 32)
    assert tiles.take_fault() == b"a write outside of a matrix"
    tiles.release_tiles()


def test_terms_are_added_as_the_manual_says(tiles):
    """Even numbers, odd ones, then both, then the sum; each below 2^-126 is 0."""
    a, b = np.zeros((1, 32), dtype=np.float32), np.ones((32, 1), dtype=np.float32)
    left, right = np.zeros((1, 16), dtype=np.uint32), np.zeros((16, 1), dtype=np.uint32)

    def product_of(numbers: dict[int, float], begin: float) -> float:
        a[:] = 0
        for k, x in numbers.items():
            a[0, k] = x
        left[:], right[:] = packed(a, 16), packed(b.T, 16).T
        out = np.full((1, 1), begin, dtype=np.float32)
        tiles.load_config(config({0: (1, 4), 1: (1, 64), 2: (16, 4)}).ctypes.data)
        tiles.load_tile(0, out.ctypes.data, 4)
        tiles.load_tile(1, left.ctypes.data, 64)
        tiles.load_tile(2, right.ctypes.data, 4)
        tiles.multiply_tiles(0, 1, 2)
        tiles.store_tile(0, out.ctypes.data, 4)
        tiles.release_tiles()
        return float(out[0, 0])

    big, half = 2.0**24, 1.0
    assert product_of({0: 3, 1: 5, 31: 7}, 2) == 17
    assert product_of({0: half, 2: half}, big) == big + 2, "the evens are added to each other first"
    assert product_of({0: half, 1: half}, big) == big + 2, "then to the odds, then to the sum"
    assert product_of({0: big, 1: half, 3: half}, 0) == big + 2, "the odds are apart"
    assert product_of({0: big, 2: half, 4: half}, 0) == big, "in their order"
    assert product_of({0: big, 2: half, 4: half, 6: -big}, 0) == 0
    assert product_of({0: 2.0**-126, 2: -(2.0**-126) * 1.5}, 0) == 0, "too small"
    assert product_of({0: 2.0**-126}, 2.0**-127) == 2.0**-126, "so is a sum"


RUN = """
import json, sys
import emulatedtiles
functions = emulatedtiles.in_place_of_installed(*sys.argv[1:3])
import numpy as np
from syncpretrain import finetune, pretrain
from syncpretrain.kernels import native
from syncpretrain.kernels.native import bfloat16_order
from syncpretrain.parallel.precision_choice import bfloat16_instructions
found = {"forms": native.extension.bfloat16_forms(), "instructions": bfloat16_instructions()}
found["order"] = bfloat16_order()
X = np.random.default_rng(0).random((90, 40)).astype(np.float32)
settings = {"layers": (40, 33, 17), "epochs": 2, "batch_size": 30, "precision": "bfloat16"}
found["sums"] = []
for runtime, workers, split in json.loads(sys.argv[3]):
    stack = pretrain(X, **settings, runtime=runtime, workers=workers, split=split, shards=2)
    found["sums"].append(stack.parameters_sha256)
tuned = finetune(stack, X, epochs=1, batch_size=30, precision="bfloat16")
found["tuned"] = tuned.parameters_sha256
found["fault"], found["in_use"] = str(functions.take_fault()), functions.tiles_in_use()
print(json.dumps(found))
"""
PLACES = [("serial", None, "units"), ("threads", 2, "units"), ("threads", 4, "units")]


def python(code: str, *arguments: object, order: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    folders = [Path(emulatedtiles.__file__).parent, emulatedtiles.KERNELS.parents[1]]
    environment = {"PYTHONPATH": ":".join(map(str, folders)), native.ORDER_VARIABLE: order}
    environment = os.environ | environment
    return subprocess.run(command, capture_output=True, timeout=300, env=environment, text=True)


def run(state: str, places=PLACES, order: str = "") -> dict:
    """Return what a process found that trains with emulated tiles."""
    done = python(RUN, emulatedtiles.library(), state, json.dumps(places), order=order)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@PACKED
def test_training_takes_tiles_and_threads_end_in_the_same_bits():
    with_tiles, without = run("permitted"), run("refused")
    for found in (with_tiles, without):
        assert len(set(found["sums"])) == 1
        assert (found["fault"], found["in_use"]) == ("None", 0)
    assert with_tiles["forms"] == ["tiles", *without["forms"]]
    assert (with_tiles["instructions"], with_tiles["order"]) == ("AMX", "tiles")
    assert (without["instructions"], without["order"]) == ("AVX512-BF16", "pairs")
    assert with_tiles["sums"] != without["sums"]
    assert with_tiles["tuned"] != without["tuned"]


@PACKED
def test_tiles_of_other_bits_than_expected_are_not_taken():
    found, without = run("wrong", PLACES[:1]), run("refused", PLACES[:1])
    assert found["forms"] == without["forms"] == ["pairs", "portable pairs", "portable tiles"]
    assert (found["order"], found["sums"]) == ("pairs", without["sums"])


@PACKED
def test_an_order_of_sums_is_kept_on_any_cpu():
    """A run that was begun with tiles goes on without them, slowly, to the same bits, and back."""
    for order, forms in {
        "tiles": {"permitted": "tiles", "refused": "portable tiles"},
        "pairs": {"permitted": "pairs", "refused": "pairs"},
    }.items():
        found = {state: run(state, PLACES[1:2], order) for state in forms}
        assert {state: each["forms"][0] for state, each in found.items()} == forms
        assert {each["order"] for each in found.values()} == {order}
        assert all(len(set(each["forms"])) == len(each["forms"]) for each in found.values())
        for what in ("sums", "tuned"):
            assert found["permitted"][what] == found["refused"][what]


TRAPPED = """
import ctypes, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import emulatedtiles
import numpy as np
from bfloat16bydefinition import by_tiles, factors
path = Path(sys.argv[1])
functions, extension = ctypes.PyDLL(str(path)), emulatedtiles.loaded(path)
functions.take_fault.restype = ctypes.c_char_p
functions.catch_instructions()
assert extension.bfloat16_forms()[0] == "tiles"

def differs(shape):
    a, b = factors(*shape)
    out = np.full((len(a), b.shape[1]), np.nan, dtype=np.float32)
    assert extension.multiply_bfloat16(a, b, out, "tiles") is out
    return not np.array_equal(out, by_tiles(a, b))

edges = (1, 16, 17, 31, 32, 33, 48, 65)
shapes = [(m, k, n) for m in edges for k in (1, 32, 70) for n in edges]
shapes += [(70, 1025, 65), (150, 200, 130)] * 4
with ThreadPoolExecutor(4) as threads:
    print([shape for shape, wrong in zip(shapes, threads.map(differs, shapes)) if wrong])
print(functions.take_fault(), functions.tiles_in_use(), functions.trapped() > 10000)
"""


@PACKED
@pytest.mark.skipif(HAS_TILES, reason="this CPU carries the instructions out itself")
def test_the_instructions_that_the_compiler_made_have_the_bits_of_the_definition():
    """Each is caught where the CPU refuses it, taken apart, and carried out by the emulation."""
    if not emulatedtiles.makes_instructions():
        pytest.skip("this compiler makes no tile instructions")
    done = python(TRAPPED, emulatedtiles.library("trappedtiles.c", "-O3"))
    assert done.stdout.splitlines() == ["[]", "None 0 True"], done.stderr
