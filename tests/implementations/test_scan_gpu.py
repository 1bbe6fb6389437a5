"""scan_gpu: its cut is a function of the shape; what it may write over, and what has no gradient."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Implementation
from pytest_ecornn.implementations._common import input_projection
from pytest_ecornn.implementations._cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations.scan_gpu import ScanGpu
from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu.config import Device, Form, ScanRequirements, TileShape, select_config
from pytest_ecornn.implementations.scan_gpu.ops import ScanSpec, Shape, scan
from pytest_ecornn.implementations.scan_gpu_log import ScanGpuLog
from pytest_ecornn.reference.held_products import held_products
from pytest_ecornn.reference.precision import current, fp32_precision
from pytest_ecornn.verification import calls, verification
from tests.helpers.kernel_forms import H200
from tests.helpers.requirements import needs_gpu, on_simulator
from tests.helpers.scans import Inputs, by_loop, draw, given_x, one_channel
from tests.helpers.simulated_kernels import failures

needs = st.builds(
    ScanRequirements, st.sampled_from((2, 3)), st.sampled_from((torch.float32, torch.float64, torch.bfloat16)), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip


def form(steps: int, batch: int, hidden: int) -> Form:
    return select_config(steps, batch, hidden, ScanRequirements(2, torch.float32, False, False, True), H200)


# The form.


devices = st.builds(Device, st.integers(1, 200), st.sampled_from((64, 100, 164, 228)).map(lambda kib: kib * 1024))


@settings(max_examples=200)
@given(st.integers(1, 10**6), st.integers(1, 100), st.integers(1, 3000), needs, devices)
def test_tiles_cover_all_steps_and_channels_and_groups_all_tiles(
    steps: int, batch: int, hidden: int, need: ScanRequirements, device: Device
) -> None:
    need = need._replace(is_paired=need.is_paired and need.dtype.itemsize == 2)
    found = select_config(steps, batch, hidden, need, device)
    assert found.tiles * found.tile_shape.steps >= steps > (found.tiles - 1) * found.tile_shape.steps
    assert found.channel_blocks * found.tile_shape.channels >= batch * hidden
    assert 4**found.group_bits >= found.tiles
    assert found.launch.block <= 1024
    assert found.splits_time or found.launch.grid == found.channel_blocks
    assert bool(found.words) == found.splits_time
    assert found.tile_shape.resident * need.shared_bytes(found.tile_shape) <= device.shared_bytes
    if need.dtype.itemsize > 2 or need.is_paired:  # what may be copied 16 bytes at a time
        assert found.tile_shape.items_per_thread * found.tile_shape.pack * need.dtype.itemsize % 16 == 0


def test_time_is_split_only_where_channels_are_few_among_blocks_that_run_at_once() -> None:
    assert form(65_536, 1, 64).splits_time
    assert not form(65_536, 8, 1536).splits_time
    assert not form(100, 1, 64).splits_time  # one tile
    found = form(65_536, 1, 256)
    assert found.launch.grid == found.tile_shape.resident * H200.num_sms < found.tiles * found.channel_blocks


@pytest.mark.parametrize(("dtype", "kinds"), [(torch.float16, ["fp16"]), (torch.bfloat16, ["bf16"]), (torch.float64, [])])
def test_long_sums_are_whole_within_and_as_they_were_after(dtype: torch.dtype, kinds: list[str]) -> None:
    names = [f"allow_{kind}_reduced_precision_reduction{end}" for kind in ("fp16", "bf16") for end in ("", "_split_k")]

    def all_of() -> list[Any]:
        return [getattr(torch.backends.cuda.matmul, name, None) for name in names]

    before = all_of()
    changed = [f"allow_{kind}_reduced_precision_reduction" for kind in kinds]
    with held_products(dtype, False):  # a sum may be split all the same: torch refuses cuBLAS a product that may not
        assert all_of() == [on and name not in changed for name, on in zip(names, before, strict=True)]
    assert all_of() == before


# The kernels' arithmetic, on a CPU: of one stretch a tile, so that no thread reads another's.


@on_simulator("ops_on_cpu")
def test_a_reset_forgets_a_nan_in_its_own_stretch() -> None:
    x, resets = given_x("mingru", 11, 1, 1, device="cpu")[0], torch.zeros(1, 11, dtype=torch.uint8)
    x[1, 0], resets[0, 3] = torch.nan, 1
    found = one_channel(scan, "mingru", x, resets=resets)
    assert found[1:3].isnan().all()
    assert found[3:].isfinite().all()


@on_simulator("ops_on_cpu")
def test_a_product_that_underflows_leaves_an_infinite_state_infinite_and_a_finite_one_small() -> None:
    x = torch.tensor([[300.0, 0.0]] * 9, dtype=torch.float64)  # keeps e^-300, four times e^-1200
    assert one_channel(scan, "mingru", x, torch.inf).tolist() == [torch.inf] * 10
    assert abs(one_channel(scan, "mingru", x, 1e300)[-1]) < 1e-20


@on_simulator("ops_on_cpu")
def test_an_infinite_bias_does_not_reach_beyond_the_last_step() -> None:
    x = given_x("mingru", 5, 1, 1, device="cpu")[0]
    found = one_channel(scan, "mingru", x, bias=torch.tensor([torch.inf, 0.0], dtype=torch.float64))
    assert found.tolist() == [*x[:, 1].tolist(), x[-1, 1].item()]


# The ops around the kernels, on a CPU.


def test_time_that_is_split_is_given_cleared_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form(TileShape(1, 32, 4, 1, 1, 2), True, 3, 6, 1, 0)
    found: list[list[int]] = []

    def launch(pointers: list[int]) -> None:
        words = (ctypes.c_int32 * form.words).from_address(pointers[-1])
        found.append([len(pointers), sum(map(bool, words))])
        words[:] = [1] * form.words  # which the next launch is likely to be given

    monkeypatch.setattr(scan_gpu_ops, "_launches", LayoutMemo(lambda how, arrays: (form, launch)))
    shape = Shape("mingru", 23, 3, 5, True, False)
    for _ in range(3):
        scan_gpu_ops._launch(shape, False, torch.zeros(3, 23, 10), bias=None)
    assert found == [[3, 0]] * 3


class SeenBy(TorchDispatchMode):
    """Keeps the precisions in force at each product."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool, bool]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        matmul = torch.backends.cuda.matmul
        reduced = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
        if function is torch.ops.aten.mm.default:
            self.seen.append((current("matmul"), *reduced))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("dtype", "tf32", "held"),
    [
        (torch.float32, False, ("ieee", True, True)),
        (torch.float32, True, ("tf32", True, True)),
        (torch.float16, False, ("tf32", False, True)),
        (torch.bfloat16, False, ("tf32", True, False)),
    ],
)
def test_a_product_has_the_precision_that_was_asked_for(dtype: torch.dtype, tf32: bool, held: tuple[str, bool, bool]) -> None:
    with fp32_precision("matmul", "ieee" if tf32 else "tf32"), SeenBy() as mode:
        input_projection._product(torch.ones(2, 3, dtype=dtype), torch.ones(4, 3, dtype=dtype), tf32)
    assert mode.seen == [held]


