"""The cells by their public name: see `pytest_ecornn.contract.cells`."""

from pytest_ecornn.contract.cells import BUILT_IN, Cell, GateTensors, get

__all__ = ["BUILT_IN", "Cell", "GateTensors", "get"]
