"""What all tests of modules begin with."""

from __future__ import annotations

import pytest

from pytest_ecornn.nn import backend_choice


@pytest.fixture(autouse=True)
def _torch_on_a_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU "auto" is torch.nn, with whose bits tests compare, but where a test is marked `by_times`."""
    if request.node.get_closest_marker("by_times") is None:
        monkeypatch.setattr(backend_choice, "refusal_of_auto", lambda *call: "a test compares with torch.nn")
