"""A block of a network: its modules, its head, its optimizer, and the rows that it reads."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.worker_pool import GLOBAL_DRAWS
from syncpretrain.torch.losses import LocalLoss

STEPPED = "epoch", "minibatch"  # after which a schedule is stepped
MODAL = "dropout", "batchnorm", "instancenorm"  # files of PyTorch with modules that have modes


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a row: the numbers of an example, then of its targets, then its weight.

    ``shape`` and ``dtype`` are of an example, ``y_shape`` and ``y_dtype`` of its targets, which
    are None without targets. All numbers of a row are float32.
    """

    shape: tuple[int, ...]
    dtype: Any
    y_shape: tuple[int, ...] | None = None
    y_dtype: Any = None
    is_weighted: bool = False
    classes: int | None = None  # of targets that are numbers of classes

    @property
    def inputs(self) -> int:
        """Numbers of an example."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        targets = 0 if self.y_shape is None else math.prod(self.y_shape)
        return self.inputs + targets + self.is_weighted

    def views(self, rows: Array) -> tuple[Any, Any, Any]:
        """Return the examples, targets and weights in rows, float32; None for what is not there."""
        own = torch.from_numpy(rows if rows.flags.writeable else rows.copy())
        x, count, y = own[:, : self.inputs], len(rows), None
        if self.y_shape is not None:
            y = own[:, self.inputs : self.width - self.is_weighted].view(count, *self.y_shape)
        return x.view(count, *self.shape), y, own[:, -1] if self.is_weighted else None

    def cut(self, rows: Array, views: tuple[Any, Any, Any] | None = None) -> Iterator[Any]:
        """Yield the :meth:`views` of rows as the layout's types, with memory of their own."""
        how: dict[str, Any] = {"copy": True, "memory_format": torch.contiguous_format}
        types = self.dtype, self.y_dtype, torch.float32
        for own, dtype in zip(views or self.views(rows), types, strict=True):
            yield None if own is None else own.to(dtype, **how)

    def rows(self, x: Any, y: Any = None, weight: Any = None) -> Array:
        """Return rows of shape (n, width), given tensors or arrays.

        Raises DataError if they are of another shape, or hold numbers that float32 cannot.
        """
        for name, more, are_known in ("y", y, self.y_shape), ("weight", weight, self.is_weighted):
            if more is not None and are_known in (None, False):
                raise DataError(f"{name}: got it here, expected none as with the first examples")
        own = np.empty((len(x), self.width), np.float32)
        targets = own[:, self.inputs : self.width - self.is_weighted]
        _write(own[:, : self.inputs], "X", x, self.shape, self.dtype)
        if self.y_shape is not None:
            _write(targets, "y", y, self.y_shape, self.y_dtype)
        if self.classes is not None:
            if self.y_shape or self.y_dtype != torch.int64:
                got = f"{self.y_dtype} of shape {self.y_shape}"
                raise DataError(f"y: got {got} an example, expected one whole number")
            if len(x) and not 0 <= targets.min() <= targets.max() < self.classes:
                got = f"{targets.min():g} to {targets.max():g}"
                raise DataError(f"y: got {got}, expected 0 to {self.classes - 1}")
        if self.is_weighted:
            _write(own[:, -1:], "weight", np.ones(len(x)) if weight is None else weight, ())
            if (own[:, -1] < 0).any():
                raise DataError(f"weight: got {own[:, -1].min():g}, expected 0 or more")
        return own


def _write(
    out: Array, name: str, values: Any, shape: tuple[int, ...], dtype: Any = torch.float32
) -> None:
    try:
        found = np.asarray([] if values is None else values)
    except ValueError as error:
        raise DataError(f"{name}: expected numbers, a row an example ({error})") from error
    if found.dtype.kind not in "biuf":
        how = "real numbers; give real and imaginary parts of complex ones as columns"
        raise DataError(f"{name}: got {found.dtype}, expected {how}")
    if found.shape != (len(out), *shape):
        raise DataError(f"{name}: got shape {found.shape}, expected {(len(out), *shape)}")
    with np.errstate(over="ignore"):
        np.copyto(out, found.reshape(out.shape), casting="unsafe")
    if found.dtype.kind in "iu" and found.size and np.abs(found).max() > 1 << 24:
        raise DataError(f"{name}: got whole numbers above 2**24, which float32 cannot hold")
    if not (finite := np.isfinite(out)).all():
        row, column = np.argwhere(~finite)[0]
        got = f"{out[row, column]} as float32 in row {row}, column {column}"
        raise DataError(f"{name}: got {got}, expected finite numbers")
    if not dtype.is_floating_point and (own := out[out != np.trunc(out)]).size:
        raise DataError(f"{name}: got {own[0]:g}, expected whole numbers as in the first examples")


