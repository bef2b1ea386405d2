"""The simulated speed-ups of the publications, as their tables print them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "examples" / "benchmarks"


@pytest.fixture
def papers(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("_papers_simulated")


@pytest.mark.parametrize("name", ["santara", "cmu", "slides", "yadan"])
def test_a_fitted_figure_is_the_published_one(papers, name):
    figures = papers.SIMULATED[name]()
    fitted = [figure for figure in figures if figure.note.startswith("fitted")]
    assert len(fitted) == {"santara": 0, "cmu": 1, "slides": 2, "yadan": 2}[name]
    for figure in fitted:
        assert figure.simulated == pytest.approx(figure.published, rel=1e-3)


def test_the_bounds_that_the_publications_name(papers):
    first = papers.santara()[0]
    assert first.published == pytest.approx(1.78, abs=0.01)
    assert 1.6 < first.simulated < 1.83, (
        "the weights of all over those of layer 1, and a few passes"
    )
    assert papers.cmu()[1].simulated < 3.39


def test_what_is_measured_is_of_the_same_publications(papers):
    measured = pytest.importorskip("_papers_measured")
    assert set(measured.MEASURED) <= set(papers.SIMULATED)
