"""The cases of problems, their order, and their measurement in shares that later runs go on with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pytest_ecornn.contract import Case
from pytest_ecornn.results.shard import Shard
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.case_times import CALLED, Row, TimedComparison, precision_of, timing_mode
from pytest_ecornn.suites.published.deepbench_parts.problems import Problem

INPUTS = 8  # the fewest that cuDNN's 16-bit kernels take
PASSES = {"inference": "forward", "training": "training step"}


@dataclass(frozen=True)
class Variant:
    """How a problem is run: in which precision and mode, with which density of the recurrent weights."""

    dtype: str
    precision: str
    mode: str
    density: float = 1.0


@dataclass(frozen=True)
class ProblemTimes:
    """Measures problems, each in all variants. name: of the report's part, whose groups are named after it.

    comparison: its first baseline is the one that ratios are shown to.
    """

    name: str
    problems: Sequence[Problem]
    variants: Sequence[Variant]
    comparison: TimedComparison
    device: str = "cuda"

    @property
    def baseline(self) -> str:
        return self.comparison.baselines[0]

    @property
    def candidates(self) -> list[str]:
        """Names of the implementations that are compared with the baseline."""
        return [name for name in self.comparison.names if name != self.baseline]

    @property
    def precisions(self) -> list[str]:
        return list(dict.fromkeys(precision_of(self.case(self.problems[0], variant)) for variant in self.variants))

    @property
    def groups(self) -> tuple[str, ...]:
        """One for each precision."""
        return tuple(self._group(precision) for precision in self.precisions)

    def _group(self, precision: str) -> str:
        return f"{self.name}-{precision}"

    @property
    def applications(self) -> list[str]:
        return list(dict.fromkeys(problem.application for problem in self.problems))

    def case(self, problem: Problem, variant: Variant) -> Case:
        """A layer of `INPUTS` inputs with biases."""
        return Case(cell=problem.cell, steps=problem.steps, batch=problem.batch, hidden_size=problem.hidden, input_size=INPUTS,
                    device=self.device, **vars(variant))  # fmt: skip

    def cases(self, groups: Collection[str] = (), shard: Shard | None = None) -> list[Case]:
        """Returns each case of the groups and the shard once, of all groups where none are named.

        Small ones come first, applications in turn.
        """
        wanted = groups or self.groups
        cases = (self.case(problem, variant) for problem in in_turn(self.problems) for variant in self.variants)
        of_groups = [case for case in dict.fromkeys(cases) if self._group(precision_of(case)) in wanted]
        return [case for case in of_groups if not shard or shard.has(str(case))]

    def measure(
        self, deadline: float, earlier: Sequence[Row] = (), groups: Collection[str] = (), shard: Shard | None = None
    ) -> Iterator[Row]:
        """Earlier rows, then one for each other case: of what begins after `deadline` (of time.monotonic) the reason."""
        return self.comparison.rows(self.cases(groups, shard), deadline, earlier)

    def rows_of(self, rows: Sequence[Row], application: str, variant: Variant) -> list[tuple[Problem, Row | None]]:
        """Returns the problems of an application, of all where it is empty, each case once, with its row where there is one."""
        by_case = {row.case: row for row in rows}
        problems = {
            self.case(problem, variant): problem for problem in self.problems if application in ("", problem.application)
        }
        return [(problem, by_case.get(case)) for case, problem in problems.items()]

    def timed_rows(self, rows: Sequence[Row], application: str, mode: str) -> Iterator[tuple[Problem, Row]]:
        """Yields an application's rows that have a time, problem by problem."""
        by_variant = [dict(self.rows_of(rows, application, one)) for one in self.variants if one.mode == mode]
        for problem in by_variant[0] if by_variant else ():
            for row in (of_variant[problem] for of_variant in by_variant):
                if row and any(cell.time_us for cell in row.cells[timing_mode(row)].values()):
                    yield problem, row

    def ratio(self, row: Row, name: str, way: str = "") -> Ratio | None:
        """The baseline's time over that of `name`, by `timing_mode` unless a way is given; None where one has no time."""
        return row.cells[way or timing_mode(row)][name].over_it.get(self.baseline)


def marked_label(problem: Problem, row: Row) -> str:
    """Names a problem in a table's cell, with * where the row's times are as called."""
    mark = r" \*" if timing_mode(row) == CALLED else ""
    return f"{problem}{mark}"


def in_turn(problems: Sequence[Problem]) -> list[Problem]:
    """Orders problems by rank within their application, by work: a shortened run covers all applications."""
    ranks: Counter[str] = Counter()
    keys: dict[Problem, tuple[int, int]] = {}
    for problem in sorted(problems, key=lambda problem: problem.work):
        keys[problem] = ranks[problem.application], problem.work
        ranks[problem.application] += 1
    return sorted(keys, key=keys.__getitem__)
