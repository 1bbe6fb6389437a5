"""scan_gpu's errors, bandwidth and peers: everything but the measuring itself, which takes a GPU; peers are made up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.contract import MODES, Case, Declared, Implementation, Weights, cells
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common import bars, item_rows, launches
from pytest_ecornn.suites.published.scan_kernel_parts import scan_bandwidth, scan_errors, scan_layer, scan_peers
from pytest_ecornn.suites.published.scan_kernel_parts.scan_judge import LongScanVerifier, sampled, states
from pytest_ecornn.suites.published.scan_kernel_parts.scan_peers import BCT, BTD, OURS, Variant
from pytest_ecornn.verification.calls import run
from pytest_ecornn.verification.verification import expected
from tests.helpers.studies import Off, cells_of, event

pytestmark = pytest.mark.usefixtures("fake_clock")
SCANS = ("mingru", "mingru_positive", "minlstm", "minlstm_positive")


# The reference in two levels of time, and the judgement by it.


@pytest.mark.parametrize("cell", SCANS)
@pytest.mark.parametrize("steps", [1, 2, 17, 100])
def test_two_levels_of_time_are_the_equations(cell: str, steps: int) -> None:
    case = Case(cell=cell, steps=steps, batch=2, hidden_size=3, batch_first=True, projected=True)
    x = torch.randn(2, steps, 3 * len(cells.get(cell).gates), dtype=torch.float64, requires_grad=True)
    given = torch.randn(2, steps, 3, dtype=torch.float64)
    output, found = cells.reference(case, {}, x, None, None)[0], states(x, cell)
    torch.testing.assert_close(found, output, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad(one, x, given)[0] for one in (found, output)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-13)


def test_two_levels_of_time_stay_finite_where_products_underflow() -> None:
    x = torch.full((1, 2000, 2), 30.0, dtype=torch.float64)  # each step forgets all but 1e-13
    torch.testing.assert_close(states(x, "mingru")[0, -1, 0].item(), 30.0)


def test_a_sample_is_of_the_same_channels_of_every_gate() -> None:
    x = torch.arange(12.0).view(1, 1, 12)  # two gates of 6 channels
    assert sampled(x, torch.tensor([1, 4]), hidden=6).flatten().tolist() == [1, 4, 7, 10]


EXACT = Declared("float32")
LONG = Case(cell="minlstm", steps=40, batch=1, hidden_size=2, batch_first=True, projected=True)


@pytest.mark.parametrize(("kind", "statuses"), [(ReferenceLoop, {"passed"}), (Off, {"passed", "failed"})])
def test_a_scan_is_judged_by_a_plain_loop(kind: type[Implementation], statuses: set[str]) -> None:
    problem = expected(LONG).problem
    judge = LongScanVerifier(problem, "cpu", EXACT)
    tensors = run(kind().build(LONG, problem.weights), problem)
    comparisons = judge.compare(tensors, "cpu")
    assert {one.status for one in comparisons} == statuses
    assert [one.tensor for one in comparisons] == ["output", "final h"]
    assert (judge.largest_error(tensors) > 1e-6) == ("failed" in statuses)


@pytest.mark.parametrize("change", [{"projected": False}, {"batch_first": False}, {"has_state": True}, {"ragged": True}])
def test_other_cases_have_no_such_judge(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected one projected layer, batch first"):
        LongScanVerifier(expected(replace(LONG, steps=3, **change)).problem, "cpu", EXACT)


# Bars.


@pytest.mark.parametrize(
    ("target", "ratio", "holds"),
    [
        (bars.MinTarget(15), Ratio(15.5, 15, 16), "yes"), (bars.MinTarget(15), Ratio(15.5, 14, 16), "unclear"),
        (bars.MinTarget(15), Ratio(14, 13, 14.9), "no"), (bars.MaxTarget(1.0), (0.9, 0.8, 1.0), "yes"),
        (bars.MaxTarget(1.0), (1.0, 0.9, 1.1), "unclear"), (bars.MaxTarget(1.0), (1.2, 1.1, 1.3), "no"),
    ],
)  # fmt: skip
def test_a_bar_holds_where_the_whole_interval_reaches_it(
    target: Any, ratio: Ratio | tuple[float, float, float], holds: str
) -> None:
    assert target.is_met(ratio) == holds
    assert (str(bars.MinTarget(1 / 1.3)), str(bars.MaxTarget(1.95))) == ("at least 0.769", "at most 1.95")


# Errors.


def broken(x: Tensor) -> Tensor:
    raise RuntimeError("no kernel image\nis available")


def test_errors_are_relative_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(x: Tensor) -> Tensor:
        exact = states(x, scan_errors.CELL)
        exact[0, 0, 0] += 0.01 * exact.max()
        return exact

    scans: dict[str, Callable[[Tensor], Tensor]] = {
        "exact": lambda x: states(x, scan_errors.CELL),
        "off": off,
        "infinite": lambda x: states(x, scan_errors.CELL) / 0,
        "broken": broken,
    }
    monkeypatch.setattr(scan_errors, "SCANS", scans)
    monkeypatch.setattr(scan_errors, "STEPS", (4, 64))
    rows = list(scan_errors.measure(time.monotonic() + 100, "cpu"))
    assert len(rows) == 8
    assert {row.found["exact"].maximum for row in rows} == {0.0}
    assert [row.found["off"].maximum for row in rows] == [pytest.approx(0.01)] * 8
    assert rows[0].found["infinite"].reason == "1,024 of 1,024 elements are not finite"
    text = scan_errors.render(rows)
    first = cells_of(text, "float32")[0]
    assert first[1:7] == ["normal", "4", "0", "0", "1.0e-02", first[6]]
    assert first[-2:] == ["RuntimeError: no kernel image", "-"]
    assert [row[:3] for row in cells_of(text, "bfloat16")][-1] == ["bfloat16", "near_one", "64"]
    assert list(scan_errors.figures(rows)) == ["scan_errors_float32.svg", "scan_errors_bfloat16.svg"]


def test_errors_say_what_this_version_or_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_errors, "STEPS", (4,))
    (row, *_) = scan_errors.measure(time.monotonic() + 100, "cpu")
    assert list(row.found) == ["linear", "log", "log by torch"]
    assert row.found["linear"].reason or torch.cuda.is_available()
    assert scan_errors.render([]).startswith("## Errors")


# Beside a copy.


def fake_ops(share: float = 1.0) -> tuple[scan_bandwidth.Forward, scan_bandwidth.Forward]:
    """scan_gpu's, by the reference; the backward's result times `share`."""

    def forward(x: Tensor, bias: None, first: None, *how: Any) -> tuple[Tensor, Tensor]:
        output = states(x, how[2]).to(x.dtype)
        return output, output[:, -1]

    def backward(x: Tensor, bias: None, first: None, output: Tensor, d_output: Tensor, d_final: Tensor, *how: Any) -> Any:
        wide = x.double().requires_grad_()
        with torch.enable_grad():
            given = torch.autograd.grad(states(wide, how[2]), wide, d_output.double())
        return (given[0] * share).to(x.dtype), d_final

    return forward, backward


COPIED = scan_bandwidth.Shape("minlstm", 2, 9, 5, "float32", False, None)


def test_the_fewest_bytes_are_counted_each_way_and_every_shape_of_a_bar_is_measured() -> None:
    found = [str(shape) for shape in scan_bandwidth.shapes() if shape.bar]
    assert len(found) == len(set(found)) == 2 + 2 + 3 * 4
    assert COPIED.bytes == (3 + 1) * 2 * 9 * 5 * 4
    assert replace(COPIED, is_backward=True, dtype="bfloat16").bytes == (2 * 3 + 2) * 2 * 9 * 5 * 2


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("cell", ["mingru", "minlstm"])
def test_a_scan_that_is_timed_is_right(cell: str, is_backward: bool) -> None:
    shape = replace(COPIED, cell=cell, is_backward=is_backward)
    made = scan_bandwidth.Scan(shape, "cpu", *fake_ops())
    with torch.no_grad():
        made.run()
        assert made.error() < 1e-6
    if is_backward:
        wrong = scan_bandwidth.Scan(shape, "cpu", *fake_ops(1.01))
        wrong.run()
        assert wrong.error() == pytest.approx(0.01, rel=1e-3)


def test_a_copy_moves_as_many_bytes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_bandwidth, "_PIECE_BYTES", 16)
    sizes: list[int] = []
    copy_into = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda self, other: [sizes.append(other.nbytes), copy_into(self, other)])
    scan_bandwidth.make_copy(80, "cpu")()
    assert sizes == [16, 16, 8]


@pytest.mark.parametrize("share", [1.0, 1.01])
def test_only_scans_that_are_right_when_replayed_have_a_share(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(COPIED, is_backward=True)
    monkeypatch.setattr(scan_bandwidth, "_ops", lambda: fake_ops(share))
    monkeypatch.setattr(scan_bandwidth, "Replay", lambda call: call)
    monkeypatch.setattr(scan_bandwidth, "shapes", lambda: [shape])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=shape.bytes))
    (row,) = scan_bandwidth.measure(time.monotonic() + 100, "cpu")
    assert row.share == (Ratio(1.0, 1.0, 1.0) if share == 1 else None)
    assert row.reason == ("" if share == 1 else "wrong: error 1.0e-02")


# The whole layer.


def whole_layer(training: bool) -> scan_layer.LayerWithProjections:
    case = Case(cell="mingru", steps=6, batch=2, hidden_size=4, batch_first=True, projected=True)
    return scan_layer.LayerWithProjections(ReferenceLoop().build(case, Weights({})), (2, 6, 4), training, "cpu")


@pytest.mark.parametrize("training", [False, True])
def test_outputs_at_once_and_step_by_step_are_the_same(training: bool) -> None:
    whole = whole_layer(training)
    assert whole.difference() < 1e-5
    found = whole.call("one product")
    assert [tuple(one.shape) for one in found] == [(2, 6, 4), (2, 6, 4), (8, 4), (4, 4)][: 4 if training else 1]


def test_a_projection_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scan_layer.PROJECTIONS, "a product a step", lambda states, weight: states @ weight)
    assert whole_layer(training=False).difference() > scan_layer._LIMIT


def test_a_layer_is_profiled_with_either_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Tensor, ...]] = []
    events = [event("kernel", "scan_forward", 0, 4), event("kernel", "sgemm", 4, 6)]
    monkeypatch.setattr(launches, "profiled", lambda call: made.append(call()) or events)
    monkeypatch.setattr(scan_layer, "IMPLEMENTATION", "scan_cpu")
    monkeypatch.setattr(scan_layer, "STEPS", 5)
    rows = list(scan_layer.measure(time.monotonic() + 100, "cpu"))
    assert [row.label for row in rows] == [f"{mode}, {name}" for mode in MODES for name in scan_layer.PROJECTIONS]
    assert [len(one) for one in made] == [1, 1, 4, 4]
    assert {(row.found.scan_us, row.found.product_us) for row in rows if row.found} == {(4.0, 6.0)}


# Beside peers.


PEERS = scan_peers.Shape("mingru", 2, 30, 40, "float32")


def state_of(x: Tensor) -> Tensor:
    return states(x, PEERS.cell).to(x.dtype)


def transposed(x: Tensor) -> Tensor:
    """[B, G*H, T] -> [B, H, T]."""
    return state_of(x.transpose(1, 2)).transpose(1, 2)


OWN, TRANSPOSED = Variant(OURS, BTD, state_of), Variant("transposed", BCT, transposed)


def judged(*ways: Variant) -> scan_peers.Row:
    return scan_peers._row(PEERS, ways, deadline=0.0, device="cpu")


def test_peers_are_judged_and_timed_each_in_its_layout() -> None:
    ways = [
        OWN,
        TRANSPOSED,
        Variant("off", BTD, lambda x: state_of(x) * 1.001),
        Variant("spends wrongly", BTD, state_of, overwriting_call=lambda x: state_of(x) * 1.001),
        Variant("broken", BTD, broken),
        Variant("absent", BTD, reason="absent from this version"),
        Variant("compiled", BTD, state_of, is_compiled=True),
    ]
    row = judged(*ways)
    assert list(row.figures) == [way.name for way in ways]
    right = row.figures["transposed"]
    assert right.is_right
    assert right.error < 1e-6
    assert right.over_ours[scan_peers.CALLED] == Ratio(1.0, 1.0, 1.0)
    assert right.not_replayed  # there is no GPU to replay on
    assert row.figures["off"].is_right is False
    assert row.figures["spends wrongly"].is_right is False
    assert row.figures["off"].error == pytest.approx(1e-3, rel=0.1)
    reasons = [row.figures[name].reason for name in ("broken", "absent", "compiled")]
    assert reasons == ["RuntimeError: no kernel image", "absent from this version", item_rows.NOT_REACHED]


def test_peers_are_replayed_in_pairs_and_the_hosts_time_stands_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = SimpleNamespace(warm_up=lambda call: call(), capture=lambda call: (SimpleNamespace(replay=call), call()))
    monkeypatch.setattr(scan_peers, "GraphCapture", lambda device: eager)
    monkeypatch.setattr(scan_peers.clocks, "for_device", lambda device: SimpleNamespace(host_us=lambda calls: 7.0 * len(calls)))
    row = judged(OWN, TRANSPOSED)
    assert {name: one.not_replayed for name, one in row.figures.items()} == {OURS: "", "transposed": ""}
    assert row.figures[OURS].time_us[scan_peers.REPLAYED]
    assert row.figures["transposed"].over_ours[scan_peers.REPLAYED] == Ratio(1.0, 1.0, 1.0)
    assert "graph replay | 1.00" in (text := scan_peers.render([row]))
    assert {one.host_us for one in row.figures.values()} == {6300.0}  # of 900 calls, a block
    assert cells_of(text, "transposed")[0][3] == "6,300"


def test_memory_is_of_calls_that_may_spend_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, bool]] = []

    def noted(name: str) -> Callable[[Tensor], Tensor]:
        return lambda x: given.append((name, x.is_leaf)) or state_of(x)

    def peak_bytes(call: Callable[[], Any], device: str) -> int:
        given.clear()
        output, gradient = call()
        assert output.shape == (2, 30, 40)
        assert gradient.shape == (2, 30, 80)
        return 1000 * len(peaks.setdefault(given[0][0], given.copy()))

    peaks: dict[str, list[tuple[str, bool]]] = {}
    monkeypatch.setattr(scan_peers.memory, "peak_bytes", peak_bytes)
    row = judged(Variant(OURS, BTD, noted("kept"), overwriting_call=noted("spent")), Variant("peer", BTD, noted("peer")))
    assert peaks == {"spent": [("spent", False)], "peer": [("peer", False)]}
    assert row.figures[OURS].peak_bytes == 1000


def test_scan_gpu_spends_only_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        scan_peers, "import_optional", lambda module, name: lambda *arguments: given.append(arguments[-1]) or arguments
    )
    way = scan_peers.ours("mingru")
    assert way.call is not None
    assert way.overwriting_call is not None
    way.call(torch.zeros(1))
    way.overwriting_call(torch.zeros(1))
    assert given == [False, True]


def test_without_scan_gpu_peers_have_times_without_ratios() -> None:
    row = judged(Variant(OURS, BTD, reason="absent"), Variant("peer", BTD, state_of))
    peer = row.figures["peer"]
    assert peer.time_us[scan_peers.CALLED]
    assert (peer.over_ours, peer.not_replayed) == ({}, "there is no scan_gpu to compare with")
    assert cells_of(scan_peers.render([row]), "peer")[0][2] == "-"


def test_long_peers_have_an_error_without_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_peers, "_LONGEST_JUDGED", 20)
    ours = judged(OWN).figures[OURS]
    assert ours.is_right is None
    assert 0 < ours.error < 1e-6


def test_every_kernel_of_a_peer_is_a_way_eager_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One package has two kernels, the other is absent."""
    calls: list[tuple[Any, ...]] = []

    class Parts:
        def __init__(self, layout: str):
            self._layout = layout

        def __call__(self, x: Tensor, first: None, cell: str, kernel: str, bias: None) -> None:
            calls.append((self._layout, first, cell, kernel, bias))

        def compiled(self) -> Any:
            return Parts(f"compiled {self._layout}")

    def fetched(module: str, name: str) -> Any:
        if module.endswith("_linear_attention"):
            raise item_rows.Unavailable("absent from this version")
        return ("warp", "triton") if name == "KERNELS" else Parts(name)

    monkeypatch.setattr(scan_peers, "import_optional", fetched)
    ways = list(scan_peers.peers("minlstm"))
    names = [f"accelerated-scan {kernel}, {layout}" for layout in (BTD, BCT) for kernel in ("warp", "triton")]
    assert [way.name for way in ways] == [
        *names, f"flash-linear-attention, {BTD}", *(f"{name}, compiled" for name in names)
    ]  # fmt: skip
    assert [way.is_compiled for way in ways] == [False] * 5 + [True] * 4
    assert ways[4].reason == "absent from this version"
    for way in ways[:4] + ways[5:]:
        assert way.call is not None
        way.call(torch.zeros(1))
    layouts = ("BTD", "BCT", "compiled BTD", "compiled BCT")
    assert calls == [(layout, None, "minlstm", kernel, None) for layout in layouts for kernel in ("warp", "triton")]


