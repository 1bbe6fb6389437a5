"""scan_cpu: its exponential, its plan, and what minGRU and minLSTM must do for any content, layout, direction and cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._cpu import threads
from pytest_ecornn.implementations.scan_cpu import ScanCpu, compiled_scan
from pytest_ecornn.implementations.scan_cpu.compiled_scan import Plan, Scan, make_plan
from pytest_ecornn.implementations.scan_cpu.ops import scan
from pytest_ecornn.verification.verification import Candidate, failure_message

GATES = {"mingru": 2, "mingru_positive": 2, "minlstm": 3, "minlstm_positive": 3}
JUDGED = (
    "mingru-T20-B3-H37-float32-batchfirst-projected-training",
    "mingru_positive-T19-B5-H64-float32-ragged-state-projected-training",
    "minlstm-T18-B2-H96-float32-bidirectional-batchfirst-ragged-state-projected-training-strided",
    "minlstm_positive-T17-B4-H1-float32-bidirectional-state-projected-training-offset",
    "mingru-T9-B3-I20-H33-L3-float32-bidirectional-batchfirst-ragged-state-training",
    "minlstm-T12-B2-I7-H16-L2-float32-nobias-state-training",
    "mingru_positive-T17-B3-H65-float64-bidirectional-batchfirst-ragged-state-projected-training",
    "mingru-T20-B3-H64-bfloat16-bidirectional-batchfirst-ragged-state-projected-training",
    "mingru-T12-B3-I40-H33-L2-bfloat16-state-training",
    "minlstm-T20-B2-H31-float16-bidirectional-batchfirst-ragged-state-projected-training",
    "mingru-T1-B1-H1-float32-projected",
    "minlstm-T20-B2-H32-float32-state-projected-training-saturated",
    "mingru-T20-B2-H32-float32-state-projected-training-near_one",
    "minlstm_positive-T20-B2-H32-float32-state-projected-training-large",
    "mingru_positive-T20-B2-H32-float32-state-projected-training-denormal",
    "mingru-T20-B3-H37-float32-batchfirst-bidirectional-ragged-resets-state-projected-training",
    "minlstm_positive-T20-B4-I6-H33-L2-bfloat16-resets-state-training",
    "minlstm-T20-B3-H32-float32-resets-state-projected-infinite",
    "mingru-T20-B3-H32-float32-projected-nan",
    "minlstm-T20-B3-H32-float32-state-projected-infinite",
)


def of(cell: str, dtype: torch.dtype = torch.float32, tiling: Plan | None = None, **given: Any) -> Scan:
    """A scan, time first and forward unless `given` says otherwise."""
    options = {"pre": dtype, "batch_first": False, "reverse": False, "threads": 2, "tiling": tiling or Plan(1024, 1)} | given
    return Scan(cell=cell, dtype=dtype, **options)


def gates_of(cell: str, steps: int, batch: int, hidden: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(steps, batch, GATES[cell] * hidden).to(dtype)


def with_gradients(
    how: Scan, x: Tensor, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None = None
) -> list[Tensor]:
    """Output, final state and the gradients of x and of the initial state under random loss weights of seed 1."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, first) if tensor is not None]
    output, final = scan(how, leaves[0], leaves[1] if first is not None else None, lengths, resets)
    random = torch.Generator().manual_seed(1)
    weights = [torch.randn(tensor.shape, generator=random).to(tensor.dtype) for tensor in (output, final)]
    return [output.detach(), final.detach(), *torch.autograd.grad((output, final), leaves, weights)]


@pytest.fixture(scope="module")
def exponential() -> Any:
    import numba

    from pytest_ecornn.implementations._cpu.exponential import exp as own

    return numba.vectorize(["float32(float32)", "float64(float64)"])(lambda x: own(x))


@pytest.mark.parametrize(("dtype", "lowest"), [(np.float32, -87.0), (np.float64, -708.0)])
def test_exponential_is_right_to_an_ulp(exponential: Any, dtype: Any, lowest: float) -> None:
    x = np.concatenate([np.linspace(lowest, 0, 100_001), np.linspace(-1, 0, 100_001), -np.logspace(-40, 0, 999)]).astype(dtype)
    wanted = np.exp(x.astype(np.longdouble))
    error = np.abs(exponential(x) - wanted) / wanted / np.finfo(dtype).eps
    assert error.max() < 1, f"{error.max()} eps at {x[error.argmax()]}"


