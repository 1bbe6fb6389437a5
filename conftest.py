"""In this project's own tests: memory that torch.empty returns holds NaN, and torch's random numbers are the same each time.

Tests use one thread: beside another process that computes, two take ten times as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent / "tests"
pytest.register_assert_rewrite("tests.helpers")


@pytest.fixture(autouse=True)
def _poisoned_and_seeded(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.path.is_relative_to(TESTS):
        yield  # the suites poison what they verify themselves, and must not poison what they time
        return
    import torch

    from pytest_ecornn.verification.calls import PoisonedAllocations

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with PoisonedAllocations():
        yield


@pytest.fixture(scope="session", autouse=True)
def _judges_on_plain_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reference and yardstick run thousands of small operations, which poisoned memory makes twice as slow.

    That neither reads memory which nobody wrote, a test of its own shows.
    """
    from pytest_ecornn.verification import verification

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((verification, "_reference"), (verification.ReferenceResult, "_run_yardstick")):
            patch.setattr(owner, name, _on_plain_memory(getattr(owner, name)))
        yield


def _on_plain_memory(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch.utils._python_dispatch import _disable_current_modes

    @functools.wraps(function)
    def plain(*arguments: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments)

    return plain
