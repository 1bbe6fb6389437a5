"""Each test has a cache folder of its own, and a process that has decided nothing."""

from __future__ import annotations

from tests.helpers import undecided as fixtures

undecided = fixtures.undecided
