"""Contents with one value that is not finite: NaN or an infinity of either sign, in x, an initial state or a weight."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, cells

_NAN, _INFINITY = float("nan"), float("inf")
# The value, by kind of contents and where it is put.
_IN_X = {"nan": _NAN, "infinite_x": _INFINITY, "negative_infinite_x": -_INFINITY}
_IN_STATE = {"nan_state": _NAN, "infinite": _INFINITY, "negative_infinite": -_INFINITY}
_IN_WEIGHT = {"nan_weight": _NAN, "infinite_weight": _INFINITY, "negative_infinite_weight": -_INFINITY}
# An infinite x or weight reaches several gates, or the next layer: differences of infinities, and products with 0, are NaN
# to some right layers and limits to others.
UNDEFINED = frozenset(kind for kind, value in {**_IN_X, **_IN_WEIGHT}.items() if abs(value) == _INFINITY)


def leaves_undefined(case: Case) -> bool:
    """Whether infinities may meet: with an infinite x or weight, or a state that weights multiply, its own or the next layer's.

    The infinite state is the last one. Recurrent weights multiply the first.
    """
    cell, is_state_infinite = cells.get(case.cell), abs(_IN_STATE.get(case.contents, 0.0)) == _INFINITY
    is_multiplied = case.layers > 1 or (cell.recurrent and len(cell.states) == 1)
    return case.contents in UNDEFINED or (is_state_infinite and is_multiplied)


def kinds(has_state: bool = True, is_split: bool = False) -> list[str]:
    """The kinds of contents; without a state only those that need none.

    is_split: without those infinities that a product of operands split in parts turns into NaN.
    """
    odd_states = list(_IN_STATE) if has_state else []
    found = ["nan", *odd_states, "nan_weight"]
    return found if is_split else [*found, *sorted(UNDEFINED)]


def change_x(case: Case, values: Tensor, random: torch.Generator) -> None:
    """Sets the last value of a random row of x to the case's non-finite value."""
    if case.contents in _IN_X:
        values[int(torch.randint(len(values), (), generator=random)), -1] = _IN_X[case.contents]


def change_states(case: Case, states: list[Tensor], random: torch.Generator) -> None:
    """Fills the last state of one sequence with an infinity, or sets one value of one state to NaN."""
    if case.contents not in _IN_STATE:
        return
    sequence = int(torch.randint(case.batch, (), generator=random))
    if case.contents == "nan_state":
        states[case.seed % len(states)][:, sequence, -1] = _NAN
    else:
        states[-1][:, sequence] = _IN_STATE[case.contents]


def change_weight(case: Case, name: str, value: Tensor, random: torch.Generator) -> None:
    """Sets one value of the parameter that the case's seed selects."""
    if case.contents in _IN_WEIGHT and name == _odd_weight(case):
        value.view(-1)[int(torch.randint(value.numel(), (), generator=random))] = _IN_WEIGHT[case.contents]


def _odd_weight(case: Case) -> str:
    """The parameter that has the value; "" where there is none.

    W_hh only where there is an initial state and no reset: zeros may be multiplied or not, and 0 times NaN is NaN.
    """
    is_multiplied = case.has_state and not case.resets
    names = [name for name in cells.parameter_shapes(case) if is_multiplied or not name.startswith("weight_hh")]
    return names[case.seed % len(names)] if names else ""
