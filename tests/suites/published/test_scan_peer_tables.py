"""scan_gpu beside its peers: everything but the measuring itself, which takes a GPU; peers are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common import item_rows
from pytest_ecornn.suites.published.scan_parts import peer_times, peer_ways, scan_peer_tables, scan_peers
from pytest_ecornn.suites.published.scan_parts.peer_ways import BCT, BTD, OURS, Variant
from pytest_ecornn.suites.published.scan_parts.scan_judge import states
from tests.helpers.studies import cells_of, fake_clock

LATE = "not reached in the time allowed"


PEERS = scan_peers.Shape("mingru", 2, 30, 40, "float32")


def state_of(x: Tensor) -> Tensor:
    return states(x, PEERS.cell).to(x.dtype)


def transposed(x: Tensor) -> Tensor:
    """[B, G*H, T] -> [B, H, T]."""
    return state_of(x.transpose(1, 2)).transpose(1, 2)


def broken(x: Tensor) -> Tensor:
    raise RuntimeError("no kernel image")


def test_peers_are_judged_and_timed_each_in_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch)
    ways = [
        Variant(OURS, BTD, state_of),
        Variant("transposed", BCT, transposed),
        Variant("off", BTD, lambda x: state_of(x) * 1.001),
        Variant("spends wrongly", BTD, state_of, overwriting_call=lambda x: state_of(x) * 1.001),
        Variant("broken", BTD, broken),
        Variant("absent", BTD, reason="absent from this version"),
        Variant("compiled", BTD, state_of, is_compiled=True),
    ]
    row = scan_peers._row(PEERS, ways, deadline=0.0, device="cpu")
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
    assert reasons == ["RuntimeError: no kernel image", "absent from this version", LATE]


class FakeCapturing:
    """Graphs that call again."""

    def __init__(self, device: str):
        pass

    def warm_up(self, call: Callable[[], Any]) -> None:
        call()

    def capture(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        return SimpleNamespace(replay=call), call()


def test_peers_are_replayed_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch)
    monkeypatch.setattr(peer_times, "GraphCapture", FakeCapturing)
    row = scan_peers._row(PEERS, [Variant(OURS, BTD, state_of), Variant("transposed", BCT, transposed)], 0.0, "cpu")
    assert {name: one.not_replayed for name, one in row.figures.items()} == {OURS: "", "transposed": ""}
    assert row.figures[OURS].time_us[scan_peers.REPLAYED]
    assert row.figures["transposed"].over_ours[scan_peers.REPLAYED] == Ratio(1.0, 1.0, 1.0)
    assert "graph replay | 1.00" in scan_peer_tables.render([row])


def test_memory_is_of_calls_that_may_spend_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch)
    given: list[tuple[str, bool]] = []

    def noted(name: str) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            given.append((name, x.is_leaf))
            return state_of(x)

        return call

    def peak_bytes(call: Callable[[], Any], device: str) -> int:
        given.clear()
        output, gradient = call()
        assert output.shape == (2, 30, 40)
        assert gradient.shape == (2, 30, 80)
        return 1000 * len(peaks.setdefault(given[0][0], given.copy()))

    peaks: dict[str, list[tuple[str, bool]]] = {}
    monkeypatch.setattr(scan_peers.memory, "peak_bytes", peak_bytes)
    ways = [Variant(OURS, BTD, noted("kept"), overwriting_call=noted("spent")), Variant("peer", BTD, noted("peer"))]
    row = scan_peers._row(PEERS, ways, 0.0, "cpu")
    assert peaks == {"spent": [("spent", False)], "peer": [("peer", False)]}
    assert row.figures[OURS].peak_bytes == 1000


def test_the_hosts_time_stands_beside_that_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch)
    clock = SimpleNamespace(host_us=lambda calls: 7.0 * len(calls))
    monkeypatch.setattr(peer_times.clocks, "for_device", lambda device: clock)
    row = scan_peers._row(PEERS, [Variant(OURS, BTD, state_of), Variant("transposed", BCT, transposed)], 0.0, "cpu")
    assert {one.host_us for one in row.figures.values()} == {6300.0}  # of 900 calls, a block
    assert cells_of(scan_peer_tables.render([row]), "transposed")[0][3] == "6,300"


def test_a_peak_stands_over_the_least_that_anybody_can_hold() -> None:
    row = peers_row(10, a=figures(BTD, 300, 3 * 10 * 2 * 40 * 3 * 4))  # values: steps, sequences, channels; G + 1 of four bytes
    assert cells_of(scan_peer_tables.render([row]), "a")[0][-2] == "3.00"


def test_scan_gpu_spends_only_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        peer_ways, "import_optional", lambda module, name: lambda *arguments: given.append(arguments[-1]) or arguments
    )
    way = peer_ways.ours("mingru")
    assert way.call is not None
    assert way.overwriting_call is not None
    way.call(torch.zeros(1))
    way.overwriting_call(torch.zeros(1))
    assert given == [False, True]


def test_without_scan_gpu_peers_have_times_without_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch)
    row = scan_peers._row(PEERS, [Variant(OURS, BTD, reason="absent"), Variant("peer", BTD, state_of)], 0.0, "cpu")
    assert row.figures["peer"].time_us[scan_peers.CALLED]
    assert not row.figures["peer"].over_ours
    assert row.figures["peer"].not_replayed == "there is no scan_gpu to compare with"
    assert cells_of(scan_peer_tables.render([row]), "peer")[0][2] == "-"


def test_long_peers_have_an_error_without_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch)
    monkeypatch.setattr(scan_peers, "_LONGEST_JUDGED", 20)
    row = scan_peers._row(PEERS, [Variant(OURS, BTD, state_of)], 0.0, "cpu")
    assert row.figures[OURS].is_right is None
    assert 0 < row.figures[OURS].error < 1e-6


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """One package with two kernels, the other absent; its calls."""
    calls: list[tuple[Any, ...]] = []

    class Parts:
        def __init__(self, layout: str):
            self._layout = layout

        def __call__(self, x: Tensor, first: None, cell: str, kernel: str, bias: None) -> Tensor:
            calls.append((self._layout, first, cell, kernel, bias))
            return x

        def compiled(self) -> Any:
            return Parts(f"compiled {self._layout}")

    found: dict[str, Any] = {"BTD": Parts("BTD"), "BCT": Parts("BCT"), "KERNELS": ("warp", "triton")}

    def fetched(module: str, name: str) -> Any:
        if module.endswith("_linear_attention"):
            raise item_rows.Unavailable("absent from this version")
        return found[name]

    monkeypatch.setattr(peer_ways, "import_optional", fetched)
    return calls


def test_every_kernel_of_a_peer_is_a_way_eager_and_compiled(adapters: list[tuple[Any, ...]]) -> None:
    ways = list(peer_ways.peers("minlstm"))
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
    assert adapters == [(layout, None, "minlstm", kernel, None) for layout in layouts for kernel in ("warp", "triton")]


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
    text = scan_peer_tables.render(rows)
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
    assert scan_peer_tables.best_ratio(row, BTD, scan_peers.CALLED) == Ratio(3.0, 2.97, 3.03)
    assert scan_peer_tables.best_ratio(wrong, BTD, scan_peers.CALLED) is None
    assert scan_peer_tables.memory_ratio(wrong) is None
    assert "### Bars" not in scan_peer_tables.render([wrong])
