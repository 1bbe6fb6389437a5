"""Chromium for tests of pages: skipped without it and Playwright, failed in CI."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync"]  # fmt: skip
SLACK = 3.0  # of times on a machine that runs other tests too
_FILTER = """selector => {
    const search = document.querySelector(selector);
    const filteringTakes = text => {
        const start = performance.now();
        search.value = text;
        search.dispatchEvent(new Event("input"));
        document.body.getBoundingClientRect();
        return performance.now() - start;
    };
    const samples = [];
    for (let number = 0; number < 5; number++) {
        filteringTakes("");
        samples.push(filteringTakes("B3 bfloat16"));
    }
    return samples;
}"""
OpenFile = Callable[..., Any]


def needed(module: str) -> Any:
    """A module that the tests need, and CI has."""
    return import_module(module) if os.environ.get("CI") else pytest.importorskip(module)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("expected Chromium on the PATH: apt-get install chromium")
    with needed("playwright.sync_api").sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield launched
        launched.close()


@pytest.fixture
def open_file(browser: Any) -> Iterator[OpenFile]:
    """Opens a page. What it writes on the console fails the test, unless `expects_errors`."""
    said: list[str] = []
    contexts = []

    def open_one(path: Path, address: str = "", expects_errors: bool = False, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        if not expects_errors:
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{path.as_uri()}{address}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture
def open_report(open_file: OpenFile, tmp_path: Path) -> OpenFile:
    """Opens the text of a report.html."""

    def open_one(text: str, address: str = "", **options: Any) -> Any:
        (tmp_path / "report.html").write_text(text, encoding="utf-8")
        return open_file(tmp_path / "report.html", address, **options)

    return open_one


def wait_until(holds: Callable[[], bool]) -> None:
    """Polls from outside: the page's policy forbids what Playwright would have it evaluate."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "expected it within 10 s"
        time.sleep(0.01)


def check_accessibility(page: Any) -> None:
    """Fails where axe-core finds a violation."""
    axe = needed("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def opening_and_filtering_ms(page: Any, search: str) -> tuple[float, float]:
    """The least times, in ms, that the page takes to open and that a search in the input of this selector takes.

    The least of three and of five: other tests run beside. To open, that the page's thread works: it waits for others' tests.
    """
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    opened_ms: list[float] = []
    for _ in range(3):
        page.reload()
        metrics = session.send("Performance.getMetrics")["metrics"]
        opened_ms.append(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration") * 1e3)
    filtered_ms: list[float] = page.evaluate(_FILTER, search)
    print(f"ms to open: {opened_ms}; to filter: {filtered_ms}")
    return min(opened_ms), min(filtered_ms)
