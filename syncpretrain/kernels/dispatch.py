"""Dispatch of each kernel to the fastest form that exists for its arrays.

Each equation is written once in NumPy, which works everywhere. A backend may hold a faster form of
it, for its own type of arrays: the compiled one for NumPy's arrays of float32, or one that runs
where the arrays are. It registers that under the equation's name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_faster: dict[str, dict[type, Callable[..., Any]]] = {}  # by the equation's name
_equations: dict[str, Callable[..., Any]] = {}


class UnfitError(Exception):
    """Arrays or units that a faster form does not take."""


def accelerated(function: F, name: str | None = None) -> F:
    """Let a faster form of an equation stand in for it, chosen by the type of its first array.

    The faster form may return ``NotImplemented``, or raise :class:`UnfitError`, having done
    nothing: then the equation is evaluated as written. ``name`` is the equation's if that is not
    the function's.
    """
    name = name or function.__name__
    forms = _faster.setdefault(name, {})

    @wraps(function)
    def dispatched(array: Any, *args: Any, **options: Any) -> Any:
        form = forms.get(type(array))
        if form is not None:
            try:
                result = form(array, *args, **options)
            except UnfitError:
                result = NotImplemented
            if result is not NotImplemented:
                return result
        return function(array, *args, **options)

    if name != function.__name__:  # it is found by its own name, as pickle does
        dispatched.__name__ = dispatched.__qualname__ = name
        dispatched.__module__ = __name__
    _equations[name] = dispatched
    return dispatched  # type: ignore[return-value]


def form_for(equation: Callable[..., Any], array: Any) -> Callable[..., Any]:
    """Return a function that is called in place of an equation with arrays like this one.

    It is the equation as written where no faster form is registered. Else it is the equation as
    given, for a faster form may refuse them.
    """
    name = getattr(equation, "__name__", "")
    if _equations.get(name) is not equation or type(array) in _faster[name]:
        return equation
    return equation.__wrapped__  # type: ignore[attr-defined, no-any-return]


def register(array_type: type, forms: dict[str, Callable[..., Any]]) -> None:
    """Let these forms stand in for the equations of their names, for one type of arrays.

    The equations may be defined later.
    """
    for name, form in forms.items():
        _faster.setdefault(name, {})[array_type] = form


def equations() -> set[str]:
    """Return the names of the equations that have been defined."""
    return set(_equations)


def registered(array_type: type) -> dict[str, Callable[..., Any]]:
    """Return the faster forms there are for a type of arrays, by the equation's name."""
    return {name: forms[array_type] for name, forms in _faster.items() if array_type in forms}


multiply: Callable[..., Any] = accelerated(np.matmul, "multiply")
"""Return the product of two matrices, in ``out`` if it is given."""