def figures(
    layout: str, time_us: float, peak: int, is_right: bool | None = True, ours_us: float = 100.0
) -> scan_peers.VariantResult:
    ratio = Ratio(time_us / ours_us, 0.99 * time_us / ours_us, 1.01 * time_us / ours_us)
    of_each = {scan_peers.CALLED: ratio}
    return scan_peers.VariantResult(layout, "", 1e-7, is_right, peak, {scan_peers.CALLED: (time_us,) * 3}, of_each)


def peers_row(steps: int, **peers: scan_peers.VariantResult) -> scan_peers.Row:
    own = replace(figures(BTD, 100.0, 1000), over_ours={})
    return scan_peers.Row(replace(PEERS, steps=steps), {OURS: own, **peers})


def test_bars_are_of_the_best_peer_that_is_right() -> None:
    rows = [
        peers_row(
            1, a=figures(BTD, 300, 9000), b=figures(BTD, 400, 3000), c=figures(BCT, 150, 4000), d=figures(BTD, 50, 1, False)
        ),
        peers_row(2, a=figures(BTD, 900, 9000), c=figures(BCT, 600, 5000, None)),
    ]
    text = scan_peers.render(rows)
    called = f"best {BTD} peer's time over scan_gpu's, as called"
    assert cells_of(text, called) == [[called, "3.00 [2.97, 3.03]", rows[0].label, "at least 2.5", "yes"]]
    (_, ratio, where, bar, holds) = cells_of(text, f"best {BCT} peer's time over scan_gpu's, as called")[0]
    assert (ratio, where, bar, holds) == ("1.50 [1.49, 1.51]", rows[0].label, "at least 1.6", "no")
    assert cells_of(text, "the same, geometric mean of 2")[0][1:] == ["3.00 [2.97, 3.03]", "-", "at least 2", "yes"]
    assert cells_of(text, "thriftiest peer's peak memory over scan_gpu's")[0][1] == "3.00"
    assert cells_of(text, "d")[0][-1] == "**1.0e-07**"
    assert "replay" not in text.partition("### Bars")[2]


def test_no_bar_is_of_a_scan_gpu_that_is_wrong() -> None:
    row = peers_row(1, a=figures(BTD, 300, 9000))
    wrong = scan_peers.Row(row.shape, {**row.figures, OURS: replace(row.figures[OURS], is_right=False)})
    assert scan_peers.best_ratio(row, BTD, scan_peers.CALLED) == Ratio(3.0, 2.97, 3.03)
    assert scan_peers.best_ratio(wrong, BTD, scan_peers.CALLED) is None
    assert scan_peers.memory_ratio(wrong) is None
    assert "### Bars" not in scan_peers.render([wrong])


def test_what_is_absent_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(item_rows.Unavailable, match="absent from this version"):
        item_rows.import_optional("no_such_module", "scan")
    monkeypatch.setattr(item_rows.importlib, "import_module", lambda path: __import__("no_such_package"))
    with pytest.raises(item_rows.Unavailable, match="cannot be imported: No module named 'no_such_package'"):
        item_rows.import_optional("scan_gpu", "scan")
