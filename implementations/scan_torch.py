"""minGRU and minLSTM as most code for them has it: a scan in logarithms by torch's cumsum and logcumsumexp, on any device.

With a* the cumulated logarithm of what is kept, the state is h = exp(a* + logcumsumexp(log b - a*)), b being what is taken of
the candidate; so the candidate must be positive. Source: arXiv 2311.06281 (Heinsen) and 2410.01201, appendix B. scan_cpu and
scan_gpu scan in linear space: here an error of the logarithms, which grow with time, is a relative error of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, Weights, cells
from pytest_ecornn.implementations._common.min_cells import POSITIVE_CELLS
from pytest_ecornn.reference.precision import tf32_refusal

# The longest sequences (inference, training) that pass the tolerance rule with room to spare. The rounding of a sum of T
# logarithms is a relative error of the state, in float32 2e-6 of the largest at T = 64, 1e-5 at 256 and 4e-3 at 65,536. An
# output of 16 bits hides it; gradients do not: that of a step which later ones forget is a small difference of large sums.
# Of drawn cases (300 a length in float32, 6 to 150 in 16 bits) the first failed at T = 12 in inference and 2 in training in
# float32; in inference none up to 8,192 in float16 and 16,384 in bfloat16; in training at 16 in float16, at 8 in bfloat16.
_MAX_STEPS = {"float64": (4, 1), "float32": (4, 1), "float16": (2048, 4), "bfloat16": (16_384, 4)}
# Logarithms in the hundreds from the first step on; and what is infinite, times what may underflow.
_REFUSED_CONTENTS = ("saturated", "large")
_MEASURED = "its times and errors: python -m pytest_ecornn.suites.published.scan"
_VALUES_MOVED = {2: 36, 3: 43}  # values that the operations below read and write for an output element, by gates


def log_space_scan(x: Tensor, first: Tensor | None, cell: str, time: int = 1, bias: Tensor | None = None) -> Tensor:
    """Pre-activations [B, T, G*H], or [T, B, G*H] with `time` 0 -> outputs [.., H] laid out and typed alike, differentiable.

    first: [B, H] of any sign, None for zeros. bias: [G*H], added to x. Computes in float32 at least, as under autocast: in 16
    bits only x and the output are. cell: mingru_positive or minlstm_positive, else ValueError.
    """
    if cell not in POSITIVE_CELLS:
        raise ValueError(f"cell must be one of {', '.join(POSITIVE_CELLS)}, whose state has a logarithm; got {cell!r}")
    compute = torch.promote_types(x.dtype, torch.float32)
    gates = (x.to(compute) if bias is None else x + bias.to(compute)).chunk(len(cells.get(cell).gates), -1)
    opening = gates[0] if len(gates) == 2 else logsigmoid(gates[1]) - logsigmoid(gates[0])
    kept = logsigmoid(-opening).cumsum(time)
    taken = logsigmoid(opening) + _log_positive(gates[-1])
    state = (kept + (taken - kept).logcumsumexp(time)).exp()
    if first is not None:  # not within the logarithm, as there it could not be negative
        state = state + kept.exp() * first.to(compute).unsqueeze(time)
    return state.to(x.dtype)


def _log_positive(x: Tensor) -> Tensor:
    """The logarithm of g of appendix B: log(x + 0.5) where x >= 0, log(sigmoid(x)) elsewhere."""
    return torch.where(x >= 0, (x.relu() + 0.5).log(), logsigmoid(x))


class ScanTorch(Implementation):
    carry = "float32"
    gate_gradients = "storage"
    products = "storage"
    deterministic = False  # torch documents that cumsum is not, on a CUDA device

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in POSITIVE_CELLS:
            return f"no {case.cell}: {', '.join(POSITIVE_CELLS)} only, whose state has a logarithm"
        if case.ragged:
            return "runs sequences of one length"
        if case.precision == "tf32" and device.type == "cpu":
            return "TF32 is a GPU's precision"
        return tf32_refusal(case) or _insufficient_accuracy_reason(case)

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations._common.input_projection import gate_products
        from pytest_ecornn.implementations._common.scan_layer import make_layer

        time = 1 if case.batch_first else 0

        def product(x: Tensor, weight: Tensor) -> Tensor:
            return gate_products(x, weight, case.precision == "tf32")

        def scan(x: Tensor, first: Tensor | None, bias: Tensor | None) -> Tensor:
            return log_space_scan(x, first, case.cell, time, bias)

        return make_layer(case, weights, product, scan)

    def cost(self, case: Case) -> Cost:
        from pytest_ecornn.implementations._common.scan_layer import scan_cost

        return scan_cost(case, _VALUES_MOVED[len(cells.get(case.cell).gates)])


def _insufficient_accuracy_reason(case: Case) -> str | None:
    if case.contents in _REFUSED_CONTENTS or "infinite" in case.contents:
        return f"logarithms of {case.contents} contents are too far off for the tolerance rule; {_MEASURED}"
    most = _MAX_STEPS[case.dtype][case.training]
    if case.steps > most:
        return (
            f"T at most {most} in {case.dtype} {case.mode}: the error of a scan in logarithms grows with T, "
            f"beyond the tolerance rule; {_MEASURED}"
        )
    return None
