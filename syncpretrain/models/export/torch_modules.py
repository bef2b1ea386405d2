"""A network that syncpretrain exported to PyTorch: the modules that PyTorch lacks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class OneHot(nn.Module):
    """Columns of a table to values: a category, given by its number, becomes a one among zeros.

    ``choices`` has the number of categories of each column, 0 for a column of numbers. NaN, and
    any number that is no category, becomes zeros.
    """

    def __init__(self, choices: Iterable[int]) -> None:
        super().__init__()
        self.choices = tuple(choices)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row of values for each row of columns."""
        parts = []
        for column, choices in enumerate(self.choices):
            own = x[:, column : column + 1]
            ones = own == torch.arange(max(choices, 1), device=x.device)
            parts.append(ones.to(x.dtype) if choices else own)
        return torch.cat(parts, dim=1)


class Standardize(nn.Module):
    """(x - shift) / scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return standardized values."""
        return (x - self.shift) / self.scale


class Restore(Standardize):
    """x * scale + shift."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return values in the units of the data."""
        return x * self.scale + self.shift


class FillMissing(nn.Module):
    """0 in place of NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values with 0 for each that is missing."""
        return torch.where(torch.isnan(x), torch.zeros_like(x), x)


class Blocks(nn.Module):
    """A function of each block of columns: (function, columns, groups of a softmax)."""

    def __init__(self, blocks: Iterable[tuple[str, int, int]]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the means of the units."""
        widths = [columns for _, columns, _ in self.blocks]
        parts = []
        columns = torch.split(x, widths, dim=1)
        for own, (function, _, groups) in zip(columns, self.blocks, strict=True):
            if function == "softmax":
                parts.append(own.unflatten(1, (groups, -1)).softmax(dim=2).flatten(1))
            else:
                parts.append(own if function == "linear" else getattr(torch, function)(own))
        return torch.cat(parts, dim=1)


class ToImages(nn.Module):
    """Rows to images of shape (n, channels, height, width)."""

    def __init__(self, channels: int, height: int, width: int, channels_first: bool) -> None:
        super().__init__()
        self.shape, self.channels_first = (channels, height, width), channels_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image for each row."""
        channels, height, width = self.shape
        if self.channels_first:
            return x.unflatten(1, (channels, height, width))
        return x.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


class ToRows(nn.Module):
    """Images of shape (n, channels, height, width) to rows."""

    def __init__(self, channels_first: bool) -> None:
        super().__init__()
        self.channels_first = channels_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row for each image."""
        return (x if self.channels_first else x.permute(0, 2, 3, 1)).flatten(1)


class ProbabilisticPool(nn.Module):
    """The probability that one unit of a block is on."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a probability for each block."""
        blocks = x.unflatten(3, (-1, self.size)).unflatten(2, (-1, self.size))
        return torch.logsumexp(blocks, dim=(3, 5)).sigmoid()


class Spread(nn.Module):
    """Each number divided by size^2, in every place of a block."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return maps that are size times as high and wide."""
        wide = x.repeat_interleave(self.size, dim=2).repeat_interleave(self.size, dim=3)
        return wide / self.size**2
