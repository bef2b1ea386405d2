"""Panels of two runs: whose curve is whose, also where one has none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from syncpretrain.runs.report.plots.canvas import MARKERS, colour_of
from syncpretrain.runs.report.sections.learning import MARKS_OF_RUNS, learning_section
from syncpretrain.runs.report.sections.section import table
from syncpretrain.runs.timeline import EpochSpan, Timeline

pytestmark = pytest.mark.usefixtures("fonts")


def run(name, depth):
    spans = [
        EpochSpan(n, e, 0, 0.0, 1.0, 0.0, 1.0, 2.0) for n in range(1, depth + 1) for e in (1, 2)
    ]
    return SimpleNamespace(name=name, timeline=Timeline(layers=(4,) * (depth + 1), spans=(*spans,)))


def test_a_run_keeps_its_colour_where_the_other_has_no_layer():
    body = learning_section([run("a & b", 1), run("deep", 2)]).body
    _, first, second = body.split("<figure>")
    assert colour_of(0) in first
    assert colour_of(1) in first
    assert colour_of(0) not in second
    assert colour_of(1) in second
    assert "a &amp; b: training, validation" in body
    assert "training</text>" not in body, "long names would lie on the curves"


def test_the_key_has_the_markers_of_the_panels():
    names = {"o": "●", "s": "■", "D": "◆", "^": "▲"}
    assert " ".join(names[mark] for mark in MARKERS[:4]) == " ".join(MARKS_OF_RUNS)


def test_a_single_run_has_a_legend():
    assert ">validation</text>" in learning_section([run("flat", 1)]).body


def test_a_cell_breaks_at_commas_and_not_before_a_unit():
    body = table(("", "text", "number"), [("layer 1", "a,b", "14.8, 28 %")], caption="c", left=2)
    assert ">layer&nbsp;1</th><td>a,<wbr>b</td>" in body
    assert ">14.8, 28&nbsp;%</td>" in body
