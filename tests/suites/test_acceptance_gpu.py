"""What the harness promises of itself on a GPU: the arithmetic and the note without one, all parts on one."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.noise import bounds
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import Graph
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites import acceptance_gpu
from pytest_ecornn.suites.promises import agreement, first_use, verdicts
from pytest_ecornn.suites.promises.verdicts import CapturedImplementation, SpinKernelModel
from pytest_ecornn.system import machine
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.fake_graphs import CountingClock, built, fake_graph
from tests.helpers.requirements import needs_gpu
from tests.helpers.studies import cells_of

SMALL = Case.parse("lstm-T3-B2-H5-float32")
CPU = torch.device("cpu")
MACROS = (("CELL", "2"),)


# Beside do_bench.


class FakeDoBench:
    """Says 6 ms for whatever it is given, after one call of it."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def __call__(self, fn: Callable[[], Any], **options: Any) -> float:
        fn()
        self.given.append(options)
        return 6.0


def fake_captured(replays: list[int], graphs: int = 3) -> CapturedImplementation:
    candidate = Candidate.build("sequential", ReferenceLoop, SMALL)
    found: Any = [Graph(None, None, partial(replays.append, number)) for number in range(graphs)]
    return CapturedImplementation(Arm(candidate, InputPool(SMALL), samples_us=[5000.0]), found, SMALL)


def test_do_bench_replays_all_graphs_in_turn_for_so_long_that_its_flush_weighs_little() -> None:
    replays: list[int] = []
    do_bench = FakeDoBench()
    assert agreement.do_bench_us(do_bench, fake_captured(replays)) == pytest.approx(6000.0 / 27)
    assert replays == [0, 1, 2] * (1 + 9)  # 9 rounds of 6 ms are over 50 ms
    assert {one["return_mode"] for one in do_bench.given} == {"median"}


def test_turns_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(agreement, "harness_us", lambda one: order.append("harness") or 2020.0)
    monkeypatch.setattr(agreement, "do_bench_us", lambda do_bench, one: order.append("do_bench") or 2000.0)
    monkeypatch.setattr(agreement, "capture", lambda *given: fake_captured([]))
    monkeypatch.setattr(Arm, "host_us", lambda *given: 30.0)
    row = agreement.row(SMALL, "sequential", FakeDoBench(), 4)
    assert order == ["harness", "do_bench", "do_bench", "harness"] * 2
    assert row.is_judged
    assert row.difference == pytest.approx(0.01)
    assert (row.graphs, row.called_us, row.host_us) == (3, 5000.0, 30.0)
    without = agreement.row(SMALL, "sequential", "no do_bench", 4)
    assert (without.ratio, without.is_judged, without.harness_us, without.reason) == (None, False, 2020.0, "no do_bench")


def test_what_does_not_run_leaves_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.testing", None)
    assert "no do_bench: " in str(agreement.triton_do_bench())
    row = agreement.row(SMALL, "cudnn", FakeDoBench(), 3)
    assert row.reason == "cuDNN runs on a CUDA device"
    assert "- cudnn, lstm-T3-B2-H5-float32: cuDNN runs" in agreement.render([row])
    assert verdicts.reason_of(RuntimeError("one\ntwo")) == "RuntimeError: one"


def made_up_rows() -> list[agreement.Row]:
    figures = (4, 900.0, 60.0)
    return [
        agreement.Row("a", "cudnn", "", *figures, 402.0, 400.0, Ratio(1.005, 0.99, 1.01)),
        agreement.Row("b", "cudnn", "", *figures, 380.0, 400.0, Ratio(0.95, 0.94, 0.96)),
        agreement.Row("z", "cudnn", "", *figures, 50.0, 100.0, Ratio(0.5, 0.4, 0.6)),
        agreement.Row("d", "transposed_gpu", "needs CuPy"),
    ]


def test_only_long_calls_are_judged() -> None:
    rows = made_up_rows()
    assert agreement.worst(rows) is rows[1]
    assert agreement.worst(rows[2:]) is None
    text = agreement.render(rows)
    assert cells_of(text, "a")[0] == ["a", "cudnn", "4", "402.0", "400.0", "1.005 [0.990, 1.010]"]
    assert cells_of(text, "a")[1] == ["a", "cudnn", "900.0", "402.0", "60.00"]
    assert "not judged" in cells_of(text, "z")[0][-1]
    assert "- transposed_gpu, d: needs CuPy" in text


# The planted share.


def test_cycles_come_from_a_line_through_two_lengths() -> None:
    sleep = SpinKernelModel.fit_two_points((1000, 2.5), (3000, 3.5))
    assert sleep.fixed_us == pytest.approx(2.0)
    assert sleep.us_per_cycle == pytest.approx(5e-4)
    assert sleep.cycles(12.0) == 20_000
    assert sleep.cycles(1.0) == 1
    with pytest.raises(ValueError, match="a longer wait"):
        SpinKernelModel.fit_two_points((1000, 2.5), (3000, 2.5))


