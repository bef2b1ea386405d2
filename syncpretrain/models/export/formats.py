"""The formats of exported networks, and the parts of a stack that can be exported."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from syncpretrain.errors import SettingsError
from syncpretrain.storage import write_atomically

EXPORT_PARTS = ("encoder", "decoder", "autoencoder", "classifier", "regressor")


class Format(NamedTuple):
    """A format: its suffix, the module that writes it, and the package needed, if any."""

    suffix: str
    module: str
    package: str = ""
    advice: str = ""


EXPORT_FORMATS = {
    "onnx": Format(".onnx", "onnx_model", "onnx", "install syncpretrain[export]"),
    "torch": Format(".safetensors", "torch_model"),
    "keras": Format(
        ".keras", "keras_model", "keras", "install keras, and jax, torch or tensorflow"
    ),
    "sklearn": Format(".skops", "sklearn_model", "skops", "install skops"),
    "npz": Format(".npz", "npz_file"),
}


def format_for(name: str | None, path: Path) -> Format:
    """Return a format with its package installed; if the name is None, that of the file's suffix.

    Raises
    ------
    SettingsError
        If the suffix is unknown, or belongs to another format, or the package is missing.
    """
    suffix = path.suffix.lower()
    known = {kind.suffix: found for found, kind in EXPORT_FORMATS.items()}
    if name is None and suffix not in known:
        raise SettingsError(f"out: got {path}, expected a file that ends in {', '.join(known)}")
    name = name or known[suffix]
    kind = EXPORT_FORMATS[name]
    if kind.suffix != suffix:
        wanted = f"a file that ends in {kind.suffix} for the format {name}"
        raise SettingsError(f"out: got {path}, expected {wanted}")
    if kind.package and find_spec(kind.package) is None:
        raise not_installed(name, kind.package, f"{kind.advice}, or take npz")
    return kind


def not_installed(name: str, package: str, advice: str) -> SettingsError:
    """Return the error for a format if the package that it needs is missing."""
    text = f"format: got {name}, which needs the package {package}, and that is not installed"
    return SettingsError(f"{text}; {advice}")


def write_export(path: Path, name: str | None, network: Any) -> list[Path]:
    """Write a described network in a format, as :func:`format_for` finds it; return the files.

    Raises
    ------
    SettingsError
        If there is no such format, or it cannot hold the network.
    OSError
        If a file cannot be written.
    """
    module = import_module(f"syncpretrain.models.export.{format_for(name, path).module}")
    found: dict[Path, bytes] = module.contents(path, network)
    for file, content in reversed(found.items()):  # first what the file needs beside it
        write_atomically(file, content)
    return list(found)
