"""Cases in which two sizes are equal, and one of more sequences than a grid's second dimension has blocks.

A layer that tells tensors, dimensions or layouts apart by their shapes mistakes them where shapes coincide. No size of these is
special by itself, so that `boundaries` does not plan them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_ecornn.cases.boundaries import FIELDS, GRANULES, with_random_options
from pytest_ecornn.contract import Case, SupportedCases, cells


class _Relation(NamedTuple):
    """sizes: of T, B, H and I those that are related, by the number of gates G and a size n that may be any."""

    sizes: Callable[[int, int], Mapping[str, int]]
    options: Mapping[str, Any] = {}


_STACKED = {"layers": 2, "bidirectional": True, "has_state": True}  # L*D is 4
_RELATIONS = (
    _Relation(lambda g, n: {"I": g * n, "H": n}, {"layers": 1}),
    _Relation(lambda g, n: {"I": n, "H": n}, {"layers": 2, "bidirectional": False}),
    _Relation(lambda g, n: {"I": 2 * n, "H": n}, {"layers": 2, "bidirectional": True}),
    _Relation(lambda g, n: {"I": max(1, g - 1) * n, "H": n}),  # [W_ih W_hh] is square, where there are several gates
    _Relation(lambda g, n: {"T": n, "B": n}, {"batch_first": False, "has_state": True}),
    _Relation(lambda g, n: {"T": n, "B": n}, {"batch_first": True, "has_state": True}),
    _Relation(lambda g, n: {"T": n, "B": n}, {"resets": True}),
    _Relation(lambda g, n: {"B": n, "H": n}, {"ragged": True, "has_state": True}),
    _Relation(lambda g, n: {"T": n, "I": n, "B": n + 2, "H": n + 2}),
    _Relation(lambda g, n: {"T": n, "H": n, "B": n + 2, "I": n + 2}, {"ragged": True}),
    _Relation(lambda g, n: {"T": n, "B": n, "H": n, "I": n}, {"has_state": True}),
    _Relation(lambda g, n: {"B": g * n, "H": n}),
    _Relation(lambda g, n: {"T": g * n, "H": n}, {"layers": 1}),
    _Relation(lambda g, n: {"T": 2 * g, "B": n, "H": 2 * n}),  # T*B is G*H
    _Relation(lambda g, n: {"B": 4}, _STACKED),
    _Relation(lambda g, n: {"H": 4, "T": 4}, _STACKED),
)
_SIZES = (3, 5, 6, 7)
MANY_SEQUENCES = 2**16 + 1  # a grid's y and z have 65,535 blocks at most


def equal_sizes(
    domain: SupportedCases, base: Case, modes: tuple[str, ...], seed: int, nearest: Callable[[Case], Case | None]
) -> Iterator[Case]:
    """Cases like `base`, of each relation one by mode, as `nearest` has what runs; then one of many sequences.

    Where a relation is refused, multiples of a larger number are tried. One that does not run in any is left out.
    """
    gates = len(cells.get(base.cell).gates)
    for mode in (mode for mode in modes if mode in domain.modes):
        for number, relation in enumerate(_RELATIONS):
            chosen = random.Random(f"{seed} {base} {mode} {number}")
            case = replace(with_random_options(domain, base, chosen, 1), mode=mode)
            for name, value in relation.options.items():
                case = changed if domain.contains(changed := replace(case, **{name: value})) else case
            for size in (chosen.choice(_SIZES), *GRANULES):
                wanted = {FIELDS[dim]: count for dim, count in relation.sizes(gates, size).items()}
                if (fitted := nearest(_sized(case, wanted))) is not None and _sized(fitted, wanted) == fitted:
                    yield fitted
                    break
    case = replace(with_random_options(domain, base, random.Random(f"{seed} {base} many"), 1), layers=1, bidirectional=False)
    few = {"steps": 2, "hidden_size": 2, "input_size": 1}
    fitted = nearest(replace(_sized(case, {**few, "batch": MANY_SEQUENCES}), ragged=False, resets=False))
    if fitted is not None and fitted.batch == MANY_SEQUENCES:
        yield fitted


def _sized(case: Case, sizes: Mapping[str, Any]) -> Case:
    """The case of these sizes: of inputs, where their number is one of them."""
    is_projected = case.projected and "input_size" not in sizes
    inputs: dict[str, Any] = {"input_size": sizes.get("hidden_size", case.hidden_size)} if is_projected else {}
    return replace(case, **inputs, **sizes, projected=is_projected)
