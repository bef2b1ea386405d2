"""Plots as functions: what they draw, by known answers."""

import doctest
import io
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from randomconvolutions import convolutional_stack
from randomstacks import normal_stack

from syncpretrain import finetune, plot, pretrain
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.models.diagnosis import diagnose_layers
from syncpretrain.observers.history import History
from syncpretrain.plot import stacks
from syncpretrain.plot.canvas import new_axes

pytestmark = pytest.mark.usefixtures("figures")
DIAGRAM = "syncpretrain.plot.course"


@pytest.fixture(scope="module")
def run(bits):
    """A stack, fine-tuned, and the history of its pretraining."""
    history = History()
    stack = pretrain(bits, validation=bits[:40], layers=[16, 9, 4], epochs=3, observers=[history])
    return finetune(stack, bits, epochs=2, batch_size=50), history


@pytest.fixture(scope="module")
def classifier(bits):
    return finetune(pretrain(bits, layers=[16, 4], epochs=1), bits, np.arange(200) % 2, epochs=1)


class TestFilters:
    def test_a_square_of_images(self):
        axes = plot.filters(normal_stack((16, 30)))
        assert axes.images[0].get_array().shape == (3 * 9 + 2, 10 * 6 + 2)
        assert axes.get_title() == "30 of 30 filters of layer 1"

    def test_patches_of_a_convolution(self):
        axes = plot.filters(convolutional_stack("2x8x6,conv:4x3,pool:2,6"), layer=1, count=3)
        assert axes.get_title() == "3 of 4 filters of layer 1"

    def test_bars_where_examples_are_no_images(self):
        stack = normal_stack((15, 4))
        axes = plot.filters(stack)
        norms = sorted(np.linalg.norm(stack.layers[0].weight, axis=1), reverse=True)
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(norms)
        assert axes.get_yticklabels()[0].get_text().startswith("value ")

    def test_a_layer_that_reads_no_pixels_is_refused(self):
        with pytest.raises(SettingsError, match="reads no pixels"):
            plot.filters(normal_stack((16, 9, 4)), layer=2)


class TestLearningCurves:
    def test_a_panel_a_layer_and_one_for_fine_tuning(self, run):
        stack, history = run
        panels = plot.learning_curves(stack)
        assert [x.get_title() for x in panels] == ["layer 1", "layer 2", "fine-tuning"]
        train, held_out = panels[0].lines
        assert list(train.get_ydata()) == stack.history.layers[0].train
        assert list(held_out.get_ydata()) == stack.history.layers[0].validation
        of_history = plot.learning_curves(history)
        assert list(of_history[1].lines[0].get_ydata()) == stack.history.layers[1].train

    def test_of_a_classifier_it_is_the_share_of_wrong_classes(self, classifier):
        labels = [panel.get_ylabel() for panel in plot.learning_curves(classifier)]
        assert labels == ["squared error", "share of wrong classes"]

    def test_no_epoch_is_refused(self):
        with pytest.raises(DataError, match=r"^run: it has no finished epoch"):
            plot.learning_curves(normal_stack((4, 2)))

    def test_another_number_of_axes_is_refused(self, run):
        with pytest.raises(ValueError, match=r"^axes: got 1, expected 3"):
            plot.learning_curves(run[0], axes=[plot.filters(run[0])])


class TestSpaceTime:
    def test_a_bar_an_epoch_in_the_row_of_its_layer(self, run):
        axes = plot.space_time(run[1])
        bars = [bar for bar in axes.patches if bar.get_gid()]
        assert [bar.get_gid() for bar in bars] == [f"bar{n}" for n in range(6)]
        rows = [round(bar.get_y() + bar.get_height() / 2) for bar in bars]
        assert rows == [0, 0, 0, 1, 1, 1]
        begun = [bar.get_x() for bar in bars[3:]]
        assert begun == sorted(begun)

    def test_many_epochs_share_bars(self, monkeypatch, run):
        monkeypatch.setattr(f"{DIAGRAM}.MOST_BARS", 4)
        monkeypatch.setattr(f"{DIAGRAM}.LEAST_BARS", 1)
        axes = plot.space_time(run[1])
        assert sum(bool(bar.get_gid()) for bar in axes.patches) == 4

    def test_a_run_without_epochs_is_refused(self):
        with pytest.raises(DataError, match=r"^run: no epoch of it is finished"):
            plot.space_time(History())


class TestReconstructions:
    def test_examples_above_their_reconstructions(self, run, bits):
        axes = plot.reconstructions(run[0], bits, count=2)
        grid = axes.images[0].get_array()
        assert (np.asarray(grid[4:8, 2:6]) == bits[0].reshape(4, 4)).all()
        below = run[0].reconstruct(bits[:1])[0].reshape(4, 4)
        assert np.asarray(grid[9:13, 2:6]) == pytest.approx(below)

    def test_a_classifier_is_refused(self, classifier, bits):
        with pytest.raises(DataError, match="has no decoder"):
            plot.reconstructions(classifier, bits)

    def test_the_share_of_a_value_that_is_met_is_0_and_of_its_mean_100(self, monkeypatch):
        X = np.random.default_rng(0).random((50, 3), dtype=np.float32)
        X[:, 2] = 0.5
        stack = normal_stack((3, 2))
        found = X.copy()
        found[:, 1] = X[:, 1].mean()
        monkeypatch.setattr(type(stack), "reconstruct", lambda self, rows: found)
        assert stacks.error_shares(stack, X) == pytest.approx([0, 100, 0], abs=1e-3)

    def test_missing_values_are_left_out(self):
        X = np.random.default_rng(0).random((20, 3), dtype=np.float32)
        X[::2, 1] = np.nan
        stack = pretrain(X, layers=[3, 2], epochs=1, batch_size=5)
        assert np.isfinite(stacks.error_shares(stack, X)).all()


