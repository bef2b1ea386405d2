"""Imports go downward, without cycles; functions stay small, and the package does not grow.

A rule is one test of all modules, which lists those that break it.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from docblocks import tabled

import syncpretrain

PREFIX, PACKAGE = "syncpretrain.", Path(syncpretrain.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
NAMES = list(MODULES)
THREADS = {"threading", "_thread", "multiprocessing", "concurrent", "asyncio", "subprocess"}
DOCS = Path(__file__).resolve().parents[2] / "docs"
LISTED = tabled(DOCS / "architecture.rst")  # from the bottom up
ORDER = [re.sub(r"(\.py|/)$", "", name) for name in LISTED if "/" not in name.rstrip("/")]
GROUND = {"array_files", "errors", "events", "rng", "shapes", "storage"}
QUESTION_WORDS = {"What", "Where", "Which", "How", "Who", "Whether", "When"}
INPUT_OUTPUT = {"pathlib", "os", "io", "sys", "json", "socket", "tempfile", "logging", "shutil"}


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imports(name: str) -> frozenset[str]:
    """Return the full names that a module imports, for types and inside functions too."""
    found = set()
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: a relative import"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@cache
def own_imports(name: str) -> frozenset[str]:
    """Return the modules of this library that a module imports, the packages left out."""
    found = {x.removeprefix(PREFIX) for x in imports(name) if x.startswith(PREFIX)}
    return frozenset(found & (MODULES.keys() - {name, name.rpartition(".")[0]}))


def package(name: str) -> str:
    return name.partition(".")[0]


def assigned(name: str) -> set[str]:
    """Return the names that are assigned at the top of a module."""
    targets: list[ast.expr] = []
    for node in parsed(name).body:
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    found = [x for target in targets for x in getattr(target, "elts", [target])]
    return {target.id for target in found if isinstance(target, ast.Name)}


def foreign(name: str) -> set[str]:
    """Return the top packages that a module imports, anywhere in it."""
    return {package(x) for x in imports(name)}


def inside(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}.")


def within(*folders: str) -> list[str]:
    for folder in folders:
        assert any(inside(name, folder) for name in MODULES), f"no module in {folder}"
    return [name for name in MODULES if any(inside(name, folder) for folder in folders)]


def imported_from(names: Iterable[str], packages: set[str]) -> dict[str, set[str]]:
    """Return which of some packages each module imports that imports one."""
    found = {name: foreign(name) & packages for name in names}
    return {name: what for name, what in found.items() if what}


def test_everything_in_the_package_is_listed_once():
    tops = {package(name) for name in NAMES} - {"__init__", "__main__"}
    assert sorted(ORDER) == sorted(tops)
    assert all((PACKAGE / name).exists() for name in LISTED)


def test_imports_go_up_the_list():
    modules = [name for name in NAMES if not name.startswith("__")]
    pairs = [(n, x) for n in modules for x in own_imports(n)]
    assert not [
        f"{name} imports {imported}, which is listed below it"
        for name, imported in pairs
        if ORDER.index(package(imported)) > ORDER.index(package(name))
    ]


@pytest.mark.parametrize(("name", "known"), [("units", {"errors"}), ("shapes", {"units", *GROUND})])
def test_units_and_shapes_know_less_than_what_is_listed_above_them(name, known):
    found = {package(x) for own in within(name) for x in own_imports(own)}
    assert found <= {name, *known}


def test_there_is_no_cycle():
    graph = {name: own_imports(name) for name in NAMES}
    while graph:
        leaves = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert leaves, f"a cycle among {sorted(graph)}"
        for name in leaves:
            del graph[name]


def test_few_modules_stand_alone():
    loose = {n for n in NAMES if "." not in n and MODULES[n].name != "__init__.py"}
    assert loose == GROUND | {"__main__"}


def test_the_schedule_is_pure():
    allowed = {"__future__", "bisect", "collections", "dataclasses", "functools", "heapq"}
    allowed |= {"itertools", "typing", "syncpretrain"}
    for name in within("schedule"):
        assert foreign(name) <= allowed, f"{name}: no threads, clocks or arrays"
        others = {x for x in own_imports(name) if not inside(x, "schedule")}
        assert others <= {"errors"}, name


def test_the_kernels_are_pure_functions_of_arrays():
    names = within("kernels")
    impure = imported_from(names, INPUT_OUTPUT | THREADS | {"time", "random"})
    assert impure == {"kernels.native": {"os"}}
    for name in names:
        others = {x for x in own_imports(name) if package(x) != "kernels"}
        assert {x for x in others if not inside(x, "units")} <= {"rng", "errors", "shapes"}, (
            f"{name}: what is drawn is a function of its address"
        )


def test_the_learners_know_of_no_threads():
    assert not imported_from(within("learners"), INPUT_OUTPUT | THREADS | {"time"})


WORKERS = set(within("parallel", "cluster", "workers"))


def test_only_the_runtime_starts_or_waits_for_workers():
    found = imported_from([n for n in NAMES if n not in WORKERS], THREADS)
    assert found == {"settings.convert": {"threading"}}, "which has a lock"


def test_only_the_command_line_imports_the_command_line():
    others = [name for name in NAMES if package(name) not in ("cli", "__main__")]
    commands = {name: own_imports(name) & set(within("cli")) for name in others}
    assert not {name: found for name, found in commands.items() if found}
    assert not imported_from(others, {"click"})


def executes(node: ast.AST) -> bool:
    """Return whether an expression may execute what was read."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"eval", "exec", "compile", "__import__"}
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        return not (isinstance(node.value, ast.Constant) and node.value.value is False)
    return False


