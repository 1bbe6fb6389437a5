"""Cases at the sizes where kernels break: which are planned, what they cost, and how a refusal changes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ecornn.cases import boundaries, contents
from pytest_ecornn.cases.boundaries import DEFAULT, QUICK, Effort, Planned, plan
from pytest_ecornn.cases.strategies import nearest_supported
from pytest_ecornn.contract import DTYPES, Case, SupportedCases
from pytest_ecornn.reporting import boundary_sizes
from pytest_ecornn.results.rows import Row

BASE = Case(cell="lstm", steps=4, batch=2, hidden_size=8)


def planned(*constants: int, effort: Effort = QUICK, seed: int = 0, refusal: Any = None, **changed: str) -> list[Planned]:
    """refusal: of a case, why it is not run; None for what runs all."""
    supported = (lambda case: nearest_supported(case, refusal)) if refusal else lambda case: case
    return list(plan(SupportedCases(("lstm",)), replace(BASE, **changed), constants, effort, seed, supported))


def covered(*plans: list[Planned]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in (one for cases in plans for one in cases):
        boundaries.note(one, found)
    return found


@pytest.mark.parametrize("effort", [QUICK, DEFAULT])
@pytest.mark.parametrize("constants", [(), (96,), (7, 96, 200, 1000, 33), tuple(range(5, 4000, 57))])
def test_cases_are_few_and_cheap(effort: Effort, constants: tuple[int, ...]) -> None:
    plans = planned(*constants, effort=effort)
    assert len(plans) <= effort.cases
    assert len({one.case for one in plans}) == len(plans)
    assert sum(boundaries.estimate(one.case) for one in plans) <= effort.ms
    assert max(boundaries.estimate(one.case) for one in plans) <= effort.case_ms


@pytest.mark.parametrize(("effort", "largest"), [(QUICK, 129), (DEFAULT, 513)])
def test_each_dimension_goes_beyond_the_largest_power(effort: Effort, largest: int) -> None:
    sizes = covered(planned(effort=effort))
    assert {dim: max(of_dim) for dim, of_dim in sizes.items()} == dict.fromkeys("TBHI", largest)


def test_all_dtypes_together_cover_the_powers_and_their_neighbours() -> None:
    sizes = covered(*(planned(dtype=dtype) for dtype in DTYPES))
    wanted = {2**k + more for k in range(4, 8) for more in (-1, 0, 1)}
    assert all(wanted <= set(sizes[dim]) for dim in "TBHI")


def test_constants_of_the_sources_come_first() -> None:
    plans = planned(96)
    assert {target.size for target in plans[0].targets} <= {95, 96, 97, 191, 192, 193}
    sizes = covered(plans)
    assert all({192, 193} <= set(sizes[dim]) for dim in "TBH")
    assert 129 in sizes["T"]


def test_a_target_is_the_case_s_own_size() -> None:
    for case, targets in planned(40, 96, effort=DEFAULT):
        for dim, size, *_ in targets:
            assert size == (case.hidden_size + case.input_size if dim == "K" else getattr(case, boundaries.FIELDS[dim]))


def test_options_vary_and_the_same_seed_plans_the_same() -> None:
    plans = planned(effort=DEFAULT)
    assert plans == planned(effort=DEFAULT) != planned(effort=DEFAULT, seed=1)
    cases = [one.case for one in plans]
    for name in ("bidirectional", "ragged", "batch_first", "has_state", "layout", "mode", "layers"):
        assert len({getattr(case, name) for case in cases}) > 1, name
    assert sum(case.training for case in cases) > len(cases) / 2


def test_a_ragged_case_of_a_long_sequence_ends_one_on_an_edge() -> None:
    ragged = [one for one in planned(20, effort=DEFAULT) if one.case.ragged and 0 < one.targets[0].edge < 100]
    assert ragged
    for one in ragged:
        assert one.targets[0].edge in contents.sequence_lengths(one.case)  # type: ignore[operator]


def test_what_an_implementation_refuses_is_tried_as_it_runs_it() -> None:
    plans = planned(refusal=lambda case: "needs multiples of 16" if case.hidden_size % 16 or case.bidirectional else None)
    assert not any(one.case.bidirectional or one.case.hidden_size % 16 for one in plans)
    assert max(target.size for one in plans for target in one.targets if target.dim == "H") == 144


def test_an_implementation_of_pre_activations_has_no_input_size() -> None:
    plans = planned(96, refusal=lambda case: None if case.projected else "takes pre-activations")
    assert set(covered(plans)) == set("TBH")


def test_nothing_is_planned_of_what_runs_no_case() -> None:
    assert not planned(96, refusal=lambda case: "runs none")


def test_covered_sizes_are_shown_in_a_line_and_a_table() -> None:
    row = Row("drawn", "mine", "", "lstm", "float32", "cpu", "", "passed", boundaries={"T": [63, 64, 65, 129], "K": [80]})
    other = replace(row, boundaries={"T": [66], "B": [3]})
    assert boundary_sizes.line([row, other]) == "boundary sizes of 1 implementation were tried: report.md lists them"
    assert not boundary_sizes.line([])
    assert "| mine | 63-66, 129 | 3 |  |  | 80 |" in "\n".join(boundary_sizes.section([row, other]))
    assert not list(boundary_sizes.section([]))


def test_a_constant_that_is_about_one_dimension_comes_first_there() -> None:
    constants, hints = (40, 50, 60, 70), {40: "T", 50: "B", 60: "H", 70: "I"}
    targets = boundaries.own_targets(constants, 0, hints)
    assert [targets[dim][0].size // 10 for dim in "TBHI"] == [8, 10, 12, 14]
    assert {target.size for target in targets["T"]} >= {81, 101, 121, 141}