def test_a_product_keeps_its_type_under_autocast() -> None:
    a, b = torch.randn(2, 3).requires_grad_(), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = input_projection.input_projection(a, b, False)
        (gradient,) = torch.autograd.grad(found.sum(), a)
    assert found.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(found, a @ b.T, rtol=1e-6, atol=1e-6)


class Spent:
    """A scan of pre-activations that it may overwrite, on a CPU, and its gradients by a loop."""

    def __init__(self) -> None:
        (x, self.bias, self.first), self.masks = draw("mingru", 9, "cpu")
        self.leaf = x.detach().requires_grad_()
        self.x = self.leaf * 1.0
        self.before = self.x.detach().clone()
        self.output, self.final = self.scan(self.x)
        self.weights = torch.randn_like(self.output)
        self.expected, self.expected_final = by_loop(self.leaf, self.bias, self.first, *self.masks, "mingru", False)
        self.wanted = torch.autograd.grad(self.expected, self.inputs, self.weights, retain_graph=True)

    @property
    def inputs(self) -> Inputs:
        return self.leaf, self.bias, self.first

    def scan(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return scan(x, self.bias, self.first, *self.masks, "mingru", True, False, overwrites_x=True)

    def check(self, found: tuple[Tensor, ...], of_one: bool = False) -> None:
        found = tuple(one[0] for one in found) if of_one else found
        torch.testing.assert_close(found, self.wanted, rtol=1e-10, atol=1e-12)

    def check_is_kept(self) -> None:
        assert torch.equal(self.x, self.before)


@on_simulator("ops_on_cpu")
def test_a_gradient_is_written_over_spent_pre_activations_when_the_graph_goes() -> None:
    spent = Spent()
    spent.check(torch.autograd.grad(spent.output, spent.inputs, spent.weights, retain_graph=True))
    spent.check_is_kept()
    spent.check(torch.autograd.grad(spent.output, spent.inputs, spent.weights))
    torch.testing.assert_close(spent.x, spent.wanted[0], rtol=1e-10, atol=1e-12)  # whose gradient is that of the leaf


@on_simulator("ops_on_cpu")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # as vmap runs the op once for each
def test_batched_gradients_are_never_written_over() -> None:
    spent = Spent()
    found = torch.autograd.grad(spent.output, spent.inputs, spent.weights[None], is_grads_batched=True)
    spent.check(found, of_one=True)
    spent.check_is_kept()
    spent = Spent()
    weights = torch.randn_like(spent.final)
    wanted = torch.autograd.grad(spent.expected_final, spent.inputs, weights)
    found = torch.autograd.grad(spent.final, spent.inputs, weights[None], is_grads_batched=True)
    torch.testing.assert_close(tuple(one[0] for one in found), wanted, rtol=1e-10, atol=1e-12)
    spent.check_is_kept()
    spent = Spent()
    spent.check(torch.func.vmap(lambda w: torch.autograd.grad(spent.output, spent.inputs, w))(spent.weights[None]), of_one=True)
    spent.check_is_kept()


class OfAnotherKind(Tensor):
    pass


@on_simulator("ops_on_cpu")
@pytest.mark.parametrize(
    "made",
    [
        lambda leaf: leaf,
        lambda leaf: leaf.view(3 * 9, 10).view(3, 9, 10),
        lambda leaf: (leaf * 1.0).transpose(0, 1).contiguous().transpose(0, 1),
        lambda leaf: (leaf * 1.0).as_subclass(OfAnotherKind),
    ],
    ids=["leaf", "view of a leaf", "strided", "another kind"],
)
def test_what_may_be_more_than_this_scans_is_never_written_over(made: Callable[[Tensor], Tensor]) -> None:
    spent = Spent()
    x = made(spent.leaf)
    output, _ = spent.scan(x)
    spent.check(torch.autograd.grad(output, spent.inputs, spent.weights))
    assert torch.equal(spent.leaf, spent.before)
    assert torch.equal(x.as_subclass(Tensor), spent.before)


@on_simulator("scans_on_cpu")
@pytest.mark.parametrize("projected", [False, True], ids=["product", "projected"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two directions"])
@pytest.mark.parametrize("kind", [ScanGpu, ScanGpuLog])
def test_layers_write_over_their_products_and_nothing_else(
    kind: type[Implementation], projected: bool, bidirectional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spy(d_x: Tensor, x: Tensor, *rest: Any) -> Tensor:
        if d_x is x:
            rows.append(x.shape[0] * x.shape[1])
        return backward(d_x, x, *rest)

    rows, backward = list[int](), scan_gpu_ops._backward_out
    monkeypatch.setattr(scan_gpu_ops, "_backward_out", spy)
    case = Case(
        cell="mingru_positive", steps=5, batch=2, hidden_size=3, input_size=3, layers=2, bidirectional=bidirectional,
        dtype="float64", mode="training", projected=projected,
    )  # fmt: skip
    problem = contents.problem(case)
    layer = kind().build(case, problem.weights)
    found = calls.run(lambda x, *rest: layer(x * 1.0, *rest), problem)  # as from a layer before
    assert failures(verification.ReferenceResult(problem), found, kind().declared) == []
    assert rows == [2 * 5] * case.directions * (1 if projected else 2)


@on_simulator("ops_on_cpu")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor")  # torch's own
def test_tracers_see_no_overwriting() -> None:
    from torch._dynamo import compiled_autograd  # which takes long to import

    spent = Spent()
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        spent.output.backward(spent.weights)
    for leaf, wanted in zip(spent.inputs, spent.wanted, strict=True):
        torch.testing.assert_close(leaf.grad, wanted, rtol=1e-10, atol=1e-12)
    spent.check_is_kept()


@on_simulator("ops_on_cpu")
def test_whoever_else_needs_what_was_overwritten_is_told() -> None:
    spent = Spent()
    x = spent.leaf * 1.0
    others = x.square()
    output, _ = spent.scan(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output.sum() + others.sum(), spent.leaf)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [300, 20_000], ids=["short", "long"])
@pytest.mark.parametrize("hidden", [3, 64, 4096 + 8], ids=["ragged", "narrow", "wide"])
def test_written_over_or_not_a_gradient_is_the_same(hidden: int, steps: int, dtype: torch.dtype) -> None:
    leaf = given_x("minlstm", steps, 2, hidden, dtype).requires_grad_()
    lengths = torch.tensor([steps, steps // 2], device="cuda")
    weights = torch.randn(2, steps, hidden, dtype=dtype, device="cuda")
    found = []
    for overwrites_x in (False, True):
        x = leaf * 1.0
        output, _ = scan(x, None, None, lengths, None, "minlstm", True, False, overwrites_x)
        found.append(torch.autograd.grad(output, leaf, weights)[0])
        assert torch.equal(x, found[-1]) == overwrites_x
    assert torch.equal(*found)


@on_simulator("ops_on_cpu")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, at its first forward-mode gradient
def test_forward_mode_gradients_are_refused_rather_than_lost() -> None:
    x, weight = torch.ones(2, 3, 4).double(), torch.ones(4, 4).double()
    calls: tuple[Callable[[Tensor], Any], ...] = (
        lambda x: scan(x, None, None, None, None, "mingru", True, False),
        lambda x: input_projection.gate_products(x, weight, False),
    )
    for call in calls:
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode gradient"):
            call(forward_ad.make_dual(x, x))
        with forward_ad.dual_level():
            call(x)
        with pytest.raises(NotImplementedError, match="no forward-mode gradient"):
            torch.func.jvp(call, (x,), (x,))
        torch.func.jvp(lambda y, call=call: (y, call(x)), (x,), (x,))  # of what has no tangent
    leaf = x.clone().requires_grad_()
    output, _ = scan(leaf, None, None, None, None, "mingru", True, False)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="scan_backward has no forward-mode"):
        torch.autograd.grad(output, leaf, forward_ad.make_dual(torch.ones_like(output), torch.ones_like(output)))


@on_simulator("ops_on_cpu")
def test_a_gradient_of_a_gradient_is_refused_rather_than_wrong() -> None:
    x, weight = (torch.ones(*sizes).double().requires_grad_() for sizes in ((2, 3, 4), (4, 4)))
    gates = input_projection.gate_products(x, weight, False)
    output, _ = scan(gates, None, None, None, None, "mingru", True, False)
    (of_x,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="pytest_ecornn::scan_forward is differentiable once"):
        of_x.sum().backward()


# On a GPU.


@needs_gpu
def test_a_reset_forgets_what_is_not_finite() -> None:
    x = given_x("mingru", 300, 1, 2)
    x[0, 7, 2:] = float("inf")
    resets = torch.zeros(1, 300, dtype=torch.uint8, device="cuda")
    resets[0, 200] = 1
    output, _ = scan(x, None, None, None, resets, "mingru", True, False)
    assert output[0, 7:200].isinf().all()
    assert output[0, 200:].isfinite().all()


@needs_gpu
@pytest.mark.parametrize("used", [0, 1], ids=["output", "final state"])
def test_what_has_no_gradient_has_one_of_zeros(used: int) -> None:
    inputs, masks = draw("mingru", 23, "cuda")
    both = scan(*inputs, *masks, "mingru", True, False), by_loop(*inputs, *masks, "mingru", False)
    found, wanted = (torch.autograd.grad(results[used].sin().sum(), inputs) for results in both)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_to_scan_is_refused(sizes: tuple[int, int, int]) -> None:
    shape = Shape.of(torch.empty(sizes), "mingru", False, False)
    with pytest.raises(ValueError, match="expected T, B and H of at least 1, got"):
        scan_gpu_ops.make_plan(shape, ScanSpec(torch.float32, torch.device("cuda", 0), 4, False, False, False))


def test_a_shape_is_read_from_x() -> None:
    x = torch.empty(5, 7, 6, device="meta")
    assert Shape.of(x, "minlstm", False, True) == Shape("minlstm", 5, 7, 2, False, True)
