"""persistent_gpu beside cuDNN and the floor of a step: everything but the measuring itself, which takes a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_ecornn.contract import MODES, Case
from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import config
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.nn.form_times import Recurrence
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.suites.published import persistent
from pytest_ecornn.suites.published.common import candidates
from pytest_ecornn.suites.published.common.bars import MinTarget
from pytest_ecornn.suites.published.common.report_rows import CALLED, TIMING_MODES, precision_of
from pytest_ecornn.suites.published.persistent_kernel_parts import persistent_flashrnn, persistent_steps
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.report_rows import report_row, timing
from tests.helpers.studies import cells_of

# The floor of a step.


def form(dtype: str = "float16", precision: str = "ieee", **changed: int) -> Form:
    """H 512, 8 sequences: 16 blocks of 32 units each."""
    problem = ProblemSize("lstm", 512, 8, MathMode.of(dtype, precision))
    made = Form(problem, units=32, blocks=16, tiles=1, k_partitions=1, reg_fragments=16)
    return replace(made, **changed)


def us(clocks: float) -> float:
    return clocks / 1980


def test_a_step_waits_for_what_is_handed_on_and_then_multiplies() -> None:
    assert persistent_steps.FRAGMENT_BYTES == config.FRAGMENT_BYTES
    assert form().fragments_per_warp == 16
    assert persistent_steps.handoff_us(form()) == pytest.approx(0.2 + us(32 * 8 * 2 * 16 / 32))
    assert persistent_steps.busy_us(form()) == pytest.approx(us(16 * 2 * 2 * 6.1))
    assert persistent_steps.floor_us(form()) == pytest.approx(0.2 + us(256 + 390.4))


def test_reads_of_weights_overlap_with_products() -> None:
    shared, left_over = form(reg_fragments=8, smem_fragments=8), form(reg_fragments=2, smem_fragments=8, stream_stages=2)
    assert left_over.streamed_fragments == 6
    assert persistent_steps.busy_us(shared) == pytest.approx(us(8 * 64))  # over the products' 390
    assert persistent_steps.busy_us(form(reg_fragments=12, smem_fragments=4)) == persistent_steps.busy_us(form())
    assert persistent_steps.busy_us(left_over) == pytest.approx(us(8 * 64 + 6 * 128))


def test_a_part_in_two_halves_is_multiplied_once() -> None:
    problem = ProblemSize("lstm", 650, 32, MathMode.of("float32", "ieee"))
    plain = NTiledGridConfig(problem, 12, 55, 1, 8, reg_fragments=18, is_grid=True, n_tiles=2)
    assert persistent_steps.busy_us(replace(plain, reg_fragments=36, presplit_fragments=18)) == persistent_steps.busy_us(plain)


def test_products_of_float32s_accuracy_are_three_of_tf32() -> None:
    split, tf32 = (persistent_steps.busy_us(form("float32", precision, reg_fragments=32)) for precision in ("ieee", "tf32"))
    assert split == pytest.approx(3 * tf32)


def test_several_tiles_hide_the_handoff_behind_each_other_s_products() -> None:
    busy, handoff = persistent_steps.busy_us(form()), persistent_steps.handoff_us(form())
    assert busy < handoff < 2 * busy
    floors = [persistent_steps.floor_us(form(tiles=tiles)) for tiles in (1, 2, 3, 4)]
    assert floors == pytest.approx([busy + handoff, busy + handoff, 3 * busy, 4 * busy])


# The steps.


def test_steps_are_of_the_op_alone_and_verified_as_a_layer() -> None:
    forward, backward = persistent_steps.SHAPES[0], persistent_steps.SHAPES[-1]
    assert str(forward.case) == "lstm-T1024-B8-H256-float16-cuda-projected"
    assert str(backward.case) == "lstm-T1024-B16-H768-float16-cuda-projected-training"
    with torch._subclasses.FakeTensorMode():
        ahead, back = (Recurrence(shape.problem, torch.float16, steps=5, device="cpu") for shape in (forward, backward))
        assert [one.shape for one in ahead()] == [(5, 8, 256), (1, 8, 256), (1, 8, 256)]
        assert back()[0].shape == (5, 16, 4 * 768)
    values = 5 * 8 * 256
    assert ahead.moved_bytes == 2 * (4 * values + values + 2 * 8 * 256)


def test_an_implementation_that_is_wrong_has_no_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_steps, "prepare", lambda case, name: candidates.WRONG)
    assert {row.reason for row in persistent_steps.measure(float("inf"))} == {candidates.WRONG}


# Beside cuDNN.


def timed(case: Case, called: float, replayed: float) -> Row:
    """cuDNN's times over persistent_gpu's."""
    columns = {"timing": timing(100.0, cudnn=100.0 * called), "replay": timing(100.0, cudnn=100.0 * replayed)}
    return report_row("persistent_gpu", case, **columns)


def test_a_bar_over_rows_that_are_missing_is_not_held_but_may_be_lost() -> None:
    language = [case for case in persistent.origins() if case.steps == 35 and case.mode == "training"]
    rows = [timed(case, 9.0, 0.9) for case in language[:5]]
    rows.append(report_row("persistent_gpu", language[5], "H 1500 does not fit"))
    (section,) = persistent.sections(rows)
    text = section.text
    called = cells_of(text, "forward and backward, all, as called")[0]
    assert called[1:5] == ["5 of 56", "9.00 [9.00, 9.00]", "at least 3", "not all measured"]
    assert called[7:] == ["at least 1", "not all measured"]
    assert cells_of(text, "forward and backward, all, graph replay")[0][7:] == ["at least 1", "no"]
    assert cells_of(text, "forward, all, as called")[0][1:] == ["0 of 56", *["-"] * 7]
    assert "- persistent_gpu, 1 x 512, B 64, T 35, bfloat16: H 1500 does not fit" in text


def test_bars_are_of_passes_and_precisions_that_there_are() -> None:
    known = {*map(precision_of, persistent.origins()), persistent.ALL}
    for mode, way, precision in persistent.MEAN_BARS:
        assert (mode in persistent.PASSES, way in TIMING_MODES, precision in known) == (True, True, True)
    assert persistent.MEAN_BARS["inference", CALLED, "tf32"] == MinTarget(3.5)


# Beside FlashRNN.


def test_flashrnn_is_given_pre_activations_and_ours_the_inputs() -> None:
    found = persistent_flashrnn.cases("training")
    assert {name: str(case) for name, case in found.items()} == {
        "persistent_gpu": "lstm-T1024-B16-H768-bfloat16-cuda-training",
        "flashrnn": "lstm-T1024-B16-H768-bfloat16-cuda-batchfirst-projected-training",
    }


def test_without_flashrnn_the_part_says_why() -> None:
    missing = "needs flashrnn (pip install pytest-ecornn[peers])"
    rows = [persistent_flashrnn.row(mode, {"persistent_gpu": [7.0] * 8}, {"flashrnn": missing}, None) for mode in MODES]
    text = persistent_flashrnn.render(rows)
    assert cells_of(text, "inference")[0][1:] == ["7.000", "-", "-", "at least 2.6", "-", "-"]
    assert "- flashrnn, training: needs flashrnn (pip install pytest-ecornn\\[peers\\])" in text


@pytest.mark.usefixtures("fake_clock")
def test_both_are_timed_and_theirs_also_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("torch_cpu", "sequential")
    own = Case(cell="lstm", steps=3, batch=2, hidden_size=5, mode="training")
    monkeypatch.setattr(persistent_flashrnn, "OURS", names[0])
    monkeypatch.setattr(persistent_flashrnn, "THEIRS", names[1])
    monkeypatch.setattr(persistent_flashrnn, "cases", lambda mode: {names[0]: own, names[1]: replace(own, projected=True)})
    monkeypatch.setattr(persistent_flashrnn, "build_and_compare", off)
    row = persistent_flashrnn._row("training")
    assert row.reasons == {}
    assert row.theirs_over_ours == Ratio(1.0, 1.0, 1.0)
    assert row.share == 3.0


def off(found: ImplementationInfo, case: Case) -> tuple[Candidate, list[TensorCheck]]:
    """Beyond its limit."""
    return Candidate.build(found.name, found.cls, case), [TensorCheck("output", "failed", share=3.0)]
