"""sparse_persistent_gpu on this machine: each technique left out, and what stays on chip.

`python -m pytest_ecornn.suites.published.sparse_kernel --output FOLDER` writes FOLDER/sparse_kernel.md and its JSON, anew after
every row, so that what was measured outlives a run that is cut short.
"""

from __future__ import annotations

from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.sparse_kernel_parts import sparse_capacity, sparse_techniques

PARTS = {"capacity": ReportPart.of(sparse_capacity, 0.3), "techniques": ReportPart.of(sparse_techniques, 0.7)}
TITLE = "sparse_persistent_gpu's kernel on this machine"
PLAN = ReportPlan("sparse_kernel", TITLE, 1, PARTS, ("techniques", "capacity"), seconds=160.0)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
