"""Jobs under a sanitizer, a few to a process and several processes at once, until a deadline.

A process that reports an error, dies or takes too long costs the job that it was at: those behind it go back to the queue.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pytest_ecornn.suites.sanitized import Job

CLEAN, REPORTED = "clean", 9  # the exit code for what a tool reports
_START_S = 60.0  # until a process is at its first job
_EXCERPT = 2000  # characters


class Outcome(NamedTuple):
    job: Job
    verdict: str
    seconds: float


class Ended(NamedTuple):
    """A process's output, its exit code, None where it took too long, and how long it ran."""

    text: str
    code: int | None
    seconds: float


@dataclass
class DeviceWatch:
    """A tool's processes, until `end` of the monotonic clock. command: of some jobs. log: for output that is not clean.

    job_s: how long a job may take. jobs_each: of a process at most, whose start takes long.
    """

    command: Callable[[Sequence[Job]], list[str]]
    environment: Mapping[str, str]
    log: Path
    end: float
    job_s: float
    jobs_each: int = 4
    _processes: int = 1
    _queue: deque[Job] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _outcomes: list[Outcome] = field(default_factory=list)

    def run(self, jobs: Sequence[Job], processes: int) -> list[Outcome]:
        """Runs the jobs and returns an outcome for each one reached, in the order in which they ended."""
        self._queue.extend(jobs)
        self._processes = processes
        with ThreadPoolExecutor(processes) as pool:
            for future in [pool.submit(self._work) for _ in range(processes)]:
                future.result()
        return self._outcomes

    def _work(self) -> None:
        while time.monotonic() < self.end and (some := self._next()):
            finished = self._watched(some)
            outcomes, is_cut = self._judged(some, finished)
            with self._lock:
                self._outcomes += outcomes
                if is_cut:
                    self._queue.extendleft(reversed(some[len(outcomes) :]))
                with self.log.open("a") as log:
                    log.write(_noteworthy(outcomes, finished))

    def _next(self) -> list[Job]:
        """Jobs beside each other whose kernels have one name; fewer where few are left."""
        with self._lock:
            most = min(self.jobs_each, max(1, len(self._queue) // (2 * self._processes)))
            some: list[Job] = []
            while self._queue and len(some) < most and (not some or self._queue[0].family == some[0].family):
                some.append(self._queue.popleft())
            return some

    def _watched(self, some: Sequence[Job]) -> Ended:
        start = time.monotonic()
        process = subprocess.Popen(
            self.command(some),
            env={**os.environ, **self.environment},
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        limit = min(self.end - start, _START_S + self.job_s * len(some))
        try:
            text, _ = process.communicate(timeout=max(1.0, limit))
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what is watched is a process of its own
            text, _ = process.communicate()
            code = None
        return Ended(text, code, time.monotonic() - start)

    def _judged(self, some: Sequence[Job], ended: Ended) -> tuple[list[Outcome], bool]:
        """Returns the outcomes of the jobs that the process began, and whether the others return to the queue."""
        parts = ended.text.split("BEGIN ")[1:]  # one a job
        outcomes = [Outcome(job, *_verdict(part)) for job, part in zip(some, parts, strict=False)]
        if ended.code == 0:
            return outcomes, False
        is_out_of_time = ended.code is None and time.monotonic() >= self.end
        if is_out_of_time:
            return [one for one in outcomes if one.verdict != _UNENDED], False
        last = len(outcomes) - 1 if outcomes else 0
        first_wrong = next((i for i, one in enumerate(outcomes) if one.verdict != CLEAN), last)
        why = f"took more than {self.job_s:g} s" if ended.code is None else f"ended with {ended.code}"
        if not outcomes:
            return [Outcome(some[0], f"{why} before it began", ended.seconds)], True
        kept = outcomes[: first_wrong + 1]
        if kept[-1].verdict == _UNENDED or (kept[-1].verdict == CLEAN and ended.code != REPORTED):
            kept[-1] = kept[-1]._replace(verdict=why, seconds=ended.seconds)
        return kept, True


_UNENDED = "did not end"
_ERRORS = ("Invalid __", "hazard", "Error: ", "out of bounds", "Internal Sanitizer Error", "ERROR: AddressSanitizer")


def _verdict(part: str) -> tuple[str, float]:
    """Returns a job's verdict and seconds, from a process's output from the job's first line on."""
    for line in part.splitlines():
        if line.startswith("==") and "SUMMARY" not in line and any(sign in line for sign in _ERRORS):
            return line.strip("= ").strip(), 0.0
    ends = [line.split() for line in part.splitlines() if line.startswith("END ")]
    return (CLEAN, float(ends[0][2])) if ends else (_UNENDED, 0.0)


def _noteworthy(outcomes: Sequence[Outcome], ended: Ended) -> str:
    if all(one.verdict == CLEAN for one in outcomes):
        return ""
    labels = "".join(f"{one.job.label}: {one.verdict}\n" for one in outcomes)
    return f"{labels}{ended.text[:_EXCERPT]}\n...\n{ended.text[-_EXCERPT:]}\n\n"
