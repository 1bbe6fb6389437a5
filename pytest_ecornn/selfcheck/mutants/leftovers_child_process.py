"""A call starts a process to log to, and each call leaves one behind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop

CAUGHT_BY = "property: globals_unchanged"
CELL = "gru"
DTYPE = "float64"
_REST = "import time; time.sleep(20)"
_children: list[subprocess.Popen[bytes]] = []  # Python complains of one that is forgotten


class Fault(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        child = subprocess.Popen([sys.executable, "-c", _REST], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _children.append(child)
        return layer(x, state, lengths)
