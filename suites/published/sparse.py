"""sparse_persistent_gpu on this machine: beside dense layers and cuSPARSE, each technique left out, and what stays on chip.

`python -m pytest_ecornn.suites.published.sparse --output FOLDER` writes FOLDER/sparse.md and FOLDER/sparse.json, anew after
every row, so that what was measured outlives a run that is cut short: --resume goes on after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ecornn.suites.published.common import case_times
from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.sparse_parts import sparse_capacity, sparse_techniques, sparse_times

PLAN = ReportPlan(
    "sparse",
    "sparse_persistent_gpu on this machine",
    schema_version=1,
    parts={
        "capacity": Section(sparse_capacity.measure, sparse_capacity.render, row=sparse_capacity.Row, share=0.1),
        "techniques": Section(sparse_techniques.measure, sparse_techniques.render, row=sparse_techniques.Row, share=0.2),
        "times": Section(
            sparse_times.measure,
            sparse_times.render,
            row=case_times.Row,
            is_resumable=True,
            groups=sparse_times.DTYPES,
            share=0.7,
        ),
    },
    order=("times", "techniques", "capacity"),
    seconds=540.0,
)


def main(arguments: Sequence[str] | None = None) -> int:
    return PLAN.main((__doc__ or "").splitlines()[0], arguments)


if __name__ == "__main__":
    raise SystemExit(main())
