"""The step of a learner: whole, or cut into shards by examples, by units or by filters."""

from __future__ import annotations

from typing import TypeGuard

from syncpretrain.learners.base import Learner
from syncpretrain.learners.by_examples import ByExamples, ByExamplesOnDevices
from syncpretrain.learners.by_filters import by_filters
from syncpretrain.learners.by_units import ByUnits
from syncpretrain.learners.convolution import ConvolutionalAutoencoder, ConvolutionalRBM
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import Step, WholeStep, fused_step_of


def step_for(learner: Learner, shards: int, split: str, workers: int = 1) -> Step:
    """Return the step of a learner in ``shards`` shards, split by "examples", "units" or "filters".

    ``workers`` are the devices that the shards are dealt to, if the learner is on one.

    Raises
    ------
    ValueError
        If the learner cannot be split so.
    """
    if shards == 1:
        if is_plain(learner):
            return ByUnits(learner, 1)
        fused = fused_step_of(learner) if _is_cd(learner) else None
        return WholeStep(learner) if fused is None else fused
    if learner.backend.name != "numpy":
        if split != "examples":
            raise ValueError(f"split: got {split} on a device, expected examples")
        return ByExamplesOnDevices(learner, shards, workers)
    if split == "examples":
        return ByExamples(learner, shards)
    if split == "filters" and isinstance(learner, (ConvolutionalRBM, ConvolutionalAutoencoder)):
        return by_filters(learner, shards)
    if split == "units" and isinstance(learner, RBM):
        return ByUnits(learner, shards)
    raise ValueError(f"split: got {split} for {learner.model}, expected examples")


def is_plain(learner: Learner) -> TypeGuard[RBM]:
    """Return whether the learner does CD-k on the host: its whole step is a program too."""
    return learner.backend.name == "numpy" and _is_cd(learner)


def _is_cd(learner: Learner) -> TypeGuard[RBM]:
    """Return whether the learner does plain CD-k, without chains, conditions and the like."""
    if not isinstance(learner, RBM):
        return False
    own = learner.settings
    if own.sparse or own.sample_visible or own.sample_input or own.centred:
        return False
    if learner.row_weights is not None:
        return False
    return not (own.is_conditioned or own.persistent or own.sparsity_cost or own.hidden_dropout)
