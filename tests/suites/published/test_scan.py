"""The published scans measured again: everything but the measuring itself, which takes a GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Implementation, Layer, Weights, cells
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.suites.published import scan
from pytest_ecornn.suites.published.common import bars, item_rows, verified
from pytest_ecornn.suites.published.common.parted import Section
from pytest_ecornn.suites.published.scan_parts import (
    scan_bandwidth,
    scan_errors,
    scan_judge,
    scan_peers,
    scan_times,
)
from pytest_ecornn.suites.published.scan_parts.scan_judge import LongScanVerifier, sampled, states
from pytest_ecornn.verification.verification import Candidate, expected
from tests.helpers.studies import cells_of

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


class Off(ReferenceLoop):
    """The loop, its output a little off."""

    def build(self, case: Case, weights: Weights) -> Layer:
        layer = super().build(case, weights)
        return lambda *given: (layer(*given)[0] * 1.00001, layer(*given)[1])


LONG = Case(cell="minlstm", steps=40, batch=1, hidden_size=2, batch_first=True, projected=True)


@pytest.mark.parametrize(("kind", "statuses"), [(ReferenceLoop, {"passed"}), (Off, {"passed", "failed"})])
@pytest.mark.parametrize("is_long", [False, True])
def test_long_cases_are_judged_by_a_plain_loop(
    kind: type[Implementation], statuses: set[str], is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, asked = Candidate.verify, list[Candidate]()
    monkeypatch.setattr(Candidate, "verify", lambda candidate: [asked.append(candidate), verify(candidate)][1])
    monkeypatch.setattr(scan_judge, "MAX_HARNESS_STEPS", 39 if is_long else 40)
    judge = LongScanVerifier(expected(LONG).problem, "cpu")
    _, comparisons = judge.build(ImplementationInfo("one", kind, Path("one")), LONG)
    assert len(asked) == (kind is Off and not is_long)
    assert {one.status for one in comparisons} == statuses
    assert [one.tensor for one in comparisons] == ["output", "final h"]


@pytest.mark.parametrize("change", [{"projected": False}, {"batch_first": False}, {"has_state": True}, {"ragged": True}])
def test_other_cases_have_no_such_judge(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected one projected layer, batch first"):
        LongScanVerifier(expected(replace(LONG, steps=3, **change)).problem, "cpu")


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


# Times.


def times_row(cell: str, steps: int) -> scan_times.Row:
    """scan_cpu 30 times as long as scan_gpu."""
    samples = {"scan_cpu": [3e3] * 8, "scan_gpu": [100.0] * 8}
    reasons = {"sequential": "-", "scan_gpu_log": "absent from this version", "scan_torch": verified.WRONG}
    return scan_times.row(cell, steps, samples, reasons)


def test_times_are_of_what_is_right_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, type[Implementation]] = {"sequential": ReferenceLoop, "scan_cpu": ReferenceLoop, "scan_gpu": Off}
    monkeypatch.setattr(
        verified, "_found", lambda: {name: ImplementationInfo(name, kind, Path(name)) for name, kind in kinds.items()}
    )
    monkeypatch.setattr(scan_times, "_SECONDS", 0.01)
    mingru, minlstm = scan_times.measure(time.monotonic() + 100, "cpu", steps=[5])
    assert (mingru.label, minlstm.label) == ("mingru, 5 steps", "minlstm, 5 steps")
    assert mingru.cells["sequential"].time_ms
    assert mingru.cells["scan_gpu"].reason == verified.WRONG
    assert mingru.cells["scan_torch"].reason == "absent from this version"
    assert mingru.cpu_over_gpu is None


# Errors.


def test_errors_are_relative_to_float64() -> None:
    def off(x: Tensor) -> Tensor:
        exact = states(x, scan_errors.CELL)
        exact[0, 0, 0] += 0.01 * exact.max()
        return exact

    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("no kernel image\nis available")

    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "exact": lambda x: states(x, scan_errors.CELL),
        "off": off,
        "infinite": lambda x: states(x, scan_errors.CELL) / 0,
        "broken": broken,
    }
    rows = list(scan_errors.measure(time.monotonic() + 100, "cpu", ways, steps=[4, 64]))
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


def test_errors_say_what_this_version_or_machine_lacks() -> None:
    (row, *_) = scan_errors.measure(time.monotonic() + 100, "cpu", steps=[4])
    assert list(row.found) == ["linear", "log", "log by torch"]
    assert row.found["linear"].reason or torch.cuda.is_available()
    assert scan_errors.render([]).startswith("## Errors")


# All parts.


@pytest.mark.parametrize("module", [scan_times, scan_bandwidth, scan_peers])
def test_a_row_that_fails_says_why_and_the_others_go_on(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(module, "_row", fail)
    rows = list(module.measure(time.monotonic() + 100))
    assert len(rows) > 1
    assert all("RuntimeError: CUDA error: out of memory" in str(row) for row in rows)


def test_what_a_part_leaves_of_its_time_is_the_next_ones() -> None:
    found = scan.PLAN.deadlines(100.0, 60.0, ["peers", "errors"])
    assert found == {"errors": pytest.approx(106.0), "peers": pytest.approx(160.0)}
    assert list(scan.PLAN.deadlines(0.0, 1.0, list(scan.PLAN.parts))) == list(scan.PLAN.parts)


def fake_part(rows: Sequence[Any], error: Exception | None = None) -> Section:
    def measure(deadline: float) -> Iterator[Any]:
        yield from rows
        if error:
            raise error

    return Section(measure, lambda rows: f"{len(rows)} rows, the last {rows[-1].label}", 0.5)


def test_a_part_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    rows = [times_row("mingru", 256), times_row("minlstm", 256)]
    parts = {
        "errors": fake_part(rows[:1], RuntimeError("no memory | left")),
        "times": replace(scan.PLAN.parts["times"], measure=lambda deadline: iter(rows)),
    }
    replace(scan.PLAN, parts=parts).run(tmp_path / "new", 5.0, list(parts))
    text = (tmp_path / "new/scan.md").read_text()
    assert text.index("![scan_times_minlstm.svg]") < text.index("1 rows, the last mingru, 256 steps")
    assert "The part on errors ended early: RuntimeError: no memory &#124; left." in text
    assert "(scan_times_minlstm.svg)" in text
    ElementTree.parse(tmp_path / "new/scan_times_minlstm.svg")
    written = json.loads((tmp_path / "new/scan.json").read_text())
    assert written["schema_version"] == scan.PLAN.schema_version
    assert written["rows"]["times"][1]["cpu_over_gpu"]["ratio"] == pytest.approx(30)
    assert written["ended"] == {"errors": "RuntimeError: no memory | left"}


def test_a_part_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        scan.main(["--output", str(tmp_path / "new"), "--parts", "speed"])
    assert "invalid choice: 'speed'" in capsys.readouterr().err


def test_what_is_absent_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(item_rows.Unavailable, match="absent from this version"):
        item_rows.import_optional("no_such_module", "scan")
    monkeypatch.setattr(item_rows.importlib, "import_module", lambda path: __import__("no_such_package"))
    with pytest.raises(item_rows.Unavailable, match="cannot be imported: No module named 'no_such_package'"):
        item_rows.import_optional("scan_gpu", "scan")
