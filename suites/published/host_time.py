"""Steps that the host bounds, by this project's modules beside torch.nn's: wall clock as called, and replayed from a graph.

`python -m pytest_ecornn.suites.published.host_time --output FOLDER` writes FOLDER/host_time.md and FOLDER/host_time.json. A
training step is forward and `backward()` into `.grad`, without an optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.host_time_parts import step_tables, step_times
from pytest_ecornn.suites.published.selection_parts.problems import SelectionProblem


def make_plan(problems: Sequence[SelectionProblem] = step_times.PROBLEMS, device: str = "cuda") -> ReportPlan:
    """The report on these problems."""
    measure = partial(step_times.measure, problems=problems, device=device)
    return ReportPlan(
        "host_time",
        "The host's time in short steps on this machine",
        schema_version=1,
        parts={"steps": Section(measure, step_tables.render, 1.0, row=step_times.Row, is_resumable=True)},
        order=("steps",),
        seconds=120.0,
    )


PLAN = make_plan()


def main(arguments: Sequence[str] | None = None) -> int:
    return PLAN.main((__doc__ or "").splitlines()[0], arguments)


if __name__ == "__main__":
    raise SystemExit(main())
