"""pytest's outcomes, raised by an implementation: a skip is its refusal, and any other costs its row alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_ecornn.contract import Unsupported, skip_reason

# pytest.fail and pytest.xfail raise no Exception, lest a test catch them by chance.
RAISED = (Exception, SystemExit, pytest.fail.Exception)


@contextmanager
def skips_as_unsupported() -> Iterator[None]:
    """Raises Unsupported, with the reason, where pytest.skip or pytest.importorskip is called within it."""
    try:
        yield
    except pytest.skip.Exception as skip:
        raise Unsupported(skip_reason(skip)) from skip
