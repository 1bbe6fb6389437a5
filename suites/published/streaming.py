"""One time step a call on this machine's CPU: `stream` of this project's modules beside torch.nn, ONNX Runtime and JAX.

`python -m pytest_ecornn.suites.published.streaming --output FOLDER` writes FOLDER/streaming.md and FOLDER/streaming.json, anew
after every case; --resume goes on after it. What is not installed has no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.streaming_parts import stream_steps
from pytest_ecornn.suites.published.streaming_parts.stream_steps import CASES, Row, StreamCase


def make_plan(cases: Sequence[StreamCase] = CASES) -> ReportPlan:
    """The report on these cases."""
    measure = partial(stream_steps.measure, cases=cases)
    parts = {"steps": ReportPart(measure, stream_steps.render, 1.0, row=Row, is_resumable=True)}
    return ReportPlan("streaming", "One step a call on this machine's CPU", 1, parts, ("steps",), seconds=240.0, device="cpu")


PLAN = make_plan()
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
