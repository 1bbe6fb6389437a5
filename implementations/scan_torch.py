"""minGRU and minLSTM as most code for them has it: a scan in logarithms by torch's cumsum and logcumsumexp, on any device.

With a* the cumulated logarithm of what is kept, the state is h = exp(a* + logcumsumexp(log b - a*)), b being what is taken of
the candidate; so the candidate must be positive. Source: arXiv 2311.06281 (Heinsen) and 2410.01201, appendix B. scan_cpu and
scan_gpu scan in linear space: here an error of the logarithms, which grow with time, is a relative error of the state.
`linear_space_scan` computes what they do by torch's operations, for graphs that cannot hold this project's ops.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, Weights, cells
from pytest_ecornn.implementations._common.autograd_ops import refuse_second_gradients
from pytest_ecornn.implementations._common.min_cells import POSITIVE_CELLS
from pytest_ecornn.implementations._common.padding import is_padding
from pytest_ecornn.reference.precision import tf32_refusal

# The longest sequences (inference, training) that pass the tolerance rule with room to spare. The rounding of a sum of T
# logarithms is a relative error of the state, in float32 2e-6 of the largest at T = 64, 1e-5 at 256 and 4e-3 at 65,536. An
# output of 16 bits hides it; gradients do not: that of a step which later ones forget is a small difference of large sums.
# Of drawn cases (300 a length in float32, 6 to 150 in 16 bits) the first failed at T = 12 in inference and 2 in training in
# float32; in inference none up to 8,192 in float16 and 16,384 in bfloat16; in training at 16 in float16, at 8 in bfloat16.
_MAX_STEPS = {"float64": (4, 1), "float32": (4, 1), "float16": (2048, 4), "bfloat16": (16_384, 4)}
# Logarithms in the tens and hundreds from the first step on; and what is infinite, times what may underflow.
_REFUSED_CONTENTS = ("saturated", "large", "small")
_MEASURED = "its errors: python -m pytest_ecornn.suites.published.scan_kernel"
_BLOCK, _MAX_LEVELS = 32, 26  # 2^26 blocks are more than memory holds
Passed = Callable[[Tensor, Tensor], Tensor]  # what is kept, a state -> what is kept of it
_VALUES_MOVED = {2: 36, 3: 43}  # values that the operations below read and write for an output element, by gates


def log_space_scan(x: Tensor, first: Tensor | None, cell: str, time: int = 1, bias: Tensor | None = None) -> Tensor:
    """Pre-activations [B, T, G*H], or [T, B, G*H] with `time` 0 -> outputs [.., H] laid out and typed alike.

    Differentiable once. first: [B, H] of any sign, None for zeros. bias: [G*H], added to x. Computes in float32 at least, as
    under autocast: in 16 bits only x and the output are. cell: mingru_positive or minlstm_positive, else ValueError.
    """
    if cell not in POSITIVE_CELLS:
        raise ValueError(f"cell must be one of {', '.join(POSITIVE_CELLS)}, whose state has a logarithm; got {cell!r}")
    compute = torch.promote_types(x.dtype, torch.float32)
    opening, candidate = _opening_and_candidate(x.to(compute) if bias is None else x + bias.to(compute), cell)
    kept = logsigmoid(-opening).cumsum(time)
    taken = logsigmoid(opening) + _log_positive(candidate)
    terms = taken - kept
    refuse_second_gradients("torch.logcumsumexp", [terms])  # torch's are NaN
    state = (kept + terms.logcumsumexp(time)).exp()
    if first is not None:  # not within the logarithm, as there it could not be negative
        state = state + kept.exp() * first.to(compute).unsqueeze(time)
    return state.to(x.dtype)


def _opening_and_candidate(x: Tensor, cell: str) -> tuple[Tensor, Tensor]:
    """The logit of what a step takes of the candidate, and the candidate, of pre-activations [.., G*H]."""
    gates = x.chunk(len(cells.get(cell).gates), -1)
    return gates[0] if len(gates) == 2 else logsigmoid(gates[1]) - logsigmoid(gates[0]), gates[-1]


def linear_space_scan(
    x: Tensor, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None, cell: str, batch_first: bool, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Output [.., H] laid out and typed as x, and final state [B, H], in a graph of aten's operations for any T and B.

    x: pre-activations [T, B, G*H], or [B, T, G*H] with `batch_first`, of float32 or float64. first: [B, H], None for zeros.
    lengths: [B]. resets: bool [T, B] or [B, T]. cell: one of the four of arXiv 2410.01201.
    """
    opening, candidate = _opening_and_candidate(x, cell)
    candidate = cells.positive(candidate) if cell in POSITIVE_CELLS else candidate
    kept, taken = (-opening).sigmoid(), opening.sigmoid() * candidate
    padding = None if lengths is None else is_padding(lengths, x.shape[1 if batch_first else 0], batch_first)
    if resets is not None:
        kept = kept.masked_fill(resets.unsqueeze(-1), 0.0)
    if padding is not None:  # a step that leaves the state as it is
        kept, taken = kept.masked_fill(padding, 1.0), taken.masked_fill(padding, 0.0)
    if batch_first:
        kept, taken = kept.transpose(0, 1), taken.transpose(0, 1)
    if reverse:
        kept, taken = kept.flip(0), taken.flip(0)
    if first is not None:  # as the candidate of a step before the first
        kept, taken = torch.cat((torch.zeros_like(first)[None], kept)), torch.cat((first[None], taken))
    states = _linear_states(kept, taken, _passed if resets is None else _passed_by_resets)
    output, final = states if first is None else states[1:], states[-1]
    output = output.flip(0) if reverse else output
    output = output.transpose(0, 1) if batch_first else output
    return output if padding is None else output.masked_fill(padding, 0.0), final


