"""pytest_ecornn.nn in place of torch.nn: results and gradients alike, by the kernels on clusters of a CPU."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

import pytest_ecornn.nn
from pytest_ecornn.implementations._common.compile_threads import CompileThreads
from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._common.torch_nn import OperatorRecorder
from pytest_ecornn.implementations._common.weight_gradients import WeightGradients
from pytest_ecornn.implementations._cuda.compile import KernelCode, skip_reason
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, compile_layer, get_layer_kernel
from pytest_ecornn.reference.precision import fp32_precision
from tests.helpers.nn_modules import MODULES, tensors
from tests.helpers.operators import Operators
from tests.helpers.requirements import needs_hopper, on_simulator
from tests.helpers.torch_module_db import torch_inputs
from tests.simulator.clusters_on_cpu import ClustersOnCpu

H, I, B, T = 9, 4, 3, 5  # noqa: E741
NEAR = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float16: {"rtol": 1e-2, "atol": 1e-2}}


@pytest.fixture
def really_planned(by_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on any machine, not for a CPU's clusters."""
    monkeypatch.setattr(kernel, "compile_layer", compile_layer)
    monkeypatch.setattr(kernel, "skip_reason", skip_reason)
    get_layer_kernel.cache_clear()


on_clusters = on_simulator("by_kernels")


def both(
    cell: str, dtype: torch.dtype = torch.float32, device: str = "cpu", backend: str = "auto", **options: Any
) -> tuple[nn.RNNBase, Any]:
    """torch.nn's module in float32, this project's in the dtype, of the same weights."""
    theirs, ours, own = MODULES[cell]
    torch.manual_seed(0)
    reference = theirs(I, H, **own, **options)
    module = ours(I, H, **own, **options, dtype=dtype, device=device, backend=backend)
    module.load_state_dict(reference.state_dict())
    return reference, module


def ran(module: Any) -> str:
    """The backend that ran the last call."""
    backend: str = module.notes().partition(";")[0]
    return backend


def states(module: nn.RNNBase, *batch: int) -> Any:
    """Initial states [L*D, B, H], or [L*D, H] without a batch."""
    shape = (module.num_layers * (1 + module.bidirectional), *batch, H)
    torch.manual_seed(1)
    found = tuple(torch.randn(shape) for _ in range(2))
    return found if module.mode == "LSTM" else found[0]


def gradients(module: nn.RNNBase, found: Any, *inputs: Tensor) -> list[Tensor]:
    loss = sum((one * one.detach().cos()).sum() for one in tensors(found))
    return list(torch.autograd.grad(loss, [*inputs, *module.parameters()]))


def assert_alike(found: Any, wanted: Any, dtype: torch.dtype = torch.float32) -> None:
    for one, other in zip(tensors(found), tensors(wanted), strict=True):
        torch.testing.assert_close(one.cpu().float(), other.float(), **NEAR[dtype])


def to(dtype: torch.dtype, given: Any) -> Any:
    """A leaf of that dtype for each tensor; packed sequences and tuples of tensors too."""
    if given is None or isinstance(given, Tensor):
        return None if given is None else given.detach().to(dtype).requires_grad_()
    if isinstance(given, PackedSequence):
        return given._replace(data=to(dtype, given.data))
    return tuple(to(dtype, one) for one in given)


def compare(
    cell: str, x: Any, hx: Callable[[nn.RNNBase], Any] = lambda of: None, dtype: Any = torch.float32, **options: Any
) -> Any:
    """Both modules' results and gradients are alike. Returns this project's output and final states."""
    reference, module = both(cell, dtype, **options)
    results, of_inputs = [], []
    for one, precision in ((reference, torch.float32), (module, dtype)):
        given = to(precision, x), to(precision, hx(one))
        results.append(one(*given))
        inputs = [tensor for part in given if part is not None for tensor in tensors(part)]
        of_inputs.append(gradients(one, results[-1], *inputs))
    assert_alike(results[1], results[0], dtype)
    assert_alike(of_inputs[1], of_inputs[0], dtype)
    assert {one.dtype for one in tensors(results[1])} == {dtype}
    assert ran(module) == "persistent_gpu"
    return results[1]


def batch() -> Tensor:
    torch.manual_seed(2)
    return torch.randn(T, B, I)


