"""Names of runs in the table of the shelf: as they are, and without effect on a terminal."""

from __future__ import annotations

import pytest
from trialruns import settings_on

from syncpretrain.runs.run import train_run


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a [name] & <b>", "a [name] & <b>"),
        ("[bold]x", "[bold]x"),
        ("new\nline", "new\\nline"),
        ("red\x1b[31m", "red\\x1b[31m"),
        ("日本 é", "日本 é"),
    ],
)
def test_a_name_stands_in_one_line(call, tmp_path, bits, name, shown):
    settings = settings_on(tmp_path, bits, (16, 4), epochs=1, finetune={})
    train_run(settings, out=tmp_path / "runs" / name)
    out, _ = call("runs", "--folder", tmp_path / "runs")
    row = out.splitlines()[2]
    assert f"  {shown}  " in row
    assert "finished" in row
    (tmp_path / "runs" / name / "metrics.json").write_text("[]")
    out, _ = call("runs", "--folder", tmp_path / "runs")
    assert f"\n{shown}: damaged: " in out


def test_a_name_of_a_file_of_data_stands_in_one_line(call, tmp_path, bits):
    settings = settings_on(tmp_path, bits, (16, 4), epochs=1, finetune={})
    train_run(settings, out=tmp_path / "runs" / "one")
    config = tmp_path / "runs" / "one" / "config.toml"
    name = settings.data.name
    config.write_text(config.read_text().replace(name, name.replace("bits", "red\\u001b[31m")))
    out, _ = call("runs", "--folder", tmp_path / "runs")
    assert "  red\\x1b[31m" in out