def _linear_states(kept: Tensor, taken: Tensor, passed: Passed) -> Tensor:
    """h_t = kept_t h_(t-1) + taken_t, h_(-1) = 0: [T, B, H] of any T, which may be a symbol or traced.

    By doubling in blocks of _BLOCK steps, and then over the blocks (Hillis and Steele, "Data parallel algorithms", 1986).
    """
    steps, (_, *state) = taken.shape[0], taken.shape
    blocks = (steps + _BLOCK - 1) // _BLOCK
    if not isinstance(blocks, int):
        blocks = blocks + 1  # two at least, or a compiler asks whether there is one alone
    step, block, place_in_block = (torch.arange(count, device=taken.device) for count in (blocks * _BLOCK, blocks, _BLOCK))
    # Gathered, not padded and cut, about which a compiler would have to prove things of T.
    place, beyond = step.clamp(max=steps - 1), (step >= steps)[:, None, None]
    kept = kept.index_select(0, place).masked_fill(beyond, 1.0).view(blocks, _BLOCK, *state)
    taken = taken.index_select(0, place).masked_fill(beyond, 0.0).view(blocks, _BLOCK, *state)
    kept, taken = _doubled(kept, taken, passed, 1, place_in_block, _BLOCK.bit_length() - 1)
    levels = (blocks - 1).bit_length() if isinstance(blocks, int) else _MAX_LEVELS
    _, ends = _doubled(kept[:, -1], taken[:, -1], passed, 0, block, levels)
    before = _shifted(ends, 0, block - 1, 0.0)
    return (taken + passed(kept, before.unsqueeze(1))).flatten(0, 1).index_select(0, torch.arange(steps, device=taken.device))


def _doubled(kept: Tensor, taken: Tensor, passed: Passed, dim: int, place: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Each place's map of the state composed with those of all places before it. place: 0, 1, .. along `dim`."""
    for level in range(levels):
        before = place - 2**level
        before_kept, before_taken = _shifted(kept, dim, before, 1.0), _shifted(taken, dim, before, 0.0)
        kept, taken = kept * before_kept, taken + passed(kept, before_taken)
    return kept, taken


def _shifted(x: Tensor, dim: int, place: Tensor, absent: float) -> Tensor:
    """x at `place` along `dim`, the third from last, and `absent` where that is below 0."""
    return x.index_select(dim, place.clamp(min=0)).masked_fill((place < 0)[:, None, None], absent)


def _passed(kept: Tensor, state: Tensor) -> Tensor:
    return kept * state


def _passed_by_resets(kept: Tensor, state: Tensor) -> Tensor:
    """As `_passed`, but nothing of a state that is not finite passes a reset."""
    return (kept * state).masked_fill(kept == 0, 0.0)


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
