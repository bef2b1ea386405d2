"""The same training in PyTorch, as fast as it was found to go on a CPU: CD-1 and fine-tuning.

All cores, float32 or products of bfloat16, and the settings of syncpretrain's own runs. What was
tried, in milliseconds for one minibatch of 100 in each layer of 784-1000-500-250-30, on 2 cores
(AVX-512, float32, PyTorch 2.13.0, medians of 12 alternating turns; 10.4 and 9.8 of them are the
five products alone)::

    greedy CD-1                                                  first run  second run
    uniform_, two addmm_ into the velocity                       14.5
    uniform_, one stacked product into the velocity              14.5       12.9
    the same by mm into a gradient, then the velocity            15.0
    the same with the weights stored transposed                  14.8
    64 bits from random_ as two numbers, two addmm_              13.8
    the same, one stacked product (kept)                         13.8       12.4
    as four numbers of 16 bits (too coarse to draw from)                    12.1
    uniform draws from NumPy's SFC64                                        13.0
    draws for the next step by a second thread                              13.2
    torch.bernoulli, by its own time           about 16
    the one kept, with one thread                                16.9

With ``torch.compile`` (in a third run, beside 13.8 with ``uniform_`` and one product): 14.9 with
the movement of the weights fused, 15.2 with drawing too, 17.3 of a whole compiled step.

Fine-tuning 784-1000-500-250-30 and back, milliseconds a minibatch: Adam in a loop 17.9, foreach
16.8, fused 13.8 (kept); fused and sigmoid in place 14.2, fused and ``torch.compile`` of the
network and its loss 14.1, fused with the backward pass written out 12.8 (kept too, as a case of
its own).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from syncpretrain.models.layer import DenseLayer
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.settings import MomentumSchedule, PretrainSettings

__all__ = ["finetuned", "finetuned_by_hand", "pretrained"]

Array = NDArray[np.float32]
ROWS_AT_ONCE = 10_000


class RBM:
    """One layer, its velocities, and the buffers of a minibatch of up to ``rows`` examples."""

    def __init__(self, visible: int, hidden: int, rows: int) -> None:
        self.weight = torch.randn(visible, hidden).mul_(0.01)
        self.visible_bias, self.hidden_bias = torch.zeros(visible), torch.zeros(hidden)
        self.velocity = torch.zeros(visible, hidden)
        self.visible_velocity, self.hidden_velocity = torch.zeros(visible), torch.zeros(hidden)
        self.error = torch.zeros(())  # summed over examples; read once an epoch at most
        self._v, self._h = torch.empty(2 * rows, visible), torch.empty(2 * rows, hidden)
        self._states, self._difference = torch.empty(rows, hidden), torch.empty(rows, visible)
        self._bits = torch.empty((rows * hidden + 1) // 2, dtype=torch.int64)
        self._signs = torch.cat([torch.ones(rows), -torch.ones(rows)])

    def step(
        self, X: Tensor, rows: Tensor, *, rate: float, momentum: float, weight_decay: float
    ) -> None:
        """Train on some rows of X by CD-1, with momentum."""
        n = len(rows)
        v, h = self._v[: 2 * n], self._h[: 2 * n]
        v0, v1, h0, h1 = v[:n], v[n:], h[:n], h[n:]
        torch.index_select(X, 0, rows, out=v0)
        self._to_hidden(v0, h0)
        states = self._drawn(h0)
        self._to_visible(states, v1)
        self._to_hidden(v1, h1)

        difference = torch.sub(v0, v1, out=self._difference[:n])
        flat = difference.view(-1)
        self.error.add_(torch.dot(flat, flat))
        middle = len(self._signs) // 2
        signs = self._signs[middle - n : middle + n]  # n of 1 above n of -1
        share = rate / n
        self.visible_velocity.addmv_(difference.t(), signs[:n], beta=momentum, alpha=share)
        self.hidden_velocity.addmv_(h.t(), signs, beta=momentum, alpha=share)
        v1.neg_()  # [v0; -v1]^T [h0; h1], straight into the velocity
        self._correlate(v, h, momentum, share)
        self.velocity.add_(self.weight, alpha=-rate * weight_decay)
        self.weight.add_(self.velocity)
        self.visible_bias.add_(self.visible_velocity)
        self.hidden_bias.add_(self.hidden_velocity)

    def _to_hidden(self, v: Tensor, out: Tensor) -> None:
        torch.addmm(self.hidden_bias, v, self.weight, out=out).sigmoid_()

    def _to_visible(self, h: Tensor, out: Tensor) -> None:
        torch.addmm(self.visible_bias, h, self.weight.t(), out=out).sigmoid_()

    def _correlate(self, v: Tensor, h: Tensor, momentum: float, share: float) -> None:
        self.velocity.addmm_(v.t(), h, beta=momentum, alpha=share)

    def _drawn(self, means: Tensor) -> Tensor:
        """Return states of 0 and 1; PyTorch's generator is serial, so each 64 bits serve two."""
        bits = self._bits.random_(-(2**63), None).view(torch.int32)[: means.numel()]
        states = self._states[: len(means)]
        torch.mul(bits.view_as(means), 2.0**-32, out=states).add_(0.5)  # uniform in [0, 1]
        return torch.lt(states, means, out=states)

    def up(self, X: Tensor) -> Tensor:
        """Return the hidden means of all rows, in large products."""
        out = torch.empty(len(X), len(self.hidden_bias))
        for below, above in zip(*(torch.split(x, ROWS_AT_ONCE) for x in (X, out)), strict=True):
            torch.addmm(self.hidden_bias, below, self.weight, out=above).sigmoid_()
        return out

    def layer(self) -> DenseLayer:
        """Return the parameters as syncpretrain keeps them."""
        return DenseLayer(self.weight.numpy(), self.hidden_bias.numpy(), self.visible_bias.numpy())


