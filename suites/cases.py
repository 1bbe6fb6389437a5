"""The named case sets, as `--ecornn-cases` takes them: see `pytest_ecornn.cases.case_sets`."""

from pytest_ecornn.cases.case_sets import case_set

__all__ = ["case_set"]