@dataclass(kw_only=True)
class Block:
    """All that trains one block; fit to be sent to another process.

    ``number`` counts from 1. ``below`` and ``above`` are of the rows that it reads and hands up.
    The schedule is stepped after each epoch, or with ``is_per_step`` each minibatch. ``clip`` is
    the largest norm of the gradient, ``precision`` the type of automatic mixed precision,
    ``noise`` the share of the input that is set to 0 while it trains, and ``threads`` the threads
    of an operation. The gradients of ``accumulate`` minibatches are averaged for a step of the
    optimizer, of fewer at the end of the ``steps`` minibatches of an epoch. ``generator`` is the
    state of its random numbers, if it ``draws`` any.
    """

    number: int
    modules: Any
    head: Any
    below: Layout
    above: Layout
    loss: LocalLoss
    optimizer: Any = None
    scheduler: Any = None
    is_per_step: bool = False
    threads: int = 1
    clip: float | None = None
    precision: Any = None
    noise: float = 0.0
    accumulate: int = 1
    steps: int = 0
    draws: bool = False
    generator: Any = field(default=None, repr=False)

    def parameters(self) -> Iterator[Any]:
        """Yield the parameters that are trained."""
        both = nn.ModuleList([self.modules, self.head])  # which a head may share with its block
        yield from (p for p in both.parameters() if p.requires_grad)

    def __getstate__(self) -> dict[str, Any]:
        if any(own._backward_hooks for own in self.parameters()):
            what = f"a parameter of block {self.number} has a hook, which is not sent"
            raise SettingsError(f"runtime: got processes, but {what}; take threads")
        # As one whole, so that the optimizer has the parameters of the modules.
        for own in (*self.modules.modules(), *self.head.modules(), self.loss.kind):
            kind = type(own) if isinstance(own, nn.Module) else own
            if getattr(kind, "__module__", "") == "__main__":
                raise SettingsError(
                    f"runtime: got processes, but {kind.__qualname__} of block {self.number} is"
                    " defined in the script itself, which processes do not run; move it to a"
                    " module, or take threads"
                )
        return {"saved": saved(f"block {self.number}, its optimizer or schedule", self.__dict__)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(loaded(state["saved"]))
        self._mark_order()

    def __deepcopy__(self, memo: dict[int, Any]) -> Block:
        own = Block(**{name: copy.deepcopy(own, memo) for name, own in self.__dict__.items()})
        own._mark_order()
        return own

    def _mark_order(self) -> None:
        """Mark the optimizer of a copy as one that is stepped before its schedule."""
        # A schedule marks its optimizer so, the mark is not copied, and without it it warns.
        if self.scheduler is not None:
            step: Any = partial(type(self.optimizer).step, self.optimizer)
            step._wrapped_by_lr_sched = self.optimizer._opt_called = True
            self.optimizer.step = step


def saved(what: str, things: dict[str, Any]) -> bytes:
    """Return objects as bytes, for a process that this one starts; ``what`` names them.

    Raises SettingsError if one cannot be saved.
    """
    # A pickle of multiprocessing would send every tensor through a file of its own.
    file = io.BytesIO()
    try:
        torch.save(dict(things), file)
    except Exception as error:  # methods of what is saved may raise anything
        how = f"cannot be sent to a process ({error})"
        wanted = "one without functions of a script; take threads"
        raise SettingsError(f"runtime: {what} {how}, expected {wanted}") from error
    return file.getvalue()


def loaded(data: bytes) -> Any:
    """Return what :func:`saved` was given; it comes from the process that started this one."""
    return torch.load(io.BytesIO(data), weights_only=False)


def blocks_of(model: Any) -> list[Any]:
    """Return the blocks of a sequence of modules.

    A module begins a block if it has a weight of two or more dimensions; others, such as
    activations and normalizations, belong to the block below, the first ones to the first block.

    Raises SettingsError if it is no sequence, has no block, or two blocks share a parameter or
    buffer.
    """
    is_plain = getattr(type(model), "forward", None) is nn.Sequential.forward
    if not is_plain and not isinstance(model, (nn.ModuleList, list, tuple)):
        how = "an nn.Sequential without a forward of its own"
        raise SettingsError(f"model: got {type(model).__name__}, expected {how}")
    check_kinds("model", model)
    groups: list[list[Any]] = [[]]
    for module in model:
        if _has_weight(module) and any(map(_has_weight, groups[-1])):
            groups.append([])
        groups[-1].append(module)
    if not any(map(_has_weight, groups[0])):
        raise SettingsError("model: got no module with a weight, expected one or more")
    check_apart("model", groups)
    return [group[0] if len(group) == 1 else nn.Sequential(*group) for group in groups]


def check_kinds(name: str, modules: Iterable[Any]) -> None:
    """Refuse what is no module, and modules without shapes yet or with a state beside tensors.

    Raises SettingsError.
    """
    for whole in modules:
        if not isinstance(whole, nn.Module):
            raise SettingsError(f"{name}: got {type(whole).__name__}, expected a module")
        for own in whole.modules():
            kind: Any = type(own)
            if any(map(nn.parameter.is_lazy, own.parameters(recurse=False))):
                how = "one that knows its shapes; call it once on examples"
                raise SettingsError(f"{name}: got {kind.__name__}, expected {how}")
            if kind.get_extra_state is not nn.Module.get_extra_state:
                how = "a module whose state is its parameters and buffers"
                raise SettingsError(f"{name}: got {kind.__name__} with extra state, expected {how}")


def check_apart(name: str, groups: Iterable[Iterable[Any]]) -> None:
    """Refuse modules of blocks that share memory or a mode, or have a tensor of another type.

    Raises SettingsError.
    """
    owner: dict[tuple[str, int], int] = {}
    for i, group in enumerate(map(nn.ModuleList, groups), start=1):
        found = []
        for tensor in (*group.parameters(), *group.buffers()):
            kind = f"{tensor.dtype} on {tensor.device}"
            if tensor.is_floating_point() and kind != "torch.float32 on cpu":
                how = "torch.float32 on cpu; take module.float().cpu()"
                raise SettingsError(f"{name}: block {i} has {kind}, expected {how}")
            if tensor.numel():
                found.append(("a parameter or buffer", tensor.untyped_storage().data_ptr()))
        found += [("a module with modes", id(own)) for own in group.modules() if _has_modes(own)]
        for own in found:
            if owner.setdefault(own, i) != i:
                how = "blocks train apart, so put both into one block, or give each its own"
                raise SettingsError(f"{name}: blocks {owner[own]} and {i} share {own[0]}; {how}")


def _has_modes(module: Any) -> bool:
    """Return whether a module may compute something else in evaluation mode."""
    # A block is brought into that mode while others train. Users share activations and poolings.
    package, _, file = type(module).__module__.rpartition(".")
    return package != "torch.nn.modules" or file in MODAL or isinstance(module, nn.RReLU)


def _has_weight(module: Any) -> bool:
    return any(p.dim() > 1 for p in module.parameters())


@contextmanager
def drawing(state: Any) -> Iterator[None]:
    """Have the process's generator continue from a state, which is moved on with it.

    PyTorch's modules draw from one generator of the process: one thread has it at a time.
    """
    with GLOBAL_DRAWS:
        found = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            yield
        finally:
            state.copy_(torch.get_rng_state())
            torch.set_rng_state(found)


def seeded(seed: int, number: int) -> Any:
    """Return the state of a generator for a block, or for another purpose by another number."""
    own = int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> 1)
    return torch.Generator().manual_seed(own).get_state()


