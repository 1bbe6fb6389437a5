"""fused_cpu_bf16 and fused_cpu_int8: fused_cpu on packed weights that are rounded as they declare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.contract.weight_rounding import round_matrix
from pytest_ecornn.implementations.fused_cpu.layout import packed_in
from pytest_ecornn.implementations.fused_cpu_bf16 import FusedCpuBf16
from pytest_ecornn.implementations.fused_cpu_int8 import FusedCpuInt8
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.verification.verification import Candidate, failure_message

CASE = Case.parse("lstm-T7-B3-I6-H9-L2-float32-bidirectional-ragged-state")
JUDGED = (
    "lstm-T9-B5-I7-H33-float32-batchfirst-ragged-state",
    "gru-T8-B1-I33-H40-L2-float32-bidirectional-ragged-resets-state",
    "gru-T6-B2-H65-float16-projected",
    "rnn_tanh-T11-B6-I5-H65-bfloat16-bidirectional-batchfirst-ragged-state",
    "rnn_relu-T12-B4-I2-H7-L3-float32-nobias-state",
    "lstm-T12-B17-I300-H70-float32-ragged-resets-state-strided",
    "lstm-T12-B5-I9-H30-float32-state-density0.2-zeros",
    "gru-T20-B2-I8-H32-float32-state-cancelling",
    "lstm-T12-B3-I4-H32-float32-state-infinite",
)


@pytest.mark.parametrize(("rounding", "dtype"), [("int8", torch.int8), ("bfloat16", torch.bfloat16)])
def test_packed_weights_are_those_of_the_declaration_to_the_bit(rounding: Any, dtype: torch.dtype) -> None:
    weight = torch.randn(70, 33)
    packed = packed_in(dtype, weight, None)
    assert packed.w_hh is not None
    unpacked = packed.w_hh.transpose(1, 2).flatten(0, 1)[:70, :33]
    scales = 1.0 if packed.w_hh_scales is None else packed.w_hh_scales[:70, None]
    assert torch.equal(unpacked.float() * scales, round_matrix(weight, rounding))


@pytest.mark.parametrize("kind", [FusedCpuInt8, FusedCpuBf16])
@pytest.mark.parametrize("text", JUDGED)
def test_fused_cpu_of_rounded_weights_is_right(kind: Any, text: str) -> None:
    case = Case.parse(text)
    candidate = Candidate.build("rounded", kind, case)
    assert not failure_message("rounded", case, candidate.verify())


def test_training_and_weights_that_int8_does_not_have_are_refused() -> None:
    own = FusedCpuInt8()
    assert own.refusal(CASE) is None
    assert own.refusal(replace(CASE, mode="training")) == "runs inference alone: its weights are rounded to int8"
    assert own.refusal(replace(CASE, contents="nan_weight")) == "int8 has no NaN and no infinity"
    assert FusedCpuBf16().refusal(replace(CASE, contents="nan_weight")) is None
    assert own.refusal(replace(CASE, dtype="float64")) == "runs float32, bfloat16, float16, not float64"


def test_own_implementations_that_round_or_compile_for_long_run_where_they_are_named() -> None:
    unnamed = [name for name, one in discover([]).items() if not one.is_run_unnamed]
    assert unnamed == ["fused_cpu_bf16", "fused_cpu_int8", "torch_compile_cpu"]
