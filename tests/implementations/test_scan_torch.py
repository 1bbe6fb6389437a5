"""scan_torch: right where it says that it runs, any sign of the initial state, and too far off where it says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations import scan_torch
from pytest_ecornn.implementations.scan_cpu.ops import scan_by_op
from pytest_ecornn.implementations.scan_torch import ScanTorch, linear_space_scan, log_space_scan
from pytest_ecornn.verification.verification import Candidate, failure_message
from tests.helpers.foreign import Foreign

CPU = torch.device("cpu")
CELLS = ("mingru_positive", "minlstm_positive")
JUDGED = (
    "mingru_positive-T4-B3-I9-H37-float32-batchfirst-state",
    "minlstm_positive-T4-B2-I7-H16-L2-float32-bidirectional-state",
    "minlstm_positive-T4-B3-H33-float64-bidirectional-batchfirst-projected",
    "mingru_positive-T1-B5-I12-H16-L2-float32-bidirectional-state-training-near_one",
    "minlstm_positive-T1-B3-H9-float64-state-projected-training-strided",
    "mingru_positive-T4-B3-I20-H33-L2-bfloat16-bidirectional-state-training",
    "minlstm_positive-T4-B4-I5-H31-float16-batchfirst-nobias-state-training-seed1",
    "minlstm_positive-T90-B2-H12-float16-bidirectional-state-projected",
    "mingru_positive-T200-B2-I3-H8-bfloat16-batchfirst-state-near_one",
    "mingru_positive-T4-B3-H12-float32-projected-nan",
    "minlstm_positive-T40-B3-H12-bfloat16-nan",
)


def judged(case: Case) -> str:
    return failure_message("scan_torch", case, Candidate.build("scan_torch", ScanTorch, case).verify())


def pre_activations(cell: str, steps: int, **how: torch.dtype) -> Tensor:
    return torch.randn(3, steps, len(cells.get(cell).gates) * 5, **how)


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("cell", CELLS)
def test_it_is_the_reference_with_an_initial_state_of_any_sign(cell: str, time: int) -> None:
    x = pre_activations(cell, 7, dtype=torch.float64).transpose(0, 1 - time).requires_grad_()
    first = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert (first < 0).any()
    case = Case(cell=cell, steps=7, batch=3, hidden_size=5, projected=True, batch_first=time == 1)
    wanted = cells.reference(case, {}, x, first[None], None)[0]
    got = log_space_scan(x, first, cell, time)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)
    weight = torch.randn_like(wanted)
    found = [torch.autograd.grad(one, (x, first), weight) for one in (got, wanted)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


def test_a_bias_is_added_in_float32_and_only_the_output_is_narrow() -> None:
    x, bias = pre_activations("mingru_positive", 30).bfloat16(), torch.tensor([-7.0] * 5 + [0.5] * 5)
    wide = log_space_scan(x.float() + bias, None, "mingru_positive")
    assert torch.equal(log_space_scan(x, None, "mingru_positive", bias=bias), wide.bfloat16())


def test_gates_that_underflow_keep_their_ratio() -> None:
    x = torch.tensor([[[-200.0, -201.0, 1.0]]])
    share = torch.tensor(-1.0).sigmoid().item()
    torch.testing.assert_close(log_space_scan(x, None, "minlstm_positive").item(), 1.5 * share)


@pytest.mark.parametrize("case", JUDGED)
def test_the_layer_passes_the_tolerance_rule_where_it_runs(case: str) -> None:
    parsed = Case.parse(case)
    assert ScanTorch().unsupported(parsed, CPU) is None
    assert judged(parsed) == ""


@pytest.mark.parametrize("dtype", scan_torch._MAX_STEPS)
def test_it_is_refused_from_where_it_would_fail(dtype: str) -> None:
    training, inference = (
        Case.parse(f"mingru_positive-T4-B2-H16-{dtype}-batchfirst-projected{mode}") for mode in ("-training-seed1", "")
    )
    for case in (training, inference):
        most = scan_torch._MAX_STEPS[dtype][case.training]
        assert ScanTorch().unsupported(replace(case, steps=most), CPU) is None
        reason = ScanTorch().unsupported(replace(case, steps=most + 1), CPU)
        assert reason is not None
        assert f"T at most {most} in {dtype} {case.mode}" in reason
        assert "pytest_ecornn.suites.published.scan_kernel" in reason
    assert "is over its limit" in judged(replace(training, steps=128))


def test_a_scan_in_logarithms_errs_more_the_longer_it_is() -> None:
    errors = []
    for steps in (64, 4096):
        x = pre_activations("mingru_positive", steps)
        narrow, wide = (log_space_scan(one, None, "mingru_positive").double() for one in (x, x.double()))
        errors.append(((narrow - wide).abs().max() / wide.abs().max()).item())
    assert errors[0] < 1e-5 < 10 * errors[0] < errors[1]


def test_a_candidate_of_any_sign_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"cell must be one of mingru_positive, .*; got 'mingru'"):
        log_space_scan(torch.randn(1, 2, 4), None, "mingru")


def test_cost_is_more_than_the_floor_by_far() -> None:
    case = Case.parse("minlstm_positive-T4-B8-H256-float32-batchfirst-projected")
    assert ScanTorch().cost(case).bytes > 10 * cells.minimum_cost(case).bytes


def test_a_final_state_that_is_the_last_output_passes(tmp_path: Path) -> None:
    # autograd rounds the sum of both gradients: 36.97 + 34 is 71 in float16, half a unit off in the largest element
    case = "mingru_positive-T4-B3-H32-L3-float16-state-projected-training-seed14509"
    Foreign(tmp_path).run("--ecornn-verify", "--ecornn-only", "scan_torch", "--ecornn-case", case, check=0)


@pytest.mark.parametrize("cell", ["mingru", "mingru_positive", "minlstm", "minlstm_positive"])
@pytest.mark.parametrize("steps", [1, 2, 31, 32, 33, 64, 1100])
@pytest.mark.parametrize("has_masks", [False, True])
def test_in_linear_space_it_computes_what_the_kernels_do(cell: str, steps: int, has_masks: bool) -> None:
    x, first = pre_activations(cell, steps), torch.randn(3, 5) if has_masks else None
    lengths, resets = (torch.tensor([0, 1, steps]), torch.rand(3, steps) < 0.2) if has_masks else (None, None)
    for reverse in (False, True):
        expected = scan_by_op(x, first, lengths, resets, cell, x.dtype, True, reverse)
        torch.testing.assert_close(
            linear_space_scan(x, first, lengths, resets, cell, True, reverse), expected, rtol=1e-5, atol=1e-6
        )
        by_time = x.transpose(0, 1), first, lengths, None if resets is None else resets.T
        output, final = linear_space_scan(*by_time, cell, False, reverse)
        torch.testing.assert_close((output.transpose(0, 1), final), expected, rtol=1e-5, atol=1e-6)


def test_in_linear_space_nothing_infinite_passes_a_reset() -> None:
    resets = torch.zeros(1, 40, dtype=torch.bool)
    resets[0, 35] = True
    given = torch.zeros(1, 40, 2), torch.full((1, 1), torch.inf), None, resets
    output, final = linear_space_scan(*given, "mingru", True, False)
    assert output[0, :35].isinf().all()
    assert not output[0, 35:].any()
    assert not final.any()
