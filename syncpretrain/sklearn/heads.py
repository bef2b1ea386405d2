"""Heads of the predictors: trained on places of classes and on standardized numbers.

The head of ``stack_`` is for the labels and the numbers of y: a stack that is saved and loaded
predicts what its estimator does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain import Stack
from syncpretrain.finetuning.classes import Classes
from syncpretrain.models.stack import Head
from syncpretrain.sklearn.passes import Matrix

__all__ = ["for_labels", "for_numbers", "for_places", "for_standardized"]


def for_places(stack: Stack, labels: NDArray[np.generic]) -> Stack:
    """Return a stack whose head is for the places of labels; without it if a label is new to it."""
    head, names = stack.head, _names(labels)
    if head is None:
        return stack
    if head.kind != "classification" or not set(names) <= set(head.classes):
        return replace(stack, head=None)
    places = [head.classes.index(name) for name in names]
    weight, bias = np.ascontiguousarray(head.weight[:, places]), head.bias[places]
    return replace(stack, head=Head(weight, bias, head.kind, tuple(range(len(names)))))


def for_labels(stack: Stack, labels: NDArray[np.generic]) -> Stack:
    """Return a stack whose head, one for places, is for the labels themselves."""
    assert stack.head is not None
    return replace(stack, head=replace(stack.head, classes=_names(labels)))


def for_standardized(stack: Stack, mean: Matrix, scale: Matrix) -> Stack:
    """Return a stack whose head is for standardized numbers, without one if it is for others."""
    head = stack.head
    if head is None:
        return stack
    if head.kind != "regression" or head.bias.shape != mean.shape:
        return replace(stack, head=None)
    return replace(stack, head=_affine(head, head.weight / scale, (head.bias - mean) / scale))


def for_numbers(stack: Stack, mean: Matrix, scale: Matrix) -> Stack:
    """Return a stack whose head, one for standardized numbers, is for these as they were."""
    head = stack.head
    assert head is not None
    return replace(stack, head=_affine(head, head.weight * scale, head.bias * scale + mean))


def _affine(head: Head, weight: Matrix, bias: Matrix) -> Head:
    with np.errstate(over="ignore"):  # numbers that float32 cannot hold
        return replace(head, weight=weight.astype(np.float32), bias=bias.astype(np.float32))


def _names(labels: NDArray[np.generic]) -> Classes:
    """Return labels as a head has them: texts, or whole numbers, of truth values too."""
    values: Any = labels.tolist()
    names: tuple[Any, ...] = tuple(x if isinstance(x, str) else int(x) for x in values)
    return names
