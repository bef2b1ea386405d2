"""The type hints of everything public can be read, as inspectors and validators do."""

import inspect
import typing
from importlib import import_module

import pytest

pytest.importorskip("sklearn", minversion="1.6")


def functions_of(value):
    """Return a function, or a class and its public functions, by the names of attributes."""
    found = {"": value}
    for name in dir(value) if inspect.isclass(value) else ():
        own = inspect.getattr_static(value, name)
        own = getattr(own, "fget", None) or getattr(own, "func", None) or own
        own = getattr(own, "__func__", own)
        if inspect.isfunction(own) and (not name.startswith("_") or name == "__init__"):
            found[f".{name}"] = own
    return found


PUBLIC = {
    f"{home}.{name}{attribute}": function
    for home in ("syncpretrain", "syncpretrain.parallel", "syncpretrain.sklearn")
    for name in import_module(home).__all__
    if callable(value := getattr(import_module(home), name))
    for attribute, function in functions_of(value).items()
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_hints_of_a_public_function_can_be_read(name):
    typing.get_type_hints(PUBLIC[name])


def test_methods_properties_and_class_methods_are_among_them():
    names = ("pretrain", "Stack", "Stack.export", "Stack.from_torch", "Stack.widths")
    assert {f"syncpretrain.{name}" for name in names} <= set(PUBLIC)
    assert "syncpretrain.sklearn.DBNClassifier.fit" in PUBLIC
