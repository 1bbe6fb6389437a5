"""Other people's LSTM, GRU and RNN on a CPU: layers, directions, lengths and states around what is installed of theirs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.peers import _peer, onnxruntime
from pytest_ecornn.implementations.peers.onnxruntime import OnnxRuntime
from pytest_ecornn.implementations.peers.torch_compile_cpu import TorchCompileCpu
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.verification.verification import Candidate, failure_message
from tests.helpers.requirements import needs_compiler

PACKAGES = {"torch_cell_loop": ("torch",), "onnxruntime": ("onnx", "onnxruntime"), "jax_cpu": ("jax",)}
INFERRED = (
    "rnn_tanh-T7-B3-I5-H9-float32-state",
    "rnn_relu-T5-B2-H16-float32-bidirectional-ragged-state-seed1",
    "lstm-T9-B3-I7-H12-L2-float32-bidirectional-batchfirst-ragged-state",
    "lstm-T6-B2-H8-L3-float32-nobias-state-transposed",
    "lstm-T1-B1-H1-float32",
    "lstm-T4-B3-H12-float32-density0.3",
    "gru-T9-B4-I3-H17-L2-float32-batchfirst-state-strided",
    "gru-T8-B1-H16-float32-bidirectional-nobias",
    "gru-T12-B2-H8-float32-saturated",
)
TRAINED = (
    "rnn_tanh-T7-B3-I5-H9-float64-bidirectional-nobias-training",
    "lstm-T6-B3-I7-H12-L2-float32-bidirectional-batchfirst-ragged-state-training",
    "gru-T5-B2-H8-L2-float32-ragged-state-training",
)

INFERRED_BY_JAX = (
    "lstm-T1-B1-H1-float32",
    "lstm-T9-B3-I7-H12-L2-float32-bidirectional-batchfirst-state",
    "gru-T9-B4-I3-H17-L2-float32-batchfirst-state-strided",
    "gru-T7-B2-H8-float32-density0.3-saturated",
)
COMPILED = (
    "lstm-T6-B3-I7-H12-L2-float32-bidirectional-batchfirst-state-strided",
    "gru-T1-B1-H8-float32-nobias",
    "rnn_relu-T3-B2-H4-float32-density0.3-nan",
)
JUDGED = {"torch_cell_loop": (*INFERRED, *TRAINED), "onnxruntime": INFERRED, "jax_cpu": INFERRED_BY_JAX}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in JUDGED.items() for case in cases])
def test_the_layer_passes_the_tolerance_rule(name: str, case: str) -> None:
    implementation = discover([])[name].cls
    if missing := [package for package in PACKAGES[name] if find_spec(package) is None]:
        pytest.skip(f"needs {' and '.join(missing)}, of the extra [peers-cpu]")
    candidate = Candidate.build(name, implementation, Case.parse(case))
    assert failure_message(name, candidate.case, candidate.verify()) == ""


@needs_compiler
@pytest.mark.test_all
@pytest.mark.parametrize("case", COMPILED)
def test_what_torch_compiles_passes_the_tolerance_rule(case: str) -> None:
    candidate = Candidate.build("torch_compile_cpu", TorchCompileCpu, Case.parse(case))
    assert failure_message("torch_compile_cpu", candidate.case, candidate.verify()) == ""


def test_an_absent_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = TorchCompileCpu().refusal(Case.parse("lstm-T3-B2-H4-float32"))
    assert reason == "needs no-such-compiler, by which torch.compile compiles"


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_peer, "find_spec", lambda package: None)
    reason = OnnxRuntime().unsupported(Case.parse("lstm-T3-B2-H4-float32"), torch.device("cpu"))
    assert reason == "needs onnx and onnxruntime (pip install pytest-ecornn[peers-cpu])"


def test_weights_are_in_the_order_of_onnx() -> None:
    case = Case.parse("lstm-T1-B1-I2-H1-float32-bidirectional")
    weights = contents.make_weights(case)
    constants = onnxruntime._constants(case, weights, 0)
    i, f, g, o = weights["weight_ih_l0_reverse"].tolist()
    assert constants["W_l0"][1].tolist() == [i, o, f, g]
    assert {name: array.shape for name, array in constants.items()} == {
        "W_l0": (2, 4, 2), "R_l0": (2, 4, 1), "B_l0": (2, 8),
    }  # fmt: skip


def test_onnxruntime_has_the_threads_that_torch_has_when_it_is_built() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    case, before = Case.parse("gru-T2-B1-H4-float32"), torch.get_num_threads()
    implementation = OnnxRuntime()
    torch.set_num_threads(1)
    try:
        implementation.build(case, contents.make_weights(case))
    finally:
        torch.set_num_threads(before)
    assert implementation.notes().endswith(", 1 thread")
