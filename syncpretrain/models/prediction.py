"""Accuracy of a fine-tuned stack."""

from __future__ import annotations

from syncpretrain.data.dataset import PARTS, UNLABELLED, Dataset
from syncpretrain.models.stack import Stack

__all__ = ["accuracies"]


def accuracies(stack: Stack, data: Dataset) -> dict[str, float | None] | None:
    """Return the share of right classes on each part's labelled rows; None if it is no classifier.

    A part without labelled rows has None. A class that the stack does not know counts as wrong.
    """
    if stack.head is None or stack.head.kind != "classification":
        return None
    found: dict[str, float | None] = {}
    for part in PARTS:
        X, labels = getattr(data, part), getattr(data, f"{part}_labels")
        rows = slice(0, 0) if labels is None else labels != UNLABELLED
        found[part] = (
            float((stack.predict(X[rows]) == labels[rows]).mean()) if len(X[rows]) else None
        )
    return found