# Like torch.nn's.


def of_a_batch(module: nn.RNNBase) -> Any:
    return states(module, B)


DEEP = {"num_layers": 2, "bidirectional": True, "bias": False, "batch_first": True}
CALLS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "one layer": (batch, of_a_batch, {}),
    "layers and directions": (lambda: batch().transpose(0, 1), of_a_batch, DEEP),
    "one sequence": (lambda: batch()[:, 0], states, {}),
    "one sequence, batch first": (lambda: batch()[:, 0], states, {"batch_first": True}),
}


@on_clusters
@pytest.mark.parametrize(("call", "dtype"), [*((call, torch.float32) for call in CALLS), ("one layer", torch.float16)])
@pytest.mark.parametrize("cell", MODULES)
def test_results_and_gradients(cell: str, call: str, dtype: torch.dtype) -> None:
    x, hx, options = CALLS[call]
    compare(cell, x(), hx, dtype, **options)


@on_clusters
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((5, 3), {}), ((5, 3), {"num_layers": 2, "bidirectional": True}), ((1, 3), {"num_layers": 2}),
        ((5, 3), {"num_layers": 3, "dropout": 0.5}), ((70, 3), {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("cell", ["rnn_tanh", "gru", "lstm"])
def test_all_kernels_of_a_call_are_compiled_before_it(
    cell: str, trains: bool, sizes: tuple[int, int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several threads at once, while none is launched."""
    compiled, launched, run = set[KernelCode](), set[KernelCode](), ClustersOnCpu._run
    monkeypatch.setattr(CompileThreads, "add", lambda threads, codes: compiled.update(codes))
    monkeypatch.setattr(ClustersOnCpu, "_run", lambda kernel, *given: launched.add(kernel.code) or run(kernel, *given))
    _, module = both(cell, **options)
    with torch.set_grad_enabled(trains):
        output, _ = module(torch.randn(*sizes, I))
    if trains:
        output.sum().backward()
    assert launched
    assert launched <= compiled, [code.source.name for code in launched - compiled]


@on_clusters
def test_a_list_of_sequences() -> None:
    compare("lstm", pack_sequence([batch()[:2, 0], batch()[:4, 1]], enforce_sorted=False), num_layers=2)


@on_clusters
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("cell", "batch_first"), [("lstm", True), ("gru", False)])
def test_packed_sequences(cell: str, batch_first: bool, is_sorted: bool, has_states: bool) -> None:
    lengths = [5, 3, 1] if is_sorted else [3, 5, 1]
    packed = pack_padded_sequence(batch(), torch.tensor(lengths), enforce_sorted=is_sorted)
    output, _ = compare(
        cell, packed, of_a_batch if has_states else lambda of: None, bidirectional=True, batch_first=batch_first
    )
    assert isinstance(output, PackedSequence)
    assert all(one is other for one, other in zip(output[1:], packed[1:], strict=True))


@on_clusters
@pytest.mark.parametrize("cell", MODULES)
def test_an_empty_batch_or_no_steps(cell: str) -> None:
    reference, module = both(cell, bidirectional=True)
    found, wanted = module(torch.zeros(T, 0, I)), reference(torch.zeros(T, 0, I))
    assert [one.shape for one in tensors(found)] == [one.shape for one in tensors(wanted)]
    assert not any(one.any() for one in gradients(module, found))
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0"):
        module(torch.zeros(0, B, I))


def carried_from_call_to_call(module: Any) -> list[Tensor]:
    _, state = module(batch()[:2])
    _, state = module(batch()[2:4], state)
    cut = tuple(part.detach() for part in state)
    output, cut = module(batch()[4:], cut)
    return [output, *cut, *gradients(module, [state]), *gradients(module, output)]


def pruned(module: Any) -> list[Tensor]:
    """Elements that torch.nn.utils.prune has masked are 0 and have no gradient; others' is the original parameter's."""
    masked = ("weight_hh_l0", "weight_hh_l1", "weight_ih_l0")
    for name in masked:
        prune.l1_unstructured(module, name, 0.75)
    results = module(batch())
    names = [name for name, _ in module.named_parameters()]
    of_parameters = dict(zip(names, gradients(module, results), strict=True))
    for name in masked:
        assert int(of_parameters[f"{name}_orig"].count_nonzero()) <= int(getattr(module, f"{name}_mask").sum())
    return [*tensors(results), *(of_parameters[name] for name in sorted(names))]


def of_a_state_alone(module: Any) -> list[Tensor]:
    h, c = (state.requires_grad_() for state in states(module.requires_grad_(False), B))
    output, _ = module(batch(), (h, c))
    return list(torch.autograd.grad(output.square().sum(), [h, c]))


def with_weights_given_for_one_call(module: Any) -> Any:
    halved = {name: one.detach() / 2 for name, one in module.named_parameters()}
    return torch.func.functional_call(module, halved, (batch(),)), module(batch())


def of_each_result_alone(module: Any) -> list[list[Tensor]]:
    return [gradients(module, tensors(module(batch()))[number]) for number in range(3)]


@on_clusters
@pytest.mark.parametrize(
    ("cell", "options", "results"),
    [
        ("lstm", {}, carried_from_call_to_call),
        *((cell, {"num_layers": 2}, pruned) for cell in MODULES),
        ("lstm", {}, of_a_state_alone),
        ("lstm", {"bidirectional": True}, of_each_result_alone),
        ("lstm", {}, with_weights_given_for_one_call),
    ],
)
def test_results_are_alike(cell: str, options: dict[str, Any], results: Callable[[Any], Any]) -> None:
    theirs, ours = map(results, both(cell, **options))
    assert_alike(ours, theirs)


@on_clusters
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by torch's compiler
def test_compiled_it_computes_the_same() -> None:
    _, module = both("lstm", num_layers=2)
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    found, wanted = compiled(batch(), states(module, B)), module(batch(), states(module, B))
    assert_alike(found, wanted)
    assert_alike(gradients(module, found), gradients(module, wanted))


@on_clusters
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("cell", ["rnn_tanh", "lstm", "gru"])  # torch's inputs of RNN say tanh or relu
def test_torchs_own_inputs(cell: str) -> None:
    """torch's inputs for tests of its modules: of the constructor and of forward, run by the kernels but for projections."""
    theirs, ours, _ = MODULES[cell]
    inputs = torch_inputs(theirs, torch.float32)
    assert len(inputs) >= 8
    by_kernels = 0
    for one in inputs:
        made, given = one.constructor_input, one.forward_input
        torch.manual_seed(0)
        reference, module = theirs(*made.args, **made.kwargs), ours(*made.args, **made.kwargs)
        module.load_state_dict(reference.state_dict())
        assert_alike(module(*given.args, **given.kwargs), reference(*given.args, **given.kwargs))
        assert (ran(module) == "persistent_gpu") == (not module.proj_size)
        by_kernels += not module.proj_size
    assert by_kernels >= 8


# Dropout.


@on_clusters
def test_it_is_between_layers_in_training_only() -> None:
    reference, module = both("lstm", num_layers=2, dropout=0.5, bidirectional=True)
    assert_alike(module.eval()(batch()), reference.eval()(batch()))
    module.train()
    x = batch()
    output, (h_n, _) = module(x)
    assert_alike(h_n[:2], reference(x)[1][0][:2])
    assert not torch.equal(output, module(x)[0])
    assert torch.equal(module(batch())[0], module(batch())[0])  # from one seed


# What a call does, and what it does not.


def products(module: nn.RNNBase, x: Tensor) -> int:
    """Of matrices, in the backward pass."""
    loss = module(x)[0].sum()
    with Operators(sees_inside_ops=True) as operators:
        loss.backward()
    return operators.names.count("aten::mm")


@on_clusters
@pytest.mark.parametrize(("cell", "of_states"), [("lstm", 1), ("gru", 2)])  # GRU's r and z, and n
def test_gradients_of_frozen_weights_are_not_computed(cell: str, of_states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert products(both(cell)[1], batch()) == 0  # all of so small a layer are computed in one launch
    monkeypatch.setattr(WeightGradients, "suit_one_launch", lambda self, width: False)
    x, all_of = batch(), 1 + of_states
    assert products(both(cell)[1], x) == all_of
    assert products(both(cell)[1], batch().requires_grad_()) == all_of + 1
    for frozen, left in (("weight_ih_l0", of_states), ("weight_hh_l0", 1), ("bias_ih_l0", all_of), ("bias_hh_l0", all_of)):
        reference, module = both(cell)
        for one in (reference, module):
            one.get_parameter(frozen).requires_grad_(False)
        assert products(module, x) == left
        reference(x)[0].sum().backward()
        for name, one in module.named_parameters():
            assert (one.grad is None) == (name == frozen)
            if one.grad is not None:
                assert_alike(one.grad, reference.get_parameter(name).grad)


@on_clusters
def test_where_all_is_frozen_nothing_is_kept() -> None:
    module = both("lstm")[1].requires_grad_(False)
    with OperatorRecorder() as operators:
        assert not module(batch())[0].requires_grad
    assert "pytest_ecornn.persistent_forward.default" in operators.names
    assert not any("keeping" in name for name in operators.names)


@on_clusters
def test_parameters_are_left_where_they_are() -> None:
    module = both("lstm", num_layers=2)[1]
    before = [one.data_ptr() for one in module.parameters()]
    module.flatten_parameters()
    module(batch())
    assert [one.data_ptr() for one in module.parameters()] == before


# Precision.


@on_clusters
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_its_dtype(dtype: torch.dtype) -> None:
    cast, module = both("lstm", dtype)[1], both("lstm")[1]
    with torch.autocast("cpu", dtype=dtype):
        found = module(batch(), states(module, B))
    wanted = cast(batch().to(dtype), tuple(one.to(dtype) for one in states(module, B)))
    assert all(torch.equal(*pair) for pair in zip(tensors(found), tensors(wanted), strict=True))
    for one, parameter in zip(gradients(module, found), module.parameters(), strict=True):
        assert one.dtype == parameter.dtype == torch.float32


@on_clusters
def test_tf32_where_torch_says_so_of_cudnn() -> None:
    module = both("lstm")[1]
    precise = module(batch())[0]
    with fp32_precision("rnn", "tf32"):
        coarse = module(batch())[0]
    assert 1e-6 < (precise - coarse).abs().max() < 1e-2


# What is refused.


def first_and_second(results: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Gradients, and gradients of the squares of all of them."""
    loss = sum((one * one.detach().cos()).sum() for one in results)
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    return [*first, *torch.autograd.grad(sum(one.square().sum() for one in first), inputs)]


def assert_near_double(actual: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4 * float(theirs.detach().abs().max()))


@on_clusters
@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("rnn_tanh", {}),
        ("rnn_relu", {"batch_first": True}),
        ("lstm", {"num_layers": 2, "bidirectional": True}),
        ("lstm", {"bias": False, "batch_first": True}),
        ("gru", {"num_layers": 2, "bidirectional": True}),
    ],
)
@pytest.mark.parametrize("has_lengths", [False, True])
def test_gradients_of_gradients(cell: str, options: dict[str, Any], has_lengths: bool) -> None:
    reference, module = both(cell, **options)
    found = []
    for one in (reference.double(), module):
        dtype = one.weight_hh_l0.dtype
        x = batch().to(dtype)
        given = pack_padded_sequence(x, torch.tensor([3, 5, 1]), enforce_sorted=False) if has_lengths else x
        if options.get("batch_first") and not has_lengths:
            given = x.transpose(0, 1).contiguous()
        leaves = to(dtype, given), to(dtype, states(one, B))
        inputs = [*tensors(leaves[0]), *tensors(leaves[1]), *one.parameters()]
        found.append(first_and_second(tensors(one(*leaves)), inputs))
    assert ran(module) == "persistent_gpu"
    assert_near_double(found[1], found[0])


def of_one_state_twice(module: Any, x: Tensor, h: Tensor) -> Tensor:
    return module(x, (h, h))[0]


def of_a_state_carried_on(module: Any, x: Tensor, h: Tensor) -> Tensor:
    _, state = module(x[:3], (h, h.cos()))
    return module(x[3:], state)[0]


def of_a_state_made_from_x(module: Any, x: Tensor, h: Tensor) -> Tensor:
    return module(x, (h + x.sum() / 9, h.cos()))[0]


@on_clusters
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("call", [of_one_state_twice, of_a_state_carried_on, of_a_state_made_from_x])
def test_gradients_of_gradients_of_inputs_that_depend_on_each_other(call: Callable[..., Tensor], ties: bool) -> None:
    reference, module = both("lstm", num_layers=2)
    found = []
    for one in (reference.double(), module):
        if ties:
            one.weight_hh_l1 = one.weight_hh_l0
        dtype = one.weight_hh_l0.dtype
        x, h = batch().to(dtype).requires_grad_(), torch.linspace(-1, 1, 2 * B * H).view(2, B, H).to(dtype).requires_grad_()
        found.append(first_and_second([call(one, x, h)], [x, h, *one.parameters()]))
    assert_near_double(found[1], found[0])


class Unused(torch.autograd.Function):
    """Has no gradient for its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


@on_clusters
def test_a_graph_where_no_result_has_a_gradient() -> None:
    module, x = both("gru")[1], batch().requires_grad_()
    loss = Unused.apply(module(x)[0]) + x.sum()
    (found,) = torch.autograd.grad(loss, x, create_graph=True)
    assert torch.equal(found, torch.ones_like(x))


@on_clusters
def test_gradients_of_a_graph_are_made_in_float32_under_autocast() -> None:
    module, x = both("lstm")[1], batch().requires_grad_()
    loss = module(x)[0].square().sum()
    (wanted,) = torch.autograd.grad(loss, x, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@on_clusters
def test_gradients_of_gradients_with_one_mask_of_dropout() -> None:
    """The second pass sees the elements that the first one dropped: their gradients' gradients are 0."""
    module = both("gru", num_layers=2, dropout=0.5)[1]
    output, _ = module(batch())
    loss = output.square().sum()
    (of_weight,) = torch.autograd.grad(loss, module.weight_ih_l0, create_graph=True)
    (once_more,) = torch.autograd.grad(loss, module.weight_ih_l0, retain_graph=True)
    torch.testing.assert_close(of_weight, once_more, rtol=1e-4, atol=1e-4)
    assert torch.autograd.grad(of_weight.square().sum(), module.weight_hh_l1)[0].isfinite().all()


def expect_torch(cell: str, reason: str, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    """Where the kernels do not run torch.nn does, and says why; with the kernels' name as the backend the call raises."""
    x = batch().to(dtype)
    reference, module = both(cell, dtype, **options)
    found, wanted = module(x), reference.to(dtype)(x)
    assert all(torch.equal(*pair) for pair in zip(tensors(found), tensors(wanted), strict=True))
    assert re.search(f"^torch: .*{reason}", module.notes())
    module = both(cell, dtype, backend="persistent_gpu", **options)[1]
    with pytest.raises(ValueError, match=reason):
        module(x)


def tangent(module: Any) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        output, _ = module(torch.autograd.forward_ad.make_dual(batch(), batch().cos()))
        direction: Tensor = torch.autograd.forward_ad.unpack_dual(output).tangent
        return direction


def gradient_by_a_transform(module: Any) -> Tensor:
    gradient: Tensor = torch.func.grad(lambda x: module(x)[0].square().sum())(batch())
    return gradient


@on_clusters
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, when its forward mode is first used
@pytest.mark.parametrize(
    ("derivative", "reason"),
    [(tangent, "forward-mode gradient"), (gradient_by_a_transform, "transforms of torch.func")],
)
def test_torch_runs_derivatives_of_other_kinds(derivative: Callable[[Any], Tensor], reason: str) -> None:
    reference, module = both("gru")
    assert torch.equal(derivative(module), derivative(reference))
    assert module.notes() == f"torch: the kernels have no {reason}"


@on_clusters
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("cell", "options", "reason"),
    [
        ("lstm", {"dtype": torch.float64}, r"expected one of torch\.bfloat16, .* got torch\.float64"),
        ("lstm", {"proj_size": 2}, "expected proj_size 0, got 2: the kernels do not project states"),
        ("gru", {}, "on cpu: runs on a CUDA device"),
    ],
)
def test_torch_runs_what_the_kernels_do_not(cell: str, options: Any, reason: str, really_planned: None) -> None:
    expect_torch(cell, reason, **options)


@on_clusters
def test_what_ran_once_is_judged_anew_where_more_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form may fit forward and not backward, in 16 bits and not in 32."""
    asked = []

    def refusal(shape: Shape, spec: KernelSpec) -> str | None:
        asked.append((spec.dtype, spec.saves_for_backward))
        return "too large" if spec.saves_for_backward or spec.dtype == torch.float32 else None

    monkeypatch.setattr(kernel, "unsupported_reason", refusal)
    module = both("lstm", torch.float16)[1].requires_grad_(False)
    notes = []
    for prepare in (lambda: None, lambda: module.requires_grad_(True), lambda: module.requires_grad_(False), module.float):
        prepare()
        module(batch().to(module.weight_hh_l0.dtype))
        notes.append(ran(module))
    assert notes == ["persistent_gpu", "torch: too large", "persistent_gpu", "torch: too large"]
    module.half()
    with torch.no_grad():
        module(batch().half())
        before = len(asked)
        module(batch().half())
    assert (len(asked), ran(module)) == (before, "persistent_gpu")


@on_clusters
@pytest.mark.parametrize("wanted", [contextlib.nullcontext, torch.no_grad])
def test_sizes_that_do_not_fit(wanted: Any, really_planned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "skip_reason", lambda device: None)
    monkeypatch.setattr(kernel.Device, "of", lambda device: Device(132, 100, 16))
    with wanted():
        expect_torch("gru", "H 9 does not fit: the states of 8 sequences must lie in the 100 bytes")


@on_clusters
@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        ((T, B, I, 1), None, "Expected input to be 2D or 3D, got 4D"),
        ((T, B, I + 1), None, r"input.size\(-1\) must be equal to input_size. Expected 4, got 5"),
        ((T, B, I), ((1, B, H), (1, B + 1, H)), r"Expected hidden\[1\] size \(1, 3, 9\), got \[1, 4, 9\]"),
        ((T, B, I), ((1, H), (1, H)), "For batched 3-D input, hx and cx should also be 3-D"),
        ((T, I), ((1, B, H), (1, B, H)), "For unbatched 2-D input, hx and cx should also be 2-D"),
    ],
)
def test_what_torch_nn_refuses_in_its_words(x: Any, hx: Any, message: str) -> None:
    for module in both("lstm"):
        with pytest.raises((RuntimeError, ValueError), match=message):
            module(torch.zeros(x), None if hx is None else tuple(torch.zeros(one) for one in hx))


@on_clusters
@pytest.mark.parametrize(
    ("cell", "x", "states_as", "message"),
    [
        ("gru", torch.half, None, r"RNN input dtype \(torch.float16\) does not match weight dtype"),
        (
            "lstm",
            torch.float,
            torch.half,
            r"expected first_h as \(1, 3, 9\).* of torch.float32 on cpu, got .* of torch.float16 on cpu",
        ),
    ],
)
def test_x_and_states_of_another_dtype_than_the_weights(cell: str, x: torch.dtype, states_as: Any, message: str) -> None:
    module = both(cell)[1]
    with pytest.raises(ValueError, match=message):
        module(batch().to(x), states_as and tuple(one.to(states_as) for one in states(module, B)))


@on_clusters
def test_weights_changed_before_the_backward_pass() -> None:
    module = both("gru")[1]
    loss = module(batch())[0].sum()
    with torch.no_grad():
        module.weight_hh_l0 += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Without kernels.


@pytest.mark.parametrize("cell", MODULES)
def test_a_copy_a_pickle_and_a_checkpoint_are_the_same_module(cell: str) -> None:
    reference, module = both(cell, num_layers=2, bidirectional=True)
    saved = io.BytesIO()
    torch.save(module.state_dict(), saved)
    saved.seek(0)
    reference.load_state_dict(torch.load(saved))
    assert list(reference.state_dict()) == list(module.state_dict())
    for one in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(one) is type(module)
        assert all(torch.equal(*pair) for pair in zip(tensors(one(batch())), tensors(module(batch())), strict=True))
    assert isinstance(module, nn.RNNBase)


def test_arguments_are_torch_nns() -> None:
    assert "num_layers=3" in repr(pytest_ecornn.nn.LSTM(I, H, 3, False, True, 0.1, True))
    assert pytest_ecornn.nn.RNN(I, H, 1, "relu").mode == pytest_ecornn.nn.RNN(I, H, nonlinearity="relu").mode == "RNN_RELU"
    assert "backend" not in repr(pytest_ecornn.nn.GRU(I, H))
    assert repr(pytest_ecornn.nn.GRU(I, H, backend="torch")) == "GRU(4, 9, backend='torch')"
    refused: list[tuple[type[nn.RNNBase], dict[str, Any], str]] = [
        (
            pytest_ecornn.nn.GRU,
            {"backend": "cudnn"},
            "expected backend as one of auto, heuristic, persistent_gpu, fused_cpu, torch, got 'cudnn'",
        ),
        (pytest_ecornn.nn.RNN, {"nonlinearity": "gelu"}, "Unknown nonlinearity 'gelu'"),
        (pytest_ecornn.nn.GRU, {"proj_size": 2}, "proj_size argument is only supported for LSTM"),
        (pytest_ecornn.nn.RNN, {"proj_size": 2}, "proj_size argument is only supported for LSTM"),
    ]
    for module, options, message in refused:
        with pytest.raises(ValueError, match=message):
            module(I, H, **options)


# On a GPU.


@needs_hopper
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("cell", MODULES)
def test_on_a_gpu_packed_sequences(cell: str, dtype: torch.dtype) -> None:
    reference, module = both(cell, dtype, "cuda", num_layers=2, bidirectional=True)
    packed = pack_padded_sequence(batch(), torch.tensor([3, 5, 1]), enforce_sorted=False)
    wanted = reference(packed)
    with fp32_precision("rnn", "ieee"):
        found = module(packed.to("cuda", dtype))
        assert_alike(found, wanted, dtype)
        assert_alike(gradients(module, found), gradients(reference, wanted), dtype)


@needs_hopper
def test_on_a_gpu_a_step_of_training_under_autocast() -> None:
    reference, module = both("lstm", device="cuda", num_layers=2, dropout=0.5)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, _ = module(batch().cuda())
    output.float().square().sum().backward()
    optimizer.step()
    assert output.dtype == torch.bfloat16
    assert all(one.isfinite().all() for one in module.parameters())
    reference.load_state_dict(module.state_dict())
    with fp32_precision("rnn", "ieee"):
        assert_alike(module.eval()(batch().cuda()), reference.eval()(batch()))


@needs_hopper
@pytest.mark.parametrize(
    ("options", "dtype", "reason"),
    [
        ({}, torch.float64, r"got torch\.float64"),
        ({"proj_size": 2}, torch.float32, "expected proj_size 0, got 2"),
        ({"hidden_size": 12288}, torch.float16, "H 12288 does not fit"),
    ],
)
def test_on_a_gpu_torch_runs_what_the_kernels_do_not(options: dict[str, int], dtype: torch.dtype, reason: str) -> None:
    made = {"input_size": I, "hidden_size": H, "device": "cuda", "dtype": dtype} | options
    module, reference = pytest_ecornn.nn.LSTM(**made), nn.LSTM(**made)
    reference.load_state_dict(module.state_dict())
    x = batch().to("cuda", dtype)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        assert_alike(module(x), [one.cpu() for one in tensors(reference(x))], torch.float16)
    assert not caught
    assert re.search(reason, module.notes())
    with pytest.raises(ValueError, match=reason):
        pytest_ecornn.nn.LSTM(**made, backend="persistent_gpu")(x)


@needs_hopper
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by torch's compiler
@pytest.mark.parametrize("cell", MODULES)
def test_on_a_gpu_it_compiles_as_one_graph(cell: str) -> None:
    reference, module = both(cell, torch.float16, "cuda", num_layers=2, backend="persistent_gpu")
    chosen = type(module)(I, H, 2, **MODULES[cell][2], device="cuda", dtype=torch.float16)
    chosen.load_state_dict(reference.state_dict())
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x = batch().to("cuda", torch.float16)
    found, wanted = compiled(x), module(x)
    assert ran(module) == "persistent_gpu"
    assert_alike(torch.compile(chosen, backend="aot_eager", fullgraph=True)(x), reference(batch()), torch.float16)
    assert all(torch.equal(*pair) for pair in zip(tensors(found), tensors(wanted), strict=True))
    assert all(torch.equal(*pair) for pair in zip(gradients(module, found), gradients(module, wanted), strict=True))
