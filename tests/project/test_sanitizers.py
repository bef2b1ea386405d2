"""The command that runs the compiled kernels under GCC's sanitizers, at its smallest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from sanitizers import runtime  # noqa: E402

LIBRARY = runtime("address,undefined")


@pytest.mark.skipif(LIBRARY is None, reason="GCC's address sanitizer is missing here")
def test_a_short_campaign_has_no_report():
    command = [sys.executable, "examples/sanitizers.py", "--seconds", "3", "--level", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"no report in \d+ calls, \d+ programs, \d+ fits", done.stdout)
    for kind in ("calls", "programs", "fits"):
        assert not re.search(rf"\b0 {kind}", done.stdout)
