"""The page of a run in a browser: no error, all parts drawn, nothing wider than the window."""

import shutil
from pathlib import Path

import pytest
from commandline import exit_status
from trialruns import settings_on

from syncpretrain.runs.run import train_run

pytestmark = pytest.mark.usefixtures("fonts")
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
UNDRAWN = """[...document.querySelectorAll("main img, main svg.plot")].filter(x =>
    !x.closest(".zoom1, .zoom2") && (x.getBoundingClientRect().height < 20 ||
    (x.complete === false || x.naturalWidth === 0))).length"""


@pytest.fixture(scope="module")
def page(tmp_path_factory, bits):
    """The address of a report."""
    pytest.importorskip("playwright.sync_api", reason="pages are looked at with Playwright")
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium on the PATH")
    folder = tmp_path_factory.mktemp("browser")
    train_run(settings_on(folder, bits, (16, 8, 4)), out=folder / "run")
    assert exit_status("report", folder / "run") == 0
    return (folder / "run" / "report.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_a_page(page: str, width: int, scheme: str, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    messages: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.on("request", lambda found: messages.append(found.url[:60]))
        tab.goto(page)
        assert not tab.evaluate(TOO_WIDE)
        assert tab.evaluate(UNDRAWN) == 0
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.className") == "skip"
        tab.locator("input[type=radio]").first.focus()
        tab.keyboard.press("ArrowRight")
        assert tab.locator(".zoom1").first.is_visible()
        assert not tab.locator(".zoom0").first.is_visible()
        browser.close()
    assert [text for text in messages if not text.startswith(("file:", "data:"))] == []
