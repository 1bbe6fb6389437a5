"""Chromium by Playwright. Without them tests are skipped, but fail in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync"]  # fmt: skip


def needed(module: str) -> Any:
    """A module that the tests need, and CI has."""
    return import_module(module) if os.environ.get("ECORNN_CI") else pytest.importorskip(module)


def chromium() -> Iterator[Any]:
    """A browser, for a fixture."""
    if not CHROMIUM:
        (pytest.fail if os.environ.get("ECORNN_CI") else pytest.skip)("expected Chromium on the PATH: apt-get install chromium")
    with needed("playwright.sync_api").sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield launched
        launched.close()
