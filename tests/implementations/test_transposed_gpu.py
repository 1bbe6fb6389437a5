"""The transposed-layout layer: its kernels and its host code on a CPU, its ops and graphs where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.implementations.row_major_gpu import RowMajorGpu
from pytest_ecornn.implementations.transposed_gpu import TransposedGpu, ops, steps
from pytest_ecornn.implementations.transposed_gpu import layer as transposed_layer
from pytest_ecornn.implementations.transposed_gpu.buffers import Form, make_pseudo_layers, reserve
from pytest_ecornn.verification import verification
from tests.helpers.requirements import needs_gpu, on_simulator
from tests.simulator import kernels_on_cpu

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers with states": {"layers": 2, "has_state": True},
    "all at once": {"layers": 2, "bidirectional": True, "ragged": True, "has_state": True, "batch_first": True},
    "projected, without bias": {"projected": True, "bidirectional": True, "bias": False, "input_size": 0},
    "sparse": {"density": 0.4, "layers": 2},
    "one of each": {"steps": 1, "batch": 1, "hidden_size": 1},
    "layers meet at the edges of chunks": {"steps": 11, "layers": 3},
}


class OnCpu(TransposedGpu):
    """The same code, its kernels compiled for the host."""

    layouts = (True,)

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return None

    def build(self, case: Case, weights: Weights) -> Layer:
        plan = transposed_layer.Plan(Form(case, torch.device("cpu"), self.layouts[0]), "cublas")
        return ops.make_layer(plan, weights)


class RowMajorOnCpu(OnCpu):
    layouts = (False,)


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with kernels_on_cpu.running_transposed():
        yield


def small(cell: str, **options: Any) -> Case:
    return Case(**{"cell": cell, "steps": 5, "batch": 3, "hidden_size": 9, "input_size": 6, "mode": "training", **options})


def built(kind: type[TransposedGpu], cell: str, **options: Any) -> tuple[contents.Problem, Layer, list[torch.Tensor]]:
    """A problem, its layer, and the layer's parameters."""
    problem = contents.problem(small(cell, **options))
    return problem, kind().build(problem.case, problem.weights), list(problem.weights.values())


def failures(kind: type[TransposedGpu], case: Case) -> str:
    return verification.failed_tensors("transposed", case, verification.Candidate.build("transposed", kind, case).verify())


@on_simulator("on_cpu")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("kind", [OnCpu, RowMajorOnCpu])
@pytest.mark.parametrize("cell", ["rnn_tanh", "rnn_relu", "lstm", "gru"])
def test_both_layouts_compute_the_layer_and_its_gradients(cell: str, kind: type[OnCpu], options: dict[str, Any]) -> None:
    assert failures(kind, small(cell, **options)) == ""


@on_simulator("on_cpu")
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_other_types_are_as_accurate_as_they_can_be(cell: str, dtype: str) -> None:
    case = small(cell, dtype=dtype, **OPTIONS["all at once"])
    assert failures(OnCpu, case) == ""
    assert failures(RowMajorOnCpu, replace(case, mode="inference")) == ""


@on_simulator("on_cpu")
def test_the_ops_keep_what_torch_asks_of_ops() -> None:
    problem, _, parameters = built(OnCpu, "lstm", steps=3, has_state=True)
    layer = ops.TransposedLayer(transposed_layer.Plan(Form(problem.case, torch.device("cpu"), True), "cublas"), parameters)
    arguments = (problem.x, parameters, list(problem.state), problem.lengths, layer.number)
    outcome = torch.library.opcheck(torch.ops.pytest_ecornn.transposed_forward.default, arguments)
    assert set(outcome.values()) == {"SUCCESS"}
    with torch.no_grad():
        output, *final_states, memory = torch.ops.pytest_ecornn.transposed_forward.default(*arguments)
    weights = [parameter.detach() for parameter in parameters]
    backward = output, final_states, problem.x.detach(), weights, problem.lengths, memory, layer.number
    outcome = torch.library.opcheck(torch.ops.pytest_ecornn.transposed_backward.default, backward)
    assert set(outcome.values()) == {"SUCCESS"}


