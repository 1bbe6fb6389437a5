"""Each test has a cache folder of its own, and a process that has decided nothing."""

from tests.helpers.undecided import undecided  # noqa: F401 - a fixture
