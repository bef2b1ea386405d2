"""The download's own limits; test_data_mnist.py has the mirrors. The network is never touched."""

import sys

import pytest

from syncpretrain.data import download as download_module
from syncpretrain.data.download import download
from syncpretrain.errors import DataError


def test_without_pooch_the_notice_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("SYNCPRETRAIN_OFFLINE", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="without pooch"):
        download(["https://localhost/x"], tmp_path / "x", sha256="")


@pytest.mark.parametrize(
    ("limit", "words"), [("MAX_BYTES", "more than 0 bytes"), ("FILE_SECONDS", "more than -1 s")]
)
def test_a_download_without_end_is_ended(monkeypatch, limit, words):
    monkeypatch.setattr(download_module, limit, 0 if limit == "MAX_BYTES" else -1)
    with pytest.raises(OSError, match=words):
        download_module._Bounded().write(b"more")
