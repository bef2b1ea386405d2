"""Rows without a label in the training of a classifier: pseudo-labels.

A minibatch has rows with a label and, behind them, rows without. The network says of each of the
latter, as it is, what class it takes it for; where it is sure, that class is the target of the same
row with noise (Lee 2013; Sohn et al. 2020). The loss of a minibatch is

    mean over rows with a label of L(noisy row, label)
    + r * mean over rows without of [p >= 0.95] * L(noisy row, class of the greatest p)

with the cross-entropy L, the network's probabilities p of the row without noise, and r, which rises
from 0 to 1 over the first two thirds of all steps: a network that knows nothing yet is sure of the
wrong things.

A few labels may leave out a cluster of their class, which the network then takes for another class,
for good. ``aligned`` multiplies the probabilities by the share of each class among the labels over
the mean of its probability among the rows of the minibatch, before it looks for the sure ones
(Berthelot et al. 2020). The assumption is that the labels have the classes' shares of all rows.

With adversarial noise, a row without a label is also moved, by a fixed distance, to where the
network's output is most unlike what it is (Miyato et al. 2018): with the network's probabilities p
of the row x, and a random direction u of length 0.1, along the gradient by x of L(x + u, p). So the
class of a row has to hold in its whole neighbourhood, and classes part where there are few rows.

An epoch is a pass over the rows without a label, or over the others if that is longer. The fewer
ones come again and again: those with a label in another order each time. Which rows a step has is a
function of the seed, the epoch and the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.order import shuffled, steps_per_epoch
from syncpretrain.finetuning.tasks import Examples
from syncpretrain.kernels.arrays import Array
from syncpretrain.rng import Purpose, generator
from syncpretrain.settings.finetuning import labelled_of, steps_with_unlabelled

SURE = 0.95  # probability of a class, from which on it is a target
RISE = 2 / 3  # share of all steps in which the weight of such targets rises
PROBE = 0.1  # length of the random direction: at the row itself the gradient is 0
LEAST_SHARE = 1e-3  # of a class among the rows of a minibatch: one without any is not divided by 0
OF_LABELLED = 1  # step of the address that the order of rows with a label is drawn at


class Passes(NamedTuple):
    """The minibatches of each epoch.

    Attributes
    ----------
    examples : Examples
    batch_size, seed, epochs : int
    """

    examples: Examples
    batch_size: int
    seed: int
    epochs: int

    @property
    def labelled(self) -> int:
        """Rows of a minibatch with a target; the last minibatch may be smaller."""
        if self.examples.numbers is None:
            return min(self.batch_size, len(self.examples.inputs))
        return labelled_of(self.batch_size, len(self.examples.targets))

    @property
    def steps(self) -> int:
        """Minibatches of an epoch."""
        if self.examples.numbers is None:
            return steps_per_epoch(len(self.examples.inputs), self.batch_size)
        labelled = len(self.examples.targets)
        others = len(self.examples.numbers) - labelled
        return steps_with_unlabelled(self.batch_size, labelled, others)

    @property
    def counted(self) -> int:
        """Rows with a target in all minibatches of an epoch."""
        if self.examples.numbers is None:
            return len(self.examples.inputs)
        return self.steps * self.labelled

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the places of the rows of an epoch, minibatch after minibatch."""
        if self.examples.numbers is None:
            return shuffled(len(self.examples.inputs), seed=self.seed, layer=0, epoch=epoch)
        labelled, steps = len(self.examples.targets), self.steps
        others = len(self.examples.numbers) - labelled
        first, count = (epoch - 1) * steps * self.labelled, steps * self.labelled
        passes = range(first // labelled, (first + count - 1) // labelled + 1)
        drawn = np.concatenate([self._labelled_pass(number + 1) for number in passes])
        known = drawn[first - passes[0] * labelled :][:count]
        # All minibatches have the same size: at the end the first rows of the pass come again.
        order = shuffled(others, seed=self.seed, layer=0, epoch=epoch)
        unknown = labelled + np.resize(order, steps * (self.batch_size - self.labelled))
        rows = known.reshape(steps, -1), unknown.reshape(steps, -1)
        return np.concatenate(rows, axis=1).ravel()

    def rise(self, epoch: int, step: int) -> float:
        """Return how far the weight of rows without a label has risen, from 0 to 1."""
        done = (epoch - 1) * self.steps + step
        return min(1.0, done / (RISE * self.epochs * self.steps))

    def _labelled_pass(self, number: int) -> NDArray[np.int64]:
        draws = generator(self.seed, Purpose.ORDER, layer=0, epoch=number, step=OF_LABELLED)
        return draws.permutation(len(self.examples.targets))


def align(y: Array, shares: Array) -> None:
    """Scale probabilities so that the classes have the given shares of the rows, in place.

    Parameters
    ----------
    y : ndarray of shape (n, classes)
    shares : ndarray of shape (classes,)
    """
    y *= shares / (y.mean(axis=0) + LEAST_SHARE)
    y /= y.sum(axis=1, keepdims=True)


def guess(y: Array, target: Array) -> NDArray[np.bool_]:
    """Fill ``target`` with the class of the greatest probability; return where it is sure.

    Parameters
    ----------
    y, target : ndarray of shape (n, classes)
    """
    np.equal(np.arange(y.shape[1]), y.argmax(axis=1)[:, None], out=target)
    sure: NDArray[np.bool_] = y.max(axis=1) >= SURE
    return sure


def scaled_rows(x: Array, length: float) -> Array:
    """Scale rows to a length, in place; rows of zeros stay."""
    lengths = np.sqrt(np.square(x).sum(axis=1, keepdims=True))
    lengths[lengths == 0] = 1
    x *= length / lengths
    return x
