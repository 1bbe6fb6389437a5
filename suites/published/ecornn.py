"""EcoRNN's published figures measured again on this machine's CUDA device: layout and launches.

`python -m pytest_ecornn.suites.published.ecornn --output FOLDER` writes FOLDER/ecornn.md and FOLDER/ecornn.json, anew after
every part, so that what was measured outlives a run that is cut short. `pytest --ecornn-bench --ecornn-cases ecornn` times its
LSTM. Source: EcoRNN, arXiv 1805.08899.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.markdown_syntax import document, escape
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published.common import launches
from pytest_ecornn.suites.published.ecornn_parts import product_layout
from pytest_ecornn.system import machine

SCHEMA_VERSION = 3  # of 2 and 1 there were times of an LSTM
PAPER_COLUMN = "paper (Titan Xp, CUDA 8, cuDNN 6)"


@dataclass
class Report:
    """The figures measured so far, on one machine."""

    machine: dict[str, Any]
    seconds: float = 0.0
    layout: list[product_layout.Row] = field(default_factory=list)
    hit_rates: dict[str, product_layout.HitRate] = field(default_factory=dict)
    launches: list[launches.Row] = field(default_factory=list)

    def markdown(self) -> str:
        return document(
            [
                "# EcoRNN's figures on this machine",
                escape(f"{machine.gpu_summary(self.machine)}; made in {self.seconds:.0f} s."),
                product_layout.render(self.layout, self.hit_rates, PAPER_COLUMN).strip(),
                launches.render(self.launches, PAPER_COLUMN).strip(),
            ]
        )

    def write(self, folder: Path) -> None:
        files.write(folder / "ecornn.md", self.markdown())
        figures = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        files.write(folder / "ecornn.json", json.dumps(figures, indent=1) + "\n")


def measure(folder: Path) -> None:
    """All parts, the report written after each step."""
    start = time.monotonic()
    report = Report(machine.fingerprint(Path.cwd()))

    def write(done: str) -> None:
        report.seconds = time.monotonic() - start
        report.write(folder)
        print(f"{report.seconds:4.0f} s  {done}", flush=True)

    report.layout += product_layout.measure()
    write("layout of the product")
    for call in launches.measure():
        report.launches.append(call)
        write(f"launches, {call.name}, {call.mode}")
    batch, hidden = product_layout.HIT_RATE_SHAPE
    report.hit_rates = {layout: product_layout.measure_hit_rate(batch, hidden, layout) for layout in product_layout.LAYOUTS}
    write("hit rates")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ecornn", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where ecornn.md and ecornn.json go")
    given = parser.parse_args(arguments)
    return exit_code(parser.prog, lambda: measure(given.output))


if __name__ == "__main__":
    raise SystemExit(main())
