"""An exported ``.npz`` file in NumPy alone, as its documentation says."""

import json

import numpy as np

FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "linear": lambda x: x,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
}


class Reader:
    """The arrays of a file, and its steps on rows."""

    def __init__(self, path):
        with np.load(path, allow_pickle=False) as file:
            self.arrays = {name: file[name] for name in file.files}
        self.about = json.loads(str(self.arrays["about"]))

    def __call__(self, x):
        for place, name in enumerate(self.arrays["steps"]):
            start = f"{place}."
            own = {k[len(start) :]: v for k, v in self.arrays.items() if k.startswith(start)}
            x = getattr(self, name)(np.asarray(x, dtype=np.float64), **own)
        return x

    def one_hot(self, x, columns, choices):
        assert len(columns) == len(choices)
        parts = [
            x[:, [i]] == np.arange(n) if n else x[:, [i]] for i, n in enumerate(choices.tolist())
        ]
        return np.concatenate(parts, axis=1)

    def standardize(self, x, shift, scale):
        return (x - shift) / scale

    def restore(self, x, shift, scale):
        return x * scale + shift

    def fill_missing(self, x):
        return np.where(np.isnan(x), 0, x)

    def dense(self, x, weight, bias):
        return x @ weight + bias

    def activate(self, x, function):
        return FUNCTIONS[str(function)](x)

    def activate_blocks(self, x, functions, widths, groups):
        parts = np.split(x, np.cumsum(widths)[:-1], axis=1)
        for i, (function, number) in enumerate(zip(functions, groups, strict=True)):
            by_group = parts[i].reshape(len(x), max(number, 1), -1)
            parts[i] = FUNCTIONS[str(function)](by_group).reshape(len(x), -1)
        return np.concatenate(parts, axis=1)

    def to_images(self, x, images, channels_first):
        height, width, channels = images
        if channels_first:
            return x.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
        return x.reshape(-1, height, width, channels)

    def to_rows(self, x, images, channels_first):
        assert x.shape[1:] == tuple(images)
        return (x.transpose(0, 3, 1, 2) if channels_first else x).reshape(len(x), -1)

    def convolve(self, x, weight, bias, pad, groups):
        size, filters = len(weight), weight.shape[-1]
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        rows, columns = x.shape[1] - size + 1, x.shape[2] - size + 1
        out = np.zeros((len(x), rows, columns, filters)) + bias
        for i, j, read, own in self._connections(weight, groups):
            out[..., own] += x[:, i : i + rows, j : j + columns, read] @ weight[i, j, :, own]
        return out

    def convolve_back(self, x, weight, bias, pad, groups):
        size, reads, (rows, columns) = len(weight), weight.shape[2], x.shape[1:3]
        out = np.zeros((len(x), rows + size - 1, columns + size - 1, reads * groups))
        for i, j, read, own in self._connections(weight, groups):
            out[:, i : i + rows, j : j + columns, read] += x[..., own] @ weight[i, j, :, own].T
        return out[:, pad : out.shape[1] - pad, pad : out.shape[2] - pad] + bias

    def _connections(self, weight, groups):
        """Yield each place in a filter, with the channels and the filters of each group."""
        size, _, reads, filters = weight.shape
        for group, i, j in np.ndindex(groups, size, size):
            yield i, j, *(slice(n * group, n * (group + 1)) for n in (reads, filters // groups))

    def _blocks(self, x, size):
        n, rows, columns, channels = x.shape
        parts = x.reshape(n, rows // size, size, columns // size, size, channels)
        return parts.transpose(0, 1, 3, 5, 2, 4).reshape(
            n, rows // size, columns // size, channels, -1
        )

    def max_pool(self, x, size):
        return self._blocks(x, size).max(axis=-1)

    def mean_pool(self, x, size):
        return self._blocks(x, size).mean(axis=-1)

    def probabilistic_pool(self, x, size, images):
        blocks = self._blocks(x, size)
        most = blocks.max(axis=-1).clip(min=0)
        total = np.exp(blocks - most[..., None]).sum(axis=-1)
        assert total.shape[1:] == tuple(images)
        return total / (np.exp(-most) + total)

    def spread(self, x, size):
        return x.repeat(size, axis=1).repeat(size, axis=2) / size**2
