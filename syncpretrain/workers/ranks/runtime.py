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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from syncpretrain.cluster.job import Membership
from syncpretrain.errors import ScheduleError, WorkerError
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.activations import ActivationSource
from syncpretrain.workers.child import Report
from syncpretrain.workers.interface import STDERR, Failed, Finished, Message
from syncpretrain.workers.layer_process import RemoteTraceback
from syncpretrain.workers.ranks.epoch_worker import layers_sent_activations
from syncpretrain.workers.ranks.messages import (
    DropVersion,
    EpochAssignment,
    HandUp,
    RankOrder,
)
from syncpretrain.workers.ranks.placement import UNSHARED, RankShares
from syncpretrain.workers.ranks.run import RunRanks
from syncpretrain.workers.versions import Versions
from syncpretrain.workers.worker import WorkerFactory

__all__ = ["ChainVersions", "RanksRuntime"]


class ChainVersions(Versions):
    """Versions without activations here: snapshots, and chains of them.

    A chain has one snapshot a layer, through which the data become the activations of a version.
    The reader of a version gets its chain, or the activations where they are fewer bytes.

    Parameters
    ----------
    parameters : sequence of int
        Numbers of each layer's parameters.

    Attributes
    ----------
    on_release : callable or None
        Called with layer and version as that is released.
    """

    def __init__(self, *arguments: object, parameters: Sequence[int], **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.parameters = parameters
        self.on_release: Callable[[int, int], None] | None = None
        self._chains: dict[tuple[int, int], tuple[Layer, ...]] = {}

    def chain(self, layer: int, version: int, below: int) -> tuple[Layer, ...]:
        """Return the snapshots from layer 1 up to a version; none for the data.

        ``below`` is the version of the layer below that it was trained on.

        Raises
        ------
        ScheduleError
            If the version, or what it is computed from, is not held.
        """
        if layer == 0:
            return ()
        own = self._version(layer, version)
        if (layer, version) not in self._chains:
            if layer > 1 and (layer - 1, below) not in self._chains:
                raise ScheduleError(
                    f"version {below} of layer {layer - 1} was read before it was computed"
                )
            chain = self._chains[layer - 1, below] if layer > 1 else ()
            self._chains[layer, version] = (*chain, own.snapshot)
        return self._chains[layer, version]

    def source(self, layer: int, version: int, below: int) -> ActivationSource:
        """Refuse: the activations are on other ranks."""
        raise ScheduleError(f"version {version} of layer {layer} has no activations here")

    def compute(self, layer: int, version: int, snapshots: Sequence[Layer]) -> None:
        """Note the chain from which a version's reader computes the activations again."""
        self._version(layer, version).computed = True
        self._chains[layer, version] = tuple(snapshots)

    def release(self, layer: int, version: int) -> None:
        """Drop a version."""
        super().release(layer, version)
        self._chains.pop((layer, version), None)
        if self.on_release is not None:
            self.on_release(layer, version)


class RanksRuntime(Closing):
    """Layers on other ranks.

    Parameters
    ----------
    worker_factories : sequence of callable
        One a layer, from the lowest up; each can be sent to another rank.
    versions : ChainVersions
    blas_threads : int
        BLAS threads of each rank.
    own : Membership
        The membership of this process, rank 0.
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
        self._later: Message | None = None  # it came just as a rank was found to be lost
        self._there: dict[int, int] = {}  # by layer: the version that its rank has as input
        rows = sum(map(len, versions.data))
        self._sent = layers_sent_activations(rows, versions.hidden, versions.parameters)
        self._kept = {layer - 1: set[int]() for layer in self._sent}  # versions, on their rank

    def _open(self) -> None:
        self._ranks.listen("progress", self._record_progress)
        layers = [
            EpochAssignment(
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
        # Unknown until it reports: it may fail before it has computed its new input.
        has = self._there.pop(layer, None)
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
        # By the clock, not when no report came: others may report without end while one is lost.
        if now - self._looked >= self._times.tick:
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
            # The clocks of two machines differ: events are in the time of rank 0.
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
