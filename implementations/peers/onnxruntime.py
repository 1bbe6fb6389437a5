"""RNN, LSTM and GRU on a CPU by ONNX Runtime's operators of these names: inference in float32.

All layers of a case are one model. Its weights are constants, which ONNX Runtime lays out anew when it is built. Inputs and
outputs are bound once, to memory of the layer: to copy a small tensor takes less time than to bind another. Calls take turns.
Source: the operators' pages, onnx.ai/onnx/operators; github.com/microsoft/onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Layer, State, SupportedCases, Weights, cells
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.implementations.peers._peer import import_quietly, missing_packages

_OPSET, _IR_VERSION = 14, 8  # of 2021: that an operator has a later version changes nothing here
_GATES = {"rnn_tanh": (0,), "rnn_relu": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}  # torch.nn's, in the operators' order


class OnnxRuntime(Noted):
    carry = "float32"
    deterministic = True
    supported = SupportedCases(
        NN_CELLS, dtypes=("float32",), precisions=("ieee",), modes=("inference",), devices=("cpu",), projected=False
    )

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.contents.startswith("nan"):
            return "LSTM and GRU with biases make finite outputs of NaN: docs/faults.md"
        if case.cell == "rnn_tanh" and case.contents == "small":
            return "RNN's tanh is 0 near 0: docs/faults.md"
        return missing_packages(("onnx", "onnxruntime"), "peers-cpu")

    def build(self, case: Case, weights: Weights) -> Layer:
        threads = torch.get_num_threads()
        self._notes = f"onnxruntime {import_quietly('onnxruntime').__version__}, {threads} thread{'s' * (threads > 1)}"
        return _Layer(case, make_session(case, weights))

    def cost(self, case: Case) -> Cost:
        return torch_nn.cost(case)


def make_session(case: Case, weights: Weights) -> Any:
    """A session of the case's model, on as many threads as torch has now."""
    runtime = import_quietly("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    return runtime.InferenceSession(make_model(case, weights), options, providers=["CPUExecutionProvider"])


def make_model(case: Case, weights: Weights) -> bytes:
    """The case's layers as an ONNX model.

    Inputs: "x" [T, B, I], for each layer "h0_l0" and "c0_l0" [D, B, H], and "lengths" [B], int32, where the case is ragged.
    Outputs: "output" [T, D, B, H], and for each layer "hn_l0" and "cn_l0" [D, B, H].
    """
    onnx = import_quietly("onnx")
    make_node, states = onnx.helper.make_node, cells.get(case.cell).states
    nodes, constants, x = [], {}, "x"
    if case.layers > 1:
        constants["merged"] = np.array([case.steps, case.batch, case.directions * case.hidden_size])
    for layer in range(case.layers):
        names = _constants(case, weights, layer)
        constants |= names
        output = "output" if layer == case.layers - 1 else f"output_l{layer}"
        initial, final = ([f"{state}{place}_l{layer}" for state in states] for place in ("0", "n"))
        bias = f"B_l{layer}" if case.bias else ""
        inputs = [x, f"W_l{layer}", f"R_l{layer}", bias, "lengths" if case.ragged else "", *initial]
        nodes.append(make_node(_operator(case), inputs, [output, *final], **_attributes(case)))
        if output != "output":
            x = f"x_l{layer + 1}"
            nodes.append(make_node("Transpose", [output], [f"{output}_tbdh"], perm=(0, 2, 1, 3)))
            nodes.append(make_node("Reshape", [f"{output}_tbdh", "merged"], [x]))
    infos = [[_info(onnx, *item) for item in shapes.items()] for shapes in (_input_shapes(case), _output_shapes(case))]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph(nodes, case.cell, *infos, tensors)
    opset = onnx.helper.make_opsetid("", _OPSET)
    model: bytes = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION).SerializeToString()
    return model


def _operator(case: Case) -> str:
    return case.cell.partition("_")[0].upper()


def _attributes(case: Case) -> dict[str, Any]:
    direction = "bidirectional" if case.bidirectional else "forward"
    attributes: dict[str, Any] = {"hidden_size": case.hidden_size, "direction": direction}
    if case.cell == "gru":
        attributes["linear_before_reset"] = 1
    if case.cell.startswith("rnn"):
        attributes["activations"] = [case.cell.removeprefix("rnn_").capitalize()] * case.directions
    return attributes