# Texts in which Matplotlib, XML or HTML would find something else, and as what they are drawn.
NAMES = {name: name for name in ("$", "$$", "_rest", "spend_$_per_$_visit", r"$\frac{$", "a<b>&")}
NAMES |= {"two\nlines": "two lines", "\x07bell": "\ufffdbell", "\ud800half": "\ufffdhalf"}


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_named_as_they_are(name):
    axes = new_axes()
    stacks.draw_bars(axes, [name, "b"], np.array([2.0, 1.0]), label="norm")
    axes.figure.savefig(io.BytesIO(), format="svg")  # which parses formulas
    assert [text.get_text() for text in axes.get_yticklabels()] == [NAMES[name], "b"]


class TestCodes:
    def test_components_of_points_in_a_plane(self):
        rng = np.random.default_rng(0)
        flat = rng.normal(size=(60, 2)) * (3, 1)
        turned, _ = np.linalg.qr(rng.normal(size=(5, 5)))
        points, share = stacks.principal_components((flat @ turned[:2]).astype(np.float32))
        assert share == pytest.approx(1)
        centred = flat - flat.mean(axis=0)
        assert points @ points.T == pytest.approx(centred @ centred.T, abs=1e-4)
        assert np.var(points[:, 0]) > np.var(points[:, 1])

    def test_a_single_unit_has_no_second_component(self):
        points, share = stacks.principal_components(np.array([[1], [3]], dtype=np.float32))
        assert (points.tolist(), share) == ([[-1, 0], [1, 0]], 1)

    def test_codes_that_are_all_the_same(self):
        points, share = stacks.principal_components(np.ones((3, 4), dtype=np.float32))
        assert (points == 0).all()
        assert share == 1

    def test_none_among_texts_is_no_label(self):
        X = np.random.default_rng(0).random((30, 6), dtype=np.float32)
        labels = np.array(["a", None, "b"], dtype=object)[np.arange(30) % 3]
        axes = plot.codes(pretrain(X, hidden=[3], epochs=1, warn=False), X, labels)
        assert [x.get_text() for x in axes.get_legend().get_texts()] == ["no label", "a", "b"]

    @pytest.mark.parametrize("size", [1e5, 200, 1, 0.3, 0.05, 3e-3, 1e-3, 3e-4, 1e-6])
    def test_labels_of_ticks_do_not_overlap(self, size):
        axes = new_axes(size=(5.6, 4.6))
        draws = np.random.default_rng(0).uniform(-size, size, (200, 2))
        stacks.draw_codes(axes, draws.astype(np.float32), None)
        axes.figure.canvas.draw()
        low, high = axes.get_xlim()
        labels = [x for x in axes.get_xticklabels() if low <= x.get_position()[0] <= high]
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) > 2
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))

    def test_rare_classes_share_an_entry(self, run, bits):
        axes = plot.codes(run[0], bits, np.arange(200) % 13)
        texts = [text.get_text() for text in axes.get_legend().get_texts()]
        assert len(texts) == 11
        assert texts[0] == "others"
        assert sum(len(x.get_offsets()) for x in axes.collections) == 200

    @pytest.mark.parametrize("name", NAMES)
    def test_classes_are_named_as_they_are(self, run, bits, name):
        labels = np.array([name, "b", "c"])[np.arange(len(bits)) % 3]
        axes = plot.codes(run[0], bits, labels)
        shown = [text.get_text() for text in axes.get_legend().get_texts()]
        assert sorted(shown) == sorted([NAMES[name], "b", "c"])
        axes.figure.savefig(io.BytesIO(), format="svg")  # which parses formulas

    def test_numbers_get_shades(self, run, bits):
        y = np.linspace(0, 1, 200, dtype=np.float32)
        y[0] = np.nan
        axes = plot.codes(run[0], bits, y)
        assert len(axes.collections[0].get_array()) == 199

    def test_labels_of_another_length_are_refused(self, run, bits):
        with pytest.raises(DataError, match=r"^y: got shape \(3,\), expected \(200,\)"):
            plot.codes(run[0], bits, [1, 2, 3])


class TestActivities:
    def test_idle_units_are_those_of_the_diagnosis(self, bits):
        stack = normal_stack((16, 40, 9), scale=30)
        found = stacks.activities_of(stack, bits)
        judged = diagnose_layers(stack, bits, bits)
        assert found[0].dead + found[0].saturated > 0
        for activity, figures in zip(found, judged, strict=True):
            assert activity.dead == figures["dead_units"]
            assert activity.saturated == figures["saturated_units"]

    def test_units_without_limits_have_no_such_counts(self, bits):
        stack = normal_stack((16, 5), units=("bernoulli", "gaussian"))
        (panel,) = plot.activities(stack, bits)
        assert panel.get_title() == "layer 1, the code: 5 units"


def test_without_matplotlib_it_says_what_to_install(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DataError, match=r"^a plot needs Matplotlib: pip install"):
        plot.filters(run[0])


def test_to_import_it_does_not_import_matplotlib():
    code = "import sys, syncpretrain.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("name", plot.__all__)
def test_the_examples_of_the_docstrings(name):
    (examples,) = doctest.DocTestFinder().find(getattr(plot, name), name)
    results = doctest.DocTestRunner().run(examples)
    assert results.attempted
    assert not results.failed
