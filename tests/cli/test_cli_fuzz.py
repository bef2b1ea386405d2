"""Any options of ``train`` on any small data: a run that trains to its end, or one that never is.

60 draws of each kind run with the suite, always the same ones. For more of them:

    SYNCPRETRAIN_DRAWS=1000 python -m pytest tests/cli/test_cli_fuzz.py
"""

import contextlib
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import date, time
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import forkedlayers
import numpy as np
import psutil
import pytest
import tomli_w
from commandline import exit_status, measure_one_round
from drawncommands import Draw, draws, others, steep
from drawnoptions import FLAG, HUGE, ODD, TUNING, rare, table_of
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from trialruns import library_threads

from syncpretrain.settings import Settings

AT_ONCE = 20  # hypothesis varies what it drew, so that many short series are more unlike
PARTS = range(-(-int(os.environ.get("SYNCPRETRAIN_DRAWS", 60)) // AT_ONCE))
FILES = [
    *("README.md", "config.toml", "events.jsonl", "metrics.json", "model.safetensors"),
    *("run.json", "trace.json"),
]
DIVERGED = re.compile(r"Error: (layer \d+|fine-tuning) diverged in epoch \d+: [^\n]+\Z")

drawn = settings(
    max_examples=AT_ONCE,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.parametrize("part", PARTS),
    pytest.mark.usefixtures("measures_anew"),
]


FIELDS = get_type_hints(Settings)
PLAIN = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**63, int(HUGE), 0.5, -0.0, 1e300, 1e-320, math.inf, math.nan, True, False]),
    st.sampled_from([*ODD, "rbm", "none", "auto", "cupy", "mnist", "0.5:5,0.9", "masking:0.5"]),
    st.sampled_from(["1x2x2,conv:2x1", "1x2x2,conv:2x1,pool:2:mean,3", "1x2x2,conv:3x3"]),
    st.sampled_from([date(2020, 2, 2), time(1, 2)]),
)
VALUES = st.one_of(
    PLAIN,
    st.lists(PLAIN, max_size=3),
    st.lists(st.lists(PLAIN, max_size=2), max_size=2),
    st.dictionaries(st.sampled_from(["layers", "x", ""]), PLAIN, max_size=2),
)


OPTIONS = {name[2:].replace("-", "_"): o for name, o in (table_of("rbm") | TUNING).items()}


def as_toml(text: str) -> Any:
    """Return what an option's text stands for in a file of settings."""
    if text == FLAG:
        return True
    try:
        return json.loads(text)
    except ValueError:
        return text


@st.composite
def sections(draw: Any) -> dict[str, Any]:
    """Draw what a file of settings says for 20 examples of 4 values: sound but for some values."""
    drawn: dict[str, Any] = {
        "data": {"name": "x.npz"},
        "pretrain": {"layers": [4, 3, 2], "batch_size": 5, "epochs": 1},
        "finetune": {"batch_size": 5, "epochs": 1},
        "run": {},
    }
    if draw(st.booleans()):
        drawn["finetune"]["objective"] = draw(st.sampled_from(["reconstruction", "classification"]))
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from([*FIELDS, "pretrain", "pretrain"]))
        name = draw(st.sampled_from([*FIELDS[section].__struct_fields__, "unknown"]))
        option = OPTIONS.get(f"finetune_{name}" if section == "finetune" else name)
        if option is not None and not rare(draw, 4):
            drawn[section][name] = as_toml(draw(st.sampled_from(option.sound)))
        elif rare(draw, 20):
            drawn[draw(st.sampled_from([section, "more", ""]))] = draw(VALUES)
            break
        else:
            drawn[section][name] = draw(VALUES)
    return drawn


class Ended(NamedTuple):
    status: int
    err: str
    report: dict[str, Any] | None


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Let ``--schedule auto`` measure one round only, and let nothing be downloaded."""
    monkeypatch.setenv("SYNCPRETRAIN_DATA", str(tmp_path / "nowhere"))
    measure_one_round(monkeypatch)


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.chdir(name)
        yield Path(name)


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def train(folder: Path, out: str, *arguments: str) -> Ended:
    """Call the command, and check all that holds whatever it was given."""
    before = contents(folder)
    given = ["train", *arguments, *([] if "--resume=run" in arguments else [f"--out={out}"])]
    note(" ".join(given))
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        status = exit_status(*given)
    printed, reported = (stream.getvalue() for stream in streams)
    made = sorted(set(contents(folder)) - set(before))
    note(f"status {status}, made {made}\n{reported}")
    assert "Warning" not in reported
    assert "Traceback" not in reported
    assert not library_threads()
    assert not {child.pid for child in psutil.Process().children()} - forkedlayers.templates
    if status == 2:
        assert made == []
        assert re.fullmatch(r"Error: [^\n]+\n", reported), reported
    elif status == 0:
        assert made == [out, *(f"{out}/{name}" for name in FILES)]
    else:
        assert status == 1
        assert DIVERGED.search(reported.rstrip("\n")), reported
        last = {f"{out}/metrics.json", f"{out}/README.md"}  # of a whole run
        assert {f"{out}/{name}" for name in FILES} - last <= set(made)
        assert not last & set(made)
    if status or "--json" not in arguments:
        assert not (status and printed)
        return Ended(status, reported, None)
    assert printed.count("\n") == 1
    return Ended(status, reported, json.loads(printed))


def test_options(part):
    @seed(part)
    @drawn
    @given(draws(), st.data())
    def holds(draw: Draw, data: st.DataObject) -> None:
        with working_folder() as folder:
            draw.file.write(folder)
            first = train(folder, "run", *draw.arguments, "--json")
            if first.status == 0:
                follow(folder, first, draw, data)

    holds()


def follow(folder: Path, first: Ended, draw: Draw, data: st.DataObject) -> None:
    """Repeat a run from what its folder holds, or with some options on top."""
    assert first.report is not None
    how = data.draw(st.sampled_from(["not", "not", "not", "replay", "config", "resume", "others"]))
    if how == "resume":
        assert train(folder, "again", "--resume=run").status == 2
    elif how == "replay":
        ended = train(folder, "again", "--replay=run", "--json")
        if 'handoff = "minibatch"' in (folder / "run" / "config.toml").read_text():
            assert "a streamed run, which depends on its seed alone" in ended.err
            return
        assert ended.report is not None
        assert ended.report["parameters_sha256"] == first.report["parameters_sha256"]
    elif how == "config":
        again = train(folder, "again", "--config=run/config.toml", "--json").report
        assert again is not None
        if first.report["pace"] == "lockstep":
            assert again["parameters_sha256"] == first.report["parameters_sha256"]
    elif how == "others":
        more = others(data.draw, draw.file, len(first.report["layers"]))
        train(folder, "again", "--config=run/config.toml", *more)


def test_rates_and_costs_beyond_all_bounds(part):
    @seed(part)
    @drawn
    @given(steep())
    def holds(draw: Draw) -> None:
        with working_folder() as folder:
            draw.file.write(folder)
            train(folder, "run", *draw.arguments)

    holds()


def test_files_of_settings(part):
    @seed(part)
    @drawn
    @given(sections())
    def holds(drawn_sections: dict[str, Any]) -> None:
        with working_folder() as folder:
            X = np.random.default_rng(0).random((20, 4), dtype=np.float32)
            np.savez("x.npz", X=X, y=np.arange(20) % 3)
            (folder / "drawn.toml").write_bytes(tomli_w.dumps(drawn_sections).encode())
            train(folder, "run", "--config=drawn.toml", "--json")

    holds()
