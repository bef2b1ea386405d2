"""Check a GPU, and time training on it: one command, whose tables go into the documentation.

    python examples/gpu_check.py                              # 15 minutes at most
    python examples/gpu_check.py --limit 570 --out results    # within 570 s, with files of results
    python examples/gpu_check.py --parts accuracy,bits --device 1
    python examples/gpu_check.py --parts all                  # ncu too, which may need rights

The parts, in their order:

versions
    Python, NumPy, CuPy, CUDA, the driver, the GPU and its tools; whether whole steps pass their
    trials. It always comes first.
doctor
    What ``syncpretrain doctor`` says.
accuracy, tf32, bfloat16
    Products of cuBLAS and three steps of each layer, in parts and whole, against float64, in each
    precision; states against NumPy's; random numbers.
bits
    The same parameters from layers in turns, in threads, and without recorded blocks.
kinds, rounded, streamed, host-rows, shards
    The same for other learners and settings, for TF32 and bfloat16, for layers that hand over
    minibatches, for rows that stay on the host, and for shards of minibatches on one GPU and on
    all. Blocks that were not recorded are counted: where none was, equal bits prove nothing.
convolutions
    The same for convolutions, at the size of MNIST's images.
layer
    Microseconds of a step of each layer alone: in parts and as a whole, launch by launch and as
    recorded blocks, and how long it takes to queue them; in each precision.
layers
    A step of every layer: one layer after another, all at once, and by a thread each.
epochs
    Runs of 784-1000-500-250-30 on 50,000 rows of random bytes, greedy and synchronized, and its
    fine-tuning: seconds, and the memory of the GPU that is not given back.
tuning
    Microseconds of a step of fine-tuning in each precision, its bits, and how far it is from
    NumPy's.
pytorch
    The greedy step of PyTorch, eager and in a CUDA graph, if it is installed.
paper, again
    The paper's run on MNIST, if SYNCPRETRAIN_DATA names a folder with it, by two processes: the
    second finds the kernels compiled.
memcheck, racecheck
    The part accuracy at a small size, under NVIDIA's compute-sanitizer.
tests
    The tests of the backends that take a GPU.
ncu
    What Nsight Compute says of the kernels of a whole step. Only if it is asked for.

Each part is a process of its own with a time limit of its own, so that a crash, a hang or a lost
CUDA context costs that part alone. An error costs one cell. The status is 1 if a part failed, and 2
if there is no GPU. The tests run every part with a stand-in for CuPy, at small sizes.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from gpu_checks.accuracy import accuracy
from gpu_checks.bench import Bench, rst_table
from gpu_checks.processes import NO_GPU, Outcome, Part, run_parts, started_work, table_of
from gpu_checks.pytorch import greedy_steps
from gpu_checks.runs import epochs, paper
from gpu_checks.same_bits import same_bits
from gpu_checks.steps import all_layers, one_layer
from gpu_checks.tools import doctor, profile, sanitized, suite
from gpu_checks.tuning import tuning
from gpu_checks.versions import versions

FIRST, LAST = "versions", "ncu"
PARTS = {
    FIRST: Part(versions, 60),
    "doctor": Part(doctor, 40),
    "accuracy": Part(accuracy, 60),
    "tf32": Part(partial(accuracy, precision="tf32"), 60),
    "bfloat16": Part(partial(accuracy, precision="bfloat16"), 60),
    "bits": Part(partial(same_bits, group="bits"), 90),
    "kinds": Part(partial(same_bits, group="kinds"), 90),
    "rounded": Part(partial(same_bits, group="rounded"), 60),
    "streamed": Part(partial(same_bits, group="streamed"), 60),
    "host-rows": Part(partial(same_bits, group="host-rows"), 60),
    "shards": Part(partial(same_bits, group="shards"), 60),
    "convolutions": Part(partial(same_bits, group="convolutions"), 90),
    "layer": Part(one_layer, 120),
    "layers": Part(all_layers, 100),
    "epochs": Part(epochs, 80),
    "tuning": Part(tuning, 90),
    "pytorch": Part(greedy_steps, 80),
    "paper": Part(paper, 60),
    "again": Part(paper, 60),
    "memcheck": Part(partial(sanitized, tool="memcheck"), 60),
    "racecheck": Part(partial(sanitized, tool="racecheck"), 60),
    "tests": Part(suite, 170),
    LAST: Part(profile, 70),
}
USUAL = [name for name in PARTS if name != LAST]


def check(parts: Sequence[str], given: Sequence[str], limit: float, out: Path) -> int:
    """Run parts, print their tables and how each ended; return the status."""
    with (out / "log.txt").open("w", encoding="utf-8") as log:
        say = partial(_say, log)
        outcomes: list[Outcome] = []
        chosen = {name: PARTS[name] for name in parts}
        for outcome in run_parts(chosen, given, limit=limit, out=out, say=say):
            outcomes.append(outcome)
            say(f"{outcome.name}: {outcome}, {outcome.seconds:.0f} s\n")
            if outcome.name == FIRST and outcome.status == NO_GPU:
                return NO_GPU
        _write(out / "tables.rst", _tables(outcomes, out), say)
        _write(out / "summary.txt", _summary(outcomes), say)
    return int(any(outcome.status != 0 for outcome in outcomes))


def _say(log: TextIO, text: str) -> None:
    """Print text as it comes, and keep it."""
    for file in (sys.stdout, log):
        file.write(text)
        file.flush()


def _write(path: Path, text: str, say: Callable[[str], None]) -> None:
    path.write_text(text, encoding="utf-8")
    say(f"\n{text}")


def _tables(outcomes: Sequence[Outcome], out: Path) -> str:
    """Return the tables of all parts for the documentation."""
    texts = []
    for outcome in outcomes:
        table = table_of(out, outcome.name)
        text = "nothing was measured" if table is None else rst_table(table)
        texts.append(f"{outcome.name} ({outcome.seconds:.0f} s)\n\n{text}\n")
    return "\n".join(texts)


def _summary(outcomes: Sequence[Outcome]) -> str:
    """Return how each part ended, and whether all is well."""
    rows = [(each.name, str(each), f"{each.seconds:.1f}") for each in outcomes]
    failed = ", ".join(each.name for each in outcomes if each.status != 0)
    verdict = f"failed: {failed}" if failed else "all is well"
    return f"{rst_table((('Part', 'How it ended', 'Seconds'), rows))}\n\n{verdict}\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Check a GPU, and time training on it.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--parts", default=",".join(USUAL), help=f"default: all but {LAST}; or all")
    add("--device", type=int, default=0, help="the number of the GPU")
    add("--limit", type=seconds_of, default=900.0, help="seconds for all parts, which share them")
    add("--out", type=Path, help="folder for the results; default: they are printed only")
    add("--layers", type=widths, default="784,1000,500,250,30")
    add("--batch-size", type=count_of, default=100)
    add("--rows", type=count_of, default=50_000)
    add("--blocks", type=count_of, default=20, help="of 50 steps, timed together")
    add("--repeats", type=count_of, default=5, help="of each time; the median counts")
    add("--epochs", type=count_of, default=3, help="of each run")
    add("--part", choices=PARTS, help=argparse.SUPPRESS)  # this process is the part's
    return parser


def seconds_of(text: str) -> float:
    if not 0 < (seconds := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"got {text}, expected seconds above 0")
    return seconds


def count_of(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected 1 or more")
    return count


def widths(text: str) -> tuple[int, ...]:
    found = tuple(map(count_of, text.split(",")))
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"got {text}, expected two widths at least")
    return found


def bench_of(given: argparse.Namespace, out: Path) -> Bench:
    """Return what a part is measured on."""
    sizes = (given.batch_size, given.rows, given.blocks, given.repeats, given.epochs)
    return Bench(given.device, given.layers, *sizes, given.limit, out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and time the parts that are asked for; return the status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    given = parser.parse_args(arguments)
    asked = list(PARTS) if given.parts == "all" else given.parts.replace(" ", "").split(",")
    if unknown := set(asked) - PARTS.keys():
        parser.error(f"--parts: got {min(unknown)!r}, expected some of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="gpu_check") as folder:
        out = given.out or Path(folder)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out: got {out}, expected a folder, or a place for one: {error}")
        if given.part:
            return started_work(given.part, PARTS[given.part], bench_of(given, out))
        return check(list(dict.fromkeys([FIRST, *asked])), arguments, given.limit, out.absolute())


if __name__ == "__main__":
    # A request to end is an exit, so that the process of a part is not left behind. SIGHUP is what
    # a terminal sends that is closed.
    for request in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(request, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
