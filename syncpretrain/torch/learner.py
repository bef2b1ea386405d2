"""A block of PyTorch modules as a learner of the library.

A step is a forward pass, the local loss, its gradient, and a step of the optimizer. The block above
is given the output from before that step: so training block by block, in whatever order, has the
bits of training one block after another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from textwrap import shorten
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import Array, Rows
from syncpretrain.learners.base import Learner
from syncpretrain.learners.steps import WholeStep
from syncpretrain.models.layer import ModuleLayer
from syncpretrain.pretraining.call import SavedCall
from syncpretrain.settings.fields import LayerSettings
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.shapes import DenseShape
from syncpretrain.torch.block import STEPPED, Block, drawing, in_modes, tensor_of
from syncpretrain.torch.losses import noisy
from syncpretrain.workers.worker import LayerInTraining

WORDS = 80  # characters of a message for what a block had
FACTS = "facts"  # in a state: all that is no tensor


@dataclass(frozen=True, eq=False)
class LiveLayer(ModuleLayer):
    """The arrays of a block in training, and its forward pass; of a copy by pickle the arrays."""

    learner: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The tensors of a learner would go through descriptors that end with their process.
        return ModuleLayer, (self.named,)

    @property
    def shape(self) -> DenseShape:
        """Numbers of a row below and above."""
        return DenseShape(self.learner.block.below.width, self.learner.block.above.width)

    def up(self, X: Array, *, out: Array | None = None) -> Array:
        """Return rows for the block above, without training."""
        found: Array = self.learner.up(X)
        if out is not None:
            np.copyto(out, found)
        return found if out is None else out


class ModuleLearner(Learner):
    """One block in training; see :class:`syncpretrain.learners.base.Learner`."""

    model = ModuleLayer.model

    def __init__(self, layer: int, block: Block, settings: LayerSettings) -> None:
        self.block = block
        self._parameters = list(nn.ModuleList([block.modules, block.head]).parameters())
        self._rate: float | None = None
        self._handed: tuple[Any, int] | None = None  # the output, and its version
        self._tail: Array = np.empty((0, 0), np.float32)  # targets and weights, beside it
        self._epoch = 0
        self._step = -1  # minibatch of the epoch, counted from 0
        self._is_left_out = True  # while all weights of a step's minibatches are 0
        super().__init__(layer, self.current(), settings)

    def _train(self, layer: Any) -> None:
        self._allocate(self.batch_size)

    def _allocate(self, rows: int) -> None:
        self._rows = np.empty((rows, self.block.below.width), np.float32)
        self._views: dict[int, Any] = {}  # of so many rows

    @property
    def learning_rate(self) -> float:
        """The rate of the first parameters before training; halved after a divergence."""
        assert self._rate is not None
        return self._rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self._rate is not None and value != self._rate:
            factor = value / self._rate
            for group in self.block.optimizer.param_groups:
                group["lr"] *= factor
            if hasattr(self.block.scheduler, "base_lrs"):
                rates = self.block.scheduler.base_lrs
                self.block.scheduler.base_lrs = [factor * rate for rate in rates]
        self._rate = value

    def start(self, X: Array) -> None:
        """Do nothing: the first examples decide nothing."""

    def gradient(
        self, X: Array, rows: Rows, *, epoch: int, step: int, examples: float | None = None
    ) -> float:
        """Fill the gradients of the parameters; return the loss, times the examples."""
        block, self._step = self.block, step
        own = self.backend.gather(X, rows, out=self._rows[: len(rows)])
        self._begin(epoch)
        # After a step of an optimizer no cache holds code, and each call takes ten times as long as
        # in a loop of its own: so the tensors are kept that are views of the same memory.
        if len(own) not in self._views:
            self._views[len(own)] = block.below.views(own)
        x, y, weight = block.below.cut(own, self._views[len(own)])
        self._tail = own[:, block.below.inputs :]
        with self._computing():
            loss = self._loss(x, y, weight)
            if step % block.accumulate == 0:
                self._forget_gradients()
        if self._handed is not None and self._handed[0]._version != self._handed[1]:
            how = "which the block above reads too; begin it with a module that does not"
            what = f"the head of block {self.layer} changes its input in place"
            raise SettingsError(f"heads: {what}, {how}")
        if weight is None or bool(weight.any()):
            self._is_left_out = False
            if loss.requires_grad:
                parts = min(block.accumulate, block.steps - step + step % block.accumulate)
                (loss / parts if parts > 1 else loss).backward()
        return float(loss.item()) * len(rows)

    def _forget_gradients(self) -> None:
        # Of all parameters, which ``clip`` reads: the optimizer may have been given some of them.
        for own in self._parameters:
            own.grad = None
        self._is_left_out = True

    def _is_between_steps(self) -> bool:
        """Return whether more minibatches add to the gradient before the optimizer's step."""
        done = self._step + 1
        return done % self.block.accumulate != 0 and done < self.block.steps

    def _loss(self, x: Any, y: Any, weight: Any) -> Any:
        """Return the loss of a minibatch as it trains."""
        block = self.block
        given = x if block.loss.kind != "reconstruction" else x.clone()
        if block.noise:
            given = noisy(given, block.noise)
        h = tensor_of(self.layer, block.modules(given))
        self._handed = None if block.noise else (h.detach(), h._version)
        return block.loss(block.head, h, x, y, weight)

    def update(self, *, epoch: int) -> None:
        """Make a step of the optimizer, once all minibatches of that step are done."""
        block = self.block
        if self._is_between_steps():
            return
        if block.clip is not None and not self._is_left_out:
            nn.utils.clip_grad_norm_(list(block.parameters()), block.clip)
        if not self._is_left_out:
            block.optimizer.step()
        if block.scheduler is not None and block.is_per_step:
            block.scheduler.step()

    def hidden_means(self, n: int) -> Any:
        """Return None where the input has noise, else an array: rows come from ``hand_up``."""
        return None if self.block.noise else self._rows[:n]

    def hand_up(self, out: Array) -> bool:
        """Write the rows of the last step for the block above; return False where they differ."""
        if self._handed is None:
            return False
        h, inputs = self._handed[0].float(), self.block.above.inputs
        out[:, :inputs] = h.numpy().reshape(len(out), inputs)
        out[:, inputs:] = self._tail
        return True

    def up(self, X: Array) -> Array:
        """Return rows for the block above, in evaluation mode."""
        own = np.ascontiguousarray(X, np.float32)
        with self._evaluating():
            h = self.block.modules(next(self.block.below.cut(own)))
            flat = h.reshape(len(own), -1).float().numpy()
        return np.concatenate([flat, own[:, self.block.below.inputs :]], axis=1)

    def summed_error(self, X: Array, hidden: Array | None = None) -> Any:
        """Return the loss in evaluation mode, times the examples."""
        x, y, weight = self.block.below.cut(np.ascontiguousarray(X, np.float32))
        h = self.up(X) if hidden is None else np.ascontiguousarray(hidden)
        with self._evaluating():
            above = next(self.block.above.cut(h))
            return float(self.block.loss(self.block.head, above, x, y, weight)) * len(X)

    def _begin(self, epoch: int) -> None:
        """Set the number of threads, and step the schedule where an epoch has ended."""
        if torch.get_num_threads() != self.block.threads:  # of this thread of the process
            torch.set_num_threads(self.block.threads)
        block, ended = self.block, self._epoch and epoch > self._epoch
        if ended and block.scheduler is not None and not block.is_per_step:
            block.scheduler.step()
        self._epoch = epoch

    def _computing(self) -> ExitStack:
        stack, block = ExitStack(), self.block
        if block.precision is not None:
            # Inside another context a cache of cast weights would outlive the steps that move them.
            stack.enter_context(torch.autocast("cpu", block.precision, cache_enabled=False))
        if block.draws:
            stack.enter_context(drawing(block.generator))
        return stack

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        both = nn.ModuleList([self.block.modules, self.block.head])
        with in_modes(dict.fromkeys(both.modules(), False)), torch.no_grad(), self._computing():
            yield

    def current(self) -> Any:
        """Return the arrays as they are, with the forward pass."""
        arrays = {name: as_array(tensor) for name, tensor in _tensors(self.block)}
        return LiveLayer(arrays, learner=self)

    def snapshot(self) -> Any:
        """Return a copy of the arrays."""
        return self.current().to(np.copy)

    def restore(self, snapshot: Any) -> None:
        """Take the arrays of a snapshot; see the base class."""
        load_layer(self.block, snapshot)

    def largest_weight(self) -> float:
        """Return 0; what is not finite, if a parameter is not: no size is wrong by itself."""
        return 0.0 if self.is_finite() else float("nan")

    def is_finite(self) -> bool:
        """Return whether every parameter is a finite number."""
        return all(bool(torch.isfinite(p).all()) for p in self.block.parameters())

    def state(self) -> dict[str, Array]:
        """Return the optimizer's tensors, the generator, and all else in bytes."""
        block, arrays = self.block, {"generator": as_array(self.block.generator)}
        optimizer, kinds = block.optimizer.state_dict(), {}
        plain: dict[int, dict[str, Any]] = {}
        for number, own in optimizer["state"].items():
            for name, value in own.items():
                if isinstance(value, torch.Tensor):
                    key = f"optimizer.{number}.{name}"
                    arrays[key] = as_array(value)
                    kinds[key] = [str(value.dtype).removeprefix("torch."), list(value.shape)]
                else:
                    plain.setdefault(number, {})[name] = value
        facts = {
            "tensors": kinds,
            "plain": plain,
            "groups": optimizer["param_groups"],
            "schedule": None if block.scheduler is None else block.scheduler.state_dict(),
            "rate": self.learning_rate,
            "epoch": self._epoch,
            "step": self._step,
            "left out": self._is_left_out,
        }
        if self._is_between_steps():
            own = enumerate(p.grad for p in block.parameters())
            arrays |= {f"gradient.{i}": as_array(grad) for i, grad in own if grad is not None}
        text = msgspec.msgpack.encode(facts)  # unlike JSON it keeps keys that are numbers
        text = len(text).to_bytes(4, "little") + text
        arrays[FACTS] = np.frombuffer(text + bytes(-len(text) % 4), np.float32)
        return arrays

    def load_arrays(self, live: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        """Continue with what :meth:`state` returned; see the base class."""
        facts = _facts(state)
        load_state(self.block, state)
        self._rate, self._epoch = facts["rate"], facts["epoch"]
        self._step, self._is_left_out = facts["step"], facts["left out"]
        for i, parameter in enumerate(self.block.parameters()):
            grad = state.get(f"gradient.{i}")
            parameter.grad = None if grad is None else fill(torch.empty_like(parameter), grad)

    def restart(self) -> None:
        """Forget the optimizer's state and gradients, as before the first step."""
        self.block.optimizer.state.clear()
        self._forget_gradients()


def _facts(state: Mapping[str, Array]) -> dict[str, Any]:
    data = np.ascontiguousarray(state[FACTS]).tobytes()
    return msgspec.msgpack.decode(data[4 : 4 + int.from_bytes(data[:4], "little")], type=dict)


def _same(block: Block) -> dict[str, str]:
    """Return what has to be the same when a run goes on, what is most likely to differ first."""
    kind, optimizer = block.loss.kind, block.optimizer
    own = {
        "loss": getattr(kind, "__qualname__", kind),
        "head": block.head,
        "optimizer": f"{type(optimizer).__name__} ({len(optimizer.param_groups)})",
        "scheduler": f"{type(block.scheduler).__name__} ({STEPPED[block.is_per_step]})",
    } | {name: getattr(block, name) for name in ("clip", "noise", "precision", "accumulate")}
    named = {f"block {block.number}": block.modules}
    named |= {f"the {name} of block {block.number}": text for name, text in own.items()}
    return {name: re.sub(" at 0x[0-9a-f]+", "", str(text)) for name, text in named.items()}


class SavedFit(SavedCall):
    """The folder of a call of ``fit``."""

    examples = "X, y or weight"

    def __init__(self, blocks: Iterable[Block], *call: Any, **more: Any) -> None:
        super().__init__(*call, **more)
        self._header["blocks"] = dict(chain.from_iterable(_same(own).items() for own in blocks))

    def _difference(self, header: dict[str, Any]) -> str | None:
        now = self._header["blocks"]
        had = header.get("blocks", now)  # older states say nothing
        for name in had | now:
            if had.get(name) != now.get(name):
                was, given = _in_words(had.get(name, ""), now.get(name, ""))
                return f"{name} was {was}, and not {given}"
        return super()._difference(header)


def _in_words(*texts: str) -> Iterator[str]:
    """Yield the classes in texts of modules, or their first lines that differ."""
    lines = [[re.sub(r"^ *(\(\w+\): )?", "", own) for own in text.splitlines()] for text in texts]
    classes = [", ".join(own.partition("(")[0].strip() for own in x if own != ")") for x in lines]
    pairs = zip_longest(*lines, fillvalue="")
    found = classes if classes[0] != classes[1] else next(x for x in pairs if x[0] != x[1])
    yield from (shorten(own.replace("Sequential, ", ""), WORDS) or "none" for own in found)


def load_state(block: Block, state: Mapping[str, Array]) -> None:
    """Bring the state of an optimizer, a schedule and a generator into a block."""
    facts = _facts(state)
    found: dict[int, dict[str, Any]] = facts["plain"]
    for key, (dtype, shape) in facts["tensors"].items():
        _, number, name = key.split(".", 2)
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        found.setdefault(int(number), {})[name] = fill(tensor, state[key])
    groups = list(map(_with_tuples, facts["groups"]))
    block.optimizer.load_state_dict({"state": found, "param_groups": groups})
    if block.scheduler is not None:
        block.scheduler.load_state_dict(facts["schedule"])
        block.optimizer._opt_called = True  # else it warns of a step before the optimizer's
    fill(block.generator, state["generator"])


def _with_tuples(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group of an optimizer that was saved with lists, with its tuples."""
    return {n: tuple(x) if isinstance(x, list) and n != "params" else x for n, x in group.items()}


def _tensors(block: Block) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers that a state has, by name."""
    for prefix, own in (("block", block.modules), ("head", block.head)):
        for name, tensor in {**dict(own.named_buffers()), **own.state_dict()}.items():
            yield f"{prefix}.{name}", tensor


def as_array(tensor: Any) -> Array:
    """Return a tensor as float32 of one dimension; other numbers as their bytes.

    An array of float32 shares the memory of the tensor.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype == torch.float32:
        return flat.numpy()  # type: ignore[no-any-return]
    own = flat.view(torch.uint8).numpy()
    return np.frombuffer(own.tobytes() + bytes(-len(own) % 4), np.float32)


def fill(tensor: Any, array: Array) -> Any:
    """Fill a tensor with what :func:`as_array` returned for one of its shape; return it.

    Raises ValueError if it had another size.
    """
    own = np.ascontiguousarray(array, np.float32)
    size = tensor.numel() * tensor.element_size()
    if own.nbytes != -(-size // 4) * 4:
        raise ValueError(f"got {own.nbytes} bytes, expected {size}")
    data = torch.from_numpy(np.frombuffer(own.tobytes()[:size], np.uint8).copy())
    with torch.no_grad():
        tensor.copy_(data.view(tensor.dtype).reshape(tensor.shape))
    return tensor


def load_layer(block: Block, layer: ModuleLayer) -> None:
    """Fill a block's parameters and buffers from arrays.

    Raises KeyError, ValueError if one is missing or of another size.
    """
    for name, tensor in _tensors(block):
        fill(tensor, layer.named[name])


def build_block(
    block: Block, settings: PretrainSettings, layer: int, *rest: Any, **how: Any
) -> LayerInTraining:
    """Return a block, ready to be trained; see :func:`syncpretrain.pretraining.build.build_layer`.

    A block has one backend, and no ranks share it.
    """
    learner = ModuleLearner(layer, block, settings.of_layer(layer))
    return LayerInTraining(learner, WholeStep(learner))
