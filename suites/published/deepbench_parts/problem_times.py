"""The cases of problems, their order, and their measurement in shares that later runs go on with."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pytest_ecornn.contract import Case
from pytest_ecornn.results.shard import Shard
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.case_times import CALLED, Row, TimedComparison, precision_of, timing_mode

V100, TITAN_XP = "V100", "TitanXp"
_FILE = "problems.csv"
_PUBLISHED_PRECISIONS = {"float32": "fp32", "float16": "fp16 mixed"}  # by the dtype of the case
_UNNAMED = {"inference_server": "inference on a server", "inference_device": "inference on a device"}
INPUTS = 8  # the fewest that cuDNN's 16-bit kernels take
PASSES = {"inference": "forward", "training": "training step"}


@dataclass(frozen=True)
class Problem:
    """A layer and the application that it comes from. set: training, inference_server or inference_device."""

    set: str
    application: str
    cell: str
    hidden: int
    batch: int
    steps: int

    @property
    def is_training(self) -> bool:
        return self.set == "training"

    @property
    def work(self) -> int:
        """T * B * H * H, to which the multiply-adds of a layer are proportional."""
        return self.steps * self.batch * self.hidden**2

    def __str__(self) -> str:
        return f"{self.cell} {self.hidden:,}, B {self.batch}, T {self.steps:,}"


@dataclass(frozen=True)
class PublishedTime:
    """Times on one processor in one precision, in ms; None where DeepBench has none."""

    forward_ms: float
    backward_inputs_ms: float | None = None
    backward_weights_ms: float | None = None

    @property
    def training_step_ms(self) -> float | None:
        """The sum of the three; None where one is missing."""
        if self.backward_inputs_ms is None or self.backward_weights_ms is None:
            return None
        return self.forward_ms + self.backward_inputs_ms + self.backward_weights_ms


@cache
def published() -> Mapping[Problem, Mapping[tuple[str, str], PublishedTime]]:
    """Returns each problem with its times by processor and precision, in the file's order.

    An application that two processors' lists name differently has the first name. Inference without one is named by its set.
    """
    times: dict[tuple[str, ...], dict[tuple[str, str], PublishedTime]] = {}
    problems: dict[tuple[str, ...], Problem] = {}
    for row in csv.DictReader(files(__package__).joinpath(_FILE).read_text().splitlines()):
        key = tuple(row[name] for name in ("set", "cell", "hidden", "batch", "steps"))
        problems.setdefault(key, _problem(row))
        of_problem = times.setdefault(key, {})
        if row["processor"]:
            of_problem[row["processor"], row["precision"]] = _published_time(row)
    return {problem: times[key] for key, problem in problems.items()}


def _problem(row: Mapping[str, str]) -> Problem:
    application = row["application"] or _UNNAMED[row["set"]]
    return Problem(row["set"], application, row["cell"], *(int(row[name]) for name in ("hidden", "batch", "steps")))


def _published_time(row: Mapping[str, str]) -> PublishedTime:
    backward = (float(row[name]) if row[name] else None for name in ("backward_inputs_ms", "backward_weights_ms"))
    return PublishedTime(float(row["forward_ms"]), *backward)


def published_us(problem: Problem, processor: str, case: Case) -> float | None:
    """Returns the published time beside a case in float32, TF32 (both: fp32) or float16; None where there is none."""
    times = published().get(problem, {}).get((processor, _PUBLISHED_PRECISIONS[case.dtype]))
    if times is None:
        return None
    time_ms = times.training_step_ms if case.training else times.forward_ms
    return None if time_ms is None else time_ms * 1e3


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
