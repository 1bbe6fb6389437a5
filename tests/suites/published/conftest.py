"""A clock without a GPU, for all tests of published suites that ask for it."""

from tests.helpers.studies import fake_clock  # noqa: F401 - a fixture
