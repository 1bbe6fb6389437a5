"""persistent_gpu on this machine: beside cuDNN and FlashRNN, its recurrence beside the floor of a step, host and memory.

`python -m pytest_ecornn.suites.published.persistent --output FOLDER` writes FOLDER/persistent.md and FOLDER/persistent.json,
anew after every step, so that what was measured outlives a run that is cut short: --resume goes on after it. It takes one GPU;
on several, each process has its own by CUDA_VISIBLE_DEVICES and its --parts, and --join puts their reports together.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ecornn.suites.published.common import case_times
from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.persistent_parts import (
    persistent_flashrnn,
    persistent_host,
    persistent_memory,
    persistent_steps,
    persistent_times,
)

PLAN = ReportPlan(
    "persistent",
    "persistent_gpu on this machine",
    schema_version=1,
    parts={  # the cheap ones first, and last what may be compiled for minutes
        "host": Section(persistent_host.measure, persistent_host.render, row=persistent_host.Row, share=0.1),
        "steps": Section(persistent_steps.measure, persistent_steps.render, row=persistent_steps.Row, share=0.15),
        "memory": Section(persistent_memory.measure, persistent_memory.render, row=persistent_memory.Row, share=0.1),
        "times": Section(
            persistent_times.measure,
            persistent_times.render,
            row=case_times.Row,
            is_resumable=True,
            groups=tuple(persistent_times.GROUPS),
            share=0.6,
        ),
        "flashrnn": Section(persistent_flashrnn.measure, persistent_flashrnn.render, row=persistent_flashrnn.Row, share=0.05),
    },
    order=("times", "steps", "flashrnn", "host", "memory"),
    seconds=540.0,
)


def main(arguments: Sequence[str] | None = None) -> int:
    return PLAN.main((__doc__ or "").splitlines()[0], arguments)


if __name__ == "__main__":
    raise SystemExit(main())
