"""scan_gpu_log: its trees fit a block, its kernel is as exact as a loop and says what is not finite, and its op is torch's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._cuda.rows import shape_of
from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu.ops import CELLS, Shape
from pytest_ecornn.implementations.scan_gpu_log import ScanGpuLog
from pytest_ecornn.implementations.scan_gpu_log import ops as scan_gpu_log_ops
from pytest_ecornn.implementations.scan_gpu_log.ops import BlellochConfig, log_scan, make_kernel, select_config
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.kernel_forms import H200
from tests.helpers.requirements import needs_gpu, on_simulator
from tests.helpers.scans import OPS, by_loop, given_x
from tests.simulator.kernels_on_cpu import ONE_THREAD

POSITIVE = ("mingru_positive", "minlstm_positive")


# The tree.


@settings(max_examples=200)
@given(st.integers(1, 100), st.integers(1, 3000), st.sampled_from((torch.float64, torch.float32, torch.bfloat16)))
def test_blocks_cover_all_channels_and_a_tree_fits_static_shared_memory(batch: int, hidden: int, dtype: torch.dtype) -> None:
    shape = Shape("mingru_positive", 100, batch, hidden, True, False)
    tree = select_config(shape, dtype, H200.num_sms)
    assert tree.steps.bit_count() == 1
    assert (tree.launch(shape).grid // batch) * tree.threads_per_row >= hidden
    assert (tree.steps + 1) * tree.threads_per_row * 4 * max(4, dtype.itemsize) <= 48 * 1024
    assert tree.launch(shape).block % tree.threads_per_row == 0


def test_trees_are_narrow_and_long_only_where_channels_are_few() -> None:
    few, many = (Shape("mingru_positive", 4096, 8, hidden, True, False) for hidden in (64, 1536))
    assert select_config(few, torch.float32, H200.num_sms) == BlellochConfig(8, 256)
    assert select_config(many, torch.float32, H200.num_sms) == BlellochConfig(32, 64)


def test_a_candidate_that_may_be_negative_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected one of mingru_positive, minlstm_positive, got mingru"):
        log_scan(torch.empty(5, 7, 6, device="meta"), None, None, "mingru", True, False)


def test_shapes_are_known_without_running() -> None:
    output, final = log_scan(torch.empty(5, 7, 6, device="meta"), None, None, "mingru_positive", True, False)
    assert output.shape == (5, 7, 3)
    assert final.shape == (5, 3)
    output, final = log_scan(torch.empty(5, 7, 6, device="meta"), None, None, "minlstm_positive", False, True)
    assert output.shape == (5, 7, 2)
    assert final.shape == (7, 2)


def test_gradients_are_of_all_that_is_given() -> None:
    x, bias, first = (torch.empty(shape, device="meta", requires_grad=True) for shape in ((5, 7, 6), (6,), (5, 3)))
    outputs = log_scan(x, first, None, "mingru_positive", True, False, bias=bias)
    found = torch.autograd.grad([one.sum() for one in outputs], (x, bias, first))
    assert [one.shape for one in found] == [x.shape, bias.shape, first.shape]


# The kernel, on a CPU: by one thread a block, which reads only what it wrote itself.


def on_cpu(
    x: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, shape: Shape, is_compensated: bool = True
) -> tuple[Tensor, Tensor]:
    output, final = x.new_full(shape_of(shape, shape.hidden), torch.nan), x.new_full(shape.state, torch.nan)
    kernel = make_kernel(shape, x.dtype, x.device, ONE_THREAD, is_compensated)
    arrays = {"x": x, "bias": bias, "h0": first, "output": output, "h_n": final, "lengths": lengths}
    kernel(ONE_THREAD.launch(shape), **arrays, **scan_gpu_log_ops.integers(shape, arrays))
    return output, final


Inputs = tuple[Tensor, Tensor, Tensor]


def draw(cell: str, steps: int, batch: int, device: str) -> tuple[Inputs, Tensor]:
    """x, bias and first state of 5 channels, of either sign; lengths, the first of them all steps, the last one."""
    x = given_x(cell, steps, batch, 5, device=device)
    bias, first = torch.randn(x.shape[-1], device=device).double(), torch.randn(batch, 5, device=device).double()
    lengths = torch.randint(1, steps + 1, (batch,), device=device)
    lengths[0], lengths[-1] = steps, 1
    return (x.requires_grad_(), bias.requires_grad_(), first.requires_grad_()), lengths


def expected(inputs: Inputs, lengths: Tensor, cell: str, reverse: bool) -> tuple[Tensor, Tensor]:
    resets = torch.zeros(inputs[0].shape[:2], dtype=torch.uint8, device=lengths.device)
    return by_loop(*inputs, lengths, resets, cell, reverse)


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("is_compensated", [True, False], ids=["two numbers", "one number"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 43])
@pytest.mark.parametrize("cell", POSITIVE)
def test_the_kernel_computes_what_a_loop_does(cell: str, steps: int, reverse: bool, is_compensated: bool) -> None:
    inputs, lengths = draw(cell, steps, 3, "cpu")
    wanted = expected(inputs, lengths, cell, reverse)
    shape = Shape.of(inputs[0], cell, True, reverse)
    got = on_cpu(*inputs, lengths, shape, is_compensated)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)
    x, bias, first = inputs
    got = on_cpu(x.transpose(0, 1), bias, first, lengths, shape._replace(batch_first=False), is_compensated)
    torch.testing.assert_close((got[0].transpose(0, 1), got[1]), wanted, rtol=1e-12, atol=1e-13)


@on_simulator("ops_on_cpu")
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_repeated_calls_read_and_write_their_own_arrays(batch_first: bool) -> None:
    (x, bias, first), lengths = draw("minlstm_positive", 9, 3, "cpu")
    wide = torch.cat([x, x * 2], -1)[..., : x.shape[-1]]
    for values, reverse in ((x, False), (x + 1, False), (x + 1, True), (wide, False), (x - 1, False)):
        wanted = expected((values, bias, first), lengths, "minlstm_positive", reverse)
        given = values if batch_first else values.transpose(0, 1)
        output, final = log_scan(given, first, lengths, "minlstm_positive", batch_first, reverse, bias=bias)
        found = (output if batch_first else output.transpose(0, 1)), final
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)


class LogOnCpu(Implementation):
    """The kernel as an implementation, to be judged by the tolerance rule."""

    carry = "float32"
    is_compensated = True

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return None

    def build(self, case: Case, weights: Weights) -> Layer:
        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
        ) -> tuple[Tensor, cells.GateTensors]:
            shape = Shape.of(x, case.cell, case.batch_first, reverse)
            output, final = on_cpu(x, None, state[0] if state else None, None, shape, self.is_compensated)
            return output, (final,)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            return run_layers(case, x, state, run_layer)

        return layer

    def cost(self, case: Case) -> Cost:
        return Cost(0, 0)


class PlainLogOnCpu(LogOnCpu):
    is_compensated = False


def verdicts(make: type[Implementation], cell: str, steps: int, dtype: str, kind: str) -> list[TensorCheck]:
    case = f"{cell}-T{steps}-B3-H17-{dtype}-batchfirst-state-projected{kind}"
    return Candidate.build("scan_gpu_log", make, Case.parse(case)).verify()


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("kind", ["", "-saturated", "-near_one", "-large", "-denormal", "-zeros"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 200])
@pytest.mark.parametrize("cell", POSITIVE)
def test_it_is_as_exact_as_a_loop(cell: str, steps: int, dtype: str, kind: str) -> None:
    for verdict in verdicts(LogOnCpu, cell, steps, dtype, kind):
        assert verdict.status == "passed", verdict.message


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("kind", ["-saturated", "-large"])
@pytest.mark.parametrize("cell", POSITIVE)
def test_of_a_large_logarithm_two_numbers_know_more_than_one(cell: str, kind: str) -> None:
    paired, plain = (verdicts(make, cell, 200, "float32", kind)[0].rms for make in (LogOnCpu, PlainLogOnCpu))
    assert paired < 0.4 * plain


def one_channel(x: list[list[float]], first: float = 0.0) -> list[float]:
    """minGRU's outputs of [z, candidate] pairs."""
    given = torch.tensor([x], dtype=torch.float64)
    state = torch.full((1, 1), first, dtype=torch.float64)
    shape = Shape.of(given, "mingru_positive", True, False)
    output, _ = on_cpu(given, None, state, None, shape)
    found: list[float] = output.flatten().tolist()
    return found


