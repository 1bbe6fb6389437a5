"""`python -m pytest_ecornn.suites.figures` draws the sequence diagrams of docs/kernels anew."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ecornn.suites.figures.kernels import FIGURES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/kernels/figures"), help="the folder of the pictures")
    folder: Path = parser.parse_args().output
    for name, figure in FIGURES.items():
        (folder / f"{name}.svg").write_text(figure().render())


if __name__ == "__main__":
    main()