def _constants(case: Case, weights: Weights, layer: int) -> dict[str, np.ndarray[Any, Any]]:
    """A layer's W [D, G*H, I], R [D, G*H, H] and B [D, 2*G*H], whose gates are in the operator's order."""
    suffixes = [suffix for index, _, suffix in cells.parameter_suffixes(case) if index == layer]
    names = {"W": ("weight_ih",), "R": ("weight_hh",)} | ({"B": ("bias_ih", "bias_hh")} if case.bias else {})

    def ordered(name: str) -> Tensor:
        gates = weights.masked(name).detach().chunk(len(_GATES[case.cell]))
        return torch.cat([gates[index] for index in _GATES[case.cell]])

    def stacked(kinds: tuple[str, ...]) -> Tensor:
        return torch.stack([torch.cat([ordered(kind + suffix) for kind in kinds]) for suffix in suffixes])

    return {f"{letter}_l{layer}": stacked(kinds).numpy() for letter, kinds in names.items()}


def _state_shapes(case: Case, place: str) -> dict[str, tuple[int, ...]]:
    states, shape = cells.get(case.cell).states, (case.directions, case.batch, case.hidden_size)
    return {f"{state}{place}_l{layer}": shape for state in states for layer in range(case.layers)}


def _input_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    lengths: dict[str, tuple[int, ...]] = {"lengths": (case.batch,)} if case.ragged else {}
    return {"x": (case.steps, case.batch, case.input_size), **lengths, **_state_shapes(case, "0")}


def _output_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    return {"output": (case.steps, case.directions, case.batch, case.hidden_size), **_state_shapes(case, "n")}


def _info(onnx: Any, name: str, shape: tuple[int, ...]) -> Any:
    types = onnx.TensorProto
    return onnx.helper.make_tensor_value_info(name, types.INT32 if name == "lengths" else types.FLOAT, shape)


def state_parts(case: Case, place: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Each layer's part of the states [L*D, B, H], by the model's names. place: "0" of inputs, "n" of outputs."""
    return {
        f"{name}{place}_l{layer}": part
        for name, tensor in zip(cells.get(case.cell).states, tensors, strict=True)
        for layer, part in enumerate(tensor.chunk(case.layers))
    }


def bind_tensors(bind: Any, tensors: dict[str, Tensor]) -> None:
    """bind: `bind_input` or `bind_output` of a binding, in which no tensor's memory lives on."""
    for name, tensor in tensors.items():
        kind = np.int32 if tensor.dtype == torch.int32 else np.float32
        bind(name, "cpu", 0, kind, tuple(tensor.shape), tensor.data_ptr())


class _Layer:
    """A session whose inputs and outputs are bound to tensors: those of a state are parts of one, [L*D, B, H]."""

    def __init__(self, case: Case, session: Any):
        self._case, self._session, self._binding, self._lock = case, session, session.io_binding(), Lock()
        states, shape = cells.get(case.cell).states, (case.layers * case.directions, case.batch, case.hidden_size)
        self._x = torch.empty(case.steps, case.batch, case.input_size)
        self._lengths = torch.empty(case.batch, dtype=torch.int32)
        self._initial, self._final = ([torch.zeros(shape) for _ in states] for _ in range(2))
        output = torch.empty(case.steps, case.directions, case.batch, case.hidden_size)
        self._output = output.transpose(1, 2)
        bind_tensors(self._binding.bind_input, {"x": self._x, **state_parts(case, "0", self._initial)})
        bind_tensors(self._binding.bind_output, {"output": output, **state_parts(case, "n", self._final)})
        if case.ragged:
            bind_tensors(self._binding.bind_input, {"lengths": self._lengths})

    def __call__(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        case, states = self._case, cells.unpack_state(state)
        with self._lock:
            self._x.copy_(x.detach().transpose(0, 1) if case.batch_first else x.detach())
            for index, initial in enumerate(self._initial):
                initial.copy_(states[index].detach()) if states else initial.zero_()
            if case.ragged:
                self._lengths.copy_(lengths) if lengths is not None else self._lengths.fill_(case.steps)
            self._session.run_with_iobinding(self._binding)
            output = self._output.clone(memory_format=torch.contiguous_format).flatten(2)
            final = tuple(tensor.clone() for tensor in self._final)
        return output.transpose(0, 1) if case.batch_first else output, final if len(final) > 1 else final[0]
