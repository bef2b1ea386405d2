"""Learn filters from two photographs with a convolutional RBM, and draw them.

python examples/natural_filters.py --out filters.png

The photographs are those of scikit-learn, in grey, whitened as in Olshausen and Field 1996. The RBM
has Gaussian visible and binary hidden units (Lee et al. 2009). One hidden unit in 1000 is on: then
each has to stand for something that is common in images, and that is an edge. A filter counts as
oriented if its gradients point to two opposite sides rather than everywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images

from syncpretrain import Stack, pretrain
from syncpretrain.events import EpochFinished, Event
from syncpretrain.plot.stacks import filter_images, image_grid, save_png

SIDE = 22  # pixels of a patch
HIGHEST = 0.25  # cycles a pixel: beyond, photographs hold more noise than structure
LARGEST = 3.0  # standard deviations
COHERENT = 0.5

Image = NDArray[np.float64]


def whitened(image: Image) -> Image:
    """Return an image whose frequencies have about the same power, up to the highest."""
    height, width = image.shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    amplitude = frequency * np.exp(-((frequency / HIGHEST) ** 4))
    white = np.fft.ifft2(np.fft.fft2(image - image.mean()) * amplitude).real
    limited: Image = np.clip(white / white.std(), -LARGEST, LARGEST)
    return limited


def patches(count: int, seed: int) -> NDArray[np.float32]:
    """Return square patches of both photographs, one a row."""
    rng = np.random.default_rng(seed)
    photographs = [whitened(image.mean(axis=2)) for image in load_sample_images().images]
    drawn = np.empty((count, SIDE, SIDE), dtype=np.float32)
    for i, patch in enumerate(drawn):
        image = photographs[i % len(photographs)]
        top, left = (rng.integers(length - SIDE + 1) for length in image.shape)
        patch[:] = image[top : top + SIDE, left : left + SIDE]
    return drawn.reshape(count, -1)


def coherence(weight: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how much the gradients of each filter point one way or its opposite, from 0 to 1."""
    down, right = np.gradient(np.float64(weight[:, :, 0]), axis=(0, 1))
    yy, xx, xy = ((a * b).sum(axis=(0, 1)) for a, b in ((down,) * 2, (right,) * 2, (down, right)))
    share: NDArray[np.float64] = np.hypot(xx - yy, 2 * xy) / (xx + yy)
    return share


def learned(X: NDArray[np.float32], options: argparse.Namespace) -> Stack:
    """Return a layer of filters, and print the error of each epoch."""

    def show(event: Event) -> None:
        if isinstance(event, EpochFinished):
            print(f"epoch {event.epoch}: squared error {event.train_error / SIDE**2:.3f} a pixel")

    return pretrain(
        X,
        layers=f"1x{SIDE}x{SIDE},conv:{options.filters}x11:same,pool:2",
        visible_units="gaussian",
        epochs=options.epochs,
        batch_size=50,
        learning_rate=0.3,
        momentum=0.9,
        weight_decay=0.002,
        sparsity_target=0.001,
        sparsity_cost=20,
        seed=options.seed,
        observers=[show],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filters", type=int, default=24)
    parser.add_argument("--patches", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("filters.png"))
    options = parser.parse_args()
    X = patches(options.patches, options.seed)
    started = perf_counter()
    stack = learned(X, options)
    oriented = int((coherence(stack.layers[0].weight) > COHERENT).sum())
    print(f"{oriented} of {options.filters} filters are oriented", end="")
    print(f" after {perf_counter() - started:.0f} s; see {options.out}")
    drawn, shape = filter_images(stack, 1, None)
    save_png(image_grid(*drawn, shape=shape), options.out)


if __name__ == "__main__":
    main()