def test_tracks_share_no_memory_and_leave_none_undefined_between_them() -> None:
    form = Form(small("gru", layers=2), torch.device("cpu"), True)
    memory, nowhere_zero = reserve(form), 2.3694e-38  # whose bytes are all 1
    arrays = [array for track in make_pseudo_layers(form, memory) for array in (track.gates, track.state, track.h)]
    for number, array in enumerate(arrays):
        array.fill_(number + 1)
    assert all((array == number + 1).all() for number, array in enumerate(arrays))
    marks = torch.zeros_like(memory)
    for track in make_pseudo_layers(form, marks):
        for array in (track.gates, track.state, track.h):
            array.fill_(nowhere_zero)
    assert not memory[marks == 0].any()


def test_operands_of_tensor_cores_are_padded_with_zeros() -> None:
    form = Form(small("gru", dtype="bfloat16"), torch.device("cpu"), False)
    weight = torch.ones(form.gates, 9, dtype=torch.bfloat16)
    padded = steps.operand(form, weight)
    assert padded.shape == (32, 16)
    assert padded.sum() == weight.sum()
    single = Form(small("gru"), torch.device("cpu"), False)
    assert steps.operand(single, weight) is weight


@on_simulator("on_cpu")
def test_the_backward_pass_outlives_the_layer() -> None:
    problem, layer, parameters = built(OnCpu, "lstm")
    output = layer(problem.x, None, None)[0]
    del layer
    gradients = torch.autograd.grad(output.sum(), parameters)
    assert all(gradient.isfinite().all() for gradient in gradients)


@needs_gpu
@pytest.mark.parametrize("kind", [TransposedGpu, RowMajorGpu])
def test_results_of_one_call_are_not_touched_by_the_next(kind: type[TransposedGpu]) -> None:
    problem, layer, _ = built(kind, "lstm", device="cuda", mode="inference")
    output, (h, c) = layer(problem.x, None, None)
    copies = [one.clone() for one in (output, h, c)]
    layer(problem.x + 1, None, None)
    assert all(map(torch.equal, (output, h, c), copies))


@needs_gpu
def test_a_second_forward_pass_does_not_spoil_the_gradients_of_the_first() -> None:
    problem, layer, parameters = built(TransposedGpu, "gru", device="cuda")
    alone = torch.autograd.grad(layer(problem.x, None, None)[0].sum(), parameters)
    first = layer(problem.x, None, None)[0].sum()
    layer(problem.x + 1, None, None)
    torch.testing.assert_close(torch.autograd.grad(first, parameters), alone, rtol=0, atol=0)


@needs_gpu
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_torch_compiles_the_layer_into_one_graph(options: dict[str, Any]) -> None:
    problem, layer, parameters = built(RowMajorGpu, "lstm", device="cuda", **options)
    arguments = (problem.x, problem.state_argument, problem.lengths)
    compiled = torch.compile(layer, fullgraph=True)(*arguments)[0]
    plain = layer(*arguments)[0]
    assert torch.equal(compiled, plain)
    of_compiled, of_plain = (torch.autograd.grad(output.sum(), parameters) for output in (compiled, plain))
    torch.testing.assert_close(of_compiled, of_plain, rtol=0, atol=0)


@needs_gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_a_captured_call_is_right_on_new_contents() -> None:
    problem, layer, parameters = built(TransposedGpu, "lstm", device="cuda", layers=2)
    x = problem.x.clone()

    def both() -> tuple[torch.Tensor, ...]:
        output = layer(x, None, None)[0]
        return (output, *torch.autograd.grad(output.sum(), parameters))

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    x += 1
    graph.replay()
    torch.testing.assert_close(captured, both())


@needs_gpu
@pytest.mark.parametrize("rows", [64, 93, 512])
@pytest.mark.parametrize("kept", [2.0, 1e-3])
def test_no_part_of_a_long_sum_overflows(rows: int, kept: float) -> None:
    """Halves of +- 4e6 * kept that cancel: a library that adds parts in float16 finds infinities in the larger ones."""
    form = Form(small("lstm", device="cuda", dtype="float16"), torch.device("cuda"), False)
    a = torch.full((rows, 8192), 500.0, dtype=torch.float16, device="cuda")
    a[:, 4096:] *= -1
    a[:, -1] = 0.0
    out = steps.gemm_single_rounding(form, a, torch.full_like(a.T, kept).contiguous(), torch.empty_like(a[:, :rows]))
    assert torch.equal(out, torch.full_like(out, 500 * kept))
