"""torch.nn.RNN, LSTM and GRU on a CPU: what most programs run, and the baseline where it exists."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from pytest_ecornn.contract import Case, Cost, Layer, Weights
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations._common.noted import Noted


class TorchCpu(Noted):
    carry = "storage"
    deterministic = True

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if device.type != "cpu":
            return "torch_cpu runs on a CPU"
        if case.precision != "ieee":
            return "TF32 is a GPU's precision"
        return torch_nn.skip_reason(case) or _no_16_bit(case)

    def build(self, case: Case, weights: Weights) -> Layer:
        module = torch_nn.build_module(case, weights)
        self._notes = _library(case, module)
        return torch_nn.make_layer(case, module)

    def cost(self, case: Case) -> Cost:
        return torch_nn.cost(case)


def _no_16_bit(case: Case) -> str | None:
    """torch.nn keeps too little in 16 bits: sums and gates in ATen, saved gates (1 - f) and the sum of the biases in oneDNN."""
    if case.dtype == "float16" or (case.dtype == "bfloat16" and (case.cell != "lstm" or case.ragged)):
        return f"torch.nn computes gates in {case.dtype} on a CPU"
    if case.dtype == "bfloat16" and case.training:
        return "oneDNN's LSTM saves its gates for the backward pass in bfloat16"
    if case.dtype == "bfloat16" and case.bias:
        return "oneDNN's LSTM is given the sum of its two biases in bfloat16"
    if case.dtype == "bfloat16" and not _has_bfloat16_in_onednn():
        return "oneDNN needs AVX-512 for bfloat16, and ATen's LSTM rounds gates to it"
    if case.dtype == "bfloat16" and case.contents.endswith("infinite_x") and case.input_size % 2 and _makes_nan_of_infinity():
        return "oneDNN's bfloat16 LSTM makes NaN of an infinity among an odd number of inputs on this processor"
    return None


def _has_bfloat16_in_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def _makes_nan_of_infinity() -> bool:
    """Whether an infinity, the last of an odd number of inputs, comes out as NaN: without AVX-512's bfloat16 it does."""
    layer = nn.LSTM(9, 1, bias=False, dtype=torch.bfloat16, device="meta").to_empty(device="cpu")  # draws no random numbers
    x = torch.ones(1, 2, 9, dtype=torch.bfloat16)
    x[0, 0, -1] = float("inf")
    with torch.no_grad():
        for weight in layer.parameters():
            weight.fill_(1.0)
        return bool(layer(x)[0].isnan().any())


def _library(case: Case, module: nn.RNNBase) -> str:
    """Returns the library that torch takes for such a case, observed on two steps; it depends on dtype, machine and packing."""
    with torch_nn.OperatorRecorder() as operators:
        torch_nn.probe(case, module, most_steps=2)
    return "oneDNN" if any("mkldnn_rnn" in name for name in operators.names) else "ATen"
