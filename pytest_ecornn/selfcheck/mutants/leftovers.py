"""Settings and processes that a call leaves behind."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: globals_unchanged", cell="mingru")
class AnomalyMode(AroundLoop):
    """A training call looks for NaN by autograd's anomaly mode, which stays on."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        if case.training:
            torch.autograd.set_detect_anomaly(True)
        return layer(*arguments)


@mutant("property: globals_unchanged", cell="gru")
class Autocast(AroundLoop):
    """Autocast to bfloat16 is switched on for products of another program's float32 inputs, and stays on after the call."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        result = layer(*arguments)
        torch.set_autocast_enabled("cpu", True)
        return result


_REST = "import time; time.sleep(20)"

_children: list[subprocess.Popen[bytes]] = []  # Python complains of one that is forgotten


@mutant("property: globals_unchanged", cell="gru", dtype="float64")
class ChildProcess(AroundLoop):
    """A call starts a process to log to, and each call leaves one behind."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        child = subprocess.Popen([sys.executable, "-c", _REST], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _children.append(child)
        return layer(*arguments)


@mutant("property: globals_unchanged", cell="gru")
class Environment(AroundLoop):
    """A call tells OpenMP by an environment variable how to wait, for libraries that are loaded later."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        os.environ["OMP_WAIT_POLICY"] = "active"
        return layer(*arguments)


@mutant("property: globals_unchanged", cell="gru")
class FunctionMode(AroundLoop):
    """A default device is set around allocations and not taken back where a sequence has lengths."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        result = layer(x, state, lengths)
        if lengths is not None:
            torch.set_default_device("cpu")
        return result


@mutant("property: globals_unchanged", cell="gru")
class OneCore(AroundLoop):
    """A call keeps its thread on the first core and leaves it there."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return layer(*arguments)


@mutant("property: globals_unchanged", cell="gru")
class OnednnOff(AroundLoop):
    """oneDNN is switched off for products that repeat, and stays so."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        torch.backends.mkldnn.set_flags(False)
        return layer(*arguments)


@mutant("property: globals_unchanged", cell="minlstm")
class RecursionLimit(AroundLoop):
    """Recursion over time needs more depth than Python allows, so a long case raises the limit for good."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        if case.steps > 2:
            sys.setrecursionlimit(sys.getrecursionlimit() + 10 * case.steps)
        return layer(*arguments)


_CU_LIMIT_STACK_SIZE, _BYTES = 0, 8192


@mutant("property: globals_unchanged", cell="gru", device="cuda")
class StackLimitCuda(AroundLoop):
    """A call asks for a deeper stack of every thread of the GPU, which takes memory from all kernels that come later."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        result = layer(*arguments)
        ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(_CU_LIMIT_STACK_SIZE, ctypes.c_size_t(_BYTES))
        return result
