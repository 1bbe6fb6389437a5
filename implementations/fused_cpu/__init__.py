"""LSTM, GRU and RNN on a CPU: each step's recurrent product and its gates in one kernel, without torch between steps.

torch.nn runs some ten operators a step, or oneDNN, whose start takes longer than small layers. Here a step of 32 units takes
1.5 us. One call runs all steps; sequences are shared among threads. Source of the equations: torch.nn.
"""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case, Cost, Layer, SupportedCases, Weights
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.implementations._cpu.threads import openmp
from pytest_ecornn.implementations.fused_cpu.stack import CaseStack

ROUNDED = SupportedCases(NN_CELLS, ("float32", "bfloat16", "float16"), modes=("inference",))  # what runs with rounded weights


class FusedCpu(Noted):
    carry = "float32"
    deterministic = True
    takes_resets = True

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in NN_CELLS:
            return f"fused_cpu runs {', '.join(NN_CELLS)}; scan_cpu runs mingru and minlstm"
        if device.type != "cpu":
            return "fused_cpu runs on a CPU"
        if case.precision != "ieee":
            return "TF32 is a GPU's precision"
        return None

    def build(self, case: Case, weights: Weights) -> Layer:
        threads = torch.get_num_threads()
        self._notes = f"numba {'omp' if openmp() else 'pool'}, {threads} thread{'s' * (threads > 1)}"
        return CaseStack(case, weights, threads, self.weight_rounding)

    def cost(self, case: Case) -> Cost:
        return torch_nn.cost(case)