def test_nothing_read_is_ever_executed():
    unsafe = imported_from(NAMES, {"pickle", "marshal", "shelve", "dill", "joblib"})
    assert unsafe == {"sklearn.base": {"joblib"}}  # which asks whether this is a job of it
    assert not [
        f"line {getattr(node, 'lineno', '?')} of {name}"
        for name in NAMES
        for node in ast.walk(parsed(name))
        if executes(node)
    ]


def documented() -> set[str]:
    """Return the modules with names that the documentation lists."""
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.rst"))
    listed = re.findall(r"(?:auto\w+|currentmodule):: syncpretrain\.([\w.]+)", pages)
    return {name for name in NAMES if any(inside(x, name) for x in listed)}


def test_every_module_has_a_docstring_and_public_modules_say_what_they_export():
    assert not [name for name in NAMES if not ast.get_docstring(parsed(name))]
    packages = {name for name in NAMES if MODULES[name].name == "__init__.py"}
    public = documented() | {name for name in packages if len(parsed(name).body) > 1}
    empty = {name for name in packages if len(parsed(name).body) == 1}
    assert {name for name in NAMES if "__all__" in assigned(name)} == public - empty


def test_no_module_docstring_begins_with_a_question_word():
    first = {n: (ast.get_docstring(parsed(n)) or "").split(maxsplit=1)[0] for n in NAMES}
    assert not {n: word for n, word in first.items() if word.rstrip(",.:;") in QUESTION_WORDS}


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function, without those of its docstring."""
    first, last = node.body[0], node.end_lineno or 0
    has_docstring = ast.get_docstring(node) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return last - node.lineno + 1 - docstring


def test_functions_have_at_most_50_lines_without_their_docstring():
    functions = [
        (name, node)
        for name in NAMES
        for node in ast.walk(parsed(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert not [f"{node.name} in {name}" for name, node in functions if length(node) > 50]


# Each number may only go down. A change that needs more takes as much out elsewhere.
BUDGETS = {"files": 258, "lines of code": 39_323, "protocols": 15, "inner modules": 16}


def lines_of_code(name: str) -> int:
    """Return the lines of a module without docstrings, comments and empty lines."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [
        x for x in ast.walk(parsed(name)) if isinstance(x, kinds) and ast.get_docstring(x)
    ]
    texts = [node.body[0] for node in documented]
    docstrings = {i for x in texts for i in range(x.lineno, (x.end_lineno or 0) + 1)}
    lines = enumerate(MODULES[name].read_text(encoding="utf-8").splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in docstrings
        for number, line in lines
    )


def is_abstract(node: ast.AST) -> bool:
    """Return whether a node is a class directly below ``Protocol`` or ``ABC``."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    names = [getattr(x, "value", x) if isinstance(x, ast.Subscript) else x for x in bases]
    return any(isinstance(x, ast.Name) and x.id in {"Protocol", "ABC"} for x in names)


def test_the_package_stays_within_its_budgets():
    importers = {name: [x for x in NAMES if name in own_imports(x)] for name in NAMES}
    folder = {name: name.rpartition(".")[0] for name in NAMES}
    found = {
        "files": len(NAMES),
        "lines of code": sum(map(lines_of_code, NAMES)),
        "protocols": sum(is_abstract(node) for name in NAMES for node in ast.walk(parsed(name))),
        "inner modules": sum(
            len(who) == 1 and folder[who[0]] == folder[name] for name, who in importers.items()
        ),
    }
    assert not {what: n for what, n in found.items() if n > BUDGETS[what]}
