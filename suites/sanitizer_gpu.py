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
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.sanitized import KERNELS, Job, jobs
from pytest_ecornn.suites.sanitizer_queue import CLEAN, REPORTED, DeviceWatch, Outcome

TOOLS = ("memcheck", "racecheck")
_SEES = {
    "memcheck": "every access to memory of any kind",
    "racecheck": "shared memory alone; the builds with random waits of `make soak-gpu` cover the rest",
}


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
    yield "| implementation | kind of form | pass | clean jobs by dtype |\n| --- | --- | --- | --- |"
    for (implementation, kind, direction), counts in by_kind.items():
        listed = ", ".join(f"{dtype} {count}" for dtype, count in counts.items())
        yield f"| {implementation} | {kind} | {direction} | {listed} |"
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
    verdicts: list[bool] = []
    try:
        code = exit_code(parser.prog, lambda: verdicts.append(run(given, sanitizer)))
    except UnknownName as error:
        parser.error(str(error))
    return code or int(not all(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
