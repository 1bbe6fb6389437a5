"""Drawn cases: lets Hypothesis search one cell, dtype and device for a case on which an implementation is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, Phase, given, reject, seed, settings

from pytest_ecornn.comparison import Comparison
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.discovery import Found
from pytest_ecornn.rows import Row
from pytest_ecornn.strategies import MOST_STEPS, Domain, cases, corners, nearest_supported


@dataclass(frozen=True)
class Profile:
    """examples: cases to draw for a cell in one dtype; informative: draws that each tensor needs in which it could have failed;
    steps: T times layers times directions at most.

    More rounds of as many cases are drawn while a tensor lacks them.
    """

    examples: int
    informative: int
    steps: int = MOST_STEPS


MOST_ROUNDS = 4
_REPRODUCED = settings(phases=(Phase.explicit, Phase.generate), database=None)
PROFILES = {"quick": Profile(15, 2), "default": Profile(50, 10), "thorough": Profile(125, 20, steps=512)}


def explore(
    found: Found, base: Case, profile: str, check: Callable[[Case], list[Comparison]], row: Row, number: int | None = None
) -> None:
    """Draws cases like `base` and checks each, then the corners that chance leaves out; counts go into `row`.

    The draws are the same for the same `number`, and the first that fails is not simplified; without one they are random.

    Raises Unsupported where the implementation runs no such case, whatever `check` raises on the simplest case that
    makes it fail, and AssertionError where too few draws could have failed.
    """
    from pytest_ecornn.suites.required import REQUIRED_DOMAIN

    implementation, device = found.kind(), torch.device(base.device)
    required = REQUIRED_DOMAIN.get(found.name) if found.is_own else None
    is_required = required is not None and required.has_kind(base)
    domain = required if required is not None and is_required else Domain((base.cell,), (base.dtype,))

    def unsupported(case: Case) -> str | None:
        return implementation.unsupported(case, device)

    def refused(case: Case, reason: str) -> None:
        assert not is_required, f"{found.name} must support {case}, but says: {reason}"
        row.refused += 1

    if nearest_supported(base, unsupported) is None:
        raise Unsupported(unsupported(base))
    wanted = PROFILES[profile]

    def tried(case: Case) -> bool:
        """Whether the case, or the nearest that is supported, was checked and not refused."""
        if reason := unsupported(case):
            refused(case, reason)
            nearest = nearest_supported(case, unsupported)
            if nearest is None:
                return False
            case = nearest
        try:
            count(row, check(case))
        except Unsupported as refusal:
            refused(case, str(refusal))
            return False
        return True

    @settings(
        None if number is None else _REPRODUCED,
        max_examples=wanted.examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(cases(domain, base.cell, base.dtype, base.device, wanted.steps))
    def search(case: Case) -> None:
        if not tried(case):
            reject()

    for again in range(MOST_ROUNDS):
        (search if number is None else seed(number * MOST_ROUNDS + again)(search))()
        few = {name: n for name, n in _informative(row).items() if n < wanted.informative}
        if not few and row.examples:
            break
    else:
        raise _unproven(row, wanted, few)
    for case in corners(domain, base.cell, base.dtype, base.device):
        tried(case)


def _unproven(row: Row, wanted: Profile, few: dict[str, int]) -> Exception:
    if not row.examples:
        return Unsupported(f"build refused each of the {row.refused} cases drawn")
    return AssertionError(f"too few informative draws of {row.examples}: {few}; expected {wanted.informative} of each tensor")


def count(row: Row, comparisons: list[Comparison]) -> None:
    """Adds one example: each tensor by its name without layer and direction."""
    row.examples += 1
    for one in comparisons:
        name = one.tensor.partition("_l")[0]
        counts = row.uninformative if one.status == "uninformative" else row.informative
        counts[name] = counts.get(name, 0) + 1


def _informative(row: Row) -> dict[str, int]:
    return {name: row.informative.get(name, 0) for name in {**row.informative, **row.uninformative}}