def tensor_of(number: int, output: Any) -> Any:
    """Return the output of a block.

    Raises SettingsError if it is not one tensor of floating-point numbers.
    """
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        return output
    got, how = type(output).__name__, "one tensor; wrap the module in one that returns a tensor"
    if isinstance(output, torch.Tensor):
        got, how = output.dtype, "floating-point numbers; wrap the module in one that returns them"
    raise SettingsError(f"model: block {number} returns {got}, expected {how}")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turn an error of a user's modules into a refusal that begins with some words."""
    try:
        yield
    except SettingsError:
        raise
    except Exception as error:  # modules may raise anything
        raise SettingsError(f"{what}: {type(error).__name__}: {error}") from error


def handed_up(number: int, modules: Any, x: Any) -> tuple[Any, bool]:
    """Return what a copy of a block hands up for some examples, and whether it draws for them.

    Raises SettingsError if the block fails, or it is not one tensor with a row for each example.
    """
    state, before = seeded(0, 0), seeded(0, 0)
    what = f"model: block {number} fails on examples of shape"
    with named(f"{what} {tuple(x.shape[1:])}"), drawing(state), torch.no_grad():
        output = tensor_of(number, copy.deepcopy(modules)(x.clone()))
    if len(output) != len(x):
        got = f"{len(output)} rows for {len(x)}"
        raise SettingsError(f"model: block {number} returns {got}, expected as many")
    return output.float(), not torch.equal(state, before)


