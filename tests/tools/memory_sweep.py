"""Runs every kind of form of the kernels on a CPU under AddressSanitizer, over drawn shapes, and writes what was run.

`python -m tests.tools.memory_sweep --output FILE` draws 40 shapes. Of each it runs all kinds of forms that the choosers may
return. It does so in every dtype, forward and backward, in several processes, for a limited time. Exit code 0: nothing was
reported; 1: something was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from pytest_ecornn.suites.sanitized import Job
from pytest_ecornn.suites.sanitizer_gpu import CLEAN, DeviceWatch, Outcome
from tests.simulator.sanitized_cpu import drawn, environment

_MAX_LISTED = 40


def command(some: Sequence[Job]) -> list[str]:
    return [sys.executable, "-m", "tests.simulator.sanitized_cpu", *(json.dumps(list(job)) for job in some)]


def report(outcomes: Sequence[Outcome], all_jobs: Sequence[Job], shapes: int, seconds: float) -> Iterator[str]:
    """Markdown: how many jobs were clean, by implementation, kind of form, pass and dtype; what was not; how many were left."""
    failed = [one for one in outcomes if one.verdict != CLEAN]
    clean = Counter(
        (one.job.implementation, one.job.kind, one.job.is_backward, one.job.dtype) for one in outcomes if one.verdict == CLEAN
    )
    dtypes = sorted({key[3] for key in clean})
    yield f"{len(outcomes)} of {len(all_jobs)} jobs over {shapes} shapes in {seconds:.0f} s: {len(failed)} with errors.\n"
    yield f"| implementation | kind of form | pass | {' | '.join(dtypes)} |\n| --- | --- | --- |{' ---: |' * len(dtypes)}"
    for implementation, kind, is_backward in sorted({key[:3] for key in clean}):
        counts = " | ".join(str(clean[implementation, kind, is_backward, dtype]) for dtype in dtypes)
        yield f"| {implementation} | {kind} | {'backward' if is_backward else 'forward'} | {counts} |"
    yield f"\nNot reached in the time: {len(all_jobs) - len(outcomes)}. With errors:\n"
    yield from [f"- {one.job.label}: {one.verdict}" for one in failed[:_MAX_LISTED]] or ["- none"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="memory_sweep", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, metavar="FILE", help="for the report, which is printed in any case")
    parser.add_argument("--shapes", type=int, default=40, help="that are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the draw, and of the order of the jobs")
    parser.add_argument("--timeout", type=float, default=14_400, metavar="SECONDS", help="after which no job begins")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    all_jobs, start = drawn(given.shapes, given.seed), time.monotonic()
    Random(given.seed).shuffle(all_jobs)  # so that a limited time reaches some of each kind
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        outcomes = DeviceWatch(command, environment(), log, start + given.timeout, job_s=300, jobs_each=32).run(
            all_jobs, given.processes
        )
        print(log.read_text() if log.exists() else "", end="")
    text = "\n".join(report(outcomes, all_jobs, given.shapes, time.monotonic() - start))
    print(text)
    if given.output:
        given.output.write_text(f"{text}\n")
    return int(any(one.verdict != CLEAN for one in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
