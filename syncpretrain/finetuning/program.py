"""The step of a network, as phases of shards of operations: forward, output, backward, moves.

The layers are worked in sections, each split in one way. Where a section is split by examples, each
shard takes its rows through all layers of the section, with a gradient of its own; the gradients
are added up in the end. Where it is split by units, every layer has a phase up, in which a shard
owns some of its units, and one down, in which it owns some of the units below; all wait for each
other in between, and nothing is added up. Krizhevsky 2014 splits convolutions by examples and dense
layers by units.

A section in columns is a grid: a shard takes its rows through its column of all layers, and waits
for the others before a layer in which units read other columns too. Shards with the same rows share
one gradient array, and each fills its column. By examples is a grid of one column.

Data flow one way. A slice of the parameters moves as soon as its gradient is whole and no shard
reads the slice any more: for a dense layer split by units that is right behind the product that
made the gradient, while its rows are still in the cache of the core that made them. An update of
all parameters at the end would read both from memory once more.

Guarantee: within a phase no shard reads what another one writes, so workers may work the shards of
a phase in any order or at once, with the same bits. Assumption: a phase begins when all shards of
the phase before are done; see :mod:`syncpretrain.kernels.program`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby
from typing import NamedTuple

from syncpretrain.finetuning.chain import Columns, Link, Site
from syncpretrain.kernels.arrays import BLOCK, Array, blocks_in, slices_of
from syncpretrain.kernels.backprop import Pair
from syncpretrain.kernels.operations import Operation
from syncpretrain.shapes import common_groups
from syncpretrain.units.kinds import kind_of

# Returns the operations that move a part of the flat parameters along its gradient.
Moves = Callable[[slice], list[Operation]]


def no_moves(part: slice) -> list[Operation]:
    """Move nothing."""
    return []


class Section(NamedTuple):
    """Links, by their numbers, that are split in one way.

    ``columns`` is the number of columns, 1 by examples, 0 by units.
    """

    links: range
    columns: int


def sections_of(chain: Sequence[Link], split: str) -> list[Section]:
    """Return the sections of a chain that is split in a way; see :class:`Network`."""
    numbers = range(len(chain))
    if split not in ("hybrid", "columns"):
        return [Section(numbers, int(split == "examples"))]
    columns = common_groups(link.groups for link in chain) if split == "columns" else 1
    found = []
    for is_local, run in groupby(numbers, key=lambda number: chain[number].is_local):
        links = list(run)
        found.append(Section(range(links[0], links[-1] + 1), columns if is_local else 0))
    return found


class Minibatch(NamedTuple):
    """The arrays in which a minibatch lies: rows, targets, and the weight of each target or None.

    ``target`` is ``x`` itself where the network is to reconstruct its input. Only the first
    ``known`` rows count in the number of wrong classes; None if all rows do.
    """

    x: Array
    target: Array
    weights: Array | None = None
    known: int | None = None


@dataclass(frozen=True, slots=True)
class Buffers:
    """All arrays of a network, for as many examples as its largest minibatch has.

    Attributes
    ----------
    links : sequence of Link
    sections : list of Section
    starts : list of int
        First index of each link's parameters in the flat vector, then the end of the last.
    chain : list of (weight, bias)
    gradients : list of list of (weight, bias)
        Gradients of a shard's rows in sections split by examples; else the same for all shards.
    activations, deltas, places : list of ndarray
    masks, inputs : list of ndarray or None
        Dropout's factors of each link's input, and that input with units left out.
    scratch : list of ndarray
        One a shard.
    normals : list of ndarray
        Standardized inputs of each link's units; of no columns without normalization.
    spreads : list of ndarray
        Their standard deviations before, of shape (shards, units).
    loss : str
    on_device : bool
        Whether a launch costs more than the work of a small operation.
    """

    links: Sequence[Link]
    sections: list[Section]
    starts: list[int]
    chain: list[Pair]
    gradients: list[list[Pair]]
    activations: list[Array]
    deltas: list[Array]
    places: list[Array]
    masks: list[Array | None]
    inputs: list[Array | None]
    scratch: list[Array]
    normals: list[Array]
    spreads: list[Array]
    loss: str
    on_device: bool

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self.scratch)

    def site(self, link: int, x: Array, rows: slice, shard: int, *, drops: bool = True) -> Site:
        """Return the arrays in which a shard works some rows of a link; x is the minibatch."""
        left = self.inputs[link] if drops else None
        below = self.activations[link - 1] if link else x
        places = self.places[link]
        return Site(
            *self.chain[link],
            *self.gradients[shard][link],
            (below if left is None else left)[rows],
            self.activations[link][rows],
            self.deltas[link][rows],
            places[rows] if places.size else places,
            self.scratch[shard],
            self.normals[link][rows],
            self.spreads[link][shard],
        )


Dealt = list[list[Operation]]  # the operations of a phase, by shard


def forward_phases(
    buffers: Buffers, x: Array, *, drops: bool, in_shards: bool = False
) -> list[Dealt]:
    """Return what takes rows up through all links, in one shard or in as many as a step has."""
    step = _Step(_whole(buffers, in_shards), Minibatch(x, x), drops=drops, has_target=False)
    phases = (phase for section in step.buffers.sections for phase in step.rise(section))
    return [phase for phase in phases if any(phase)]


def _whole(buffers: Buffers, in_shards: bool) -> Buffers:
    """Return the buffers for one shard, which has all rows of all links, or for all shards."""
    if in_shards:
        return buffers
    section = Section(range(len(buffers.links)), 1)
    return replace(buffers, sections=[section], scratch=buffers.scratch[:1])


def input_gradient_phases(
    buffers: Buffers, minibatch: Minibatch, out: Array, *, in_shards: bool = False
) -> list[Dealt]:
    """Return what fills ``out`` with the derivative of the loss by the inputs; no unit is left out.

    Slots of the results are the same as in :func:`step_phases`.
    """
    step = _Step(_whole(buffers, in_shards), minibatch, drops=False, by_inputs=out)
    return [phase for phase in step.gradient() if any(phase)]


def step_phases(buffers: Buffers, minibatch: Minibatch, moves: Moves) -> list[Dealt]:
    """Return the phases of a step on the minibatch in given arrays.

    Slots of the results: the squared error of each shard, then the number of wrong classes of each.
    """
    step = _Step(buffers, minibatch, moves)
    if buffers.on_device:  # where a step has one shard, and all parameters move by one launch
        end = [moves(slice(0, buffers.starts[-1]))]
    else:
        end = [step.last(shard) for shard in range(buffers.shards)]
    return [phase for phase in (*step.gradient(), end) if any(phase)]


def shard_gradients(buffers: Buffers, minibatch: Minibatch) -> Dealt:
    """Return what fills the gradients of each shard, all of them by examples, with no sum.

    Slots of the results are the same as in :func:`step_phases`.
    """
    (phase,) = _Step(buffers, minibatch).gradient()
    return phase


@dataclass(eq=False)
class _Step:
    """The operations of one step on a minibatch in given arrays.

    Without a target they go up alone; with ``by_inputs`` an array takes the derivative by the
    inputs, and there are no gradients of parameters.
    """

    buffers: Buffers
    minibatch: Minibatch
    moves: Moves = no_moves
    _: KW_ONLY
    drops: bool = True
    has_target: bool = True
    by_inputs: Array | None = None

    def __post_init__(self) -> None:
        self.x, self.target, self.weights, known = self.minibatch
        self.known = len(self.x) if known is None else known
        self.all = slice(0, len(self.x))

    def gradient(self) -> list[Dealt]:
        """Return the phases up through all sections, and down again."""
        sections = self.buffers.sections
        up = [phase for section in sections for phase in self.rise(section)]
        down = [phase for section in reversed(sections) for phase in self.descend(section)]
        # A shard may turn round without waiting for others where the top section is by examples:
        # from the inputs of its rows it makes their outputs, from these their delta, and from that
        # its own gradient array. Besides, it reads the weights alone, and by examples these move
        # in the last phase only. By units it has to wait: the delta below a link is a sum over all
        # units of the link, which other shards have made.
        if sections[-1].columns == 1:
            turn = [a + b for a, b in zip(up.pop(), down.pop(0), strict=True)]
            down = [turn, *down]
        return [*up, *down]

    def rise(self, section: Section) -> Iterator[Dealt]:
        """Yield the phases up through a section, the first without operations at times."""
        phase = self.idle()
        if section.links[0] == 0:
            reads = self.buffers.links[0].reads
            for shard, (rows, own, _) in enumerate(self.parts(section, 0)):
                phase[shard] += self.drop(0, self.x, reads, rows, own)
        for link in section.links:
            if self.reads_others(section, link):
                yield phase
                phase = self.idle()
            for shard, (rows, _, own) in enumerate(self.parts(section, link)):
                phase[shard] += self.up(link, rows, own, shard)
        yield phase

    def descend(self, section: Section) -> Iterator[Dealt]:
        """Yield the phases down through a section, the first without operations at times."""
        phase = self.idle()
        for link in reversed(section.links):
            # Units that other shards read get their delta from all of them, which have to have
            # theirs. In columns there is no delta to fill below the lowest link, nor to wait for.
            if self.reads_others(section, link) and (link or not section.columns):
                yield phase
                phase = self.idle()
            for shard, (rows, reads, own) in enumerate(self.parts(section, link)):
                phase[shard] += self.down(link, rows, reads, own, shard)
                # A dense link's weights may move in the phase that goes down through them: the rows
                # of the units below that a shard owns are read by this shard alone, and before.
                if not section.columns:
                    phase[shard] += self.move(link, reads, own)
        yield phase

    def idle(self) -> Dealt:
        """Return a phase without operations."""
        return [[] for _ in range(self.buffers.shards)]

    def reads_others(self, section: Section, link: int) -> bool:
        """Return whether a shard reads what other shards make below a link."""
        # With as many groups as columns, or a multiple, a column reads itself alone.
        return not section.columns or self.buffers.links[link].groups % section.columns > 0

    def parts(self, section: Section, link: int) -> list[tuple[slice, slice, slice]]:
        """Return each shard's rows, and the units that it owns below a link and of the link."""
        this = self.buffers.links[link]
        if not section.columns:
            below = slices_of(this.reads.units, self.buffers.shards)
            units = zip(below, self.owned(this), strict=True)
            return [(self.all, reads, own) for reads, own in units]
        ends = (slices_of(layout.units, section.columns) for layout in (this.reads, this.makes))
        columns = zip(*ends, strict=True)
        # Column after column, so that the shards from 0 on have different rows: see sum.
        return [(rows, reads, own) for reads, own in columns for rows in self.rows(section)]

    def rows(self, section: Section) -> list[slice]:
        """Return how the rows are dealt out in each column."""
        return slices_of(self.all.stop, self.buffers.shards // section.columns)

    def owned(self, link: Link) -> list[slice]:
        """Return the units of a link that each shard owns, split by units."""
        kind = kind_of(link.units)
        # The mean of a softmax unit depends on all others of its layer or block: one shard makes
        # them all.
        if kind.is_exclusive or kind.blocks is not None:
            return [slice(0, link.makes.units), *[slice(0, 0)] * (self.buffers.shards - 1)]
        return slices_of(link.makes.units, self.buffers.shards)

    def drop(
        self, link: int, x: Array, columns: Columns, rows: slice, own: slice
    ) -> list[Operation]:
        """Leave some units out of what a link reads."""
        mask, out = self.buffers.masks[link], self.buffers.inputs[link]
        if mask is None or out is None or not self.drops:
            return []
        if rows.start == rows.stop or own.start == own.stop:
            return []
        return [("multiply", *(columns.of(array[rows], own) for array in (x, mask, out)))]

    def up(self, link: int, rows: slice, own: slice, shard: int) -> list[Operation]:
        """Fill the activations of some rows and units of a link; at the top, their delta too."""
        if rows.start == rows.stop or own.start == own.stop:
            return []
        buffers, this = self.buffers, self.buffers.links[link]
        site = buffers.site(link, self.x, rows, shard, drops=self.drops)
        operations = this.up(site, own)
        if link + 1 < len(buffers.links):
            out = buffers.activations[link]
            return operations + self.drop(link + 1, out, this.makes, rows, own)
        return operations + self.output(site, rows, own, shard) if self.has_target else operations

    def output(self, site: Site, rows: slice, own: slice, shard: int) -> list[Operation]:
        """Compare outputs with their targets, and fill delta: the gradient by the units' inputs.

        The loss is the mean over the whole minibatch. Each shard has a result for the squared error
        and, of exclusive units, one for the number of wrong classes among the known rows.
        """
        buffers, this, operations = self.buffers, self.buffers.links[-1], list[Operation]()
        arrays = self.target[rows], site.out, site.delta
        target, y, delta = (this.makes.of(array, own) for array in arrays)
        if kind_of(this.units).blocks is not None:
            operations += [("documents", y, target, this.units)]
        known = min(max(self.known - rows.start, 0), rows.stop - rows.start)
        if kind_of(this.units).is_exclusive and known:
            operations += [("wrong", target[:known], y[:known], buffers.shards + shard)]
        if self.sums_bias(len(buffers.links) - 1):
            by = (site.bias_gradient, this.units, buffers.loss, shard)
            return [*operations, ("output_delta", target, y, delta, *by)]
        operations += [("squared_error", target, y, delta, shard)]
        if self.weights is not None:
            operations += [("multiply", delta, this.makes.of(self.weights[rows], own), delta)]
        if buffers.loss != "squared":
            return [*operations, ("scale", delta, 1 / len(self.x))]
        scaled = ("scale", delta, 2 / len(self.x))
        return [*operations, scaled, ("times_derivative", delta, y, this.units)]

    def sums_bias(self, link: int) -> bool:
        """Return whether the gradient of a link's bias is filled together with its delta.

        On a device one launch fills both. Normalization takes delta further down, behind the bias.
        """
        if self.buffers.links[link].is_normalized:
            return True
        weighted = self.weights is not None and link + 1 == len(self.buffers.links)
        return self.buffers.on_device and not self.buffers.links[link].is_local and not weighted

    def down(self, link: int, rows: slice, reads: slice, own: slice, shard: int) -> list[Operation]:
        """Fill a part of a link's gradients, and of delta below."""
        if rows.start == rows.stop:
            return []
        buffers, this = self.buffers, self.buffers.links[link]
        site = buffers.site(link, self.x, rows, shard)
        operations: list[Operation] = []
        if self.by_inputs is None:
            operations += this.gradient(site, reads, slice(0, 0) if self.sums_bias(link) else own)
        elif not link and reads.start < reads.stop:
            operations += this.down(site, self.by_inputs[rows], reads)
        if not link or reads.start == reads.stop:
            return operations
        below, means = buffers.deltas[link - 1][rows], buffers.activations[link - 1][rows]
        delta, a = (this.reads.of(x, reads) for x in (below, means))
        operations += this.down(site, below, reads)
        mask, lower = buffers.masks[link], buffers.links[link - 1]
        if mask is not None and self.drops:
            operations += [("multiply", delta, this.reads.of(mask[rows], reads), delta)]
        derivative = ("times_derivative", delta, a, lower.units)
        if lower.is_normalized:  # and dense: the units that it makes are those that are read
            at = buffers.site(link - 1, self.x, rows, shard)
            sums = ("sum_rows", delta, at.bias_gradient[reads])
            back = ("denormalize", delta, at.normal[:, reads], at.spread[reads])
            return [*operations, derivative, sums, back]
        if self.sums_bias(link - 1):
            # In the layout of the link that makes them, as its bias: a convolution reads maps.
            delta, a = (lower.makes.of(x, slice(0, lower.makes.units)) for x in (below, means))
            _, bias_sums = buffers.gradients[shard][link - 1]
            return [*operations, ("derivative_and_sums", delta, a, bias_sums, lower.units)]
        return [*operations, derivative]

    def move(self, link: int, reads: slice, own: slice) -> list[Operation]:
        """Move the parameters that no other shard reads in this phase."""
        if self.buffers.on_device:
            return []
        start, this = self.buffers.starts[link], self.buffers.links[link]
        weights = this.weight_slice(reads)
        operations: list[Operation] = []
        if weights is not None and weights.start < weights.stop:
            operations += self.moves(slice(start + weights.start, start + weights.stop))
        if own.start < own.stop:
            start += this.weight.size
            operations += self.moves(slice(start + own.start, start + own.stop))
        return operations

    def last(self, shard: int) -> list[Operation]:
        """Add up and move a shard's slice of what could not move before."""
        operations: list[Operation] = []
        for section in self.buffers.sections:
            for link in section.links:
                start = self.buffers.starts[link]
                # Asked for no units: None says that this link's weights never move on the way down.
                every = self.buffers.links[link].weight_slice(slice(0, 0))
                for number, array in enumerate(self.buffers.chain[link]):
                    if section.columns or (number == 0 and every is None):
                        mine = slices_of(array.size, self.buffers.shards)[shard]
                        for block in blocks_in(mine, BLOCK):
                            if section.columns:
                                operations += self.sum(section, link, number, block)
                            operations += self.moves(slice(start + block.start, start + block.stop))
                    start += array.size
        return operations

    def sum(self, section: Section, link: int, number: int, block: slice) -> list[Operation]:
        """Add the gradients of all parts that had rows, in a fixed tree, into the first one's."""
        dealt = self.rows(section)
        # Shards with the same rows share a gradient array, so those of the first column are all.
        own = self.buffers.gradients[: len(dealt)]
        parts = [pairs[link][number].reshape(-1)[block] for pairs in own]
        live = [part for part, rows in zip(parts, dealt, strict=True) if rows.start < rows.stop]
        operations: list[Operation] = []
        # The sum goes where the optimizer looks for it, into the first part, even if that had no
        # rows and holds an old gradient.
        if live[0] is not parts[0]:
            operations += [("copy", live[0], parts[0])]
            live[0] = parts[0]
        while len(live) > 1:
            pairs = zip(live[::2], live[1::2], strict=False)
            operations += [("add", left, right, left) for left, right in pairs]
            live = live[::2]
        return operations
