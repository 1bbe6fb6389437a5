"""sparse_persistent_gpu on this machine: beside dense layers and cuSPARSE, each technique left out, and what stays on chip.

`python -m pytest_ecornn.suites.published.sparse --output FOLDER` writes FOLDER/sparse.md and FOLDER/sparse.json, anew after
every row, so that what was measured outlives a run that is cut short: --resume goes on after it.
"""

from __future__ import annotations

from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.sparse_parts import sparse_capacity, sparse_techniques, sparse_times

PLAN = ReportPlan(
    "sparse",
    "sparse_persistent_gpu on this machine",
    schema_version=1,
    parts={
        "capacity": Section.of(sparse_capacity, 0.1),
        "techniques": Section.of(sparse_techniques, 0.2),
        "times": Section.of(sparse_times, 0.7, is_resumable=True, groups=sparse_times.DTYPES),
    },
    order=("times", "techniques", "capacity"),
    seconds=540.0,
)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
