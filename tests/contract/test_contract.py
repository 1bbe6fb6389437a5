"""Cases and their string form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.cases import strategies
from pytest_ecornn.cases.strategies import cases, nearest_supported
from pytest_ecornn.contract import DTYPES, Case, SupportedCases, Weights, cells


@given(st.data())
def test_a_case_reads_back_from_its_own_name(data: st.DataObject) -> None:
    cell, dtype = data.draw(st.sampled_from(cells.names())), data.draw(st.sampled_from(DTYPES))
    case = data.draw(cases(SupportedCases((cell,), (dtype,), resets=True), cell, dtype))
    assert Case.parse(str(case)) == case


def test_resets_are_drawn_only_where_a_domain_has_them() -> None:
    found: dict[bool, list[Case]] = {True: [], False: []}

    @settings(max_examples=60, database=None, derandomize=True)
    @given(st.data(), st.booleans())
    def draw(data: st.DataObject, resets: bool) -> None:
        found[resets].append(data.draw(cases(SupportedCases(("gru",), resets=resets), "gru", "float32")))

    draw()
    assert any(case.resets for case in found[True])
    assert not any(case.resets for case in found[False])
    assert all(SupportedCases(("gru",), resets=True).contains(case) for case in found[True])
    assert not any(SupportedCases(("gru",)).contains(case) for case in found[True] if case.resets)


def test_defaults_are_left_out_of_the_name() -> None:
    assert str(Case(cell="lstm", steps=35, batch=32, hidden_size=650, layers=2)) == "lstm-T35-B32-H650-L2-float32"
    assert str(Case(cell="gru", steps=3, batch=2, hidden_size=4, resets=True)) == "gru-T3-B2-H4-float32-resets"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lstm-T4-B2", "lacks H"),
        ("lstm-T4-B2-H3-float33", "cannot read 'float33'"),
        ("lstm-T4-B2-H3-T5", "gives steps twice"),
        ("lstm-T0-B2-H3", "steps must be at least 1, got 0"),
        ("lstm-T4-B2-H3-density1.5", "density must be over 0 and at most 1"),
        ("lstm-T4-B2-H3-I5-projected", "a projected case has no input size"),
        ("lstm-T4-B2-H3-gpu", "cannot read 'gpu'"),
    ],
)
def test_a_bad_name_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.parse(text)


def test_a_cell_without_recurrent_weights_has_no_density() -> None:
    case = Case(cell="mingru", steps=4, batch=2, hidden_size=3, density=0.5)
    with pytest.raises(ValueError, match="mingru has no recurrent weights"):
        cells.check(case)


def test_a_pruned_weights_gradient_is_zero_even_where_it_overflowed() -> None:
    parameter = torch.nn.Parameter(torch.tensor([2.0, 0.0]))
    weights = Weights({"w": parameter}, {"w": torch.tensor([True, False])})
    (gradient,) = torch.autograd.grad(weights.masked("w"), parameter, torch.tensor([1.0, float("inf")]))
    assert gradient.tolist() == [1.0, 0.0]
    assert weights.masked("w").dtype == parameter.dtype


@pytest.mark.parametrize(
    ("text", "runs", "nearest"),
    [
        (
            "lstm-T7-B3-H5-L2-nobias-ragged-state-resets",
            lambda case: case.layers == 1 and not case.ragged and not case.resets,
            "lstm-T7-B3-H5-nobias-state",
        ),
        ("mingru-T7-B3-I4-H5", lambda case: case.projected, "mingru-T7-B3-H5-projected"),
        ("mingru-T20-B3-H5-L2-training", lambda case: case.steps <= (1 if case.training else 4), "mingru-T1-B3-H5-L2-training"),
        ("mingru-T20-B3-H5-L2", lambda case: case.steps <= (1 if case.training else 4), "mingru-T4-B3-H5-L2"),
        ("lstm-T7-B3-H5-L2", lambda case: case.density < 1, "lstm-T7-B3-H5-L2-density0.3"),
        ("lstm-T7-B3-H5-L2-nan", lambda case: case.density < 1, "lstm-T7-B3-H5-L2-density0.3"),
        ("lstm-T7-B3-H5-state-nan", lambda case: case.training and case.layers == 1, "lstm-T7-B3-H5-state-training"),
        (
            "lstm-T7-B3-H5-L2-state-training-large",
            lambda case: case.training and case.hidden_size == 64,
            "lstm-T7-B3-I5-H64-L2-state-training-large",
        ),
        (
            "lstm-T7-B3-I4-H5-batchfirst",
            lambda case: case.bidirectional and case.projected and not case.training,
            "lstm-T7-B3-H5-bidirectional-batchfirst-projected",
        ),
        (
            "gru-T7-B3-I4-H5",
            lambda case: case.layers == 3 and case.has_state and case.batch_first and case.ragged and case.training,
            "gru-T7-B3-I4-H5-L3-batchfirst-ragged-state-training",
        ),
        (
            "mingru-T7-B3-H5-L2",
            lambda case: case.resets and not case.bias and case.bidirectional and case.layers == 1 and case.hidden_size == 256,
            "mingru-T7-B3-I5-H256-bidirectional-nobias-resets",
        ),
        ("mingru-T7-B3-H5", lambda case: False, None),
    ],
)
def test_an_unsupported_case_is_simplified_no_more_than_needed(
    text: str, runs: Callable[[Case], bool], nearest: str | None
) -> None:
    found = nearest_supported(Case.parse(text), lambda case: None if runs(case) else "not this one, please")
    assert found == (nearest and Case.parse(nearest))


@pytest.mark.parametrize("case", ["gru-T4-B2-H8-float32", "lstm-T4-B2-H8-float64", "lstm-T4-B2-H8-float32-cuda"])
def test_a_kind_that_is_not_declared_is_not_searched_for(case: str) -> None:
    def unsupported(case: Case) -> str:
        raise AssertionError(f"asked about {case}")

    declared = SupportedCases(("lstm",), ("float32",), devices=("cpu",))
    assert nearest_supported(Case.parse(case), unsupported, declared) is None


@pytest.mark.parametrize(
    ("most", "least", "divisor"), [(16, 1, 1), (16, 1, 16), (99, 16, 16), (99, 2, 1)], ids=["few", "16", "16 or 32", "2"]
)
def test_sizes_of_a_kernels_tiles_are_found_beside_its_steps_and_training_is_kept(most: int, least: int, divisor: int) -> None:
    case = Case(cell="mingru", steps=21, batch=3, hidden_size=5, mode="training")

    def unsupported(given: Case) -> str | None:
        in_tiles = given.hidden_size % 64 == 0 and given.steps % divisor == 0
        return None if in_tiles and least <= given.steps <= most else "other sizes, please"

    nearest: Any = nearest_supported(case, unsupported)
    assert (nearest.mode, nearest.hidden_size) == ("training", 64)


def test_sizes_that_a_source_compares_with_are_tried_by_their_dimension() -> None:
    case, hints = Case.parse("lstm-T7-B3-I4-H5-state"), {99: "T", 21: "B", 55: "H", 11: "HI"}
    only = Case.parse("lstm-T99-B21-I11-H55-bidirectional-state")

    def unsupported(asked: Case) -> str | None:
        return None if asked == only else "one graph of fixed shapes"

    assert nearest_supported(case, unsupported) is None
    assert nearest_supported(only, unsupported, hints=lambda: hints) == only

    def fixed(asked: Case) -> str | None:
        sizes = (asked.steps, asked.batch, asked.input_size, asked.hidden_size)
        return None if sizes == (99, 21, 11, 55) and asked.bidirectional else "one graph of fixed shapes"

    assert nearest_supported(case, fixed, hints=lambda: hints) == only


@given(st.data())
def test_cases_of_a_domain_without_dense_ones_are_sparse_and_of_numbers(data: st.DataObject) -> None:
    domain = SupportedCases(("gru",), dense=False)
    case = data.draw(cases(domain, "gru", "float32"))
    assert case.density < 1
    assert case.contents not in ("nan", "infinite")
    found = strategies.edge_cases(domain, "gru", "float32")
    assert len(found) > 5
    assert all(domain.contains(one) and one.density < 1 and one.contents not in ("nan", "infinite") for one in found)
    assert not domain.contains(replace(case, density=1.0))


DECLARED = SupportedCases(
    cells=("lstm", "gru"), dtypes=("float32",), layouts=("contiguous",), max_layers=2, nobias=False,
    batchfirst="only", state="only", sparse=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gru-T3-B2-H4-float32-batchfirst-state", None),
        ("lstm-T3-B2-H4-L2-float32-batchfirst-state-bidirectional-ragged-training-nan", None),
        ("mingru-T3-B2-H4-float32-batchfirst-state", "runs lstm, gru, not mingru"),
        ("gru-T3-B2-H4-bfloat16-batchfirst-state", "runs float32, not bfloat16"),
        ("gru-T3-B2-H4-float32-batchfirst-state-strided", "runs contiguous, not strided"),
        ("gru-T3-B2-H4-L3-float32-batchfirst-state", "runs 2 layers at most"),
        ("gru-T3-B2-H4-float32-nobias-batchfirst-state", "runs no nobias cases"),
        ("gru-T3-B2-H4-float32-state", "runs batchfirst cases only"),
        ("gru-T3-B2-H4-float32-batchfirst", "runs state cases only"),
        ("gru-T3-B2-H4-float32-batchfirst-state-density0.5", "runs no sparse cases"),
    ],
)
def test_what_a_declaration_leaves_out_is_refused_by_its_word(text: str, reason: str | None) -> None:
    assert DECLARED.refusal(Case.parse(text)) == reason


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cells": "lstm"}, "cells: expected a tuple of names, got 'lstm'"),
        ({"dtypes": ("fp32",)}, "dtypes: expected a tuple of float32, float64, bfloat16, float16, got \\('fp32',\\)"),
        ({"devices": ["cpu"]}, "devices: expected a tuple of cpu, cuda, got"),
        ({"state": "never"}, "state: expected True, False or 'only', got 'never'"),
    ],
)
def test_a_declaration_of_what_no_case_has_is_an_error(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SupportedCases(**fields)


def test_cases_near_a_declaration_have_the_words_that_all_of_its_cases_have() -> None:
    case = Case.parse("gru-T40-B2-I3-H5-L3-float32-nobias-training")
    nearest = nearest_supported(case, lambda one: DECLARED.refusal(one) or (None if one.steps <= 16 else "16 steps"), DECLARED)
    assert nearest == Case.parse("gru-T16-B2-I3-H5-float32-batchfirst-state-training")
    projected = SupportedCases(projected="only")
    assert nearest_supported(case, projected.refusal, projected) == replace(case, projected=True, input_size=5)
