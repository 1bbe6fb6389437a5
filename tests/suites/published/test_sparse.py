"""The report of sparse_persistent_gpu: everything but the measuring itself, which takes a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pytest_ecornn.contract import Layer, State
from pytest_ecornn.implementations import sparse_persistent_gpu
from pytest_ecornn.suites.published import sparse
from pytest_ecornn.suites.published.sparse_kernel_parts import sparse_capacity, sparse_techniques
from tests.helpers.report_rows import report_row, timing
from tests.helpers.requirements import needs_compiler
from tests.helpers.studies import cells_of
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import FEW, H200


def test_what_a_bar_is_set_for_comes_first() -> None:
    assert [sparse.key_of(case) for case in sparse.origins()][:3] == [*sparse.BARS]


def test_ours_is_compared_with_the_fastest_of_the_baselines_and_with_the_dense_kernel() -> None:
    case, *_ = sparse.origins()
    steps = sparse.STEPS
    replay = timing(2.0 * steps, persistent_gpu=1.0 * steps, cudnn=14.0 * steps, cusparse_gpu=13.0 * steps)
    (section,) = sparse.sections([report_row(sparse.OURS, case, replay=replay)])
    (line, _) = cells_of(section.text, "2,304")  # the other is of the crossovers
    assert line[1:] == ["4", "30%", "2.00", "1.00", "14.0", "13.0", "-", "cusparse_gpu", "6.50 [6.50, 6.50]", "-", "over 6"]
    (bar,) = cells_of(section.text, "H 2,304, B 4, 30%, float32: over the best")
    assert bar[1:4] == ["6.50 [6.50, 6.50]", "at least 6", "yes"]
    assert "- sparse_persistent_gpu ran 1 of the 1 cases that were reached, of 360 in all." in section.text


def test_the_dense_kernel_takes_over_where_it_is_faster() -> None:
    assert sparse.crossover([(0.1, 0.9), (0.3, 0.5)]) == "below 10%"
    assert sparse.crossover([(0.3, 0.5), (0.1, 2.0), (0.2, 1.5)]) == "25%"
    assert sparse.crossover([(0.1, 2.0), (0.3, 1.0)]) == "above 30%"


# Techniques.


def test_a_case_that_was_not_tried_says_why() -> None:
    text = sparse_techniques.render([sparse_techniques.Row(sparse_techniques.ALL_TRIED[1], reason="does not run")])
    assert "- rnn_tanh, H 2,304, B 4, 10%, float32: does not run" in text


def test_uneven_rows_have_the_case_s_density_and_differ() -> None:
    tried = sparse_techniques._tried(400, 1, 0.2, "float32", "lstm", uneven=True)
    problem = sparse_techniques.problem_of(replace(tried, case=replace(tried.case, device="cpu")))
    shares = problem.weights.masks["weight_hh_l0"].float().mean(1).view(4, 400)
    assert shares.mean() == pytest.approx(0.2, abs=0.01)
    assert shares[:, :40].mean() < 0.05
    assert shares[:, -40:].mean() > 0.35


@needs_compiler
def test_each_way_is_verified() -> None:
    tried = sparse_techniques._tried(20, 2, 0.3, "float32", uneven=True)
    problem = sparse_techniques.problem_of(replace(tried, case=replace(tried.case, device="cpu", steps=4)))

    def wrong(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        output, final = right(x, state, lengths)
        return output + 1, final

    with clusters_on_cpu.running_sparse(FEW):
        right, _ = sparse_persistent_gpu.make_layer(problem.case, problem.weights, torch.device("cpu"))
        layers: dict[str, Layer] = {"": right, "balance": wrong}
        assert sparse_techniques._wrong(problem, layers) == ["without balance"]


# What stays on chip.


def test_what_stays_on_chip_is_found_without_a_gpu() -> None:
    kinds = [("rnn_tanh", "float16", 0.1), ("lstm", "float32", 0.3)]
    rows = [sparse_capacity._row(*kind, H200) for kind in kinds]
    text = sparse_capacity.render([*rows, sparse_capacity.Row("gru", "float32", 0.1, reason="late")])
    large, small, _ = (cells_of(text, cell)[0] for cell in ("rnn_tanh", "lstm", "gru"))
    assert float(large[5]) > 5
    assert 2304 < int(small[3].replace(",", "")) < 2500
