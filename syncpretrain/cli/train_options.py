"""The options of ``train`` and ``compare``: one for each setting."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from syncpretrain.cli.options import data_option, floats, integers, momentums, words

__all__ = ["setting_options"]

F = TypeVar("F", bound=Callable[..., Any])

UNITS = ("bernoulli", "gaussian", "relu")
OPTIONS = (
    click.option(
        "--layers",
        type=integers,
        metavar="N,N[,N...]",
        help="Values of an example, then the units of each layer: 784,1000,500,250,30.",
    ),
    data_option("Default mnist."),
    click.option(
        "--validation",
        type=float,
        metavar="FRACTION",
        help="Of the training examples, to hold out. Default 10,000 of MNIST's 60,000, or a tenth.",
    ),
    click.option(
        "--preset",
        metavar="NAME",
        help="Take the settings of a preset, listed by 'syncpretrain presets'; options given"
        " here win.",
    ),
    click.option(
        "--config",
        metavar="FILE.toml",
        type=click.Path(path_type=Path),
        help="Take the settings of a run folder's config.toml; options given here win.",
    ),
    click.option(
        "--model",
        type=click.Choice(["rbm", "autoencoder", "denoising", "contractive"]),
        help="What a layer is. Default rbm.",
    ),
    click.option(
        "--visible-units",
        type=click.Choice(["bernoulli", "gaussian"]),
        help="Of the input: values in [0, 1] (default), or any, which are standardized.",
    ),
    click.option(
        "--hidden-units",
        type=words(UNITS),
        metavar="KIND[,KIND...]",
        help="bernoulli (default), gaussian (linear) or relu.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(["synchronized", "greedy", "rounds", "auto"]),
        help="Layers in parallel (default), one after another, or a group after another; auto"
        " measures first, as 'syncpretrain plan', and takes what is fastest here.",
    ),
    click.option(
        "--group-size",
        type=int,
        metavar="G",
        help="Of rounds: layers that train in parallel before the next G do. Default 2.",
    ),
    click.option(
        "--pace",
        type=click.Choice(["lockstep", "free"]),
        help="Epoch k reads version k of the layer below (default), or the newest there is.",
    ),
    click.option(
        "--runtime",
        type=click.Choice(["threads", "processes", "serial"]),
        help="A thread for each layer (default), a process, or all layers in turns.",
    ),
    click.option(
        "--backend",
        metavar="auto|numpy|cupy[:N]",
        help="Train on the CPU, on all GPUs, or on GPU N; auto (default) takes a GPU if there is"
        " one that CuPy can use.",
    ),
    click.option(
        "--workers",
        type=int,
        metavar="P",
        help="Workers of all layers together. Default the usable cores.",
    ),
    click.option(
        "--replicas",
        type=integers,
        metavar="R[,R...]",
        help="Workers that a layer takes when there are any to spare. Default 1.",
    ),
    click.option(
        "--split",
        type=click.Choice(["examples", "units"]),
        help="What replicas share: a minibatch's examples (default), or an RBM's units.",
    ),
    click.option(
        "--shards",
        type=integers,
        metavar="S[,S...]",
        help="Parts of a minibatch; the result depends on them, not on the workers. Default as"
        " many as replicas.",
    ),
    click.option("--epochs", type=integers, metavar="N[,N...]", help="Default 10."),
    click.option(
        "--refresh-epochs",
        type=integers,
        metavar="N[,N...]",
        help="On each newer version below, once a layer's own epochs are done. Default 1.",
    ),
    click.option(
        "--finish",
        type=click.Choice(["drain", "first-layer"]),
        help="Stop when every version is read (default), or do not wait for refreshes.",
    ),
    click.option(
        "--early-stopping",
        type=click.Choice(["none", "free-energy-gap", "pseudo-likelihood", "validation-error"]),
        help="End a layer's own epochs when it overfits (the gap), or no longer gets better."
        " The last is for autoencoders. Default none.",
    ),
    click.option("--patience", type=int, metavar="N", help="Epochs that may be bad. Default 3."),
    click.option(
        "--batch-size", type=int, metavar="B", help="Examples in a minibatch. Default 100."
    ),
    click.option(
        "--learning-rate",
        type=floats,
        metavar="X[,X...]",
        help="Default 0.1, and 0.001 for layers with gaussian or relu units.",
    ),
    click.option(
        "--momentum",
        type=momentums,
        metavar="V[:EPOCHS,V...]",
        help="Default '0.5:5,0.9', which is 0.5 for 5 epochs, then 0.9; a ';' between layers.",
    ),
    click.option("--weight-decay", type=floats, metavar="X[,X...]", help="Default 0.0002."),
    click.option(
        "--l1", type=floats, metavar="X[,X...]", help="Decay by the weights' signs. Default 0."
    ),
    click.option(
        "--visible-bias",
        type=click.Choice(["zero", "log-odds"]),
        help="Where visible biases start: 0 (default), or the log-odds of the units' means.",
    ),
    click.option(
        "--cd-steps",
        type=integers,
        metavar="N[,N...]",
        help="Gibbs steps of contrastive divergence. Default 1.",
    ),
    click.option(
        "--persistent/--not-persistent",
        default=None,
        help="Chains go on from one minibatch to the next (PCD).",
    ),
    click.option(
        "--sparsity-target", type=floats, metavar="X[,X...]", help="Mean activity. Default 0.1."
    ),
    click.option(
        "--sparsity-cost",
        type=floats,
        metavar="X[,X...]",
        help="How hard hidden units are pulled to it. Default 0.",
    ),
    click.option(
        "--hidden-dropout",
        type=floats,
        metavar="X[,X...]",
        help="Share of hidden units left out of an example. Default 0.",
    ),
    click.option(
        "--tied/--untied",
        default=None,
        help="Autoencoders: the way down shares the weights (default), or has its own.",
    ),
    click.option(
        "--loss",
        type=click.Choice(["squared", "cross-entropy"]),
        help="Of autoencoders. Default cross-entropy, squared for gaussian visible units.",
    ),
    click.option(
        "--corruption",
        type=words(()),
        metavar="KIND:X[,...]",
        help="Of denoising: masking:0.25 (default), salt-and-pepper:SHARE or gaussian:DEVIATION.",
    ),
    click.option(
        "--contraction",
        type=floats,
        metavar="X[,X...]",
        help="Weight of the contractive penalty. Default 0.1.",
    ),
    click.option(
        "--finetune",
        type=click.Choice(["none", "reconstruction", "classification"]),
        help="Train the whole stack by backpropagation afterwards. Default none.",
    ),
    click.option("--finetune-epochs", type=int, metavar="N", help="Default 10."),
    click.option(
        "--finetune-optimizer",
        type=click.Choice(["adam", "sgd", "cg", "lbfgs"]),
        help="Default adam. The last two take large batches, and SciPy.",
    ),
    click.option(
        "--finetune-learning-rate",
        type=float,
        metavar="X",
        help="Default 0.001 for adam, 0.1 for sgd.",
    ),
    click.option(
        "--finetune-rate-schedule",
        type=click.Choice(["constant", "linear", "cosine"]),
        help="How the rate falls to 0 by the end. Default constant.",
    ),
    click.option("--finetune-momentum", type=float, metavar="X", help="Of sgd. Default 0."),
    click.option(
        "--finetune-nesterov/--no-finetune-nesterov", default=None, help="Nesterov's momentum."
    ),
    click.option("--finetune-weight-decay", type=float, metavar="X", help="Default 0."),
    click.option(
        "--finetune-loss",
        type=click.Choice(["squared", "cross-entropy"]),
        help="Of reconstruction. Default squared.",
    ),
    click.option(
        "--finetune-dropout",
        type=float,
        metavar="X",
        help="Share of hidden units left out of an example. Default 0.",
    ),
    click.option(
        "--finetune-input-dropout", type=float, metavar="X", help="Of the inputs. Default 0."
    ),
    click.option(
        "--finetune-patience",
        type=int,
        metavar="N",
        help="Stop after N epochs without a better validation error, and keep the best weights.",
    ),
    click.option("--finetune-batch-size", type=int, metavar="B", help="Default 100."),
    click.option(
        "--finetune-replicas",
        type=int,
        metavar="R",
        help="Workers that share a minibatch. Default one for each usable core.",
    ),
    click.option(
        "--finetune-split",
        type=click.Choice(["units", "examples"]),
        help="What they share: the units of each layer (default) or the examples.",
    ),
    click.option("--finetune-shards", type=int, metavar="S", help="Default as many as replicas."),
    click.option(
        "--blas-threads",
        type=int,
        metavar="N",
        help="For greedy and fine-tuning; parallel layers take one each. Default the usable cores.",
    ),
    click.option(
        "--seed", type=int, metavar="N", help="The same seed gives the same model. Default 0."
    ),
)


def setting_options(command: F) -> F:
    """Add an option for each setting of a run."""
    return reduce(lambda decorated, option: option(decorated), reversed(OPTIONS), command)
