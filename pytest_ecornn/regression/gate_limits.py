"""How much slower a row may get: the limits of `--ecornn-fail-slower` and of the ini value `ecornn_fail_slower`.

A limit is a percentage, alone or for a scope: `5%`, `scan_cpu=3%`, `lstm=10%`, `scan_cpu:lstm=2%`, `device-only=2%`. The
parts of a scope are an implementation, a cell and a column (as-called or device-only), in any order, any of them left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

DEFAULT = 0.05
COLUMNS = {"timing": "as-called", "replay": "device-only"}  # a row's field, and its name in a scope
_LIMIT = re.compile(r"\s*(?:(?P<scope>[^=]*?)\s*=\s*)?(?P<percent>\d+(?:\.\d*)?|\.\d+)\s*%\s*")
_EXPECTED = "expected a percentage over 0, such as 5%, or IMPLEMENTATION=3%, CELL=10%, IMPLEMENTATION:CELL=2%"


@dataclass(frozen=True)
class Limit:
    """A share by which rows of the scope may be slower; an empty scope is every row's."""

    scope: frozenset[str]
    share: float

    def specificity(self, implementation: str, cell: str) -> tuple[int, bool, bool]:
        """Sort key: more parts win, then a limit for the implementation, then one for the cell."""
        return len(self.scope), implementation in self.scope, cell in self.scope


class Thresholds:
    """The most specific wins; of two for the same, the one given last."""

    def __init__(self, texts: Iterable[str] = ()):
        """Raises ValueError saying what was expected and what came."""
        self._limits = [Limit(frozenset(), DEFAULT), *map(_parse, texts)]

    def check(self, known: Collection[str]) -> None:
        """Raises ValueError for a part of a scope that is neither a column nor among `known`."""
        known = [*known, *COLUMNS.values()]
        for name in (part for one in self._limits for part in sorted(one.scope)):
            if name not in known:
                raise ValueError(f"unknown name {name!r}: expected one of {', '.join(known)}")

    def share(self, implementation: str, cell: str, column: str) -> float:
        """Returns the limit for a row's column ("timing" or "replay")."""
        names = {implementation, cell, COLUMNS[column]}
        matching = [one for one in reversed(self._limits) if one.scope <= names]
        return max(matching, key=lambda one: one.specificity(implementation, cell)).share


def _parse(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if match is None or float(match["percent"]) == 0:
        raise ValueError(f"{_EXPECTED}; got {text!r}")
    parts = [] if match["scope"] is None else [part.strip() for part in match["scope"].split(":")]
    if match["scope"] is not None and not all(parts):
        raise ValueError(f"{_EXPECTED}; got {text!r}")
    return Limit(frozenset(parts), float(match["percent"]) / 100)
