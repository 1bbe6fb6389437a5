"""A fixture for tests of choices: import it, and each test has a cache folder of its own and has decided nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ecornn.autotune import selection


@pytest.fixture(autouse=True)
def undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of decisions."""
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ECORNN_COMPILE", "wait")
    for name in ("ECORNN_AUTO", "ECORNN_DECISIONS"):
        monkeypatch.delenv(name, raising=False)
    selection.forget()
    yield tmp_path / "cache" / "autotune"
    selection.forget()