class RoundedRBM(RBM):
    """The same with products of bfloat16, of weights that are rounded once a step."""

    def __init__(self, visible: int, hidden: int, rows: int) -> None:
        super().__init__(visible, hidden, rows)
        self._rounded = self.weight.bfloat16()

    def step(self, X: Tensor, rows: Tensor, **rates: float) -> None:
        """Train on some rows of X by CD-1, with momentum."""
        self._rounded.copy_(self.weight)
        super().step(X, rows, **rates)

    def _to_hidden(self, v: Tensor, out: Tensor) -> None:
        out.copy_(torch.mm(v.bfloat16(), self._rounded)).add_(self.hidden_bias).sigmoid_()

    def _to_visible(self, h: Tensor, out: Tensor) -> None:
        out.copy_(torch.mm(h.bfloat16(), self._rounded.t())).add_(self.visible_bias).sigmoid_()

    def _correlate(self, v: Tensor, h: Tensor, momentum: float, share: float) -> None:
        product = torch.mm(v.bfloat16().t(), h.bfloat16())
        self.velocity.mul_(momentum).add_(product, alpha=share)


def pretrained(X: Array, settings: PretrainSettings) -> Stack:
    """Train one RBM after the other by CD-1, each on what the finished one below makes of X."""
    with torch.inference_mode():
        return _pretrained(X, settings)


def _pretrained(X: Array, settings: PretrainSettings) -> Stack:
    kind = RBM if settings.precision == "float32" else RoundedRBM
    _start(settings.seed)
    below, layers = torch.from_numpy(X), []
    for i, hidden in enumerate(settings.layers[1:]):
        rbm = kind(settings.layers[i], hidden, settings.batch_size)
        momentum = MomentumSchedule(settings.momentum[i])
        for epoch in range(1, settings.epochs[i] + 1):
            rbm.error.zero_()
            for rows in torch.split(torch.randperm(len(below)), settings.batch_size):
                rbm.step(
                    below,
                    rows,
                    rate=settings.learning_rate[i],
                    momentum=momentum.at(epoch),
                    weight_decay=settings.weight_decay[i],
                )
        layers.append(rbm.layer())
        if i + 2 < len(settings.layers):
            below = rbm.up(below)
    return Stack(tuple(layers))


