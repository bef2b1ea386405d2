"""Networks and optimizers on the whole of some examples, as one minibatch."""

import numpy as np

from syncpretrain.finetuning.optimizers import At
from syncpretrain.finetuning.tasks import Examples


def place(network, x, target, weights=None, **address):
    """Let examples be the minibatch of a network."""
    rows = network.backend.asarray(np.arange(len(x)))
    network.begin(Examples(x, target, weights), rows, **address)


def gradient(network, x, target, weights=None, **address):
    """Fill the gradients of a network; return its error."""
    place(network, x, target, weights, **address)
    return network.gradient()


def loss_of(network, x, target, weights=None, **address):
    """Return the loss that the gradients of a network are of."""
    place(network, x, target, weights, **address)
    return network.loss_of_minibatch()


def train(optimizer, x, target, weights=None, *, rate, epoch=1, step=0, **others):
    """Take a step of an optimizer; return the error before it."""
    rows = optimizer.network.backend.asarray(np.arange(len(x)))
    examples = Examples(x, target, weights)
    return optimizer.train(examples, rows, At(rate, epoch, step), **others)
