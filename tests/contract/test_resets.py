"""Resets: a step that is marked starts from zeros, and nothing passes it; of the reference, loops, the scan and the harness."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents, strategies
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.cases.required import MIN_CELLS
from pytest_ecornn.contract import Case, Implementation, Layer, SupportedCases, Weights, cells
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.implementations.scan_gpu import ScanGpu, ops
from pytest_ecornn.implementations.torch_cpu import TorchCpu
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.selfcheck import _correct_layers, trial
from pytest_ecornn.selfcheck.planting import Expectation
from pytest_ecornn.selfcheck.trial import Planted
from pytest_ecornn.verification import calls, verification, yardstick
from pytest_ecornn.verification.guards import guards
from pytest_ecornn.verification.properties import properties
from pytest_ecornn.verification.properties.subject import PropertyContext
from tests.helpers.changed_loop import of_calls, planted

BASE = Case(cell="lstm", steps=9, batch=4, hidden_size=5, input_size=3, dtype="float64", resets=True)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"has_state": True, "layers": 2, "ragged": True},
    {"has_state": True, "bidirectional": True, "batch_first": True, "ragged": True},
)


def reference(problem: Problem) -> dict[str, Any]:
    return calls.run(verification.reference_layer(problem), problem)


def marked(case: Case, *places: Any) -> Tensor:
    """A mask of these places alone."""
    marks = torch.zeros(case.steps, case.batch, dtype=torch.bool)
    for place in places:
        marks[place] = True
    return marks


def assert_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


# What it means.


def test_a_sum_that_is_reset_begins_anew_in_either_direction() -> None:
    """rnn_relu of one channel whose weights are 1: h_t = x_t + h_(t-1) for what is positive."""
    case = Case.parse("rnn_relu-T5-B1-H1-float64-bidirectional-nobias-state-resets")
    weights = {name: torch.ones(shape, dtype=torch.float64) for name, shape in cells.parameter_shapes(case).items()}
    x, state = torch.tensor([1.0, 2, 4, 8, 16]).double()[:, None, None], torch.full((2, 1, 1), 100.0, dtype=torch.float64)
    resets = torch.tensor([False, False, True, False, False])[:, None]
    output, final = cells.reference(case, weights, x, state, None, resets)
    assert output[:, 0, 0].tolist() == [101, 103, 4, 12, 28]
    assert output[:, 0, 1].tolist() == [7, 6, 4, 124, 116]
    assert torch.as_tensor(final).flatten().tolist() == [28, 7]


@pytest.mark.parametrize("cell", cells.names())
def test_each_part_between_resets_is_a_run_of_its_own(cell: str) -> None:
    case = replace(BASE, cell=cell, batch=1, has_state=True)
    problem = contents.problem(case)
    whole = reference(replace(problem, resets=marked(case, 3, 4, 8)))
    parts = []
    for start, end in pairwise((0, 3, 4, 8, 9)):
        own = replace(case, steps=end - start, has_state=not start, resets=False)
        state = () if start else problem.state
        parts.append(reference(replace(problem, case=own, x=problem.x[start:end], state=state, resets=None)))
    torch.testing.assert_close(whole["output"], torch.cat([part["output"] for part in parts]), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(whole["final h"], parts[-1]["final h"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("first", [0, 8], ids=["forward", "reverse"])
def test_a_state_that_the_first_step_drops_has_no_effect_and_a_gradient_of_exactly_0(first: int) -> None:
    case = replace(BASE, has_state=True, bidirectional=True, mode="training")
    problem = replace(contents.problem(case), resets=marked(case, (first, 1)))
    other = replace(problem, state=tuple(state.clone() for state in problem.state))
    for state in other.state:
        assert state.isfinite().all()
        state[int(first > 0), 1] = torch.inf
    wanted = reference(problem)
    assert_equal(reference(other), wanted)
    for gradient in (wanted["grad initial h"], wanted["grad initial c"]):
        assert torch.equal(gradient[int(first > 0), 1], torch.zeros(case.hidden_size, dtype=torch.float64))
        assert (gradient[int(first > 0), 0] != 0).all()


# Those that take them.


TAKERS: list[tuple[type[Implementation], str]] = [
    *((ReferenceLoop, cell) for cell in cells.names()),
    *((_correct_layers.PackedLoop, cell) for cell in ("lstm", "gru")),
    *((ScanCpu, cell) for cell in MIN_CELLS),
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "layers", "directions"])
@pytest.mark.parametrize(("kind", "cell"), TAKERS, ids=lambda one: getattr(one, "__name__", one))
def test_output_states_and_gradients_are_the_references(kind: type[Implementation], cell: str, options: dict[str, Any]) -> None:
    case = replace(BASE, cell=cell, mode="training", **options)
    problem = contents.problem(case)
    assert_equal(calls.run(kind().build(case, problem.weights), problem), reference(problem))


@pytest.mark.parametrize("kind", [ReferenceLoop, ScanCpu])
def test_nothing_that_is_not_finite_passes_a_reset(kind: type[Implementation]) -> None:
    case = Case.parse("mingru-T9-B2-H3-float32-state-projected-resets")
    problem = contents.problem(case)
    problem.x[3, 0, 0], problem.state[0][0, 1] = torch.nan, torch.inf
    output: Any = calls.run(kind().build(case, problem.weights), replace(problem, resets=marked(case, 5)))["output"]
    assert output[3:5, 0, 0].isnan().all()
    assert output[:5, 1].isinf().all()
    assert output[5:].isfinite().all()


def test_takers_say_so_and_others_are_not_asked() -> None:
    case = Case.parse("lstm-T5-B2-H3-float32-resets")
    assert ReferenceLoop().refusal(case) is None
    assert TorchCpu().refusal(case) == "takes no resets"
    assert TorchCpu().refusal(replace(case, resets=False)) is None
    assert "linear" in (ScanCpu().refusal(case) or "")


@pytest.mark.parametrize("is_packed", [True, False], ids=["resets", "plain"])
def test_scan_gpu_hands_the_mask_to_each_scan_without_a_copy(monkeypatch: pytest.MonkeyPatch, is_packed: bool) -> None:
    given: list[Tensor | None] = []

    def scan(x: Tensor, bias: None, first: None, lengths: None, resets: Tensor | None, *named: Any) -> tuple[Tensor, Tensor]:
        given.append(resets)
        return x.new_zeros(3, 5, 2), x.new_zeros(3, 2)

    monkeypatch.setattr(ops, "scan", scan)
    monkeypatch.setattr(ops, "describe", lambda *of: "")
    monkeypatch.setattr(torch.cuda, "device", lambda of: nullcontext())
    case = Case.parse("mingru-T5-B3-H2-float32-bidirectional-batchfirst-projected")
    problem = contents.problem(replace(case, resets=is_packed))
    calls.run(ScanGpu().build(replace(problem.case, device="cuda:0"), problem.weights), problem)
    assert len(given) == 2
    for mask in given:
        assert (mask is not None) == is_packed
        if mask is not None and problem.resets is not None:
            assert mask.dtype == torch.uint8
            assert mask.data_ptr() == problem.resets.data_ptr()
            assert torch.equal(mask.bool(), problem.resets)


# What the harness gives and judges.


def mask(text: str, seed: int = 0) -> Any:
    return contents.problem(replace(Case.parse(text), seed=seed)).resets


def test_masks_mark_an_eighth_of_the_steps_both_ends_runs_and_some_sequences_never() -> None:
    every = torch.stack([mask("mingru-T16-B4-H1-float32-resets", seed) for seed in range(200)])  # [seed, T, B]
    assert every.dtype == torch.bool
    assert 0.1 < every[:, 1:-1].double().mean() < 0.15
    assert every[:, 0].double().mean() > 0.3
    assert every[:, -1].double().mean() > 0.15
    assert (every[:, 1:] & every[:, :-1]).any()
    assert 0.2 < (~every.any(1)).double().mean() < 0.4
    assert every.any((1, 2)).all()


def test_a_long_sequence_is_not_cut_into_short_ones() -> None:
    assert 0 < int(mask("mingru-T4096-B8-H1-float32-resets").sum(0).max()) < 50


def test_a_mask_has_the_cases_layout_and_there_is_none_without() -> None:
    found = mask("mingru-T5-B3-H1-float32-batchfirst-resets")
    assert found.shape == (3, 5)
    assert found.is_contiguous()
    assert mask("mingru-T5-B3-H1-float32") is None


def test_the_corners_have_a_reset_after_what_is_not_finite() -> None:
    for cell in cells.names():
        corners = [case for case in strategies.edge_cases(SupportedCases((cell,), resets=True), cell, "float32") if case.resets]
        assert [case.contents for case in corners] == ["normal", "nan", "infinite"]
        after_nan, after_infinity = map(contents.problem, corners[1:])
        ((step, sequence),) = after_nan.x.isnan().any(-1).nonzero().tolist()
        assert after_nan.resets[step + 1 :, sequence].any()  # type: ignore[index]
        (sequence,) = after_infinity.state[-1][0].isinf().all(-1).nonzero().flatten().tolist()
        assert after_infinity.resets[:, sequence].any()  # type: ignore[index]


def test_a_layer_is_given_a_mask_only_where_the_case_has_one() -> None:
    given: list[int] = []
    for problem in map(contents.problem, (BASE, replace(BASE, resets=False))):
        layer = verification.reference_layer(problem)
        calls.run(lambda *arguments, layer=layer: given.append(len(arguments)) or layer(*arguments), problem)
    assert given == [4, 3]


def test_a_mask_that_is_written_into_or_beside_is_seen() -> None:
    problem, bands = contents.problem(BASE), guards.Redzones()
    around = bands.around(problem)
    resets: Any = around.resets
    assert torch.equal(resets, problem.resets)  # type: ignore[arg-type]
    assert bands.find_overwrite() == ""
    guard = calls.Copies(around.tensors)
    resets.logical_not_()
    with pytest.raises(calls.WrongResult, match="expected resets unchanged by the call, but at"):
        guard.check()
    assert torch.equal(resets, problem.resets)  # type: ignore[arg-type]


def test_calls_of_the_timed_pool_and_moved_problems_have_the_mask() -> None:
    case = Case.parse("mingru-T5-B3-H2-float32-resets")
    own, pool = contents.problem(case), InputPool(case)
    resets: Any = own.resets
    drawn: Any = pool.next_problem().problem(own.weights).resets
    assert torch.equal(drawn.sum(1), resets.sum(1))  # the same sequences in another order
    placed = pool.static_call(own.weights).problem
    for one in (placed, contents.to_device(own, "cpu"), yardstick.converted(own, torch.float64)):
        assert torch.equal(one.resets, resets)  # type: ignore[arg-type]
    assert placed.resets.data_ptr() != resets.data_ptr()  # type: ignore[union-attr]


def remembers_the_mask(layer: Any, case: Case, weights: Weights) -> Layer:
    known: dict[int, Tensor] = {}
    return lambda x, state, lengths, resets: layer(x, state, lengths, known.setdefault(resets.data_ptr(), resets.clone()))


@of_calls
def clears_the_mask(layer: Any, x: Tensor, state: Any, lengths: Any, resets: Tensor) -> Any:
    results = layer(x, state, lengths, resets)
    resets.zero_()
    return results


# The mask is taken by its address, resets what comes before too, is the first sequence's for all, or is cleared.
WRONG_WITH_MASKS = {
    "stateless": remembers_the_mask,
    "causal": of_calls(lambda layer, *given: layer(*given[:3], given[3] | given[3].roll(-1, 0))),
    "batch_order": of_calls(
        lambda layer, *given: layer(*given[:3], given[3][:, :1].expand_as(given[3]))
    ),  # of the first sequence
    "inputs_unchanged": clears_the_mask,
}


@pytest.mark.parametrize("name", WRONG_WITH_MASKS)
def test_a_property_fails_a_layer_that_is_wrong_with_the_mask_alone(name: str) -> None:
    subject = PropertyContext(planted(WRONG_WITH_MASKS[name]), Case.parse("gru-T9-B8-H5-float32-resets-state-seed2"))
    with pytest.raises(calls.WrongResult):
        properties.by_name(name).check(subject)


def test_the_loop_that_faults_with_resets_are_built_on_is_right() -> None:
    found = ImplementationInfo("loop", _correct_layers.PackedLoop, Path(_correct_layers.__file__))
    row = trial.explored(Planted(found, Expectation("", "gru", "bfloat16")), "quick")
    assert row.status == "passed", row.reason
