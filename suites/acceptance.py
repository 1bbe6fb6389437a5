"""Measures what the harness promises of itself, by running it: does an equal time read as equal, a slower one as slower?

`python -m pytest_ecornn.suites.acceptance` runs the smoke set again and again with implementations made for the purpose:
the same loop under two names, the same loop with a tenth of its time added, and one implementation under two baselines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

AGAIN = '''
"""The plain loop under a second name."""
from pytest_ecornn.implementations.sequential import Sequential

class Again(Sequential):
    pass
'''
SLOWED = '''
"""The plain loop with a share of its own time added to every call."""
import time
from pytest_ecornn.implementations.sequential import Sequential

class Slowed(Sequential):
    def build(self, case, weights):
        layer = super().build(case, weights)

        def slowed(x, state, lengths):
            start = time.perf_counter()
            result = layer(x, state, lengths)
            end = time.perf_counter()
            while time.perf_counter() - end < SHARE * (end - start):
                pass
            return result
        return slowed
'''


def run(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The timed rows of one run of the benchmark suite."""
    suite = Path(__file__).with_name("test_benchmark.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ecornn-bench", str(suite)]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    rows = json.loads((folder / "reports/local/report.json").read_text())["rows"]
    return [row for row in rows if row["timing"]]


def verdicts(folder: Path, name: str, text: str, runs: int, cases: list[str]) -> Counter[str]:
    """How often `name`, written from `text`, was called what against the plain loop."""
    path = folder / f"{name}.py"
    path.write_text(text)
    options = ["--ecornn-implementations", str(path), "--ecornn-baseline", "sequential", "--ecornn-only", name, *cases]
    found: Counter[str] = Counter()
    for number in range(runs):
        found.update(one["verdict"] for row in run(folder, *options) for one in row["timing"]["against"])
        print(f"{name}, run {number + 1} of {runs}: {dict(found)}", flush=True)
    return found


def absolute_times(folder: Path, runs: int) -> dict[str, float]:
    """For each case of scan_cpu the ratio of its times under two different baselines, the median over runs."""
    path = folder / "again.py"
    path.write_text(AGAIN)
    ratios: dict[str, list[float]] = {}
    for _ in range(runs):
        times = []
        for baseline in ("sequential", "scan_cpu_baseline"):
            other = folder / "scan_cpu_baseline.py"
            other.write_text(AGAIN.replace("sequential", "scan_cpu").replace("Sequential", "ScanCpu"))
            options = ["--ecornn-implementations", str(other), "--ecornn-baseline", baseline, "--ecornn-only", "scan_cpu"]
            times.append({row["case"]: row["timing"]["time_us"] for row in run(folder, *options)})
        for case in times[0]:
            ratios.setdefault(case, []).append(times[0][case] / times[1][case])
    return {case: median(found) for case, found in ratios.items()}


def render(same: Counter[str], slowed: Counter[str], times: dict[str, float], runs: int, share: float) -> str:
    count, slower = same.total(), slowed.total()
    called = (same["faster"] + same["slower"]) / max(1, count)
    lines = [
        "# What the harness promises of itself, measured",
        "",
        "Made by `make acceptance`: the smoke set, the plain loop compared with itself.",
        "",
        "| promise | measured |",
        "| --- | --- |",
        f"| the same implementation under two names, {runs} runs, {count} verdicts: faster or slower | {called:.1%} |",
        f"| the same: unclear | {same['unclear'] / max(1, count):.1%} |",
        f"| {share:.0%} slower, {slower} verdicts: slower | {slowed['slower'] / max(1, slower):.1%} |",
        f"| scan_cpu's time under two baselines, {len(times)} cases: largest difference | "
        f"{max((abs(ratio - 1) for ratio in times.values()), default=0):.1%} |",
        "",
        *(f"- {case}: {ratio:.3f}" for case, ratio in times.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="of the smoke set under two names")
    parser.add_argument("--slowed-runs", type=int, default=5, help="of the smoke set with the slowdown")
    parser.add_argument("--baseline-runs", type=int, default=3, help="of scan_cpu under each of two baselines")
    parser.add_argument("--share", type=float, default=0.1, help="of its time that the slowed loop adds")
    parser.add_argument("--output", type=Path, default=None, help="a Markdown file; standard output unless given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        same = verdicts(folder, "again", AGAIN, given.runs, [])
        slowed = verdicts(
            folder, "slowed", SLOWED.replace("SHARE", str(given.share)), given.slowed_runs, ["-k", "not training"]
        )
        times = absolute_times(folder, given.baseline_runs)
    text = render(same, slowed, times, given.runs, given.share)
    print(text)
    if given.output:
        given.output.write_text(text)


if __name__ == "__main__":
    main()
