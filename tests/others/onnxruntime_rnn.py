"""ONNX's operators RNN, LSTM and GRU by ONNX Runtime."""

from functools import cache

import torch

from pytest_ecornn import Case, Implementation, Weights

from . import _onnx


@cache
def session(case: Case):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(_onnx.model(case), options)


class OnnxRuntimeRNN(Implementation):
    carry, deterministic, supported = "float32", True, _onnx.SUPPORTED

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return "NaN does not pass: docs/faults.md" if case.contents.startswith("nan") else None

    def build(self, case: Case, weights: Weights):
        run = session(_onnx.shape_of(case)).run
        return lambda x, state, lengths: _onnx.results(run(None, _onnx.feeds(case, weights, x, state, lengths)))
