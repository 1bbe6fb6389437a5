"""persistent_gpu's ops: what they take and refuse, their gradients, what torch asks of them, their input products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from pytest_ecornn.cases import contents
from pytest_ecornn.implementations._common.recurrent_problem import GATES
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.describe import describe
from pytest_ecornn.implementations.persistent_gpu.kernel import MOST_FUSED_ROWS, KernelSpec, is_fused
from pytest_ecornn.implementations.persistent_gpu.ops import run
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions, plan_of_case
from pytest_ecornn.verification import calls
from tests.helpers.operators import Operators
from tests.helpers.persistent import layer_of, small, verdicts
from tests.helpers.requirements import needs_compiler, on_simulator
from tests.helpers.simulated_kernels import KERNELS, KernelRun, Seen
from tests.simulator.clusters_on_cpu import ClustersOnCpu

PROJECTED = RNNOptions("lstm", batch_first=False, bidirectional=False, projected=True, tf32=False)


def odd(*sizes: int) -> torch.Tensor:
    """At an address that no vector has."""
    return torch.randn(torch.Size(sizes).numel() + 1).half()[1:].view(sizes)


@on_simulator("on_cpu")
@pytest.mark.parametrize(
    ("options", "sizes"),
    [(PROJECTED, [(4, 2, 40), None, (40, 10)]), (PROJECTED._replace(projected=False), [(4, 2, 16), (64, 16), (64, 16)])],
    ids=["pre-activations", "an input product by the kernel"],
)
def test_x_and_weights_at_an_odd_address_are_read_all_the_same(options: RNNOptions, sizes: list[Any]) -> None:
    def results(x: torch.Tensor, *weights: torch.Tensor | None) -> Any:
        return run(x, (), [*weights, None, None], None, options)

    torch.manual_seed(0)
    arrays = [size and odd(*size) for size in sizes]
    torch.testing.assert_close(
        results(*arrays), results(*(one if one is None else one.clone() for one in arrays)), rtol=0, atol=0
    )


@on_simulator("on_cpu")
def test_backward_weights_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[set[int]] = []

    def seen(one: Any, launch: Any, passed: list[int]) -> None:
        addresses.append(set(passed))
        launched(one, launch, passed)

    def gradients(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output = run(gates, (), [None, weight, None, None], None, PROJECTED)[0]
        return torch.autograd.grad(output, [gates, weight], torch.ones_like(output))

    launched = ClustersOnCpu._run
    monkeypatch.setattr(ClustersOnCpu, "_run", seen)
    torch.manual_seed(0)
    gates, weight = torch.randn(4, 2, 36).half().requires_grad_(), odd(36, 9).requires_grad_()
    found = gradients(weight)
    assert weight.data_ptr() in addresses[-1]
    torch.testing.assert_close(found, gradients(weight.detach().clone().requires_grad_()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("sizes", "dtype", "message"),
    [
        ((0, 3, 4), torch.half, "expected T, B and H of at least 1"),
        ((2, 0, 4), torch.half, "expected T, B and H of at least 1"),
        ((2, 3, 0), torch.half, "expected T, B and H of at least 1"),
        ((2**30, 1, 256), torch.half, r"expected T and G \* B \* H below 2\^30, got "),
        ((1, 2**20, 256), torch.half, r"expected T and G \* B \* H below 2\^30, got "),
        ((3, 2, 4), torch.float64, r"expected one of torch.bfloat16, torch.float16, torch.float32, got torch.float64"),
        ((3, 2, 4), torch.half, "on cpu: runs on a CUDA device"),
    ],
)
def test_nothing_too_much_and_other_types_and_devices_are_refused(sizes: Any, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel.compile_layer(kernel.Shape("lstm", *sizes, batch_first=False), KernelSpec(dtype, torch.device("cpu")))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"weight_ih": (40, 6)},
            r"expected weight_ih as \(40, 5\) of torch.float16 on cpu, got \(40, 6\) of torch.float16 on cpu",
        ),
        ({"weight_hh": (10, 40)}, r"expected first_h as \(1, 3, 40\)"),
        ({"weight_hh": (20, 10)}, r"expected weight_hh as \(40, 10\) of torch.float16 on cpu, got \(20, 10\)"),
        ({"bias_ih": (41,)}, r"expected bias_ih as \(40,\)"),
        ({"first": [(1, 10, 3), (1, 3, 10)]}, r"expected first_h as \(1, 3, 10\)"),
        ({"first": [(1, 3, 10)]}, "expected no initial state of lstm, or 2, got 1"),
        ({"x": (3, 5)}, r"three dimensions, got lstm and \(3, 5\)"),
        ({"lengths": (2,)}, r"expected lengths as \(3,\) of torch.int64 on cpu, got \(2,\) of torch.float16"),
        ({"more": (2,)}, "expected weight_ih, weight_hh, bias_ih, bias_hh of each layer and direction, got 5 parameters"),
    ],
    ids=lambda of: "" if isinstance(of, str) else next(iter(of)),
)
def test_wrong_shapes_are_refused(changed: dict[str, Any], message: str) -> None:
    sizes = {"x": (2, 3, 5), "weight_ih": (40, 5), "weight_hh": (40, 10), "bias_ih": (40,), "bias_hh": (40,), **changed}
    first = tuple(torch.zeros(size).half() for size in sizes.pop("first", [(1, 3, 10), (1, 3, 10)]))
    x, *weights = (torch.zeros(size).half() for name, size in sizes.items() if name != "lengths")
    lengths = torch.zeros(changed["lengths"]).half() if "lengths" in changed else None
    with pytest.raises(ValueError, match=message):
        run(x, first, weights, lengths, RNNOptions("lstm", False, False, False, False))


def test_parameters_that_are_missing_and_pre_activations_of_another_width_are_refused() -> None:
    x, weights = torch.zeros(2, 3, 40).half(), [None, torch.zeros(40, 10).half(), None, None]
    with pytest.raises(ValueError, match=r"expected weight_ih as \(40, 40\), got None"):
        run(x, (), weights, None, PROJECTED._replace(projected=False))
    with pytest.raises(ValueError, match=r"expected pre-activations of width 40, got \(2, 3, 39\)"):
        run(x[..., 1:], (), weights, None, PROJECTED)
    with pytest.raises(ValueError, match=r"expected weight_ih as None"):
        run(x, (), [weights[1], *weights[1:]], None, PROJECTED)


@on_simulator("on_cpu")
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_the_ops_are_what_torch_asks_of_ops(cell: str) -> None:
    x, *weights = small_tensors(cell)
    first = [torch.randn(4, 2, 10).half().requires_grad_() for _ in range(2 if cell == "lstm" else 1)]
    given = (x, first, weights, torch.tensor([3, 1]), cell, False, True, False, False)
    outcome = torch.library.opcheck(torch.ops.pytest_ecornn.persistent_forward.default, given)
    assert set(outcome.values()) == {"SUCCESS"}, outcome
    x, first, weights = x.detach(), [state.detach() for state in first], [weight.detach() for weight in weights]
    for lengths in (None, given[3]):
        forward, others = torch.ops.pytest_ecornn.persistent_forward_keeping.default, (lengths, *given[4:])
        if lengths is None:  # nothing is saved of steps after a sequence's end, where the memory's old contents come out
            outcome = torch.library.opcheck(forward, (x, first, weights, *others))
            assert set(outcome.values()) == {"SUCCESS"}, outcome
        output, *rest = forward(x, first, weights, *others)
        final_states, (inner, *gates_and_cells) = rest[: len(first)], rest[len(first) :]
        wanted = [number % 3 > 0 for number in range(1 + len(first) + len(weights))]
        backward = wanted, x, first, weights, [inner, output, *gates_and_cells], [output, *final_states], *others
        outcome = torch.library.opcheck(torch.ops.pytest_ecornn.persistent_backward.default, backward)
        assert set(outcome.values()) == {"SUCCESS"}, outcome


def small_tensors(cell: str) -> list[torch.Tensor]:
    """x [3, 2, 10] and the parameters of two layers in two directions of H 10."""
    wide, generator = GATES[cell] * 10, torch.Generator().manual_seed(1)
    of_track = [(wide, 10), (wide, 10), (wide,), (wide,)]
    above = [(wide, 20), *of_track[1:]]
    sizes = [(3, 2, 10), *of_track, *of_track, *above, *above]
    return [torch.randn(size, generator=generator).half().requires_grad_() for size in sizes]


def run_small(cell: str, x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    """Output and final states."""
    return list(run(x, (), weights, None, RNNOptions(cell, False, True, False, False)))


@on_simulator("on_cpu")
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_observed_or_not_results_and_gradients_are_the_same(cell: str) -> None:
    def call() -> list[torch.Tensor]:
        found = run_small(cell, *inputs)
        return [*found, *torch.autograd.grad([one.sum() for one in found], inputs)]

    inputs = small_tensors(cell)
    unseen = call()
    with Operators() as operators:
        torch.testing.assert_close(call(), unseen, rtol=0, atol=0)
    ours = [name.split("::")[1] for name in operators.names if "ecornn" in name]
    assert ours == ["persistent_forward_keeping", "persistent_backward"]


@on_simulator("on_cpu")
@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}, {"has_state": True, "ragged": True}])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_compiled_layer_is_one_graph_with_the_op_in_it(cell: str, options: dict[str, Any]) -> None:
    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    seen: list[str] = []
    torch._dynamo.reset()
    problem = contents.problem(small(cell, mode="inference", **options))
    layer = layer_of(problem.case, problem.weights)
    wanted = calls.run(layer, problem)
    found = calls.run(torch.compile(layer, fullgraph=True, backend=backend), problem)
    assert [name.split(".")[1] for name in seen if "ecornn" in name] == ["persistent_forward"]
    assert wanted.keys() == found.keys()
    assert all(torch.equal(one, found[name]) for name, one in wanted.items())


@on_simulator("on_cpu")
def test_a_training_call_plans_what_it_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: set[KernelSpec] = set()
    plan = kernel.compile_layer

    def seen(shape: Any, spec: KernelSpec) -> Any:
        planned.add(spec)
        return plan(shape, spec)

    monkeypatch.setattr(kernel, "compile_layer", seen)
    assert verdicts(small("lstm", ragged=True, mode="training", dtype="float16")) == []
    assert {(spec.is_backward, spec.saves_for_backward, spec.lengths) for spec in planned} == {
        (False, True, True),
        (True, False, False),
    }


@on_simulator("on_cpu")
def test_what_is_saved_is_unpacked_once_and_may_lie_elsewhere() -> None:
    packed: list[torch.Tensor] = []
    unpacked: list[int] = []

    def pack(one: torch.Tensor) -> int:
        packed.append(one.detach().clone())
        return len(packed) - 1

    def unpack(number: int) -> torch.Tensor:
        unpacked.append(number)
        return packed[number].clone()

    inputs = small_tensors("lstm")
    wanted = torch.autograd.grad(run_small("lstm", *inputs)[0].sum(), inputs)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        output = run_small("lstm", *inputs)[0].sum()
    torch.testing.assert_close(torch.autograd.grad(output, inputs), wanted, rtol=0, atol=0)
    assert sorted(unpacked) == list(range(len(packed)))


@on_simulator("on_cpu")
def test_a_graph_that_is_kept_gives_its_gradients_twice_and_no_two_share_memory() -> None:
    inputs = small_tensors("lstm")
    output = run_small("lstm", *inputs)[0].sum()
    first = torch.autograd.grad(output, inputs, retain_graph=True)
    assert len({one.data_ptr() for one in first}) == len(first)
    torch.testing.assert_close(torch.autograd.grad(output, inputs), first, rtol=0, atol=0)


@on_simulator("on_cpu")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, at its first forward-mode gradient
def test_what_has_no_gradient_of_that_kind_says_so() -> None:
    x, *weights = small_tensors("gru")
    output = run_small("gru", x, *weights)[0]
    with pytest.raises(RuntimeError, match="Batching rule not implemented for pytest_ecornn::persistent_backward"):
        torch.autograd.grad(output, x, torch.ones(3, *output.shape).half(), is_grads_batched=True, retain_graph=True)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="persistent_forward has no forward-mode gradient"):
        run_small("gru", forward_ad.make_dual(x.detach(), x.detach()), *weights)


@on_simulator("on_cpu")
@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize(("bidirectional", "is_projected"), [(True, True), (False, True), (True, False)])
def test_gradients_of_a_graph_are_those_of_the_kernels(has_lengths: bool, bidirectional: bool, is_projected: bool) -> None:
    """A loop over time computes them there (`differentiable_gradients`), so that they have gradients."""
    lengths = torch.tensor([3, 7, 1]) if has_lengths else None
    directions, gates = 1 + bidirectional, 30
    options = RNNOptions("gru", False, bidirectional, is_projected, False)
    torch.manual_seed(3)
    x = torch.randn(7, 3, directions * gates if is_projected else 5, requires_grad=True)
    weights: list[torch.Tensor | None] = []
    for _ in range(directions):
        weight_ih = None if is_projected else torch.randn(gates, 5, requires_grad=True)
        weights += [weight_ih, torch.randn(gates, 10).mul_(0.3).requires_grad_(), torch.randn(gates, requires_grad=True), None]
    state = torch.randn(directions, 3, 10, requires_grad=True)
    results = run(x, [state], weights, lengths, options)
    loss = sum((one * one.detach().cos()).sum() for one in results)
    inputs = [x, state, *(one for one in weights if one is not None)]
    by_kernels = torch.autograd.grad(loss, inputs, retain_graph=True)
    by_loop = torch.autograd.grad(loss, inputs, create_graph=True)
    for one, other in zip(by_loop, by_kernels, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    second = torch.autograd.grad(sum(one.square().sum() for one in by_loop), inputs)
    assert all(one.isfinite().all() and one.any() for one in second)


def test_shapes_are_known_without_running() -> None:
    with torch._subclasses.FakeTensorMode():
        x, weight = torch.empty(7, 3, 40, dtype=torch.half), torch.empty(40, 10, dtype=torch.half)
        output, *final = run(x, (), [None, weight, None, None], None, PROJECTED)
        assert output.shape == (7, 3, 10)
        assert [one.shape for one in final] == [(1, 3, 10), (1, 3, 10)]
        output, *final = run(
            x, (), [x.new_empty(10, 40), weight[:10], None, None] * 2, None, RNNOptions("rnn_relu", True, True, False, False)
        )
        assert (output.shape, [one.shape for one in final]) == ((7, 3, 20), [(2, 7, 10)])


# When the input product is a part of the kernel.


@pytest.mark.parametrize(("steps", "batch", "inputs", "hidden", "is_taken"), [
    *((steps, batch, 40, 40, True) for steps, batch in ((2, 1), (16, 1), (2, 8), (1, 16))),
    *((steps, batch, 40, 40, False) for steps, batch in ((17, 1), (3, 6))),
    *((2, 8, inputs, hidden, True) for inputs, hidden in ((1024, 64), (3000, 1500), (None, 1500))),
    *((2, 8, inputs, hidden, False) for inputs, hidden in ((0, 64), (1025, 64), (3001, 1500))),
])  # fmt: skip
def test_few_rows_of_x_that_are_not_too_wide_are_multiplied_by_the_kernel_itself(
    steps: int, batch: int, inputs: int | None, hidden: int, is_taken: bool
) -> None:
    assert MOST_FUSED_ROWS == 16
    assert is_fused(steps, batch, inputs, hidden) == is_taken


@pytest.mark.parametrize(("inputs", "hidden", "width"), [(0, 512, 16), (512, 512, 16), (70, 512, 4), (33, 512, 2), (512, 9, 2)])
def test_as_much_is_read_at_once_as_divides_all_rows(inputs: int, hidden: int, width: int) -> None:
    spec = KernelSpec(torch.float16, torch.device("cpu"), inputs=inputs)
    form = Form(spec.problem("lstm", hidden, 1), 16, -(-hidden // 16), 1, 1)
    assert kernel.width_of(spec, form) == width


@needs_compiler
@pytest.mark.parametrize(
    ("line", "inputs"),
    [
        ("cluster gru-T11-B3-I6-H9-float16", [0]),
        ("cluster gru-T5-B3-H9-L2-float16-projected", [0, 9]),
        ("cluster gru-T5-B1-I6-H9-float16-training", [0, 0]),
        ("cluster gru-T1-B3-I6-H9-float16", []),
        ("cluster gru-T1-B129-I6-H9-float16", [0]),
    ],
)
def test_else_it_is_not(line: str, inputs: list[int]) -> None:
    assert [spec.inputs for spec in KernelRun.parse(line).expect_right().specs] == inputs


@on_simulator("on_cpu")
@pytest.mark.parametrize(
    ("options", "is_taken"), [({"layers": 2}, True), ({"steps": 11}, False), ({"projected": True, "input_size": 0}, False)]
)
def test_it_is_told_of_a_case(options: dict[str, Any], is_taken: bool) -> None:
    found = describe(plan_of_case(small("lstm", **{"mode": "inference", "dtype": "float16", **options}), torch.device("cpu")))
    assert found.endswith("; the input product in the same launch") == is_taken


@needs_compiler
def test_of_inputs_without_width_there_is_no_product_to_make() -> None:
    x, weight_hh, seen = torch.zeros(3, 2, 0).half(), torch.eye(8).half(), Seen()
    with KERNELS["cluster"].running({}, seen):
        options = RNNOptions("rnn_relu", batch_first=False, bidirectional=False, projected=False, tf32=False)
        output, _ = run(x, (torch.ones(1, 2, 8).half(),), [x.new_empty(8, 0), weight_hh, None, None], None, options)
    assert torch.equal(output, torch.ones(3, 2, 8).half())
    assert [spec.inputs for spec in seen.specs] == [0]