def test_a_share_that_is_off_is_corrected() -> None:
    sleep = SpinKernelModel(2.0, 5e-4)
    assert sleep.refine(20_000, 1.02, 400.0) == 20_000 + 8_000
    assert sleep.refine(20_000, 1.04, 400.0) == 20_000 - 8_000
    assert sleep.refine(20_000, 1.5, 400.0) == 1
    assert verdicts.is_planted(1.0329)
    assert not verdicts.is_planted(1.0331)
    assert not verdicts.is_planted(1.0)


@pytest.mark.parametrize(("ratios", "captures"), [([1.031], 1), ([1.05, 1.03], 2), ([1.05, 1.05], 2)])
def test_it_is_calibrated_once_more_at_most(monkeypatch: pytest.MonkeyPatch, ratios: list[float], captures: int) -> None:
    left, done = iter(ratios), list[Any]()
    plain = fake_captured([])
    monkeypatch.setattr(verdicts, "_time_us", lambda *given: 1000.0)
    monkeypatch.setattr(verdicts, "ratio_of", lambda *given: Ratio(next(left), 0.9, 1.1))
    monkeypatch.setattr(verdicts, "capture", lambda *given: done.append(given) or plain)
    _, ratio = verdicts.inject_slowdown(plain, "sequential", plain.called.pool, SpinKernelModel(2.0, 5e-4), 0.1)
    assert (ratio.ratio, len(done)) == (ratios[-1], captures)
    assert [one[-1].args for one in done] == [(56_000,), (16_000,)][:captures]


# Verdicts.


@pytest.mark.parametrize("text", ["lstm-T3-B2-H5-float32", "gru-T3-B2-H5-bfloat16-training"])
def test_a_trial_is_judged_as_a_row_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    candidate, pool = built(text)
    graphs = [[fake_graph(candidate, pool) for _ in range(2)] for _ in range(2)]
    row, baseline = (CapturedImplementation(Arm(candidate, pool), own, candidate.case) for own in graphs)
    monkeypatch.setattr(verdicts, "CudaGraphTimer", lambda device: CountingClock())
    monkeypatch.setattr(bounds, "is_disturbed", lambda disturbance: False)  # made-up times, beside real waits
    found = verdicts._judged(verdicts.Tally("sequential", text, verdicts.SAME), row, baseline, 3, 0.05)
    assert found.verdicts == Counter(same=3)
    assert found.ratios == pytest.approx([1.0] * 3)


def made_up_tallies() -> list[verdicts.Tally]:
    off = Ratio(1.04, 1.039, 1.041)
    return [
        verdicts.Tally("cudnn", "a", verdicts.SAME, Counter(same=98, unclear=1), [1.0] * 99, Ratio(1.0, 0.999, 1.001)),
        verdicts.Tally("cudnn", "a", verdicts.PLANTED, Counter(slower=99), [1.03] * 99, Ratio(1.031, 1.03, 1.032)),
        verdicts.Tally("cudnn", "b", verdicts.SAME, Counter(same=101), [1.0] * 101, Ratio(1.0, 0.999, 1.001)),
        verdicts.Tally("cudnn", "b", verdicts.PLANTED, Counter(slower=98, same=3), [1.03] * 101, off),
        verdicts.Tally("transposed_gpu", "c", verdicts.SAME, reason="needs CuPy"),
    ]


def test_trials_are_spread_evenly_and_verdicts_counted_by_what_was_wanted() -> None:
    assert verdicts.shares(200, 6) == [34, 34, 33, 33, 33, 33]
    assert verdicts.shares(2, 6) == [1, 1, 0, 0, 0, 0]
    tallies = made_up_tallies()
    assert verdicts.count_correct(tallies, verdicts.SAME) == (199, 200)
    assert verdicts.count_correct(tallies, verdicts.PLANTED) == (197, 200)
    one = verdicts.Tally("cudnn", "a", verdicts.SAME)
    one.add("slower", 1.1)
    assert verdicts.count_correct([one], verdicts.SAME) == (0, 1)
    assert verdicts.share_text(1, 200) == "1 of 200 (0.5%)"
    assert verdicts.share_text(0, 0) == "none"


def test_a_tally_shows_its_ratios_and_a_share_that_is_off() -> None:
    same, good, _, off = cells_of(verdicts.render(made_up_tallies()), "cudnn")
    assert same[2:] == ["two names", "1.000 [0.999, 1.001]", "1.000 [1.000, 1.000]", "99", "98", "0", "0", "1"]
    assert good[3] == "1.031 [1.030, 1.032]"
    assert off[3].endswith("(off)")
    assert "- transposed_gpu, c: needs CuPy" in verdicts.render(made_up_tallies())


def test_old_objects_are_not_searched_for_garbage() -> None:
    before = gc.get_freeze_count()
    with verdicts.frozen_gc():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0


# The first use of a kernel.


