"""Memory that several GPUs of one process read of each other.

A sum has one order, whatever the number of GPUs. The collectives of NCCL do not keep it, and NCCL
warns of deadlocks where one process records graphs for several GPUs. A kernel here reads what the
memory of other devices holds when it runs: the caller's events have to order it behind what fills
that memory, and what writes there next behind it. The source is in ``peers.cu``. It has run on
one GPU, and never between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_source import MOST_ELEMENTS, CudaForms, is_vector, rates_of
from syncpretrain.errors import SettingsError

MOST_LEAVES = 2**16  # LEVELS of peers.cu is 16: one register for each level of the tree
# cudaErrorPeerAccessAlreadyEnabled: CuPy enables access at its first copy between two devices, and
# so did any earlier run of this process.
ALREADY_ENABLED = 704


@dataclass(frozen=True, slots=True, eq=False)
class PeerVectors:
    """Vectors of one device or several, as kernels of one of them read them."""

    vectors: tuple[Any, ...]
    table: Any  # addresses of the vectors, on the device that reads them


def enable_access(cupy: Any, devices: Sequence[int]) -> None:
    """Let each of some devices read the memory of the others.

    Raises
    ------
    SettingsError
        If one cannot.
    """
    # Access has a direction, from the current device to another one: so both orders of each pair.
    runtime = cupy.cuda.runtime
    for device in devices:
        for peer in devices:
            if peer == device:
                continue
            if not runtime.deviceCanAccessPeer(device, peer):
                raise SettingsError(
                    f"replicas: got {len(devices)} GPUs for a layer, but GPU {device} cannot read"
                    f" the memory of GPU {peer}. Take replicas 1 with the same number of shards,"
                    " whose result is the same"
                )
            with cupy.cuda.Device(device):
                try:
                    runtime.deviceEnablePeerAccess(peer)
                except runtime.CUDARuntimeError as error:
                    if error.status != ALREADY_ENABLED:
                        raise


class CudaPeers(CudaForms):
    """Forms of what the devices of one layer do together."""

    names = ("tree_steps", "sum_in_order")

    def tree_steps(
        self,
        parameters: Any,
        gradients: Any,
        velocities: Any,
        *,
        part: slice,
        weights: int,
        **rates: float,
    ) -> Any:
        """Move a part of flat vectors along the sum of gradients, of this device or others."""
        if not isinstance(gradients, PeerVectors):
            return NotImplemented
        n, shards = len(parameters), len(gradients.vectors)
        vectors = parameters, velocities, *gradients.vectors
        if n > MOST_ELEMENTS or not all(is_vector(array, n) for array in vectors):
            return NotImplemented
        if shards > MOST_LEAVES:
            raise ValueError(f"shards: got {shards}, expected at most {MOST_LEAVES} on a GPU")
        length = part.stop - part.start
        args = (parameters, gradients.table, shards, velocities, part.start, length, weights)
        self._source.flat("tree_steps", length, *args, *rates_of(**rates))
        return None

    def sum_in_order(self, numbers: Any) -> Any:
        """Return the sum as a device array of shape (), not synchronized."""
        if numbers.dtype != np.float64 or numbers.ndim != 1 or not numbers.flags.c_contiguous:
            return NotImplemented
        # One thread, so that the order is the vector's; the numbers are few, one a shard.
        total = self._cupy.empty((), dtype=np.float64)
        self._source.launch("sum_in_order", (1,), (1,), total, numbers, len(numbers))
        return total
