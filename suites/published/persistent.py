"""persistent_gpu on this machine: beside cuDNN and FlashRNN, its recurrence beside the floor of a step.

`python -m pytest_ecornn.suites.published.persistent --output FOLDER` writes FOLDER/persistent.md and FOLDER/persistent.json,
anew after every step, so that what was measured outlives a run that is cut short: --resume goes on after it. It takes one GPU;
on several, each process has its own by CUDA_VISIBLE_DEVICES and its --parts, and
`python -m pytest_ecornn join` unites their reports. Host time and peak memory are columns of a run's own report:
`pytest --ecornn-bench --ecornn-cases persistent --ecornn-device cuda`.
"""

from __future__ import annotations

from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.persistent_parts import (
    persistent_flashrnn,
    persistent_steps,
    persistent_times,
)

PLAN = ReportPlan(
    "persistent",
    "persistent_gpu on this machine",
    schema_version=1,
    parts={  # the cheap ones first, and last what may be compiled for minutes
        "steps": Section.of(persistent_steps, 0.15),
        "times": Section.of(persistent_times, 0.6, is_resumable=True, groups=persistent_times.GROUPS),
        "flashrnn": Section.of(persistent_flashrnn, 0.05),
    },
    order=("times", "steps", "flashrnn"),
    seconds=540.0,
)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
