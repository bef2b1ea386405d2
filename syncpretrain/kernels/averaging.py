"""Sums and means of the gradients of several shards in a fixed tree, and the update along a sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from syncpretrain.kernels.arrays import BLOCK, Array, blocks_in, ordered_sum
from syncpretrain.kernels.contrastive_divergence import momentum_steps
from syncpretrain.kernels.dispatch import accelerated

Leaf = tuple[Array, "np.float32 | None"]  # a part and its factor


def add_tree(parts: Sequence[Array]) -> Array:
    """Return the sum of arrays, added pairwise in a fixed tree, in the first one; use up the rest.

    ((0 + 1) + (2 + 3)) + ...: the bits do not depend on who computed which of them, and rounding
    grows with the logarithm of their number only.
    """
    live = list(parts)
    while len(live) > 1:
        for left, right in zip(live[::2], live[1::2], strict=False):
            np.add(left, right, out=left)
        live = live[::2]
    return live[0]


def subtrees(own: range, whole: range) -> list[range]:
    """Return the largest subtrees of the tree of :func:`add_tree` that make up some of its leaves.

    There are at most 2 log2 S of them, and others need only their sums to finish the whole.
    """
    if own.start <= whole.start and whole.stop <= own.stop:
        return [whole]
    if own.stop <= whole.start or whole.stop <= own.start:
        return []
    left, right = _halves(whole)
    return subtrees(own, left) + subtrees(own, right)


def add_subtrees(sums: Mapping[range, Array], whole: range) -> Array:
    """Return the sum of a tree from the sums of its subtrees, in the first; use up the rest.

    The bits equal the result of :func:`add_tree`.
    """
    if whole in sums:
        return sums[whole]
    left, right = (add_subtrees(sums, half) for half in _halves(whole))
    np.add(left, right, out=left)
    return left


def tree_mean(
    parts: Sequence[Array], *, out: Array, weights: Sequence[float] | None = None
) -> Array:
    """Return the mean of arrays in ``out``, added pairwise: ((0 + 1) + (2 + 3)) + ...

    The tree depends on the number of parts alone, and no element on another: any slice has the bits
    that it has in the mean of the whole. Each element is rounded once an addition, and at most
    ceil(log2 S) additions follow one another; and once when the sum is divided by S, or, with
    weights, once when a part is multiplied by its share, rounded to float32. The mean of one part
    is a copy.

    Parameters
    ----------
    parts : sequence of S arrays of shape (n,), float32
        Left as they are.
    out : array of shape (n,), float32
        Must not overlap any of the parts.
    weights : sequence of S numbers, optional
        The weight of each part, divided by their sum. Equal weights give the bits of none. A part
        of weight 0 is not read.

    Raises
    ------
    ValueError
        For no parts, a shape or type that does not fit, or weights that are negative, not finite
        or all 0.
    """
    _check(parts, out)
    leaves = _leaves(parts, weights)
    depth = max(len(parts) - 1, 0).bit_length()
    spare = [np.empty(min(BLOCK, len(out)), np.float32) for _ in range(depth)]
    for block in blocks_in(slice(0, len(out)), BLOCK):
        into = out[block]
        total = _sum([(p[block], f) for p, f in leaves], into, [s[: len(into)] for s in spare])
        assert total is not None, "not every share is 0"
        if leaves[0][1] is None and len(parts) > 1:
            np.divide(total, np.float32(len(parts)), out=into)
        elif total is not into:
            np.copyto(into, total)
    return out


@accelerated
def tree_steps(
    parameters: Array,
    gradients: Sequence[Array],
    velocities: Array,
    *,
    part: slice,
    weights: int,
    **rates: float,
) -> None:
    """Ascend with a part of flat vectors, along the sum of the gradients of several shards.

    They are added as by :func:`syncpretrain.kernels.averaging.add_tree`, and left as they are. Of
    the whole vectors the first ``weights`` numbers decay; see
    :func:`syncpretrain.kernels.contrastive_divergence.momentum_steps`.
    """
    total = add_tree([gradient[part].copy() for gradient in gradients])
    decaying = max(0, min(weights, part.stop) - part.start)
    momentum_steps(parameters[part], total, velocities[part], weights=decaying, **rates)


@accelerated
def sum_in_order(numbers: Array) -> float:
    """Return the sum of a vector of float64, added from its first number on."""
    return float(ordered_sum(numbers.tolist(), 0.0))


def _halves(whole: range) -> tuple[range, range]:
    """Return the two subtrees of a tree; the first has the largest power of 2 of its leaves."""
    middle = whole.start + (1 << (len(whole) - 1).bit_length() - 1)
    return range(whole.start, middle), range(middle, whole.stop)


def _sum(leaves: Sequence[Leaf], out: Array, spare: list[Array]) -> Array | None:
    """Return the sum, which is in ``out`` or is the only part that counts; None if none does."""
    if len(leaves) == 1:
        ((part, factor),) = leaves
        if factor is None:
            return part
        return np.multiply(part, factor, out=out) if factor else None
    half = 1 << (len(leaves) - 1).bit_length() - 1  # the largest power of 2 below their number
    left = _sum(leaves[:half], out, spare)
    if left is None:
        return _sum(leaves[half:], out, spare)
    right = _sum(leaves[half:], spare[0], spare[1:])
    return left if right is None else np.add(left, right, out=out)


def _leaves(parts: Sequence[Array], weights: Sequence[float] | None) -> list[Leaf]:
    if weights is None:
        return [(part, None) for part in parts]
    if len(weights) != len(parts):
        raise ValueError(f"weights: got {len(weights)} for {len(parts)} parts; give one a part")
    whole = math.fsum(weights)
    if not (math.isfinite(whole) and whole > 0 and min(weights) >= 0):
        raise ValueError(f"weights: got {list(weights)}, expected finite numbers >= 0, not all 0")
    if min(weights) == max(weights):
        return [(part, None) for part in parts]
    return [(p, np.float32(w / whole)) for p, w in zip(parts, weights, strict=True)]


def _check(parts: Sequence[Array], out: Array) -> None:
    if not parts:
        raise ValueError("parts: got none; give at least one array")
    for name, array in [("out", out), *((f"part {i}", part) for i, part in enumerate(parts))]:
        if array.ndim != 1 or array.dtype != np.float32 or len(array) != len(out):
            raise ValueError(
                f"{name}: got {array.dtype} of shape {array.shape}, expected float32 of shape "
                f"({out.size},); ravel the arrays and convert them first"
            )
