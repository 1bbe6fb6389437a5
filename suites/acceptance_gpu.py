"""Measures on a CUDA device what the harness promises of itself: that its times are right, and its verdicts on them.

`python -m pytest_ecornn.suites.acceptance_gpu --output NOTE.md` sets its device-only times beside triton's `do_bench`, counts
verdicts on equal times and on times 3 % longer, and times the first use of a kernel. The note is written anew after every step,
so that what was measured outlives a run that is cut short.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import count, significant
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.promises import agreement, first_use, verdicts
from pytest_ecornn.suites.published.common.bars import format_ratio
from pytest_ecornn.system import machine

Line = tuple[str, str, str, bool]  # promise, bar, measured, whether it is kept


@dataclass
class Report:
    """The figures measured so far, on one machine."""

    machine: dict[str, Any]
    seconds: float = 0.0
    agreement: list[agreement.Row] = field(default_factory=list)
    first_use: first_use.ColdStartFigures = field(default_factory=first_use.ColdStartFigures)
    tallies: list[verdicts.Tally] = field(default_factory=list)

    def markdown(self) -> str:
        return document(
            [
                "# What the harness promises of itself on a GPU, measured",
                f"Made by `make acceptance-gpu` in {self.seconds:.0f} s. {escape(machine.gpu_summary(self.machine))}.",
                table(("promise", "bar", "measured", "kept"), self.promises()),
                agreement.render(self.agreement).strip(),
                first_use.render(self.first_use).strip(),
                verdicts.render(self.tallies).strip(),
            ]
        )

    def promises(self) -> list[tuple[str, ...]]:
        """A line for each promise that there are figures of."""
        lines = [*_agreement(self.agreement), *_verdicts(self.tallies), *_first_use(self.first_use)]
        return [(*line, "yes" if is_kept else "no") for *line, is_kept in lines]


def _agreement(rows: Sequence[agreement.Row]) -> Iterable[Line]:
    worst = agreement.worst(rows)
    if worst and worst.ratio:
        judged = count(sum(row.is_judged for row in rows), "case")
        label = f"device-only time beside do_bench, {judged} over {agreement.MIN_US:.0f} us, largest difference"
        found = f"{worst.difference:.1%}: {format_ratio(worst.ratio)}, {worst.name}, {worst.case}"
        yield label, f"{agreement.MAX_DIFFERENCE:.0%}", found, worst.difference <= agreement.MAX_DIFFERENCE


def _verdicts(tallies: Sequence[verdicts.Tally]) -> Iterable[Line]:
    right, total = verdicts.count_correct(tallies, verdicts.SAME)
    if total:
        label, wrong = "two names of one implementation: not called the same", total - right
        is_kept = wrong <= verdicts.MAX_ERROR_RATE * total
        yield label, f"at most {verdicts.MAX_ERROR_RATE:.0%}", verdicts.share_text(wrong, total), is_kept
    right, total = verdicts.count_correct(tallies, verdicts.PLANTED)
    if total:
        ratios = [one.measured.ratio for one in tallies if one.what == verdicts.PLANTED and one.measured]
        label = f"{verdicts.SHARE:.0%} planted (measured {min(ratios):.4f} to {max(ratios):.4f}): called slower"
        is_kept = right >= (1 - verdicts.MAX_ERROR_RATE) * total
        yield label, f"at least {1 - verdicts.MAX_ERROR_RATE:.0%}", verdicts.share_text(right, total), is_kept


def _first_use(figures: first_use.ColdStartFigures) -> Iterable[Line]:
    compiles = [seconds for one in figures.firsts for seconds in one.compiles_s]
    loads = [seconds for one in figures.firsts for seconds in one.disk_loads_s]
    if compiles:
        label = f"compiling a kernel, longest of {len(compiles)}"
        longest, most = max(compiles), first_use.MOST_COMPILE_S
        yield label, f"{most:g} s", f"{significant(longest)} s", longest <= most
    if loads:
        label = f"loading a compiled kernel from disk, longest of {len(loads)}"
        longest, most = max(loads), first_use.MOST_LOAD_S
        yield label, f"{first_use.milliseconds(most)} ms", f"{first_use.milliseconds(longest)} ms", longest <= most


def measure(output: Path, trials: int, turns: int = agreement.TURNS, budget: float = verdicts.BUDGET) -> Report:
    """All parts, the note written after each step."""
    start = time.monotonic()
    report = Report(machine.fingerprint(Path.cwd()))

    def write(done: str) -> None:
        report.seconds = time.monotonic() - start
        files.write(output, report.markdown())
        print(f"{report.seconds:4.0f} s  {done}", flush=True)

    for row in agreement.measure_all(turns):
        report.agreement.append(row)
        write(f"beside do_bench, {row.name}, {row.case}")
    report.first_use = first_use.measure()
    write("first use of a kernel")
    for tally in verdicts.measure_all(trials, budget):
        report.tallies.append(tally)
        write(f"{count(tally.verdicts.total(), 'verdict')}, {tally.what}, {tally.name}, {tally.case}")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="acceptance_gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="verdicts on equal times, and as many on times 3 %% longer")
    parser.add_argument("--output", type=Path, required=True, metavar="NOTE", help="a Markdown file")
    given = parser.parse_args(arguments)
    return exit_code(parser.prog, lambda: measure(given.output, given.trials))


if __name__ == "__main__":
    raise SystemExit(main())
