"""Requirements on this project's own implementations: see `pytest_ecornn.cases.required`."""

from pytest_ecornn.cases.required import MIN_CELLS, NN_CELLS, REQUIRED_DOMAIN

__all__ = ["MIN_CELLS", "NN_CELLS", "REQUIRED_DOMAIN"]