def head_draws(block: Block, h: Any, rows: tuple[Any, Any, Any]) -> bool:
    """Return whether a copy of a head draws random numbers for the loss of an output."""
    state, what = seeded(0, 0), f"loss: the head or the loss of block {block.number} fails"
    before = state.clone()
    with named(what), drawing(state), torch.no_grad():
        loss = float(block.loss(copy.deepcopy(block.head), h.clone(), *rows))
    if not math.isfinite(loss):
        raise SettingsError(f"loss: block {block.number} has {loss} before training")
    return not torch.equal(state, before)


@contextmanager
def in_modes(modes: dict[Any, bool]) -> Iterator[None]:
    """Have modules in training mode or not, gradients on, and no other precision of the caller's.

    At the end all is as it was found.
    """
    found = {module: module.training for module in modes}
    try:
        for module, mode in modes.items():
            module.training = mode
        plain = torch.autocast("cpu", enabled=False)  # threads have none from their caller
        with torch.inference_mode(False), torch.enable_grad(), plain:
            yield
    finally:
        for module, mode in found.items():
            module.training = mode


def modes_of(model: Any) -> dict[Any, bool]:
    """Return the modes that modules train in: as they are, or all in training mode if none is."""
    leaves = [own.training for own in model.modules() if not list(own.children())]
    return {own: own.training or not any(leaves) for own in model.modules()}


def finish(
    blocks: Iterable[Block], optimizer: Callable[[Any], Any], scheduler: Callable[[Any], Any] | None
) -> None:
    """Give each block its optimizer and its schedule."""
    for block in blocks:
        # A block that trains nothing has an optimizer of a parameter that has no gradient.
        own = list(block.parameters()) or [nn.Parameter(torch.zeros(1))]
        with named(f"optimizer: it or the schedule of block {block.number} fails"):
            block.optimizer = optimizer(own)
            block.scheduler = None if scheduler is None else scheduler(block.optimizer)
            found = {id(p) for group in block.optimizer.param_groups for p in group["params"]}
        if not found <= set(map(id, own)):
            raise SettingsError(f"optimizer: got parameters that are not of block {block.number}")
        for name, value in chain.from_iterable(map(dict.items, block.optimizer.param_groups)):
            if isinstance(value, torch.Tensor):
                raise SettingsError(f"optimizer: got a tensor as {name}, expected a number")
        for own, kind in ((block.optimizer, "LBFGS"), (block.scheduler, "ReduceLROnPlateau")):
            if type(own).__name__ == kind:
                raise SettingsError(f"optimizer: got {kind}, expected one whose step needs nothing")
        if getattr(block.scheduler, "optimizer", block.optimizer) is not block.optimizer:
            raise SettingsError(f"scheduler: got another optimizer in block {block.number}")


def shown(own: Any) -> str:
    """Return a value for a message; of a module its class."""
    return type(own).__name__ if isinstance(own, nn.Module) else repr(own)


def is_count(own: Any) -> bool:
    """Return whether this is a whole number of 1 or more."""
    return not isinstance(own, bool) and isinstance(own, (int, np.integer)) and bool(own >= 1)


def check_whole(**numbers: Any) -> None:
    """Refuse what is no whole number of 1 or more, or nothing where there may be nothing."""
    for name, own in numbers.items():
        if not is_count(own) and not (own is None and name in ("classes", "batch_size")):
            raise SettingsError(f"{name}: got {shown(own)}, expected a whole number, 1 or more")


def check_schedule(block: Block, epochs: int) -> None:
    """Refuse a schedule of a fixed length, such as ``OneCycleLR``, that is too short."""
    most = getattr(block.scheduler, "total_steps", None)
    if most is None:
        return
    windows = -(-block.steps // block.accumulate)
    steps = block.scheduler.last_epoch + (epochs * windows if block.is_per_step else epochs - 1)
    if steps > most:
        got = f"total_steps {most} in block {block.number}"
        raise SettingsError(f"scheduler: got {got}, expected {steps} or more")
