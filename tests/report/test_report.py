"""``syncpretrain report``: what its page has, of every kind of run."""

import os
import re
import shutil
import sys
from shlex import quote

import numpy as np
import pytest
from commandline import exit_status
from reportpages import Page
from trialruns import DieAt, settings_on

from syncpretrain.errors import RunInterrupted
from syncpretrain.events import EpochFinished, FinetuneEpochFinished
from syncpretrain.report import outcome
from syncpretrain.report.course import timings_of
from syncpretrain.report.section import draw_svg
from syncpretrain.runs.folder import owned
from syncpretrain.runs.record import read_run
from syncpretrain.runs.run import train_run

pytestmark = pytest.mark.usefixtures("fonts")
MOST_BYTES = 2_000_000
USUAL = ["outcome", "learning", "course", "reconstructions", "filters", "units", "codes"]
USUAL += ["samples", "schedules", "settings"]
TABLE = "a,b,colour,y\n" + "".join(
    f"{i % 7},{i % 5},{'red' if i % 3 else 'blue'},{i % 2}\n" for i in range(60)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, bits):
    """A folder with a run of each kind."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "table.csv").write_text(TABLE)
    images = np.random.default_rng(0).random((60, 64), dtype=np.float32)
    np.savez(folder / "images.npz", X=images, y=np.arange(60) % 3)

    def run(name, *, layers=(16, 8, 4), X=bits, observers=(), **given):
        train_run(settings_on(folder, X, layers, **given), out=folder / name, observers=observers)

    bare = {"finetune": {}, "epochs": 2}
    run("tuned")
    ignored = shutil.ignore_patterns("model.safetensors")
    shutil.copytree(folder / "tuned", folder / "bare", ignore=ignored)
    run("free", pace="free", **bare)
    run("streamed", handoff="minibatch", **bare)
    run("async", schedule="async", replicas=2, epochs=2, finetune={})
    wide = {"layers": (16, 300, 300, 4), "batch_size": 50, "products": "own"}
    run("in pieces", workers=2, **wide, **bare)
    with pytest.raises(RuntimeError):
        dies = DieAt(EpochFinished, 3, error=RuntimeError("<b>no more & done</b>"))
        run("failed", observers=[dies], **bare)
    with pytest.raises(KeyboardInterrupt):
        run("stopped", observers=[DieAt(FinetuneEpochFinished, error=RunInterrupted("enough"))])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        small = ("--epochs", 2, "--batch-size", 20, "--quiet", "--out")
        convolution = ("--data", "images.npz", "--layers", "1x8x8,conv:3x3,pool:2,6")
        classes = ("--finetune", "classification", "--finetune-epochs", 1)
        assert exit_status("train", *convolution, *classes, *small, "convolution") == 0
        table = ("--data", "table.csv", "--target", "y", "--hidden", "6,3")
        assert exit_status("train", *table, "--visible-units", "auto", *small, "table") == 0
    return folder


@pytest.fixture
def report(call, folder, tmp_path):
    """Return a function that calls ``report`` and returns the page, once it is sound."""

    def run(*names, status=0):
        out = tmp_path / "page.html"
        printed, _ = call("report", *(folder / name for name in names), "--out", out)
        page = Page(out.read_text(encoding="utf-8"))
        assert printed == f"{out}: {len(page.sections)} sections\n"
        assert not page.wrong
        assert max(page.ids.values()) == 1
        assert page.references <= set(page.ids)
        assert not page.loads
        assert not page.tags["script"]
        assert out.stat().st_size < MOST_BYTES
        return page

    return run


IMAGES = {"tuned": 2, "free": 3, "streamed": 3, "async": 3, "convolution": 1, "table": 0}
WORDS = [
    ("tuned", "the reconstruction error on validation examples is"),
    ("tuned", "is no RBM"),
    ("tuned", "Fine-tuning"),
    ("free", "These chains have"),
    ("free", "integrated autocorrelation time"),
    ("free", "on version"),
    ("free", "this run"),
    ("free", "greedy, one core"),
    ("free", "streamed, one core"),
    ("streamed", "Layers trained on each other's minibatches"),
    ("in pieces", "The steps of this run were shared by several cores"),
    ("async", "The steps of schedule async differ from the steps of the others"),
    ("convolution", "of the validation examples get a wrong class"),
    ("convolution", "3 of 3 filters of layer 1"),
    ("convolution", "was fine-tuned to predict and has no decoder"),
    ("table", "colour=red"),
    ("table", "sample 1"),
]


class TestKinds:
    @pytest.mark.parametrize("name", IMAGES)
    def test_a_run_has_all_sections(self, report, name):
        page = report(name)
        assert page.sections == USUAL
        assert page.tags["img"] == IMAGES[name]
        assert not [words for kind, words in WORDS if kind == name and words not in page.text]
        assert name != "streamed" or " on version 1" not in page.text

    def test_a_fine_tuned_run_has_its_course_drawn(self, report):
        page = report("tuned")
        assert page.tags["svg"] == 3 + 3 + 2 + 1, "curves, the diagram's widths, units, codes"
        assert "layer 1, epoch 1: " in page.text, "the title of a bar"

    def test_a_failed_run_has_the_reason_and_what_there_is(self, report, folder):
        page = report("failed")
        assert page.sections[:3] == USUAL[:3]
        assert "This run failed <b>no more & done</b>" in page.text
        assert not page.tags["b"], "it is escaped"
        command = f"syncpretrain train --resume {quote(str(folder / 'failed'))}"
        assert f"from which '{command}' goes on" in page.text

    def test_two_runs_beside_each_other(self, report):
        page = report("tuned", "free")
        names = "outcome errors settings learning course reconstructions"
        assert page.sections == names.split()
        assert page.tags["img"] == 1
        text = r"\d examples of the validation part of [^/]+, and below each its reconstruction by "
        assert re.search(f"{text}tuned, then by free", page.text)
        assert re.search(r"time, finetune \S+ s - ", page.text), "one was not fine-tuned"
        assert "tuned: It " in page.text
        assert "◆ ▲ free: training, validation" in page.text
        assert "pretrain.pace lockstep free" in page.text

    def test_two_runs_on_a_table_have_the_errors_of_its_values(self, report):
        page = report("table", "table")
        assert "in percent of its mean's error, the worst first" in page.text
        assert re.search(r"colour=red (\S+) \1 ", page.text)

    @pytest.mark.parametrize(
        ("names", "reason"),
        [
            (("tuned", "table"), "Not drawn: the two do not read the same values."),
            (("convolution", "convolution"), "has no decoder"),
            (("tuned", "bare"), "Not drawn: bare left no model."),
        ],
    )
    def test_reconstructions_that_cannot_be_compared(self, report, names, reason):
        assert reason in report(*names).text


class TestRecord:
    def test_data_that_is_gone_is_reported(self, call, folder, tmp_path):
        run = shutil.copytree(folder / "tuned", tmp_path / "run")
        config = (run / "config.toml").read_text()
        gone = re.sub(r'name = ".*"', 'name = "/nowhere/x.npy"', config)
        (run / "config.toml").write_text(gone)
        call("report", run)
        page = Page((run / "report.html").read_text(encoding="utf-8"))
        assert "There are no examples to show: " in page.text
        assert "units" not in page.sections and "filters" in page.sections

    def test_damaged_files_are_named(self, folder, tmp_path):
        (tmp_path / "config.toml").write_text("pretrain = 3")
        (tmp_path / "metrics.json").write_text("[]")
        (tmp_path / "model.safetensors").write_bytes(b"nothing")
        run = read_run(tmp_path)
        assert len(run.problems) == 3
        assert run.settings is run.metrics is run.stack is None
        assert outcome.headline_of(run).kind == "poor"

    def test_a_link_to_no_file_is_no_obstacle(self, call, folder, tmp_path):
        run = shutil.copytree(folder / "free", tmp_path / "run")
        (run / "trace.json").unlink()
        (run / "trace.json").symlink_to("nowhere")
        call("report", run)
        assert "last written" in (run / "report.html").read_text(encoding="utf-8")

    def test_a_run_at_work_and_one_that_was_killed(self, tmp_path):
        (tmp_path / "events.jsonl").touch()
        assert read_run(tmp_path).state.name == "stopped"
        with owned(tmp_path, lambda message: None):
            name, reason = read_run(tmp_path).state
        assert name == "running"
        assert re.fullmatch(rf"process {os.getpid()} on .*", reason)

    def test_a_stopped_run_has_the_reason_and_what_it_left(self, folder):
        section = outcome.outcome_section([read_run(folder / "stopped")])
        text = Page(section.html()).text
        assert "This run was stopped before its end the run was stopped. What" in text
        assert "The model is what was learned by then" in text

    def test_a_run_beside_itself(self, folder):
        run = read_run(folder / "tuned")
        sections = outcome.comparison_sections([run, run])
        assert "The settings of the two are the same." in Page(sections[1].html()).text

    def test_nothing_learned_comes_first(self, folder):
        run = read_run(folder / "tuned")
        run.metrics["mean_error"] = dict.fromkeys(run.metrics["mean_error"], 1e-6)
        kind, text = outcome.headline_of(run).kind, outcome.headline_of(run).text
        assert kind == "bad" and text.startswith("It learned nothing: the reconstruction error")

    @pytest.mark.parametrize(
        ("right", "kind"), [(0.95, "good"), (0.30, "poor"), (0.20, "bad"), (0.1, "bad")]
    )
    def test_a_classifier_is_judged_beside_the_most_frequent_class(self, folder, right, kind):
        run = read_run(folder / "tuned")
        figures = {"accuracy": {"test": right}, "majority": {"test": 0.2}, "verdict": []}
        run.metrics.update(figures)
        assert outcome.headline_of(run).kind == kind

    def test_the_times_of_a_run_predict_about_its_own_time(self, folder):
        run = read_run(folder / "free")
        timings = timings_of(run)
        spans = run.timeline.of_layer(1)
        steps = -(-run.timeline.examples // 40)
        work = sum(span.seconds - span.transform for span in spans)
        assert timings.layers[0].step * steps * len(spans) == pytest.approx(work)

    def test_settings_that_differ(self, folder):
        runs = [read_run(folder / name) for name in ("tuned", "free")]
        rows = {row[0]: row[1:] for row in outcome.differing_settings(runs)}
        assert rows["pretrain.pace"] == ("lockstep", "free")
        assert rows["finetune.objective"] == ("reconstruction", "none")
        assert "pretrain.layers" not in rows
        free = {row[1] for name, row in rows.items() if name.startswith("finetune.")}
        assert free == {"none", "-"}, "free has none"


class TestWordsOfTheUser:
    def test_names_with_markup_are_shown_as_they_are(self, call, tmp_path, folder, report):
        names = ("$", "spend_$_per_$_visit", "_low", "<i>", "$$")
        rows = [f"{i % 7},{i % 5},{i % 3},{names[i % 5]},{names[i % 4]}" for i in range(60)]
        table = tmp_path / "odd.csv"
        table.write_text("\n".join(["$,spend_$_per_$_visit,_c,<b>,kind", *rows]) + "\n")
        given = ("--data", table, "--target", "kind", "--visible-units", "auto", "--hidden", "6,3")
        call("train", *given, "--epochs", 2, "--out", folder / "odd $a_b$")
        page = report("odd $a_b$")
        assert set(USUAL) <= set(page.sections)
        assert "Not drawn" not in page.text
        for name in (*names, "<b>=$$", "_c"):
            assert name in page.text

    def test_a_drawing_that_fails_costs_a_line(self, report, monkeypatch):
        def fails(*given, **options):
            raise ValueError("a < b")

        monkeypatch.setattr("syncpretrain.plot.course.draw_curve", fails)
        monkeypatch.setattr("syncpretrain.plot.stacks.draw_codes", fails)
        monkeypatch.setattr("syncpretrain.plot.stacks.filter_grid", fails)
        page = report("tuned")
        assert list(page.sections) == list(USUAL)
        assert page.text.count("Not drawn: a < b.") == 5


class TestRefusals:
    @pytest.mark.parametrize(
        ("module", "name"), [("matplotlib.figure", "Matplotlib"), ("PIL.Image", "Pillow")]
    )
    def test_what_is_missing_is_named(self, call, folder, monkeypatch, module, name):
        monkeypatch.setitem(sys.modules, module, None)
        _, err = call("report", folder / "free", status=2)
        assert err == f'Error: a report needs {name}: pip install "syncpretrain[plot]"\n'


class TestFigures:
    def test_ids_colours_and_titles(self):
        def draw(axes):
            axes.bar([0, 1], [1, 2], color="#0072b2")[1].set_gid("second")
            axes.scatter([0], [0], clip_on=True)
            axes.set_title("a < b")
            return {"second": "x & y"}

        svg = draw_svg(draw, name="own", label='it is "so"')
        page = Page(svg)
        assert not page.wrong
        assert page.references <= set(page.ids)
        assert all(name.startswith("own-") for name in page.ids)
        assert "x & y" in page.text
        absent = ("#1b1f24", "http", "<style")
        assert "var(--ink)" in svg and not [text for text in absent if text in svg]

    def test_the_same_figure_is_the_same_text(self):
        def draw(axes):
            axes.plot([1, 2, 3], [3, 1, 2])

        first, second = (draw_svg(draw, name="own", label="a line") for _ in range(2))
        assert first == second
