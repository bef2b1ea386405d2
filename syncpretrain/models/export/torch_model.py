"""Networks for PyTorch: an ``nn.Sequential``, or its parameters and the text that rebuilds it.

A file of :func:`torch.save` is a pickle, and so are parts of ``.pt2`` archives; TorchScript is
deprecated. So the parameters are written as safetensors, with a Python file that has the modules in
plain text and loads the parameters. Neither needs PyTorch to be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from keyword import iskeyword
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from syncpretrain.errors import SettingsError, needed
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.export import steps as kinds
from syncpretrain.models.export.formats import not_installed
from syncpretrain.models.export.steps import Network

FUNCTION_MODULES = {"sigmoid": "nn.Sigmoid", "relu": "nn.ReLU", "tanh": "nn.Tanh"}
OWN_MODULES = Path(__file__).with_name("torch_modules.py")
LOADER = '''

def network() -> nn.Sequential:
    """Return the network, with parameters that are not loaded."""
    return nn.Sequential(
        {modules},
    )


def load(path: str | None = None) -> nn.Sequential:
    """Return the network with the parameters of a file, default the one beside this file."""
    from pathlib import Path

    from safetensors.torch import load_file

    found = network()
    found.load_state_dict(load_file(path or Path(__file__).with_suffix(".safetensors")))
    return found.eval()
'''


@dataclass(frozen=True, eq=False)
class _Module:
    """A module: its class, its arguments, and its arrays by their names in its state.

    Classes of PyTorch are written with ``nn.``; others come from ``torch_modules``.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)


def build(network: Network) -> Any:
    """Return an ``nn.Sequential``, float32, on the CPU.

    Raises
    ------
    SettingsError
        If PyTorch is not installed.
    """
    torch = needed("torch", not_installed("torch", "torch", "install it, or export to npz"))
    from syncpretrain.models.export import torch_modules

    modules = _modules(network)
    made = (attrgetter(x.name)(torch_modules)(**x.arguments) for x in modules)
    found = torch.nn.Sequential(*made)
    state = {name: torch.from_numpy(array.copy()) for name, array in _state(modules).items()}
    found.load_state_dict(state)
    return found.eval()


def contents(path: Path, network: Network) -> dict[Path, bytes]:
    """Return the contents of the parameters, and of the Python file that loads them.

    Raises
    ------
    SettingsError
        If the name is no name of a Python module, or another Python file has it.
    """
    text_path = path.with_suffix(".py")
    beside = f"out: got {path}, beside which {text_path.name} is written"
    if not path.stem.isidentifier() or iskeyword(path.stem):
        advice = "take letters, digits and underscores, and no keyword of Python"
        raise SettingsError(f"{beside}, and no Python module can have that name; {advice}")
    own = OWN_MODULES.read_text(encoding="utf-8")
    first = own.splitlines()[0]  # by which a file is known as ours
    if text_path.exists() and not text_path.read_text("utf-8", "replace").startswith(first):
        reason = "there is another file of that name; take another name"
        raise SettingsError(f"{beside}, and {reason}")
    modules = _modules(network)
    text = own + LOADER.format(modules=",\n        ".join(map(_call, modules)))
    metadata = {"format": "pt", "syncpretrain": network.about}
    return {path: safetensors.numpy.save(_state(modules), metadata), text_path: text.encode()}


def _modules(network: Network) -> list[_Module]:
    return [MODULES[type(step)](step) for step in network.steps]


def _state(modules: list[_Module]) -> dict[str, Array]:
    return {
        f"{place}.{name}": np.ascontiguousarray(array)
        for place, module in enumerate(modules)
        for name, array in module.arrays.items()
    }


def _call(module: _Module) -> str:
    """Return the Python expression that makes a module."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in module.arguments.items())
    return f"{module.name}({arguments})"


def _dense(step: kinds.Dense) -> _Module:
    inputs, outputs = step.weight.shape
    sizes = {"in_features": inputs, "out_features": outputs}
    return _Module("nn.Linear", sizes, {"weight": step.weight.T, "bias": step.bias})


def _scaled(step: kinds.Standardize | kinds.Restore) -> _Module:
    arrays = {"shift": step.shift, "scale": step.scale}
    return _Module(type(step).__name__, {"width": len(step.shift)}, arrays)


def _activate(step: kinds.Activate) -> _Module:
    if step.function == "softmax":
        return _Module("nn.Softmax", {"dim": 1})
    return _Module(FUNCTION_MODULES[step.function])


def _blocks(step: kinds.ActivateBlocks) -> _Module:
    blocks = [(block.function, block.stop - block.start, block.groups) for block in step.blocks]
    return _Module("Blocks", {"blocks": blocks})


def _to_images(step: kinds.ToImages) -> _Module:
    images = step.images
    sizes = {"channels": images.channels, "height": images.height, "width": images.width}
    return _Module("ToImages", sizes | {"channels_first": step.channels_first})


def _convolution(step: kinds.Convolve | kinds.ConvolveBack) -> _Module:
    size, _, reads, filters = step.weight.shape
    is_back = isinstance(step, kinds.ConvolveBack)
    ends = (filters, reads * step.groups) if is_back else (reads * step.groups, filters)
    sizes = {"in_channels": ends[0], "out_channels": ends[1], "kernel_size": size}
    sizes |= {"padding": step.pad, "groups": step.groups}
    # (k, k, C / G, F) -> (F, C / G, k, k), for both directions
    arrays = {"weight": step.weight.transpose(3, 2, 0, 1), "bias": step.bias}
    return _Module("nn.ConvTranspose2d" if is_back else "nn.Conv2d", sizes, arrays)


MODULES: dict[type, Callable[[Any], _Module]] = {
    kinds.OneHot: lambda step: _Module("OneHot", {"choices": [len(c) for _, c in step.columns]}),
    kinds.Standardize: _scaled,
    kinds.Restore: _scaled,
    kinds.FillMissing: lambda step: _Module("FillMissing"),
    kinds.Dense: _dense,
    kinds.Activate: _activate,
    kinds.ActivateBlocks: _blocks,
    kinds.ToImages: _to_images,
    kinds.ToRows: lambda step: _Module("ToRows", {"channels_first": step.channels_first}),
    kinds.Convolve: _convolution,
    kinds.ConvolveBack: _convolution,
    kinds.MaxPool: lambda step: _Module("nn.MaxPool2d", {"kernel_size": step.size}),
    kinds.MeanPool: lambda step: _Module("nn.AvgPool2d", {"kernel_size": step.size}),
    kinds.ProbabilisticPool: lambda step: _Module("ProbabilisticPool", {"size": step.size}),
    kinds.Spread: lambda step: _Module("Spread", {"size": step.size}),
}
