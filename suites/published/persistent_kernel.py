"""persistent_gpu's recurrence on this machine: a step beside its floor, and the layer beside FlashRNN.

`python -m pytest_ecornn.suites.published.persistent_kernel --output FOLDER` writes FOLDER/persistent_kernel.md and its JSON,
anew after every step, so that what was measured outlives a run that is cut short: --resume goes on after it.
"""

from __future__ import annotations

from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.persistent_kernel_parts import persistent_flashrnn, persistent_steps

PARTS = {"steps": ReportPart.of(persistent_steps, 0.75), "flashrnn": ReportPart.of(persistent_flashrnn, 0.25)}
TITLE = "persistent_gpu's recurrence on this machine"
PLAN = ReportPlan("persistent_kernel", TITLE, 1, PARTS, ("steps", "flashrnn"), seconds=240.0)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
