"""The modules of the package, as their source says."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import syncpretrain

ROOT = Path(syncpretrain.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def statements(body: list[ast.stmt], *, lazy: bool) -> Iterator[ast.stmt]:
    """Yield what is executed at import; with ``lazy`` also what is when a function is called."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not lazy:
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, name, []), lazy=lazy)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, lazy=lazy)


@cache
def imports(name: str, *, lazy: bool) -> frozenset[str]:
    """Return the full names that a module imports."""
    found = set()
    for node in statements(parsed(name).body, lazy=lazy):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: a relative import"
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def own_imports(name: str, *, lazy: bool) -> set[str]:
    """Return the modules of this library that a module imports, the packages left out."""
    prefix = "syncpretrain."
    found = {x.removeprefix(prefix) for x in imports(name, lazy=lazy) if x.startswith(prefix)}
    return found & (MODULES.keys() - {name, name.rpartition(".")[0]})


def package(name: str) -> str:
    return name.partition(".")[0]


@cache
def knowledge(name: str) -> frozenset[str]:
    """Return every module of this library that a module names, for types and calls too."""
    prefix, found = "syncpretrain.", set()
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(prefix):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    known = {x.removeprefix(prefix) for x in found if x.startswith(prefix)} & MODULES.keys()
    return frozenset(known - {name, name.rpartition(".")[0]})


NAMES = list(MODULES)
