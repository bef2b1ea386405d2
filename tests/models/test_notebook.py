"""What a notebook shows: a stack as a table, and progress that is redrawn in place."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from syncpretrain import finetune, pretrain


def test_a_stack_has_its_errors(bits):
    stack = pretrain(bits, validation=bits[:40], layers=[16, 9, 4], epochs=2)
    html = stack._repr_html_()
    for curve in stack.history.layers:
        assert f"<td>error {curve.last:.4g}</td>" in html
    tuned = finetune(stack, bits, epochs=1)
    assert f"error after fine-tuning {tuned.history.finetune.last:.4g}" in tuned._repr_html_()


def test_a_head_has_an_empty_cell(bits):
    stack = pretrain(bits, layers=[16, 4], epochs=1)
    rows = finetune(stack, bits, np.arange(200) % 2, epochs=1)._repr_html_().split("<tr>")[1:]
    assert len(rows) == 2
    assert len({row.count("<td>") for row in rows}) == 1


@pytest.fixture
def displayed(monkeypatch):
    """Let rich see a notebook; return what is displayed in it."""
    shown: list[Any] = []

    def module(name: str, **names: Any) -> None:
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)

    module("IPython")
    module("IPython.display", display=shown.append)
    module("ipywidgets", Output=MagicMock)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    return shown


def test_progress_is_redrawn_in_a_widget(bits, displayed):
    pretrain(bits, layers=[16, 9, 4], epochs=2, verbose=True)
    (widget,) = (found for found in displayed if isinstance(found, MagicMock))
    assert widget.clear_output.call_count > 1
    widget.clear_output.assert_called_with(wait=True)
    texts = [found.text for found in displayed if found is not widget and hasattr(found, "text")]
    assert any("layer 2" in text for text in texts)


def test_without_widgets_it_is_lines(bits, displayed, monkeypatch, recwarn):
    monkeypatch.setattr("syncpretrain.observers.find_spec", lambda name: None)
    pretrain(bits, layers=[16, 9], epochs=2, verbose=True)
    assert not any(isinstance(found, MagicMock) for found in displayed)
    assert not recwarn.list
    texts = [found.text for found in displayed if hasattr(found, "text")]
    assert any("layer 1  epoch 2/2" in text for text in texts)
