"""Runs each kind of form of the kernels under compute-sanitizer on a CUDA device, in each dtype, by at most 4 steps.

`python -m pytest_ecornn.suites.sanitizer_gpu --output DIR` does so under memcheck and racecheck, for a limited time each, in
several processes. racecheck sees shared memory alone: what blocks hand each other through memory is for the builds with random
waits (`soak_gpu`). Exit code 0: no tool reported anything; 1: one did, or a process failed; 2: no compute-sanitizer, or no CUDA
device. What was not reached in the time is listed, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.reporting.markdown_syntax import table
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.sanitized import KERNELS, Job, jobs

CLEAN, REPORTED = "clean", 9  # the exit code for what a tool reports
_START_S = 60.0  # until a process is at its first job
_EXCERPT = 2000  # characters
TOOLS = ("memcheck", "racecheck")
_SEES = {
    "memcheck": "every access to memory of any kind",
    "racecheck": "shared memory alone; the builds with random waits of `make soak-gpu` cover the rest",
}


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


def command(sanitizer: str, tool: str, some: Sequence[Job]) -> list[str]:
    """Some jobs of one family of kernels, watched."""
    kernels = f"kns={KERNELS[some[0].family]}"  # a part of the names of those that are watched
    watched = [sanitizer, "--tool", tool, "--kernel-name", kernels, "--error-exitcode", str(REPORTED), "--print-limit", "20"]
    return [*watched, sys.executable, "-m", "pytest_ecornn.suites.sanitized", *(json.dumps(list(job)) for job in some)]


def report(tool: str, outcomes: Sequence[Outcome], all_jobs: Sequence[Job], seconds: float) -> Iterator[str]:
    """Markdown: what was clean by kernel, kind of form and dtype, what was not, and what was not reached."""
    by_kind: dict[tuple[str, str, str], Counter[str]] = {}
    for outcome in outcomes:
        job = outcome.job
        direction = "backward" if job.is_backward else "forward"
        by_kind.setdefault((job.implementation, job.kind, direction), Counter())[job.dtype] += outcome.verdict == CLEAN
    failed, reached = [one for one in outcomes if one.verdict != CLEAN], {one.job for one in outcomes}
    yield f"## {tool}\n"
    yield f"It sees {_SEES.get(tool, 'what its manual says')}. {len(outcomes)} of {len(all_jobs)} jobs in {seconds:.0f} s, "
    yield f"{len(outcomes) - len(failed)} clean.\n"
    lines = [[*key, ", ".join(f"{dtype} {count}" for dtype, count in counts.items())] for key, counts in by_kind.items()]
    yield table(("implementation", "kind of form", "pass", "clean jobs by dtype"), lines)
    yield from _listed("Not clean", [f"{one.job.label}: {one.verdict}" for one in failed])
    yield from _listed("Not reached in the time", [job.label for job in all_jobs if job not in reached])


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"\n{title}: {len(lines)}.\n"
    yield from (f"- {line}" for line in lines)


class UnknownName(Exception):
    """No job is of an implementation of that name."""


def chosen(all_jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """The jobs of these implementations, of all where none is named. Raises UnknownName."""
    known = {job.implementation for job in all_jobs}
    if unknown := sorted(set(only) - known):
        raise UnknownName(f"--only: expected some of {', '.join(sorted(known))}, got {', '.join(unknown)}")
    return [job for job in all_jobs if not only or job.implementation in only]


def run(given: argparse.Namespace, sanitizer: str) -> bool:
    """Whether nothing was reported, which it prints tool by tool and writes into the folder."""
    all_jobs, is_clean = chosen(jobs(Device.of(with_index("cuda"))), given.only), True
    given.output.mkdir(parents=True, exist_ok=True)
    for tool in given.tools:
        start = time.monotonic()
        log = given.output / f"{tool}.log"
        watch = DeviceWatch(partial(command, sanitizer, tool), {}, log, start + given.timeout, given.job_timeout)
        outcomes = watch.run(all_jobs, given.processes)
        text = "\n".join(report(tool, outcomes, all_jobs, time.monotonic() - start))
        (given.output / f"{tool}.md").write_text(f"{torch.cuda.get_device_name()}\n\n{text}\n")
        lines = [json.dumps({"job": one.job._asdict(), "verdict": one.verdict, "s": one.seconds}) for one in outcomes]
        (given.output / f"{tool}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        print(text, flush=True)
        is_clean &= bool(outcomes) and all(one.verdict == CLEAN for one in outcomes)
    return is_clean


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sanitizer_gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("reports/local/sanitizer"), metavar="DIR", help="for its reports")
    parser.add_argument("--tools", nargs="+", default=TOOLS, help="of compute-sanitizer")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="of the implementations")
    parser.add_argument("--timeout", type=float, default=540, metavar="SECONDS", help="for each tool")
    parser.add_argument("--job-timeout", type=float, default=150, metavar="SECONDS", help="for one job and its compilation")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4), help="that share the device")
    parser.add_argument("--sanitizer", default="compute-sanitizer", metavar="PATH", help="where it is, if not on the PATH")
    given = parser.parse_args(arguments)
    sanitizer = shutil.which(given.sanitizer)
    if sanitizer is None:
        print(f"{parser.prog}: no {given.sanitizer} on this machine; it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    try:
        return exit_code(parser.prog, lambda: run(given, sanitizer))
    except UnknownName as error:
        parser.error(str(error))


if __name__ == "__main__":
    raise SystemExit(main())
