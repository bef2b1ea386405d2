"""Panels of two runs: whose curve is whose, also where one has none."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from syncpretrain.plot.canvas import MARKERS, colour_of
from syncpretrain.plot.course import POINTS_OF_A_LINE, Curve, draw_curve
from syncpretrain.report import report_page
from syncpretrain.report.course import MARKS_OF_RUNS, course_section, learning_section
from syncpretrain.report.section import paragraph, table, unordered
from syncpretrain.runs.record import EpochSpan, Timeline

pytestmark = pytest.mark.usefixtures("fonts")


def run(name, depth):
    places = product(range(1, depth + 1), (1, 2))
    spans = tuple(EpochSpan(*place, 0, 0.0, 1.0, 0.0, 1.0, 2.0) for place in places)
    return SimpleNamespace(name=name, timeline=Timeline(layers=(4,) * (depth + 1), spans=spans))


def test_a_run_keeps_its_colour_where_the_other_has_no_layer():
    body = learning_section([run("a & b", 1), run("deep", 2)]).body
    _, first, second = body.split("<figure>")
    assert [colour_of(i) in first for i in (0, 1)] == [True, True]
    assert [colour_of(i) in second for i in (0, 1)] == [False, True]
    assert "a &amp; b: training, validation" in body
    assert "training</text>" not in body, "long names would lie on the curves"


def test_the_key_has_the_markers_of_the_panels():
    names = {"o": "●", "s": "■", "D": "◆", "^": "▲"}
    assert " ".join(names[mark] for mark in MARKERS[:4]) == " ".join(MARKS_OF_RUNS)


@pytest.mark.parametrize("epochs", [1, 40, 41, 700])
def test_curves_of_any_length_have_the_markers_of_the_key(epochs):
    axes, errors = Figure().add_subplot(), np.ones(epochs)
    draw_curve(axes, Curve("a", np.arange(1.0, epochs + 1), errors, errors), series=1)
    assert [line.get_marker() for line in axes.lines] == list(MARKERS[2:4])
    shown = axes.lines[0].get_xdata()[:: axes.lines[0].get_markevery()]
    assert min(epochs, 10) <= len(shown) <= 40


def test_a_single_run_has_a_legend():
    assert ">validation</text>" in learning_section([run("flat", 1)]).body


def test_a_cell_breaks_at_commas_and_not_before_a_unit():
    body = table(("", "text", "number"), [("layer 1", "a,b", "14.8, 28 %")], caption="c", left=2)
    assert ">layer&nbsp;1</th><td>a,<wbr>b</td>" in body
    assert ">14.8, 28&nbsp;%</td>" in body


def test_a_cell_and_a_command_keep_their_words_whole():
    body = table(("", "text"), [("data", "(1,000 train, 10,000 test)")], caption="c", left=2)
    assert "(1,000 train,<wbr> 10,000 test)" in body
    option = '<span class="option">--max-restarts</span>'
    assert paragraph("train --max-restarts 5") == f"<p>train {option} 5</p>"
    assert unordered(["a & b", "train --max-restarts 5"]) == (
        f"<ul><li>a &amp; b</li><li>train {option} 5</li></ul>"
    )


def test_a_long_curve_keeps_its_ends_and_its_extremes():
    errors = np.random.default_rng(0).random(5000)
    errors[[0, 1234, 3333, 4999]] = 5, 9, -9, 4
    held_out = np.where(np.arange(5000) % 10, np.nan, errors)
    axes = Figure().add_subplot()
    draw_curve(axes, Curve("long", np.arange(1.0, 5001), errors, held_out))
    for line, known in zip(axes.lines, (errors, held_out), strict=True):
        x, y = line.get_data()
        assert len(x) <= POINTS_OF_A_LINE
        assert (np.diff(x) > 0).all()
        assert np.array_equal(known[x.astype(int) - 1], y, equal_nan=True)
        assert (np.nanmin(y), np.nanmax(y), x[0]) == (np.nanmin(known), np.nanmax(known), 1)
    few = Figure().add_subplot()
    draw_curve(few, Curve("short", np.arange(3.0), errors[:3], errors[:3]))
    assert (few.lines[0].get_ydata() == errors[:3]).all()


def test_a_critical_path_of_thousands_of_epochs_is_a_few_lines():
    spans = [EpochSpan(1, e, 0, e + 0.1 * (e % 2), e + 1.0, 0.0, 1.0, 2.0) for e in range(1, 1001)]
    timeline = Timeline(layers=(4, 4), spans=(*spans,), began=1.0, ended=1001.0, busy=(950.0,))
    body = course_section([SimpleNamespace(name="long", timeline=timeline)]).body
    assert body.count("<path") < 3 * 450


def test_a_folder_whose_name_is_no_text(tmp_path):
    alone = SimpleNamespace(name="bad\udcff", folder=tmp_path)
    (tmp_path / "file").touch()
    assert b"<h1>bad?</h1>" in report_page([alone], [])
