"""`python -m pytest_ecornn COMMAND` works on stored reports; nothing is measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_ecornn.reporting import ReportError, read_report, write_reports
from pytest_ecornn.reporting.join import join, missing_shards

_NAME = "report.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 where a report could not be read or written, or cannot stand beside another."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pytest_ecornn", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    help_text = "unites reports of runs on machines of one kind, such as those of all shards"
    joining = commands.add_parser("join", help=help_text, description=help_text)
    joining.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="a report.json, or the folder that holds it")
    joining.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the united report is written")
    joining.set_defaults(run=_join)
    return parser


def _join(given: argparse.Namespace) -> int:
    paths = [one / _NAME if one.is_dir() else one for one in given.reports]
    run, rows = join(paths)
    written = write_reports(given.output, run, rows)
    print(f"{len(rows)} rows of {len(paths)} reports: {', '.join(map(str, written))}")
    if missing := missing_shards([read_report(path)[0] for path in paths]):
        print(f"no report of shard {', '.join(missing)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
