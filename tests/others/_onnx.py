"""ONNX models of one operator each, RNN, LSTM or GRU, whose weights are inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn import Case

from ._one_layer import one_layer

ORDERS = {"rnn_tanh": (0,), "rnn_relu": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}  # torch's gates in ONNX's order
SUPPORTED = one_layer(*ORDERS, modes=("inference",), bidirectional=True, batchfirst=False, ragged=True)
NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c")


def shape_of(case: Case) -> Case:
    """The case without what its model does not depend on."""
    return replace(case, contents="normal", layout="contiguous", has_state=False, ragged=False, seed=0)


def model(case: Case) -> bytes:
    from onnx import TensorProto, helper

    kind = case.cell.partition("_")[0].upper()
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    if kind == "RNN":
        options["activations"] = [case.cell[4:].capitalize()] * case.directions
    inputs, outputs = NAMES[: 7 if kind == "LSTM" else 6], ("Y", "Y_h", "Y_c")[: 3 if kind == "LSTM" else 2]
    direction = "bidirectional" if case.bidirectional else "forward"
    node = helper.make_node(kind, inputs, outputs, hidden_size=case.hidden_size, direction=direction, **options)
    directions, hidden, gates = case.directions, case.hidden_size, len(ORDERS[case.cell]) * case.hidden_size
    widths = {"X": case.input_size, "W": case.input_size, "R": hidden, "initial_h": hidden, "initial_c": hidden}
    rows = {"X": (case.steps, case.batch), "W": (directions, gates), "R": (directions, gates), "B": (directions, 2 * gates)}
    rows |= {"sequence_lens": (case.batch,), "initial_h": (directions, case.batch), "initial_c": (directions, case.batch)}
    shapes = [(*rows[name], widths[name]) if name in widths else rows[name] for name in inputs]
    types = [TensorProto.INT32 if name == "sequence_lens" else TensorProto.FLOAT for name in inputs]
    infos = [helper.make_tensor_value_info(*info) for info in zip(inputs, types, shapes, strict=True)]
    results = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
        for name, rank in zip(outputs, (4, 3, 3), strict=False)
    ]
    graph = helper.make_graph([node], case.cell, infos, results)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return made.SerializeToString()


def feeds(case: Case, weights: dict[str, Tensor], x: Tensor, state, lengths: Tensor | None) -> dict[str, np.ndarray]:
    def stacked(*names: str) -> Tensor:
        suffixes = ["_l0", "_l0_reverse"][: case.directions]
        return torch.stack([torch.cat([ordered(weights[name + suffix]) for name in names]) for suffix in suffixes])

    def ordered(weight: Tensor) -> Tensor:
        gates = weight.detach().chunk(len(ORDERS[case.cell]))
        return torch.cat([gates[place] for place in ORDERS[case.cell]])

    first = (x.new_zeros(case.directions, case.batch, case.hidden_size),) * (2 if case.cell == "lstm" else 1)
    states = first if state is None else state if isinstance(state, tuple) else (state,)
    ends = torch.full((case.batch,), case.steps) if lengths is None else lengths
    tensors = [x, stacked("weight_ih"), stacked("weight_hh"), stacked("bias_ih", "bias_hh"), ends.int(), *states]
    return {name: tensor.detach().contiguous().numpy() for name, tensor in zip(NAMES, tensors, strict=False)}


def results(arrays) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
    """ONNX's results, Y [T, D, B, H] among them, as torch has them."""
    output, *final = (torch.from_numpy(np.array(array)) for array in arrays)
    return output.transpose(1, 2).flatten(2), tuple(final) if len(final) > 1 else final[0]
