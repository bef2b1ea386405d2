"""Tables and figures of four publications on parallel pretraining, their column beside ours.

    python examples/benchmarks/papers.py santara|cmu|slides|yadan
    python examples/benchmarks/papers.py cmu --rows 2000 --epochs 2 --units 300

Errors, accuracies and times are measured here, on fewer digits and cores; with more workers than
there are cores they are simulated or predicted, and say so. The defaults take up to a quarter of
an hour on two cores. ``--simulated`` leaves the runs out. The publications:

santara
    Santara et al. 2016, "Faster learning of deep stacked autoencoders on multi-core systems using
    synchronized layer-wise pre-training" (arXiv:1603.02836).
cmu
    "Parallelizing Pretraining of Deep Neural Networks using Stacked Autoencoders", a project at
    Carnegie Mellon University.
slides
    Slides on a deep belief network by asynchronous SGD with one-sided messages of MPI.
yadan
    Yadan et al. 2013, "Multi-GPU Training of ConvNets" (arXiv:1312.5853).
"""

from __future__ import annotations

import argparse
import warnings

from _papers_measured import MEASURED, Size
from _papers_simulated import SIMULATED, rows_of
from _timing import machine, rst_table

from syncpretrain.errors import PoorResultWarning

ASSUMED = {
    "santara": "Layers' times in proportion to their weights; cores that do not slow each other.",
    "cmu": "Layers' times in proportion to their weights. Each GPU gets the weights of the layers"
    " below, as published, and so computes its input anew: the bound falls from 3.39 to 2.3. With"
    " minibatches of 100 the host that feeds all GPUs is one number, fitted to 3 layers on 3.",
    "slides": "Parameters spread over all ranks, an exchange's share of a turn fitted to 4 ranks."
    " The fall beyond 20 ranks is, as the slides say, one of more iterations, not of slower ones:"
    " it is not modelled.",
    "yadan": "All exchange through the host; nothing is lost on small minibatches, which use 4 GPUs"
    " badly.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("paper", choices=sorted(SIMULATED))
    parser.add_argument("--rows", type=int, default=10_000, help="Training digits.")
    parser.add_argument("--epochs", type=int, default=10, help="Of a layer.")
    parser.add_argument("--units", type=int, default=500, help="Of each of CMU's layers, not 2000.")
    parser.add_argument("--simulated", action="store_true", help="Only simulate.")
    options = parser.parse_args()
    warnings.simplefilter("ignore", PoorResultWarning)  # of minibatches that leave few updates
    if options.paper in MEASURED and not options.simulated:
        size = Size(options.rows, options.epochs, options.units)
        for table in MEASURED[options.paper](size):
            print(f"{table.title}\n\n{rst_table(table.head, table.rows)}\n", flush=True)
    print(f"Simulated speed-ups. {ASSUMED[options.paper]}\n")
    print(rst_table(["", "published", "simulated", "deviation", ""], rows_of(options.paper)))
    print(f"\n({machine([])})")


if __name__ == "__main__":
    main()
