"""scan_gpu_log: its trees fit a block, its kernel is as exact as a loop and says what is not finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.min_cells import POSITIVE_CELLS
from pytest_ecornn.implementations.scan_gpu.ops import CELLS, Shape, scan
from pytest_ecornn.implementations.scan_gpu_log import ScanGpuLog
from pytest_ecornn.implementations.scan_gpu_log.ops import BlellochConfig, log_scan, select_config
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.kernel_forms import H200
from tests.helpers.requirements import needs_gpu, on_simulator
from tests.helpers.scans import given_x, one_channel, scan_in_log_space

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


# The kernel, on a CPU: by one thread a block, which reads only what it wrote itself.


def verdicts(cell: str, steps: int, dtype: str, kind: str) -> list[TensorCheck]:
    case = Case.parse(f"{cell}-T{steps}-B3-H17-{dtype}-batchfirst-state-projected{kind}")
    return Candidate.build("scan_gpu_log", ScanGpuLog, case).verify()


@on_simulator("scans_on_cpu")
@pytest.mark.parametrize("kind", ["", "-saturated", "-near_one", "-large", "-denormal", "-zeros"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [1, 200])
@pytest.mark.parametrize("cell", POSITIVE_CELLS)
def test_it_is_as_exact_as_a_loop(cell: str, steps: int, dtype: str, kind: str) -> None:
    for verdict in verdicts(cell, steps, dtype, kind):
        assert verdict.status == "passed", verdict.message


@on_simulator("scans_on_cpu")
@pytest.mark.parametrize("kind", ["-saturated", "-large"])
@pytest.mark.parametrize("cell", POSITIVE_CELLS)
def test_of_a_large_logarithm_two_numbers_know_more_than_one(cell: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paired = verdicts(cell, 200, "float32", kind)[0].rms
    monkeypatch.setitem(log_scan.__kwdefaults__, "is_compensated", False)
    assert paired < 0.4 * verdicts(cell, 200, "float32", kind)[0].rms


def outputs(x: list[list[float]], first: float = 0.0) -> list[float]:
    """minGRU's, of [z, candidate] pairs, and the final state."""
    found: list[float] = one_channel(scan_in_log_space, "mingru_positive", torch.tensor(x).double(), first).tolist()
    return found


INFINITY, NAN = float("inf"), float("nan")


@on_simulator("ops_on_cpu")
@pytest.mark.parametrize("wrong", [[NAN, 0.0], [0.0, NAN]], ids=["gate", "candidate"])
@pytest.mark.parametrize("place", [0, 3, 7, 8, 20])
def test_a_nan_is_there_from_its_step_on_and_not_before(place: int, wrong: list[float]) -> None:
    x = [[0.5, 1.0]] * 21
    x[place] = wrong
    found = torch.tensor(outputs(x, -0.5))
    assert found[:place].isfinite().all()
    assert found[place:].isnan().all()


@on_simulator("ops_on_cpu")
def test_what_is_infinite_is_what_it_is_in_linear_space() -> None:
    assert outputs([[300.0, 0.0]] * 9, INFINITY) == [INFINITY] * 10  # of which e^-2700 is kept
    assert outputs([[300.0, 0.0]] * 9, -INFINITY) == [-INFINITY] * 10
    assert outputs([[0.0, 1.0], [1.0, INFINITY], [5.0, 1.0]])[1:] == [INFINITY] * 3
    assert outputs([[-INFINITY, 1.0]] * 10, -3.0) == [-3.0] * 11  # nothing is taken
    assert outputs([[INFINITY, 1.5]] * 10, 3.0) == pytest.approx([2.0] * 11, rel=1e-15)  # nothing is kept
    assert outputs([[INFINITY, -INFINITY]] * 10, 3.0) == [0.0] * 11


# On a GPU.


TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@needs_gpu
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("hidden", [3, 64, 4096 + 5], ids=["ragged", "narrow", "wide"])
@pytest.mark.parametrize("cell", POSITIVE_CELLS)
def test_it_says_what_linear_space_says(cell: str, hidden: int, dtype: torch.dtype) -> None:
    x = given_x(cell, 1000, 2, hidden, dtype)
    wanted, final = scan(x.double(), None, None, None, None, cell, True, False)
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
    wanted = scan(x.double(), None, first.double(), None, None, "mingru_positive", True, reverse)
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
@pytest.mark.parametrize(
    "kind", ["", "-saturated", "-near_one", "-large", "-state-infinite", "-training", "-state-training-saturated", "-nan"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", POSITIVE_CELLS)
def test_the_layer_passes_the_rule(cell: str, dtype: str, kind: str) -> None:
    drawn = Case.parse(f"{cell}-T300-B3-H40-{dtype}{kind}")
    case = replace(drawn, input_size=11, layers=2, bidirectional=True, ragged=True, device="cuda")
    for verdict in Candidate.build("scan_gpu_log", ScanGpuLog, case).verify():
        assert verdict.status == "passed", verdict.message


def test_every_cell_with_a_positive_candidate_is_run() -> None:
    assert tuple(name for name, (_, _, is_positive) in CELLS.items() if is_positive) == POSITIVE_CELLS
