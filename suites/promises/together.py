"""Several runs on one machine at once: the share that each gets, the longest pause of any, and wrong verdicts.

`python -m pytest_ecornn.suites.promises.together --output FILE` starts six runs that verify and time the same rows: the plain
loop under a second name, and one that takes 1.5 times as long. It looks at their journals until the first one has ended, since
from then on the others have more of the machine. The exit code is 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean

from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.results.journal import read
from pytest_ecornn.results.rows import BaselineRatio, Row
from pytest_ecornn.suites.acceptance import COMMAND, DUPLICATE_SOURCE, SLOWED

MAX_SHARE = 1.5  # times as many rows on average as a run has
_CASES = tuple(f"{cell}-T{steps}-B8-H32-float32" for cell in ("gru", "lstm", "rnn_tanh") for steps in (4, 8, 16))
_JOURNAL = "reports/local/journal.jsonl"
_LOOK_SECONDS = 0.5
_WRONG = {"again": ("faster", "slower"), "longer": ("faster", "same")}


@dataclass
class Progress:
    """Of one run: when each row was there, in seconds from the start, and its rows."""

    folder: Path
    moments: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def look(self, seconds: float) -> None:
        path = self.folder / _JOURNAL
        count = max(0, path.read_text().count("\n") - 1) if path.exists() else 0  # its first line is no row
        self.moments += [seconds] * (count - len(self.moments))

    def longest_pause(self, end: float) -> float:
        """Seconds without a row, after the first."""
        moments = [*self.moments, end]
        return max(later - earlier for earlier, later in pairwise(moments)) if self.moments else end

    @property
    def judged(self) -> list[tuple[Row, BaselineRatio]]:
        timed = [row for row in self.rows if row.kind == "benchmark"]
        return [(row, one) for row in timed for one in (row.timing.against if row.timing else ())]

    @property
    def wrong_verdicts(self) -> list[str]:
        """Of rows that were timed, and those that failed: each implementation is right."""
        failed = [f"{row.implementation} on {row.case}: failed" for row in self.rows if row.status == "failed"]
        return failed + [
            f"{row.implementation} on {row.case}: {one.verdict} ({one.ratio:.3g})"
            for row, one in self.judged
            if one.verdict in _WRONG[row.implementation]
        ]

    def cells(self, end: float) -> tuple[str, ...]:
        clear = sum(one.verdict != "unclear" for _, one in self.judged)
        beside = sum(bool(row.beside) for row in self.rows)
        wrong = "; ".join(self.wrong_verdicts) or "none"
        return f"{self.longest_pause(end):.0f} s", str(beside), f"{clear} of {len(self.judged)}", wrong


def measure(runs: int, seconds: float, budget: float) -> tuple[list[Progress], float]:
    """The progress of each run until the first one has ended, or `seconds` are over, and when that was."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        found = [Progress(Path(name) / str(number)) for number in range(runs)]
        processes = [stack.enter_context(_started(one.folder, Path(name), budget)) for one in found]
        start = time.monotonic()
        while (end := time.monotonic() - start) < seconds and all(process.poll() is None for process in processes):
            time.sleep(_LOOK_SECONDS)
            for one in found:
                one.look(time.monotonic() - start)
        for process in processes:
            process.terminate()
        for process, one in zip(processes, found, strict=True):
            process.wait()
            one.rows = read(one.folder / _JOURNAL)[1] if one.moments else []
    return found, end


def _started(folder: Path, temporary: Path, budget: float) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "again.py").write_text(DUPLICATE_SOURCE)
    (folder / "longer.py").write_text(SLOWED.replace("SHARE", "0.5"))
    options = ["--ecornn-budget", f"{budget:g}", "--ecornn-baseline", "sequential"]
    for one in ("again", "longer"):
        options += ["--ecornn-implementations", f"{one}.py", "--ecornn-only", one]
    cases = [part for case in _CASES for part in ("--ecornn-case", case)]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen([*COMMAND, *options, *cases], cwd=folder, env=environment, stdout=output, stderr=output)


def report(found: Sequence[Progress], end: float) -> Iterator[str]:
    average = mean(len(one.moments) for one in found)
    yield f"# {len(found)} runs at once on {os.cpu_count()} processors"
    yield f"For {end:.0f} s. A share is the run's rows over the mean of all."
    head = ("run", "rows", "share", "longest pause", "timed beside others", "clear verdicts", "wrong verdicts")
    shares = [(str(len(one.moments)), f"{len(one.moments) / max(average, 1):.2f}") for one in found]
    yield table(head, [(str(i), *share, *one.cells(end)) for i, (share, one) in enumerate(zip(shares, found, strict=True), 1)])


def is_kept(found: Sequence[Progress]) -> bool:
    """Whether each run got its share, within a factor, and no verdict is wrong."""
    counts = [len(one.moments) for one in found]
    return min(counts) * MAX_SHARE >= mean(counts) > 0 and not any(one.wrong_verdicts for one in found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pytest_ecornn.suites.promises.together", description=__doc__)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=180.0, help="after which it ends. Default: 180.")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds to time a row for. Default: 0.3.")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    found, end = measure(given.runs, given.seconds, given.budget)
    given.output.write_text(document([*report(found, end)]))
    return 0 if is_kept(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