def test_first_uses_are_noted_with_their_compilation() -> None:
    watch = first_use.CompileTimer()
    nvrtc = watch.nvrtc(lambda source: b"code")

    @cache
    def find(source: Path, name: str, macros: Any, device: torch.device) -> str:
        if name == "new":
            nvrtc(source)
        return name

    watched = watch.function(find)
    for name in ("new", "new", "old"):
        assert watched(Path("k.cu"), name, MACROS, CPU) == name
    compiled, loaded = watch.stages
    assert (compiled.kernel, loaded.kernel) == ("new, CELL 2", "old, CELL 2")
    assert compiled.compile_s is not None
    assert loaded.compile_s is None
    assert min(compiled.compile_s, compiled.load_s, loaded.load_s) > 0


def test_what_is_watched_is_what_kernels_use() -> None:
    before = first_use.kernel._launcher, first_use.compiler._run_nvrtc
    with first_use.watching():
        assert first_use.kernel._launcher is not before[0]
        assert first_use.compiler._run_nvrtc is not before[1]
    assert (first_use.kernel._launcher, first_use.compiler._run_nvrtc) == before


def made_up_first_use() -> first_use.ColdStartFigures:
    stages = [first_use.Stage("forward", 1.25, 0.002), first_use.Stage("backward", None, 0.0015)]
    warm = first_use.ColdStart("a", 0.5, [first_use.Stage("forward", None, 0.06)], first_use.WARM)
    return first_use.ColdStartFigures(firsts=[first_use.ColdStart("a", 2.5, stages), warm])


def test_stages_are_read_as_a_process_prints_them_and_shown() -> None:
    printed = made_up_first_use().firsts[0]
    assert first_use.parse(json.dumps([asdict(printed)]), first_use.COLD) == [printed]
    text = first_use.render(made_up_first_use())
    assert cells_of(text, first_use.COLD) == [
        [first_use.COLD, "a", "2.50", "1"],
        [first_use.COLD, "forward", "1.25", "2.00"],
        [first_use.COLD, "backward", "-", "1.50"],
    ]
    assert first_use.render(first_use.ColdStartFigures()) == ""
    assert "Not measured: needs CuPy" in first_use.render(first_use.ColdStartFigures(reason="needs CuPy"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device on this machine")
def test_a_process_that_fails_leaves_its_last_line() -> None:
    figures = first_use.measure()
    assert figures.firsts == []
    assert "Unsupported" in figures.reason


# The note.


def test_each_promise_has_its_bar_and_whether_it_is_kept(tmp_path: Path) -> None:
    measured = (made_up_rows(), made_up_first_use(), made_up_tallies())
    text = acceptance_gpu.Report(machine.fingerprint(tmp_path), 1.0, *measured).markdown()
    for line in (
        "device-only time beside do_bench, 2 cases over 200 us, largest difference | 3% | "
        "5.0%: 0.950 [0.940, 0.960], cudnn, b | no",
        "two names of one implementation: not called the same | at most 1% | 1 of 200 (0.5%) | yes",
        "3% planted (measured 1.0310 to 1.0400): called slower | at least 99% | 197 of 200 (98.5%) | no",
        "compiling a kernel, longest of 1 | 3 s | 1.25 s | yes",
        "loading a compiled kernel from disk, longest of 2 | 50.0 ms | 60.0 ms | no",
    ):
        assert f"| {line} |" in text
    assert f"torch {version('torch')}" in text
    without_figures = acceptance_gpu.Report(machine.fingerprint(tmp_path))
    assert without_figures.promises() == []
    assert "## " not in without_figures.markdown()


def test_the_note_is_written_after_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, seen = tmp_path / "new/note.md", list[bool]()

    def tallies(*given: Any) -> Any:
        for one in made_up_tallies():
            seen.append("loading a compiled" in note.read_text())
            yield one

    monkeypatch.setattr(agreement, "measure_all", lambda turns: iter(made_up_rows()))
    monkeypatch.setattr(first_use, "measure", made_up_first_use)
    monkeypatch.setattr(verdicts, "measure_all", tallies)
    acceptance_gpu.measure(note, 200)
    assert seen == [True] * 5
    assert "called slower" in note.read_text()


@needs_gpu
@pytest.mark.gpu_alone
def test_all_parts_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = "lstm-T8-B4-H64-float32-cuda"
    monkeypatch.setattr(agreement, "CASES", {case: ("sequential",)})
    monkeypatch.setattr(verdicts, "CASES", (("sequential", case),))
    report = acceptance_gpu.measure(tmp_path / "note.md", trials=2, turns=3, budget=0.4)
    (row,) = report.agreement
    assert row.graphs >= 2
    assert min(row.called_us, row.host_us, row.harness_us) > 0
    assert [one.verdicts.total() for one in report.tallies] == [2, 2]
    if report.first_use.reason:
        pytest.skip(report.first_use.reason)
    cold, warm = ([one for one in report.first_use.firsts if one.disk == disk] for disk in (first_use.COLD, first_use.WARM))
    assert cold[0].compiles_s
    assert not any(one.compiles_s for one in warm)
    assert warm[0].disk_loads_s
