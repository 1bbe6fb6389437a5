"""minGRU and minLSTM on a CPU as one parallel scan: gates and recurrence in a single pass over the pre-activations.

The plain loop reads and writes every gate several times and cannot use all cores; here each pre-activation is read once and
each output written once, 16-bit types converted on the way. Source: arXiv 2410.01201, section 3; time is cut in chunks
(Blelloch, "Prefix sums and their applications", 1990) only where sequences and channels are too few for the threads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import Case, Cost, Layer, State, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.implementations._cpu.threads import openmp
from pytest_ecornn.implementations.scan_cpu.compiled_scan import Scan, make_plan
from pytest_ecornn.implementations.scan_cpu.ops import scan


class ScanCpu(Noted):
    carry = "float32"
    deterministic = True
    takes_resets = True

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in MIN_CELLS:
            return "scan_cpu runs mingru and minlstm only: other cells are not linear in their state"
        if device.type != "cpu":
            return "scan_cpu runs on a CPU"
        if case.precision != "ieee":
            return "TF32 is a GPU's precision"
        return None

    def build(self, case: Case, weights: Weights) -> Layer:
        threads = torch.get_num_threads()
        plan = make_plan(case.steps, case.batch, case.hidden_size, threads)
        dtype = getattr(torch, case.dtype)
        compute = torch.promote_types(dtype, torch.float32)
        scans = {
            (pre, reverse): Scan(case.cell, pre, dtype, case.batch_first, reverse, threads, plan)
            for pre in {dtype, compute}
            for reverse in (False, True)[: case.directions]
        }
        for pre in _pre_dtypes(case, dtype, compute):
            scans[pre, False].compile(case.training)
        tasks = f"tile {plan.tile}, {plan.chunks} chunk{'s' * (plan.chunks > 1)}"
        self._notes = f"numba {'omp' if openmp() else 'pool'}, {threads} thread{'s' * (threads > 1)}, {tasks}"

        def widened(x: Tensor) -> Tensor:
            return x if x.dtype == compute else x.to(compute)  # `to` takes the host time even where it does nothing

        def layer(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
            def run_layer(
                suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
            ) -> tuple[Tensor, cells.GateTensors]:
                if not is_projected:
                    bias = weights.get("bias_ih" + suffix)
                    # A product rounded to 16 bits would cost more accuracy than all else here.
                    x = linear(widened(x), widened(weights["weight_ih" + suffix]), None if bias is None else widened(bias))
                output, final = scan(scans[x.dtype, reverse], x, state[0] if state else None, lengths, resets)
                return output, (final,)

            return run_layers(case, x, state, run_layer)

        return layer

    def cost(self, case: Case) -> Cost:
        """Pre-activations in and output out; the reverse scan reads both and a gradient and writes one; the input product
        writes its result, reads its operands, and in training is made twice more."""
        size = getattr(torch, case.dtype).itemsize
        gates = len(cells.get(case.cell).gates)
        width, rows = case.directions * case.hidden_size, case.steps * case.batch
        moved = operations = 0
        for layer in range(case.layers):
            given = layer == 0 and case.projected
            pre = rows * width * gates * (size if given else max(size, 4))
            moved += pre + rows * width * size
            operations += rows * width * _OPERATIONS * gates
            if case.training:
                moved += 2 * pre + 2 * rows * width * size
                operations += 2 * rows * width * _OPERATIONS * gates
            if not given:
                inputs = width if layer else case.input_size
                passes = 3 if case.training else 1
                moved += passes * (pre + (rows + width * gates) * inputs * size)
                operations += passes * 2 * rows * inputs * width * gates
        return Cost(moved, operations)


_OPERATIONS = 20  # of a gate: an exponential's polynomial, a division, the recurrence


def _pre_dtypes(case: Case, dtype: torch.dtype, compute: torch.dtype) -> set[torch.dtype]:
    """The dtypes that pre-activations have in a case: as given, or those of the input product."""
    return ({dtype} if case.projected else {compute}) | ({compute} if case.layers > 1 else set())