INFINITY, NAN = float("inf"), float("nan")


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("wrong", [[NAN, 0.0], [0.0, NAN]], ids=["gate", "candidate"])
@pytest.mark.parametrize("place", [0, 3, 7, 8, 20])
def test_a_nan_is_there_from_its_step_on_and_not_before(place: int, wrong: list[float]) -> None:
    x = [[0.5, 1.0]] * 21
    x[place] = wrong
    found = torch.tensor(one_channel(x, -0.5))
    assert found[:place].isfinite().all()
    assert found[place:].isnan().all()


@on_simulator("kernels_on_cpu")
def test_what_is_infinite_is_what_it_is_in_linear_space() -> None:
    assert one_channel([[300.0, 0.0]] * 9, INFINITY) == [INFINITY] * 9  # of which e^-2700 is kept
    assert one_channel([[300.0, 0.0]] * 9, -INFINITY) == [-INFINITY] * 9
    assert one_channel([[0.0, 1.0], [1.0, INFINITY], [5.0, 1.0]])[1:] == [INFINITY] * 2
    assert one_channel([[-INFINITY, 1.0]] * 10, -3.0) == [-3.0] * 10  # nothing is taken
    assert one_channel([[INFINITY, 1.5]] * 10, 3.0) == pytest.approx([2.0] * 10, rel=1e-15)  # nothing is kept
    assert one_channel([[INFINITY, -INFINITY]] * 10, 3.0) == [0.0] * 10


