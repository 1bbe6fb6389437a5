"""How persistent_gpu's form is searched: many at once as one by one, once for all that is alike, and by few calls."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from statistics import median
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.implementations._common.recurrent_problem import Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import heuristics
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import (
    alike_problem,
    candidate_configs,
    clusters,
    estimated_us_with_queueing,
    select_config,
)
from pytest_ecornn.implementations.persistent_gpu.wavefront import select_wavefronts
from tests.helpers.persistent import A100, ARITHMETICS
from tests.helpers.simulated_kernels import CELLS, SMALL
from tests.simulator.clusters_on_cpu import H200

DEVICES = st.sampled_from([H200, A100, SMALL, Device(142, 101_376, 1), Device(7, 166_912, 8)])
PROBLEMS = st.builds(
    ProblemSize, st.sampled_from(CELLS), st.integers(1, 4096) | st.integers(1, 250), st.integers(1, 512) | st.integers(1, 40),
    st.sampled_from(ARITHMETICS), st.booleans(),
)  # fmt: skip


@settings(deadline=None)
@given(PROBLEMS, DEVICES, st.data())
def test_forms_are_compared_at_once_as_one_by_one(problem: ProblemSize, device: Device, data: st.DataObject) -> None:
    for candidates in heuristics._candidates(problem, device):
        forms, fits = candidates.forms, candidates.fits
        for number in data.draw(st.sets(st.sampled_from(fits.ravel().nonzero()[0].tolist() or [None]), max_size=4)) - {None}:
            form = candidates.at(number)
            assert all(type(value) in (int, bool) for value in (form.units, form.reg_fragments, form.reallocates_registers))
            for name in (
                "step_us",
                "product_us",
                "fragments_per_warp",
                "max_reg_fragments",
                "non_weight_smem_bytes",
                "clusters",
            ):
                assert _at(getattr(forms, name), number, fits.shape) == getattr(form, name), name
            expected_us = _at(estimated_us_with_queueing(forms, device), number, fits.shape)
            assert estimated_us_with_queueing(form, device) == expected_us
            assert form.shared_bytes <= device.shared_bytes


def _at(values: Any, number: int, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(values, shape).ravel()[number]


@settings(deadline=None)
@given(PROBLEMS, DEVICES, st.booleans())
def test_the_choice_is_the_best_candidate_of_the_very_problem(problem: ProblemSize, device: Device, is_fused: bool) -> None:
    forms = [form for form in candidate_configs(problem, device) if not (is_fused and form.kind == "blocks")]
    chosen = select_config(problem, device, is_fused)
    if not forms:
        assert "does not fit" in str(chosen)
        return
    best = min(forms, key=lambda form: (estimated_us_with_queueing(form, device), form.product_us))
    assert chosen == best or "is faster by a GEMM a step" in str(chosen)


def searches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The searches from now on, of forms and of layers in a wavefront."""
    found: list[object] = []

    def noted(search: Any) -> Any:
        return lambda *arguments, **named: found.append(arguments) or search(*arguments, **named)

    monkeypatch.setattr(heuristics, "_candidates", noted(heuristics._candidates))
    monkeypatch.setattr("pytest_ecornn.implementations.persistent_gpu.wavefront.clusters", noted(clusters))
    return found


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize(
    ("hidden", "batch", "alike", "other"),
    [
        (777, 33, [34, 37, 40], 41),
        (777, 17, [18, 20], 24),
        (777, 3, [4], 5),
        (777, 5, [6, 7, 8], 9),
        (123, 65, [66, 72], 73),
        (2900, 100, [97, 104], 105),
    ],
)
def test_other_sequences_in_the_same_tiles_cost_no_search(
    hidden: int, batch: int, alike: list[int], other: int, is_backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    heuristics._fastest.cache_clear()
    problem, found = ProblemSize("gru", hidden, batch, ARITHMETICS[0], is_backward), searches(monkeypatch)
    first = select_config(problem, H200)
    assert len(found) == 1
    for size in alike:
        form = select_config(problem._replace(batch=size), H200)
        assert isinstance(first, str) == isinstance(form, str)
        assert isinstance(form, str) or form == replace(first, problem=problem._replace(batch=size))  # type: ignore[type-var]
    assert len(found) == 1
    select_config(problem._replace(batch=other), H200)
    assert len(found) == 2


def test_sequences_of_blocks_are_alike_while_as_many_blocks_share_a_multiprocessor() -> None:
    problem = ProblemSize("gru", 96, 130, ARITHMETICS[2])
    assert [alike_problem(problem._replace(batch=batch), H200).batch for batch in (129, 132, 133)] == [132, 132, 136]


def test_other_steps_of_layers_in_a_wavefront_cost_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, found = ProblemSize("lstm", 201, 13, ARITHMETICS[0]), searches(monkeypatch)
    waves = select_wavefronts(problem, H200, 65, 5, 35)
    assert any(waves)
    count = len(found)
    assert count > 0
    few = select_wavefronts(problem._replace(batch=14), H200, 65, 5, 1)
    assert few != waves
    assert len(found) == count


def test_a_form_is_chosen_by_few_calls() -> None:
    """Some 1,400 calls, C's too, where forms are compared at once; one by one they were 100,000."""
    random, counts = Random(0), list[int]()

    def count(frame: FrameType, event: str, argument: object) -> None:
        counts[-1] += event in ("call", "c_call")

    for _ in range(100):
        sizes = random.choice(CELLS), random.randint(1, 4096), random.randint(1, 512)
        problem = ProblemSize(*sizes, random.choice(ARITHMETICS), random.random() < 0.5)
        heuristics._fastest.cache_clear()
        counts.append(0)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            chosen = select_config(problem, H200)
        finally:
            sys.setprofile(before)
        assert isinstance(chosen, Form | str)
    assert 100 < median(counts) < 2500
    assert max(counts) < 4000
