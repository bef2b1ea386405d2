"""Pretrain a small stack on 8 x 8 digits, fine-tune it, save it, and look at what it does.

python examples/quickstart.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from syncpretrain import finetune, load, pretrain
from syncpretrain.data import load_dataset


def main() -> None:
    digits = load_dataset("digits")  # arrays of shape (n, 64), values in [0, 1]

    stack = pretrain(
        digits.train,
        layers=[64, 128, 32],
        validation=digits.validation,
        epochs=20,
        batch_size=20,
        seed=0,
    )
    tuned = finetune(stack, digits.train, epochs=20, batch_size=20)

    for name, model in (("pretrained", stack), ("fine-tuned", tuned)):
        error = np.square(model.reconstruct(digits.test) - digits.test).sum(axis=1).mean()
        print(f"{name}: squared error {error:.2f} an unseen digit")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        tuned.save(path)
        codes = load(path).encode(digits.test)
    print(f"codes of {len(codes)} digits: {codes.shape[1]} numbers instead of {digits.width}")


if __name__ == "__main__":
    main()
