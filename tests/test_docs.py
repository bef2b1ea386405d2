from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from syncpretrain.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.rst").read_text(encoding="utf-8")
NOT_OURS = {"--rounds", "--quiet", "--editable", "--pairs"}  # of pip and of the benchmark


def test_every_option_in_the_readme_exists():
    named = set(re.findall(r"--[a-z][a-z-]+", README)) - NOT_OURS
    commands = ("train", "evaluate", "encode", "reconstruct", "sample")
    texts = [CliRunner().invoke(main, [command, "--help"]).output for command in commands]
    offered = {option for text in texts for option in re.findall(r"--[a-z][a-z-]+", text)}
    assert named, "the README shows options"
    assert not named - offered


def test_every_file_in_the_readme_exists():
    named = set(re.findall(r"(?:syncpretrain|tests|examples)/[\w/]+\.py", README))
    assert named
    assert not {name for name in named if not (ROOT / name).is_file()}


def test_every_extra_in_the_readme_exists():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for extra in ("digits", "sklearn", "plot", "cuda12", "cuda13", "mpi", "export", "test", "all"):
        assert f"``{extra}``" in README
        assert f'"{extra}"' in setup


@pytest.mark.parametrize("module", ["syncpretrain.pretraining.call"])
def test_docstring_examples(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted
    assert not results.failed
