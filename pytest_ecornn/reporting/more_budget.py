"""Which unclear verdicts a longer measurement would decide, and the command: an interval narrows with the root of the time."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil
from typing import Any

from pytest_ecornn.reporting import standing
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import EQUIVALENCE_MARGINS

MOST_TIMES = 20.0  # the budget; what takes longer is not worth it
_MAX_NAMED = 6
_BUDGET = re.compile(r" --ecornn-budget[ =]\S+")


def lines(rows: Iterable[Row], unproven: Collection[standing.Key], settings: Mapping[str, Any], command: str) -> Iterator[str]:
    """At most one line, for the rows of a run whose settings and command are given."""
    budget, times = _seconds(settings.get("budget")), dict[str, float]()
    for row in rows:
        for column, margin in EQUIVALENCE_MARGINS.items():
            timing = standing.is_publishable(row, unproven, column)
            for one in timing.against if timing else ():
                if standing.verdict(row, one, unproven) == "unclear" and (needed := one.budget_factor(margin)) <= MOST_TIMES:
                    label = f"{row.implementation}-{row.case}"
                    times[label] = max(needed, times.get(label, 0.0))
    if times and budget and command:
        named = sorted(times, key=lambda label: times[label])[:_MAX_NAMED]
        seconds = ceil(budget * max(1.5, *(times[label] for label in named)))
        again = f"{_BUDGET.sub('', command)} --ecornn-budget {seconds} -k {shlex.quote(' or '.join(named))}"
        rest = f" (and {len(times) - len(named)} others)" if len(times) > len(named) else ""
        yield f"more budget would decide {formatting.count(len(named), 'row')}{rest}: {formatting.printable(again)}"


def _seconds(budget: object) -> float:
    """A run's budget as its settings say it; 0 where they do not."""
    try:
        return float(str(budget).partition(" ")[0])
    except ValueError:
        return 0.0
