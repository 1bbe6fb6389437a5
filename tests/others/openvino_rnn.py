"""ONNX's operators RNN, LSTM and GRU by OpenVINO."""

import io
from functools import cache

import torch

from pytest_ecornn import Case, Implementation, Weights

from . import _onnx


@cache
def compiled(case: Case):
    import openvino

    core = openvino.Core()
    return core.compile_model(core.read_model(io.BytesIO(_onnx.model(case))), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


class OpenvinoRNN(Implementation):
    carry, deterministic, costly_shapes, supported = "float32", True, True, _onnx.SUPPORTED

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        is_wrong = case.cell == "rnn_relu" and case.contents.startswith("nan")
        return "NaN does not pass relu: docs/faults.md" if is_wrong else None

    def build(self, case: Case, weights: Weights):
        run = compiled(_onnx.shape_of(case))
        return lambda x, state, lengths: _onnx.results(run(_onnx.feeds(case, weights, x, state, lengths)).values())