# On a GPU.


@needs_gpu
@pytest.mark.parametrize("batch", [3, 200], ids=["narrow", "wide"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("cell", POSITIVE)
@pytest.mark.parametrize("steps", [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1031])
def test_lengths_bias_state_and_all_gradients_at_every_edge_of_a_tile(cell: str, steps: int, reverse: bool, batch: int) -> None:
    inputs, lengths = draw(cell, steps, batch, "cuda")
    x, bias, first = inputs
    wanted = expected(inputs, lengths, cell, reverse)
    got = log_scan(x, first, lengths, cell, True, reverse, bias=bias)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)
    weights = [torch.randn_like(one) for one in wanted]
    found, gradients = (torch.autograd.grad(outputs, inputs, weights) for outputs in (got, wanted))
    torch.testing.assert_close(found, gradients, rtol=1e-9, atol=1e-11)


TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@needs_gpu
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("hidden", [3, 64, 4096 + 5], ids=["ragged", "narrow", "wide"])
@pytest.mark.parametrize("cell", POSITIVE)
def test_it_says_what_linear_space_says(cell: str, hidden: int, dtype: torch.dtype) -> None:
    x = given_x(cell, 1000, 2, hidden, dtype)
    wanted, final = scan_gpu_ops.scan(x.double(), None, None, None, None, cell, True, False)
    for is_compensated in {True, dtype.itemsize > 2}:
        got = log_scan(x, None, None, cell, True, False, is_compensated=is_compensated)
        torch.testing.assert_close(got, (wanted.to(dtype), final.to(dtype)), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@needs_gpu
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("bias", [0.0, -9.0], ids=["forgets", "remembers"])
def test_a_long_sequence(dtype: torch.dtype, bias: float, reverse: bool) -> None:
    x = given_x("mingru_positive", 65_537, 2, 33, dtype)
    x[..., :33] += bias
    first = torch.randn(2, 33, dtype=dtype, device="cuda")
    wanted = scan_gpu_ops.scan(x.double(), None, first.double(), None, None, "mingru_positive", True, reverse)
    got = log_scan(x, first, None, "mingru_positive", True, reverse)
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close([one.double() for one in got], list(wanted), rtol=tolerance, atol=tolerance)


@needs_gpu
def test_a_nan_stays_in_its_channel_and_reaches_all_later_steps() -> None:
    x = given_x("minlstm_positive", 700, 2, 40, torch.float32)
    x[1, 300, 7] = NAN
    output, final = log_scan(x, None, None, "minlstm_positive", True, False)
    wanted = torch.zeros(2, 700, 40, dtype=torch.bool, device="cuda")
    wanted[1, 300:, 7] = True
    assert torch.equal(output.isnan(), wanted)
    assert torch.equal(final.isnan(), wanted[:, -1])


@needs_gpu
def test_a_captured_call_is_right_on_new_contents() -> None:
    x, other = given_x("mingru_positive", 300, 2, 40, torch.float32), torch.randn(2, 300, 80, device="cuda")
    expected = [log_scan(one, None, None, "mingru_positive", True, False) for one in (x, other)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = log_scan(x, None, None, "mingru_positive", True, False)
    for wanted, contents in zip(expected, (x.clone(), other), strict=True):
        x.copy_(contents)
        graph.replay()
        torch.testing.assert_close(captured, wanted, rtol=0, atol=0)


@needs_gpu
def test_the_op_is_what_torch_asks_of_ops() -> None:
    x = torch.randn(4, 9, 12, device="cuda", requires_grad=True)
    bias, first = torch.randn(12, device="cuda", requires_grad=True), torch.randn(4, 6, device="cuda", requires_grad=True)
    lengths = torch.tensor([9, 1, 5, 2], device="cuda")
    given: tuple[Any, ...] = (x, bias, first, lengths, "mingru_positive", True, False, True, False)
    outcome = torch.library.opcheck(OPS.scan_log_forward.default, given)
    assert set(outcome.values()) == {"SUCCESS"}, outcome


@needs_gpu
@pytest.mark.parametrize(
    "kind", ["", "-saturated", "-near_one", "-large", "-state-infinite", "-training", "-state-training-saturated", "-nan"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", POSITIVE)
def test_the_layer_passes_the_rule(cell: str, dtype: str, kind: str) -> None:
    drawn = Case.parse(f"{cell}-T300-B3-H40-{dtype}{kind}")
    case = replace(drawn, input_size=11, layers=2, bidirectional=True, ragged=True, device="cuda")
    for verdict in Candidate.build("scan_gpu_log", ScanGpuLog, case).verify():
        assert verdict.status == "passed", verdict.message


def test_every_cell_with_a_positive_candidate_is_run() -> None:
    assert tuple(name for name, (_, _, is_positive) in CELLS.items() if is_positive) == POSITIVE
