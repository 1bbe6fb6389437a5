"""minGRU's and minLSTM's published figures measured again on this machine, and what a scan is worth beside its peers.

`python -m pytest_ecornn.suites.published.scan --output FOLDER` writes FOLDER/scan.md, FOLDER/scan.json and plots as SVG, anew
after every step, so that what was measured outlives a run that is cut short. Sources: "Were RNNs All We Needed?", arXiv
2410.01201, and a CUDA system for its cells, whose times are in `scan_times`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_ecornn import machine, memory
from pytest_ecornn.reporting.markdown_syntax import document, escape
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published import scan_bandwidth, scan_errors, scan_layer, scan_peer_tables, scan_peers, scan_times
from pytest_ecornn.suites.published.optional import reason

SCHEMA_VERSION = 2  # of 1 the peers' peaks are beyond their pre-activations


@dataclass(frozen=True)
class Part:
    """`measure` takes a deadline of time.monotonic and makes rows. share: of the time allowed, what is left of it goes on."""

    measure: Callable[[float], Iterator[Any]]
    render: Callable[[Sequence[Any]], str]
    share: float
    figures: Callable[[Sequence[Any]], dict[str, str]] = lambda rows: {}


# In the order in which they run, the cheap ones first.
PARTS = {
    "layer": Part(scan_layer.measure, scan_layer.render, 0.1),
    "errors": Part(scan_errors.measure, scan_errors.render, 0.05, scan_errors.figures),
    "bandwidth": Part(scan_bandwidth.measure, scan_bandwidth.render, 0.1),
    "times": Part(scan_times.measure, scan_times.render, 0.3, scan_times.figures),
    "peers": Part(scan_peers.measure, scan_peer_tables.render, 0.45),
}
_ORDER = ("times", "errors", "bandwidth", "peers", "layer")  # in which they are read


@dataclass
class Report:
    """What was measured so far: rows by part. ended: why a part has no more of them than it has."""

    machine: dict[str, Any]
    allocator: str = ""
    seconds: float = 0.0
    rows: dict[str, list[Any]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        threads = f"{self.machine['cores']} cores, {self.machine['threads']['torch']} threads; {self.allocator}"
        return document(
            [
                "# minGRU and minLSTM by scan on this machine",
                escape(f"{machine.gpu_line(self.machine)}; {threads}; made in {self.seconds:.0f} s."),
                *(part for name in _ORDER for part in self._part(name)),
            ]
        )

    def _part(self, name: str) -> Iterator[str]:
        if rows := self.rows.get(name):
            yield PARTS[name].render(rows).strip()
            yield from (f"![{file}]({file})" for file in self.figures(name))
        if why := self.ended.get(name):
            yield f"The part on {name} ended early: {escape(why)}."

    def figures(self, name: str) -> dict[str, str]:
        return PARTS[name].figures(self.rows.get(name, []))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scan.md").write_text(self.markdown())
        figures = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        (folder / "scan.json").write_text(json.dumps(figures, indent=1) + "\n")
        for name in self.rows:
            for file, picture in self.figures(name).items():
                (folder / file).write_text(picture)


def measure(folder: Path, seconds: float, names: Sequence[str] = tuple(PARTS)) -> None:
    """The parts named, the report written after each row. A part that fails says why, and the others go on."""
    start = time.monotonic()
    report = Report(machine.fingerprint(Path.cwd()), memory.fix_allocator())

    def write(done: str) -> None:
        report.seconds = time.monotonic() - start
        report.write(folder)
        print(f"{report.seconds:4.0f} s  {done}", flush=True)

    for name, deadline in deadlines(start, seconds, names).items():
        try:
            for row in PARTS[name].measure(deadline):
                report.rows.setdefault(name, []).append(row)
                write(f"{name}: {row.label}")
        except Exception as error:
            report.ended[name] = reason(error)
            write(f"{name} ended early: {report.ended[name]}")


def deadlines(start: float, seconds: float, names: Sequence[str]) -> dict[str, float]:
    """By part, in the order in which they run, when it has to begin nothing more: what one leaves is the next one's."""
    chosen = {name: part.share for name, part in PARTS.items() if name in names}
    found, spent = {}, 0.0
    for name, share in chosen.items():
        spent += share
        found[name] = start + seconds * spent / sum(chosen.values())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where scan.md, scan.json and plots go")
    parser.add_argument("--seconds", type=float, default=330.0, help="after which nothing more is begun")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="all of them unless given")
    given = parser.parse_args(arguments)
    return exit_code(parser.prog, lambda: measure(given.output, given.seconds, given.parts))


if __name__ == "__main__":
    raise SystemExit(main())
