"""The figures that the papers print, each from its preset, beside what is printed there.

    python examples/benchmarks/published_quality.py                        # all, over an hour
    python examples/benchmarks/published_quality.py --seeds 3 santara2016-greedy santara2016

Trains on all of MNIST (``SYNCPRETRAIN_DATA``, or a download) and prints the error on the 10,000
test digits of every seed, and the mean. docs/benchmarks.rst has the table.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from syncpretrain.runs.run import train_run
from syncpretrain.settings import preset_path, read_settings

PUBLISHED = {  # the test figure to reach, and where it is printed
    "santara2016-greedy": (8.19, "Santara et al. 2016"),
    "santara2016": (8.57, "Santara et al. 2016"),
    "hinton2006": (3.00, "Hinton and Salakhutdinov 2006"),
    "dbn-classifier": (1.2, "Hinton and Salakhutdinov 2006"),
    "sdae-classifier": (1.3, "Deep Learning Tutorials"),
    "fast": (8.19, "Santara et al. 2016"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="*", metavar="PRESET", help="Default all.")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--products", choices=("blas", "own"), help="In float32.")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for preset in options.presets or PUBLISHED:
        reports = [train(preset, seed, options.products) for seed in seeds]
        published, source = PUBLISHED[preset]
        print(
            f"{preset}: mean {mean(map(figure, reports)):.2f} of {options.seeds} seeds"
            f" ({published:g} in {source})",
            flush=True,
        )


def train(preset: str, seed: int, products: str | None) -> dict[str, Any]:
    settings = read_settings(preset_path(preset))
    own = {"precision": "float32", "products": products} if products else {}
    settings = msgspec.structs.replace(
        settings,
        pretrain=msgspec.structs.replace(settings.pretrain, seed=seed, **own),
        finetune=msgspec.structs.replace(settings.finetune, **own),
    )
    with tempfile.TemporaryDirectory() as folder:
        report = train_run(settings, out=Path(folder) / preset)
    seconds = report["seconds"]
    print(
        f"{preset}  {products or 'as it is'}  seed {seed}  test {figure(report):.2f}"
        f"  pretrain {seconds['pretrain']:.0f} s  finetune {seconds['finetune']:.0f} s"
        f"  total {seconds['total']:.0f} s",
        flush=True,
    )
    return report


def figure(report: dict[str, Any]) -> float:
    """Return the reconstruction error, or of a classifier the wrong ones in a hundred."""
    if report["accuracy"] is not None:
        return 100 * (1 - float(report["accuracy"]["test"]))
    return float(report["reconstruction_error"]["test"])


if __name__ == "__main__":
    main()