@pytest.mark.parametrize(("dtype", "tiny"), [(np.float32, -100.0), (np.float64, -740.0)])
def test_exponential_underflows_gradually_and_keeps_nan(exponential: Any, dtype: Any, tiny: float) -> None:
    payload = np.array([0x7FC00155], np.uint32).view(np.float32).astype(dtype)[0]
    with np.errstate(all="ignore"):
        below, zero, nan, other = exponential(np.array([tiny, -np.inf, np.nan, payload], dtype))
    assert below == pytest.approx(float(np.exp(np.longdouble(tiny))), abs=float(np.finfo(dtype).smallest_subnormal))
    assert below > 0
    assert zero == 0
    assert np.isnan(nan)
    assert np.isnan(other)


@pytest.mark.parametrize("threads", [1, 2, 8, 64])
@pytest.mark.parametrize("batch", [1, 3, 8, 100])
@pytest.mark.parametrize("channels", [1, 37, 64, 256, 5000])
def test_plan_covers_the_channels_and_cuts_time_only_for_idle_threads(threads: int, batch: int, channels: int) -> None:
    tile, chunks = make_plan(65536, batch, channels, threads)
    tasks = batch * -(-channels // tile)
    assert 1 <= tile <= min(channels, 1024)
    assert tile == channels or tile % 32 == 0
    assert chunks == 1 or 3 <= chunks <= threads // tasks
    assert chunks == 1 or tile <= 32, "channels are left that could have been cut"


def test_plan_cuts_time_where_one_channel_meets_many_threads_and_never_for_two() -> None:
    assert {make_plan(65536, batch, channels, 2).chunks for batch in (1, 2, 5) for channels in (1, 16, 33, 512)} == {1}
    assert make_plan(65536, 1, 16, 64) == Plan(16, 64)
    assert make_plan(300, 1, 16, 64) == Plan(16, 4)
    assert make_plan(100, 1, 16, 64) == Plan(16, 1)


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.test_all(keep=2)
def test_agrees_with_the_reference(name: str) -> None:
    case = Case.parse(name)
    assert failure_message("scan_cpu", case, Candidate.build("scan_cpu", ScanCpu, case).verify()) == ""


@pytest.mark.parametrize("share", [0.0, 0.1], ids=["plain", "resets"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["mingru", "minlstm"])
def test_run_in_chunks_equals_whole_run(cell: str, reverse: bool, share: float) -> None:
    x, first, lengths = gates_of(cell, 43, 3, 70), torch.randn(3, 70), torch.tensor([43, 1, 20])
    resets = torch.rand(43, 3) < share if share else None
    whole = with_gradients(of(cell, reverse=reverse), x, first, lengths, resets)
    for cut in (Plan(32, 5), Plan(64, 43), Plan(1024, 4)):
        parts = with_gradients(of(cell, reverse=reverse, tiling=cut), x, first, lengths, resets)
        torch.testing.assert_close(parts, whole, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_nothing_passes_a_reset_in_another_chunk(reverse: bool) -> None:
    x, first, resets = gates_of("mingru", 40, 2, 3), torch.full((2, 3), torch.inf), torch.zeros(40, 2, dtype=torch.bool)
    resets[17, 0] = True
    before, after = (slice(18, None), slice(18)) if reverse else (slice(17), slice(17, None))
    output, final, _ = of("mingru", tiling=Plan(3, 5), reverse=reverse).forward(x, first, None, resets)
    assert output[before].isinf().all()
    assert output[after, 0].isfinite().all()
    assert output[after, 1].isinf().all()
    assert final[0].isfinite().all()
    d_first = with_gradients(of("mingru", tiling=Plan(3, 5), reverse=reverse), x, torch.randn(2, 3), None, resets)[-1]
    resets[0 if not reverse else -1, 1] = True
    dropped = with_gradients(of("mingru", tiling=Plan(3, 5), reverse=reverse), x, torch.randn(2, 3), None, resets)[-1]
    assert (d_first[1] != 0).all()
    assert torch.equal(dropped[1], torch.zeros(3))


def test_run_in_chunks_keeps_an_infinite_state() -> None:
    x = gates_of("mingru", 400, 1, 4)
    x[:, :, :4] = 3.0  # each step keeps a twentieth: a chunk's product underflows
    output, final, _ = of("mingru", tiling=Plan(4, 4)).forward(x[:40], torch.full((1, 4), torch.inf), None)
    assert output.isinf().all()
    assert final.isinf().all()
    _, final, _ = of("mingru", tiling=Plan(4, 4)).forward(x, torch.full((1, 4), torch.inf), None)
    assert not final.isnan().any()


@pytest.mark.parametrize("cell", GATES)
def test_split_run_equals_whole_run(cell: str) -> None:
    x, first, how = gates_of(cell, 50, 2, 40), torch.randn(2, 40), of(cell)
    output, final, _ = how.forward(x, first, None)
    head, middle, _ = how.forward(x[:17], first, None)
    tail, end, _ = how.forward(x[17:], middle, None)
    assert torch.equal(torch.cat([head, tail]), output)
    assert torch.equal(end, final)


def test_tiles_threads_layouts_and_strides_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, first = gates_of("minlstm", 40, 6, 200), torch.randn(6, 200)
    plain = with_gradients(of("minlstm", threads=1), x, first, None)
    wide = torch.full((41, 7, 700), torch.nan)
    wide[1:, 1:, 3:603] = x
    columns = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    for tiling, gates in ((Plan(32, 1), x), (None, x), (None, wide[1:, 1:, 3:603]), (None, columns)):
        torch.testing.assert_close(with_gradients(of("minlstm", tiling=tiling), gates, first, None), plain, rtol=0, atol=0)
    swapped, final, _ = of("minlstm", batch_first=True).forward(x.transpose(0, 1).contiguous(), first, None)
    torch.testing.assert_close([swapped.transpose(0, 1), final], plain[:2], rtol=0, atol=0)
    monkeypatch.setattr(threads, "openmp", lambda: None)
    torch.testing.assert_close(with_gradients(of("minlstm"), x, first, None), plain, rtol=0, atol=0)


@pytest.mark.parametrize("hidden", [256, 240, 37])
def test_large_outputs_that_pass_the_caches_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, hidden: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        how = of({torch.float64: "mingru_positive", torch.float16: "minlstm"}.get(dtype, "mingru"), dtype)
        x = gates_of(how.cell, 9, 2, hidden, dtype)
        monkeypatch.setattr(compiled_scan, "_STREAMED_BYTES", 2**60)
        plain = with_gradients(how, x, None, None)
        monkeypatch.setattr(compiled_scan, "_STREAMED_BYTES", 0)
        torch.testing.assert_close(with_gradients(how, x, None, None), plain, rtol=0, atol=0)


def test_long_sequence_in_float32_stays_close_to_float64() -> None:
    x = torch.randn(65536, 1, 2 * 20)
    x[..., :20] -= 3  # keeps near one
    narrow, end, _ = of("mingru_positive").forward(x, None, None)
    wide, wide_end, _ = of("mingru_positive", torch.float64).forward(x.double(), None, None)
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(end.double(), wide_end, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("f", "i"), [(-100.0, -90.0), (-90.0, -100.0), (-1000.0, -1001.0), (100.0, -5.0), (80.0, 90.0), (-3e38, 3e38)]
)
def test_minlstm_keeps_the_ratio_of_gates_that_underflow(f: float, i: float) -> None:
    keep = torch.nn.functional.logsigmoid(torch.tensor(f).double()) - torch.nn.functional.logsigmoid(torch.tensor(i).double())
    wanted = torch.stack([keep.sigmoid(), (-keep).sigmoid()])
    for candidate, initial, share in ((0.0, 1.0, wanted[0]), (1.0, 0.0, wanted[1])):
        output, _, _ = of("minlstm").forward(torch.tensor([[[f, i, candidate]]]), torch.tensor([[initial]]), None)
        torch.testing.assert_close(output.double().squeeze(), share, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("cell", GATES)
def test_no_finite_or_infinite_gate_makes_nan(cell: str) -> None:
    values = torch.tensor(
        [0.0, -0.0, 1e-45, 1e-39, 1.0, -1.0, 87.4, -87.4, 104, -104, 1e4, -1e4, 3e38, -3e38, torch.inf, -torch.inf]
    )
    gates = torch.cartesian_prod(values, values)  # every pair of gates; minGRU takes the first of each
    parts = [*gates.T[: GATES[cell] - 1], torch.linspace(-1, 1, len(gates))]
    x = torch.cat(parts).expand(3, 1, -1)
    for tensor in with_gradients(of(cell), x, torch.ones(1, len(gates)), None):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("cell", GATES)
def test_nan_stays_in_its_channel_from_its_step_on(cell: str) -> None:
    for gate in range(GATES[cell]):
        x = gates_of(cell, 20, 2, 33)
        x[7, 1, gate * 33 + 5] = torch.nan
        output, final, _ = of(cell).forward(x, None, None)
        wanted = torch.zeros(20, 2, 33, dtype=torch.bool)
        wanted[7:, 1, 5] = True
        assert torch.equal(output.isnan(), wanted)
        assert torch.equal(final.isnan(), wanted[-1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_is_neither_read_nor_left_unwritten(batch_first: bool, reverse: bool) -> None:
    lengths = torch.tensor([5, 11, 1])
    late = torch.arange(11)[:, None] >= lengths
    x = gates_of("mingru", 11, 3, 18)
    spoilt = torch.where(late[..., None], torch.nan, x)
    if batch_first:
        x, spoilt, late = (t.transpose(0, 1).contiguous() for t in (x, spoilt, late))
    how = of("mingru", batch_first=batch_first, reverse=reverse)
    clean, dirty = (with_gradients(how, given, None, lengths) for given in (x, spoilt))
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
    assert (clean[0][late] == 0).all()
    assert (clean[2][late] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_outputs_are_rounded_as_torch_rounds(dtype: torch.dtype) -> None:
    values = torch.cat(
        [torch.randn(5000) * 10.0 ** torch.randint(-9, 9, (5000,)), torch.tensor([torch.inf, torch.nan, 65520.0, 1e-8, 0.0])]
    )
    values = torch.cat([values, torch.arange(0, 2, 2**-13)])  # ties
    x = torch.cat([torch.full_like(values, 200.0), values])[None, None]  # an update gate that takes everything
    output, _, _ = of("mingru", dtype, pre=torch.float32).forward(x, None, None)
    torch.testing.assert_close(output[0, 0], values.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_gradients_may_be_missing_or_expanded() -> None:
    x, first = gates_of("mingru", 9, 2, 16).requires_grad_(), torch.randn(2, 16).requires_grad_()
    full = torch.autograd.grad(scan(of("mingru"), x, first, None)[0], (x, first), torch.ones(9, 2, 16))
    summed = torch.autograd.grad(scan(of("mingru"), x, first, None)[0].sum(), (x, first))
    torch.testing.assert_close(summed, full, rtol=0, atol=0)
    output, final = scan(of("mingru"), x, first, None)
    by_final = torch.autograd.grad(final.sum(), (x, first), retain_graph=True)
    by_output = torch.autograd.grad(output[-1].sum(), (x, first))
    torch.testing.assert_close(by_output, by_final, rtol=0, atol=0)


def test_nothing_is_saved_without_gradients() -> None:
    x = gates_of("mingru", 4, 2, 8).requires_grad_()
    with torch.no_grad():
        output, final = scan(of("mingru"), x, None, None)
    assert output.grad_fn is None
    assert final.grad_fn is None


def test_notes_tell_threads_and_cut() -> None:
    case = Case.parse("mingru-T5-B2-H8-float32-projected")
    own = ScanCpu()
    own.build(case, contents.make_weights(case))
    assert "thread" in own.notes()
    assert "tile 8, 1 chunk" in own.notes()


def test_cost_counts_each_array_once() -> None:
    case = Case.parse("mingru-T4096-B8-H256-float32-batchfirst-projected")
    assert ScanCpu().cost(case).bytes == 3 * 4096 * 8 * 256 * 4
    assert ScanCpu().cost(replace(case, mode="training")).bytes > 2 * ScanCpu().cost(case).bytes
