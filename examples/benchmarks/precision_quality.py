"""Does bfloat16 cost accuracy? Test errors by the precision of pretraining and of fine-tuning.

    python examples/benchmarks/precision_quality.py --epochs 2 --seeds 3
    python examples/benchmarks/precision_quality.py --epochs 2 --model autoencoder
    python examples/benchmarks/precision_quality.py --epochs 2 --hidden-units relu

Pretrains 784-1000-500-250-30 on MNIST, streamed, in each precision, and fine-tunes each stack in
each, unrolled, with Adam. The error is squared and summed over pixels, the mean over the 10,000
digits of the test set; beside the mean over the seeds stands their standard deviation.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from statistics import mean, stdev
from typing import Any

from _timing import machine, rst_table

from syncpretrain import finetune, pretrain
from syncpretrain.data import load_dataset
from syncpretrain.models.diagnosis import stack_error

PRECISIONS = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--finetune-epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pretraining", choices=PRECISIONS, help="In this one alone.")
    parser.add_argument("--model", default="rbm")
    parser.add_argument("--visible-units")
    parser.add_argument("--hidden-units")
    options = parser.parse_args()

    data = load_dataset("mnist")
    train = data.train[: options.rows]
    how: dict[str, Any] = {"handoff": "minibatch", "model": options.model}
    how |= {
        name: value
        for name in ("visible_units", "hidden_units")
        if (value := getattr(options, name)) is not None
    }
    firsts = (options.pretraining,) if options.pretraining else PRECISIONS
    errors: dict[tuple[str, str], list[float]] = {
        (first, then): [] for first in firsts for then in PRECISIONS
    }
    for seed, first in product(range(options.seeds), firsts):
        stack = pretrain(
            train,
            layers=(784, 1000, 500, 250, 30),
            epochs=options.epochs,
            seed=seed,
            precision=first,
            **how,
        )
        for then in PRECISIONS:
            tuned = finetune(
                stack, train, epochs=options.finetune_epochs, seed=seed, precision=then
            )
            error = stack_error(tuned, data.test)
            assert error is not None  # it is one of examples that are all known
            errors[first, then].append(error)
            print(f"seed {seed}: {first}, then {then}: {error:.4f}", file=sys.stderr)
    rows = [
        [*way, f"{mean(found):.3f}", f"{stdev(found):.3f}" if len(found) > 1 else ""]
        for way, found in errors.items()
    ]
    print(rst_table(["pretraining", "fine-tuning", "test error", "deviation"], rows))
    print(f"\n{options.epochs} epochs a layer, {options.finetune_epochs} of fine-tuning, ", end="")
    print(f"{options.seeds} seeds, {options.model}; {machine(())}")


if __name__ == "__main__":
    main()
