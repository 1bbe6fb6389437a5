"""Measures what the harness promises of itself, by running it: does an equal time read as equal, a slower one as slower?

`python -m pytest_ecornn.suites.acceptance` runs the smoke set again and again with implementations made for the purpose:
the same loop under two names, the same loop with a tenth of its time added, and one implementation under two baselines. The
runs under two names are then compared with each other by the gate. Also how fast scan_cpu is at the shape that the minGRU
paper's claim is about, and what a killed run loses.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

from pytest_ecornn.cases.case_sets import case_set
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.measurement import Arm, measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.regression import gate
from pytest_ecornn.regression.gate_limits import Thresholds
from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.results.journal import read
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio, pair_noise, paired_ratio
from pytest_ecornn.system import memory
from pytest_ecornn.verification.verification import Candidate

DUPLICATE_SOURCE = '''
"""The plain loop under a second name."""
from pytest_ecornn.reference.loop import ReferenceLoop

class Again(ReferenceLoop):
    pass
'''
SLOWED = '''
"""The plain loop with a share of its own time added to every call."""
import time
from pytest_ecornn.reference.loop import ReferenceLoop

class Slowed(ReferenceLoop):
    def build(self, case, weights):
        layer = super().build(case, weights)

        def slowed(*given):
            start = time.perf_counter()
            result = layer(*given)
            end = time.perf_counter()
            while time.perf_counter() - end < SHARE * (end - start):
                pass
            return result
        return slowed
'''


SUITE = Path(__file__).with_name("test_benchmark.py")
COMMAND = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--ecornn-bench", str(SUITE)]


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The report of one run of the benchmark suite, and its timed rows."""
    done = subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    report = json.loads((folder / "reports/local/report.json").read_text())
    return report, [row for row in report["rows"] if row["timing"] and row["kind"] == "benchmark"]


def verdicts(folder: Path, name: str, text: str, runs: int, cases: list[str]) -> tuple[Counter[str], list[list[Row]]]:
    """How often `name`, written from `text`, was called what against the plain loop; and the rows of each run."""
    path = folder / f"{name}.py"
    path.write_text(text)
    options = ["--ecornn-implementations", str(path), "--ecornn-baseline", "sequential", "--ecornn-only", name, *cases]
    found: Counter[str] = Counter()
    rows = []
    for number in range(runs):
        found.update(one["verdict"] for row in run(folder, *options)[1] for one in row["timing"]["against"])
        rows.append(read(folder / "reports/local/journal.jsonl")[1])
        print(f"{name}, run {number + 1} of {runs}: {dict(found)}", flush=True)
    return found, rows


def gate_false_alarms(runs: list[list[Row]]) -> tuple[int, int]:
    """How many rows the gate judged when each run was compared with each other one, and how many it called slower.

    What looks slower is measured again by what further runs measured.
    """
    judged = slower = 0
    for then, now in permutations(range(len(runs)), 2):
        outcome = gate.compare(runs[then], runs[now], set(), Thresholds().share)
        further = [runs[(now + step) % len(runs)] for step in range(1, len(runs)) if (now + step) % len(runs) != then]
        for one in outcome.findings:
            judged += one.verdict != "not judged"
            if one.looks_slower:
                again = (paired_ratio(*_times(rows, one), outcome.confidence) for rows in further)
                one = gate.with_remeasurement(one, lambda _, again=again: next(again), outcome.confidence)  # type: ignore[misc]
            slower += one.verdict == "slower"
    return judged, slower


def median_pair_noise(runs: list[list[Row]]) -> float:
    """Returns the noise behind the verdicts: the spread of a pair of blocks, as the median over all rows."""
    timed = [row.timing for rows in runs for row in rows if row.timing]
    return median(pair_noise(timing.samples_us, found.samples_us) for timing in timed for found in timing.against)


def _times(rows: list[Row], one: gate.RegressionFinding) -> tuple[list[float], list[float]]:
    """A row's times and its anchor's, in another run."""
    timing = next(row.timing for row in rows if row.timing and (row.implementation, row.case) == (one.implementation, one.case))
    return timing.samples_us, next(found.samples_us for found in timing.against if found.baseline == one.anchor)


def absolute_times(turns: int) -> dict[str, Ratio]:
    """Returns, for each smoke case, scan_cpu's time beside sequential over its time beside a second scan_cpu.

    Both are timed in turns in one process: a machine drifts more between runs than the two times may differ.
    """
    memory.configure_malloc()
    return {str(case): _two_baselines(case, turns) for case in case_set("smoke") if ScanCpu().refusal(case) is None}


def _two_baselines(case: Case, turns: int) -> Ratio:
    row, plain, again = (Candidate.build(kind.__name__, kind, case) for kind in (ScanCpu, ReferenceLoop, ScanCpu))
    pool = InputPool(case)
    beside_plain: list[float] = []
    beside_again: list[float] = []
    both = [(plain, beside_plain), (again, beside_again)]
    for turn in range(turns):
        for baseline, times in both if turn % 2 else reversed(both):
            arms = [Arm(row, pool), Arm(baseline, pool)]
            measure(arms, WallTimer(), 0.0, lambda: True)
            times.append(median(arms[0].samples_us))
    return paired_ratio(beside_plain, beside_again)


