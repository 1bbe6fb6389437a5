"""`python -m pytest_ecornn.reporting FOLDER...` renders stored reports anew from their report.json; nothing is measured.

What a comparison with another report said is not stored in a form to be read back, so the new files lack it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_ecornn.reporting import ReportError, read_report, standing, write_reports


def main(folders: list[str]) -> int:
    """The exit code: 0, or 1 where a report could not be read or written."""
    if not folders:
        print("expected one or more folders that hold a report.json, got none", file=sys.stderr)
        return 1
    try:
        for folder in map(Path, folders):
            run, rows = read_report(folder / "report.json")
            run.skipped = standing.skipped(rows)
            write_reports(folder, run, rows)
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
