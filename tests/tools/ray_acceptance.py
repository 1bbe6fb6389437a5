"""Acceptance of --ecornn-ray on this machine: rows through kills, and throughput beside pytest-xdist's own workers.

`python -m tests.tools.ray_acceptance` prints the figures of docs/notes/ray.md: a quarter of an hour, on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_ecornn.results.journal import read
from tests.helpers.ray_nodes import RayNodes, ray_nodes

_VERIFY = ("--ecornn-verify", "--ecornn-seed", "0", "--ecornn-only", "sequential", "--ecornn-only", "torch_cpu")
_CORES = 2
_WAIT_SECONDS = 600.0


def command(cases: int, *options: str) -> list[str]:
    """A run of two rows a case."""
    named = (part for n in range(cases) for part in ("--ecornn-case", f"lstm-T{n % 24 + 1}-B2-H{n // 24 + 1}-float32"))
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *_VERIFY, *named, "-k", "fixed", *options]


def rows(folder: Path) -> list[tuple[str, str, str]]:
    """Keys of the rows of the report that passed."""
    report = json.loads((folder / "reports/local/report.json").read_text())
    return [(row["kind"], row["implementation"], row["case"]) for row in report["rows"] if row["status"] == "passed"]


def stored(folder: Path) -> int:
    """Lines of the journal so far."""
    journal = folder / "reports/local/journal.jsonl"
    return len(journal.read_bytes().splitlines()) if journal.exists() else 0


def wait_for(process: subprocess.Popen[bytes], folder: Path, lines: int) -> None:
    while process.poll() is None and stored(folder) < lines:
        time.sleep(0.05)


def killed_nodes(nodes: RayNodes, folder: Path, cases: int, kills: int) -> str:
    """The outcome of a run one of whose nodes is killed so often, each time replaced."""
    process = subprocess.Popen(command(cases, "--ecornn-ray", nodes.address), cwd=folder, stdout=subprocess.PIPE)
    moments = sorted(random.sample(range(2, int(1.8 * cases)), kills))
    for moment in moments:
        wait_for(process, folder, moment)
        nodes.kill()
        nodes.add()
    output, _ = process.communicate(timeout=_WAIT_SECONDS)
    lost = len(re.findall(rb"lost host", output))
    return f"{outcome(folder, cases)}; {lost} workers lost, at rows {', '.join(map(str, moments))}"


def killed_driver(nodes: RayNodes, folder: Path, cases: int) -> str:
    """The outcome of a run that is killed at a random moment and resumed."""
    shutil.rmtree(folder / "reports", ignore_errors=True)
    process = subprocess.Popen(command(cases, "--ecornn-ray", nodes.address), cwd=folder, stdout=subprocess.DEVNULL)
    wait_for(process, folder, moment := random.randrange(2, int(1.8 * cases)))
    process.kill()
    process.wait()
    kept = {row.key: row for row in read(folder / "reports/local/journal.jsonl")[1]}
    subprocess.run(
        command(cases, "--ecornn-ray", nodes.address, "--ecornn-resume"), cwd=folder, stdout=subprocess.DEVNULL, check=True
    )
    after = {row.key: row for row in read(folder / "reports/local/journal.jsonl")[1]}
    changed = sum(after.get(key) != row for key, row in kept.items())
    return f"{outcome(folder, cases)}; killed at row {moment}, {changed} finished rows lost or changed"


def outcome(folder: Path, cases: int) -> str:
    found = rows(folder)
    return f"{2 * cases - len(set(found))} rows lost, {len(found) - len(set(found))} twice, of {2 * cases}"


def seconds(folder: Path, cases: int, *options: str) -> tuple[float, float]:
    """Time of a whole run, and from its first row to its last."""
    shutil.rmtree(folder / "reports", ignore_errors=True)
    start = time.monotonic()
    with subprocess.Popen(command(cases, *options), cwd=folder, stdout=subprocess.DEVNULL) as process:
        wait_for(process, folder, 2)
        first = time.monotonic()
        wait_for(process, folder, 2 * cases + 1)
        last = time.monotonic()
        process.wait()
    assert len(rows(folder)) == 2 * cases
    return time.monotonic() - start, last - first


def throughput(folder: Path, cases: int, turns: int) -> dict[str, str]:
    """Both ways in turns, each with as many workers as cores."""
    ways = {"xdist": ("-n", str(_CORES)), "ray": ("--ecornn-ray", "local")}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in list(ways) if turn % 2 == 0 else reversed(ways):
            found[name].append(seconds(folder, cases, *ways[name]))
            print(name, found[name][-1], flush=True)
    whole, row = ({name: statistics.median(one[part] for one in found[name]) for name in ways} for part in (0, 1))
    return {
        f"{2 * cases} rows, first to last: pytest-xdist `-n {_CORES}`, Ray": f"{row['xdist']:.1f} s, {row['ray']:.1f} s",
        "throughput of Ray's, of pytest-xdist's": f"{row['xdist'] / row['ray']:.2f}",
        "whole runs": f"{whole['xdist']:.1f} s, {whole['ray']:.1f} s",
    }


def measured(given: argparse.Namespace, folder: Path) -> dict[str, str]:
    figures: dict[str, str] = {}
    if "kills" in given.parts:
        with ray_nodes(3) as nodes:
            figures["a node killed at five random moments"] = killed_nodes(nodes, folder, given.cases, 5)
            figures["the run killed, then resumed"] = killed_driver(nodes, folder, given.cases)
    if "throughput" in given.parts:
        figures |= throughput(folder, given.throughput_cases, given.turns)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["kills", "throughput"])
    parser.add_argument("--cases", type=int, default=300, help="of the runs that are killed, two rows each")
    parser.add_argument("--throughput-cases", type=int, default=1000, help="of the runs that are timed, two rows each")
    parser.add_argument("--turns", type=int, default=2, help="how often each way is timed")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
        os.environ["TMPDIR"] = temporary  # with a lock of its own: runs of others do not hold this one up
        for name, value in measured(given, Path(folder)).items():
            print(f"| {name} | {value} |", flush=True)


if __name__ == "__main__":
    main()
