"""torch_cpu refuses what torch.nn rounds more often than is declared."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations import torch_cpu
from pytest_ecornn.implementations.torch_cpu import TorchCpu
from pytest_ecornn.verification.verification import Candidate

CPU = torch.device("cpu")


@pytest.mark.parametrize(("has_avx512", "refusal"), [(True, None), (False, "oneDNN needs AVX-512")])
def test_bfloat16_runs_only_where_onednn_has_it(has_avx512: bool, refusal: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cpu, "_has_bfloat16_in_onednn", lambda: has_avx512)
    answer = TorchCpu().unsupported(Case.parse("lstm-T3-B2-H4-bfloat16-nobias"), CPU)
    assert answer is None if refusal is None else refusal in str(answer)


def test_infinite_inputs_run_in_bfloat16_or_are_refused() -> None:
    refused = {}
    for inputs in (9, 10):
        case = Case.parse(f"lstm-T6-B4-I{inputs}-H9-bfloat16-nobias-state-infinite_x")
        refused[inputs] = TorchCpu().unsupported(case, CPU)
        if not refused[inputs]:
            comparisons = Candidate.build("torch_cpu", TorchCpu, case).verify()
            assert [one.message for one in comparisons if one.status == "failed"] == []
    assert not refused[10] or "needs AVX-512" in refused[10]


def test_the_library_that_runs_bfloat16_is_onednn_or_the_case_is_refused() -> None:
    case = Case.parse("lstm-T2-B3-H4-bfloat16-nobias")
    layer = TorchCpu()
    if layer.unsupported(case, CPU) is None:
        layer.build(case, contents.make_weights(case))
        assert layer.notes() == "oneDNN"
    else:
        assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