def finetuned(
    stack: Stack, X: Array, *, epochs: int, batch_size: int, rate: float, rounds: bool = False
) -> Stack:
    """Fine-tune the unrolled stack with autograd and Adam; ``rounds`` casts to bfloat16."""
    _start(0)
    network = _unrolled(stack)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
    error = torch.zeros(())
    for x in _minibatches(torch.from_numpy(X), epochs, batch_size):
        with torch.autocast("cpu", torch.bfloat16, enabled=rounds):
            y = network(x)
        loss = nn.functional.mse_loss(y.float(), x, reduction="sum") / len(x)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        error.add_(loss.detach())
    return _rolled(stack, network)


def finetuned_by_hand(
    stack: Stack, X: Array, *, epochs: int, batch_size: int, rate: float
) -> Stack:
    """Do the same without autograd: backpropagation written out, into gradients that stay."""
    with torch.no_grad():
        return _finetuned_by_hand(stack, X, epochs=epochs, batch_size=batch_size, rate=rate)


def _finetuned_by_hand(
    stack: Stack, X: Array, *, epochs: int, batch_size: int, rate: float
) -> Stack:
    _start(0)
    network = _unrolled(stack)
    linear = [module for module in network if isinstance(module, nn.Linear)]
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
    widths = [linear[0].in_features, *(module.out_features for module in linear)]
    outputs = [torch.empty(batch_size, width) for width in widths]
    deltas = [torch.empty(batch_size, width) for width in widths]
    error = torch.zeros(())
    for x in _minibatches(torch.from_numpy(X), epochs, batch_size):
        y, delta = [x, *(a[: len(x)] for a in outputs[1:])], [d[: len(x)] for d in deltas]
        for k, module in enumerate(linear):
            torch.addmm(module.bias, y[k], module.weight.t(), out=y[k + 1]).sigmoid_()
        flat = torch.sub(y[-1], x, out=delta[-1]).view(-1)
        error.add_(torch.dot(flat, flat))
        flat.mul_(2 / len(x))
        for k, module in reversed(list(enumerate(linear))):
            d = delta[k + 1]
            torch.ops.aten.sigmoid_backward.grad_input(d, y[k + 1], grad_input=d)
            torch.mm(d.t(), y[k], out=module.weight.grad)
            torch.sum(d, 0, out=module.bias.grad)
            if k:
                torch.mm(d, module.weight, out=delta[k])
        optimizer.step()
    return _rolled(stack, network)


def _start(seed: int) -> None:
    torch.set_num_threads(usable_cores())
    torch.manual_seed(seed)


def _minibatches(X: Tensor, epochs: int, batch_size: int) -> Iterator[Tensor]:
    """Yield shuffled minibatches, all in one buffer."""
    buffer = torch.empty(batch_size, X.shape[1])
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(X)), batch_size):
            x = buffer[: len(rows)]
            torch.index_select(X, 0, rows, out=x)
            yield x


def _unrolled(stack: Stack) -> nn.Sequential:
    """Return the encoder and the decoder of a stack as one network of sigmoid layers."""
    ways = [(x.weight, x.hidden_bias) for x in stack.layers]
    ways += [(x.decoding, x.visible_bias) for x in reversed(stack.layers)]
    network = nn.Sequential()
    for weight, bias in ways:
        linear = nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T.copy()))
            linear.bias.copy_(torch.from_numpy(bias.copy()))
        network.extend([linear, nn.Sigmoid()])
    return network


def _rolled(stack: Stack, network: nn.Sequential) -> Stack:
    """Return the network as a stack whose layers have a decoder each."""
    pairs = [
        (module.weight.detach().numpy().T.copy(), module.bias.detach().numpy())
        for module in network
        if isinstance(module, nn.Linear)
    ]
    depth = len(stack.layers)
    ups, downs = pairs[:depth], reversed(pairs[depth:])
    layers = zip(ups, downs, strict=True)
    return Stack(tuple(DenseLayer(W, b, a, U) for (W, b), (U, a) in layers))