def scan(folder: Path, runs: int) -> dict[str, float]:
    """scan_cpu on minGRU, 8 sequences of 4,096 steps and 256 channels: medians over runs of what the names say."""
    shape = "mingru-T4096-B8-H256-{}-batchfirst-projected"
    names = [shape.format("float32"), shape.format("float32") + "-training", shape.format("bfloat16"), shape.format("float16")]
    options = ["--ecornn-only", "scan_cpu", "--ecornn-baseline", "sequential"]
    options += [part for name in names for part in ("--ecornn-case", name)]
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        report, rows = run(folder, *options)
        timings = {row["case"]: row["timing"] for row in rows if row["kind"] == "benchmark"}
        plain, training, bfloat16, float16 = (timings[name] for name in names)
        copy = max(report["run"]["ceilings"]["copy_points"].items(), key=lambda point: int(point[0]))[1]
        figures = {
            "share of copy bandwidth, forward": plain["gb_per_s"] / copy,
            "times faster than sequential, forward": 1 / plain["against"][0]["ratio"],
            "times faster than sequential, with backward": 1 / training["against"][0]["ratio"],
            "bfloat16 times faster than float32": plain["time_us"] / bfloat16["time_us"],
            "float16 times faster than float32": plain["time_us"] / float16["time_us"],
        }
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    return {name: median(values) for name, values in found.items()}


def kill_and_resume(folder: Path, times: int) -> int:
    """Kills a run that often at random moments and resumes it; returns how many rows beyond the one in flight were lost."""
    journal, lost = folder / "reports/local/journal.jsonl", 0
    for number in range(times):
        command = [*COMMAND, "--ecornn-budget", "0.5", *(["--ecornn-resume"] if number else [])]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        allowed, shown = random.randrange(3, 9), 0
        for line in process.stdout:
            shown += line.startswith("[")
            if shown >= allowed:
                break
        time.sleep(random.random())
        process.kill()
        process.wait()
        lost += max(0, shown - (len(read(journal)[1])))
    before = {row.key: row for row in read(journal)[1]}
    run(folder, "--ecornn-budget", "0.5", "--ecornn-resume")
    after = {row.key: row for row in read(journal)[1]}
    return lost + sum(after.get(key) != row for key, row in before.items())


def render(figures: dict[str, str]) -> str:
    made = "Made by `make acceptance` on the machine of reports/cpu."
    promises = table(("promise", "measured"), figures.items())
    return document(["# What the harness promises of itself, measured", made, promises])


def measured(folder: Path, given: argparse.Namespace) -> dict[str, str]:
    """Every promise with its figure."""
    same, rows = verdicts(folder, "again", DUPLICATE_SOURCE, given.runs, [])
    judged, slower = gate_false_alarms(rows)
    slowed, _ = verdicts(folder, "slowed", SLOWED.replace("SHARE", str(given.share)), given.slowed_runs, ["-k", "not training"])
    times = absolute_times(given.turns)
    called = (same["faster"] + same["slower"]) / max(1, same.total())
    worst = max(times, key=lambda case: abs(times[case].ratio - 1))
    return {
        f"two names of one implementation, {given.runs} runs, {same.total()} verdicts: faster or slower": f"{called:.1%}",
        "the same: unclear": f"{same['unclear'] / max(1, same.total()):.1%}",
        "the same: what a pair of blocks spreads by, median": f"{median_pair_noise(rows):.1%}",
        f"the gate at 5%, each of these runs compared with each other, {judged:,} rows: slower": str(slower),
        f"{given.share:.0%} slower, {slowed.total()} verdicts: slower": f"{slowed['slower'] / max(1, slowed.total()):.1%}",
        f"time under two baselines, {len(times)} cases, {given.turns} turns each, largest difference ({worst})": (
            f"{abs(times[worst].ratio - 1):.1%} ({times[worst].low:.3f} to {times[worst].high:.3f})"
        ),
        **{f"scan_cpu, minGRU, T 4096, B 8, H 256: {name}": f"{value:.2f}" for name, value in scan(folder, 3).items()},
        f"rows lost beyond the one in flight, {given.kills} kills": str(kill_and_resume(folder, given.kills)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=29, help="of the smoke set under two names")
    parser.add_argument("--slowed-runs", type=int, default=10, help="of the smoke set with the slowdown")
    parser.add_argument("--turns", type=int, default=100, help="of scan_cpu under each of two baselines")
    parser.add_argument("--kills", type=int, default=5, help="of a run that is then resumed")
    parser.add_argument("--share", type=float, default=0.1, help="of its time that the slowed loop adds")
    parser.add_argument("--output", type=Path, default=None, help="a Markdown file; standard output unless given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        text = render(measured(Path(name), given))
    print(text)
    if given.output:
        files.write(given.output, text)


if __name__ == "__main__":
    main()
