"""The MPI runtime for whole epochs: rank 0 drives, each other rank holds a layer or several.

Guarantees:

* A rank with nothing to do sleeps. It gets an order, and answers with a report, in messages.
* The reader of a version computes its activations from the data, through one snapshot a layer: the
  same bits, and 3 MB to send where activations have 200. Where activations are fewer, the rank of
  the layer below sends them.
* A rank that dies is a failure of its layer, reported within a tick of the driver.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from syncpretrain.cluster.job import Membership
from syncpretrain.errors import WorkerError
from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Timeouts
from syncpretrain.pretraining.runtime.base import STDERR
from syncpretrain.pretraining.runtime.layer_process import RemoteTraceback
from syncpretrain.pretraining.runtime.messages import Failed, Finished, Message
from syncpretrain.pretraining.runtime.process_messages import Report
from syncpretrain.pretraining.runtime.ranks.chain_versions import ChainVersions
from syncpretrain.pretraining.runtime.ranks.handing_up import layers_sent_activations
from syncpretrain.pretraining.runtime.ranks.messages import (
    DropVersion,
    EpochLayer,
    HandUp,
    RankOrder,
)
from syncpretrain.pretraining.runtime.ranks.placement import UNSHARED, RankShares
from syncpretrain.pretraining.runtime.ranks.run import RunRanks
from syncpretrain.pretraining.runtime.worker import WorkerFactory
from syncpretrain.pretraining.schedule.machine import Train

__all__ = ["RanksRuntime"]


class RanksRuntime(Closing):
    """Layers on other ranks.

    Parameters
    ----------
    worker_factories : sequence of callable
        From the lowest layer up, each of which can be sent to another rank.
    versions : ChainVersions
    blas_threads : int
        Of each rank.
    own : Membership
        Of this process, rank 0.
    times : Timeouts
    shares : RankShares
        How many ranks may share a layer.
    """

    def __init__(
        self,
        worker_factories: Sequence[WorkerFactory],
        versions: ChainVersions,
        blas_threads: int,
        own: Membership,
        times: Timeouts = TIMEOUTS,
        shares: RankShares = UNSHARED,
    ) -> None:
        super().__init__(times)
        self._worker_factories, self._versions = worker_factories, versions
        self._blas_threads = blas_threads
        widths = (versions.data.train.shape[1], *versions.hidden)
        self._ranks = RunRanks(own, widths, times, shares)
        self._progress = np.zeros(len(worker_factories) + 1)  # by layer
        self._commands: dict[int, Train] = {}  # the newest of each layer
        self._busy: set[int] = set()
        self._looked = 0.0  # for ranks that were lost
        self._later: Message | None = None  # that came as a rank was found to be lost
        self._there: dict[int, int] = {}  # the version whose activations each layer's rank has
        rows = sum(map(len, versions.data))
        self._sent = layers_sent_activations(rows, versions.hidden, versions.parameters)
        self._kept = {layer - 1: set[int]() for layer in self._sent}  # versions, on their rank

    def _open(self) -> None:
        self._ranks.listen("progress", self._record_progress)
        layers = [
            EpochLayer(
                layer,
                factory,
                self._ranks.groups[layer + 1] if layer + 1 in self._sent else (),
                group=self._ranks.groups[layer],
            )
            for layer, factory in enumerate(self._worker_factories, start=1)
        ]
        self._ranks.begin(layers, lambda layers: self._versions.data, self._blas_threads)
        self._versions.on_release = self._released

    def submit(self, command: Train) -> None:
        """Send the layer's rank an epoch."""
        layer, reads = command.layer, command.reads
        chain = self._versions.chain(layer - 1, reads, command.below_reads)
        has = self._there.pop(layer, None)  # until it reports
        self._progress[layer] = 0.0
        self._commands[layer] = command
        self._busy.add(layer)
        lacks = bool(chain) and has != reads
        are_sent = lacks and reads in self._kept.get(layer - 1, ())
        if are_sent:
            self._ranks.send_first(layer - 1, "versions", HandUp(reads))
        order = RankOrder(command, chain if lacks and not are_sent else None, are_sent)
        self._ranks.send(layer, "orders", order)
        if not lacks:
            self._there[layer] = reads

    def set_workers(self, layer: int, workers: int) -> None:
        """Set the number of workers of a layer from its next step on."""
        self._ranks.send(layer, "workers", -(-workers // len(self._ranks.groups[layer])))

    def fraction(self, layer: int) -> float:
        """Return how far the running epoch of a layer is, in [0, 1]."""
        return float(self._progress[layer])

    def stop(self) -> None:
        """Ask every worker to leave after its minibatch."""
        self._ranks.stop()

    def dump_stacks(self) -> None:
        """Write on stderr where every thread of every rank stands."""
        self._ranks.dump_stacks()
        faulthandler.dump_traceback(STDERR)

    def wait(self, timeout: float) -> Message | None:
        """Return the next message of any rank, or how one was lost, or None."""
        later, self._later = self._later, None
        if later is not None:
            return later
        found = self._ranks.take("reports", timeout)
        message = None if found is None else self._received(found[0], *found[1])
        now = time.monotonic()
        if now - self._looked >= self._times.tick:  # though others may go on reporting
            self._looked = now
            for layer in range(1, len(self._worker_factories) + 1):
                how = self._ranks.lost(layer)
                if how is not None:
                    self._later = message
                    return self._lost(layer, how)
        return message

    def _released(self, layer: int, version: int) -> None:
        """Have the ranks that keep a version drop it: its own, and that of the layer above."""
        if version in self._kept.get(layer, ()):
            self._kept[layer].discard(version)
            self._ranks.send_first(layer, "versions", DropVersion(layer, version))
        if layer + 1 in self._kept:
            self._ranks.send_first(layer + 1, "versions", DropVersion(layer, version))

    def _record_progress(self, source: int, progress: Mapping[int, float]) -> None:
        for layer, fraction in progress.items():
            self._progress[layer] = fraction

    def _received(self, rank: int, layer: int, report: Report) -> Message:
        message = report.message
        self._busy.discard(layer)
        if report.computed:
            self._versions.record_computed(layer - 1, message.command.reads)
            self._there[layer] = message.command.reads
        offset = self._ranks.offset(layer)
        if isinstance(message, Finished):
            if layer in self._kept:
                self._kept[layer].add(message.command.epoch)
            times = (message.started, message.trained_from, message.ended)
            started, trained_from, ended = (moment + offset for moment in times)
            return replace(message, started=started, trained_from=trained_from, ended=ended)
        if not message.command.layer:  # it failed before its first order
            message = replace(message, command=self._commands.get(layer, Train(layer, 1, 0, 0)))
        if report.trace:
            message.error.__cause__ = RemoteTraceback(report.trace)
        command = message.command
        error = self._ranks.located(message.error, command.layer, command.epoch, rank)
        return replace(message, error=error)

    def _lost(self, layer: int, how: str) -> Failed:
        command = self._commands.get(layer, Train(layer, 0, 0, 0))
        if layer in self._busy:
            moment = f"in epoch {command.epoch}"
        elif command.epoch:
            moment = f"after epoch {command.epoch}"
        else:
            moment = "before its first epoch"
        self._busy.discard(layer)
        return Failed(command, WorkerError(f"layer {layer} failed {moment}: {how}"))

    def _close(self) -> list[str]:
        self._versions.on_release = None
        return self._ranks.end()
