"""The numbers that a device draws, by definition: NumPy's but for normal ones."""

import numpy as np

from syncpretrain.rng import Address, Purpose

TRAINING = {Purpose.HIDDEN, Purpose.VISIBLE, Purpose.CORRUPTION}  # what learners draw on a device


class DeviceNumbers:
    """Stands for NumPy's generator at an address."""

    def __init__(self, address: Address) -> None:
        key, counter = (np.array(x, dtype=np.uint64) for x in (address.key, address.counter))
        self._words = np.random.Philox(key=key, counter=counter)
        self._uniform = np.random.Generator(np.random.Philox(key=key, counter=counter))
        self._drawn = 0

    def random(self, size=None, dtype=np.float64, out=None) -> np.ndarray:
        filled = self._uniform.random(size, dtype, out)
        self._drawn += filled.size
        return filled

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        """Return or fill an array: Box and Muller's numbers, two of each word of 64 bits."""
        out = np.empty(size, dtype) if out is None else out
        skipped = (self._drawn + 1) // 2
        words = self._words.random_raw(skipped + (out.size + 1) // 2)[skipped:]
        self._words = None  # one array of normal numbers is all that a learner draws
        first, second = words & np.uint64(2**32 - 1), words >> np.uint64(32)
        radius = np.sqrt(-2 * np.log(np.minimum(1, (first + 0.5) / 2**32)))
        angle = 2 * np.pi * second / 2**32
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        out[...] = pairs.reshape(-1)[: out.size].reshape(out.shape)
        return out


def draw_as_on_a_device(monkeypatch) -> None:
    """Let NumPy's learners draw what those on a device do."""
    real = Address.generator

    def generator(self: Address):
        return DeviceNumbers(self) if self.purpose in TRAINING else real(self)

    monkeypatch.setattr(Address, "generator", generator)
