"""`python -m pytest_ecornn COMMAND` works on stored reports; nothing is measured."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pytest_ecornn.publishing.publish import publish
from pytest_ecornn.regression import gate
from pytest_ecornn.regression.gate_limits import Thresholds
from pytest_ecornn.reporting import ReportError, gate_tables, unproven, write_reports
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.console import page, summary
from pytest_ecornn.reporting.stored.join import join, missing_shards
from pytest_ecornn.reporting.stored.load import load_report, report_path
from pytest_ecornn.reporting.stored.schema import report_schema
from pytest_ecornn.results import formatting
from pytest_ecornn.system import machine

_REPORT: dict[str, Any] = {"type": Path, "metavar": "REPORT", "help": "a report.json, or the folder that holds it"}


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

    def command(name: str, run: Callable[[argparse.Namespace], int], help_text: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=help_text, description=help_text)
        found.set_defaults(run=run)
        return found

    joining = command("join", _join, "unites reports of runs on machines of one kind, such as those of all shards")
    joining.add_argument("reports", nargs="+", **_REPORT)
    joining.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the united report is written")
    help_text = "prints what a run's end has shown; of several reports the fastest of each case side by side"
    command("show", _show, help_text).add_argument("reports", nargs="+", **_REPORT)
    help_text = "makes a static site of the reports in RESULTS/MACHINE/RUN: machines side by side, and each row's history"
    publishing = command("publish", _publish, help_text)
    publishing.add_argument("results", type=Path, metavar="RESULTS", help="folder that holds a folder for each machine")
    publishing.add_argument("--output", type=Path, required=True, metavar="SITE", help="folder that the site is written to")
    command("schema", _schema, "prints the JSON Schema of report.json")
    comparing = command("compare", _compare, "fails where rows got slower, or are no longer proven; measures nothing again")
    comparing.add_argument("old", **_REPORT)
    comparing.add_argument("new", **_REPORT)
    help_text = "by how much a row may be slower, as --ecornn-fail-slower takes it (repeatable)"
    comparing.add_argument("--fail-slower", action="append", default=[], metavar="LIMIT", help=help_text)
    comparing.add_argument("--strict", action="store_true", help="fail where a row is unclear, or cannot be judged")
    return parser


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else page.PLAIN_WIDTH)


def _join(given: argparse.Namespace) -> int:
    run, rows = join([report_path(one) for one in given.reports])
    written = write_reports(given.output, run, rows)
    print(f"{len(rows)} rows of {formatting.count(len(given.reports), 'report')}: {', '.join(map(str, written))}")
    if missing := missing_shards(run):
        print(f"no report of shard {', '.join(missing)}", file=sys.stderr)
    return 0


def _show(given: argparse.Namespace) -> int:
    reports = {str(path): load_report(path) for path in given.reports}
    console = _console()
    if len(reports) > 1:
        summary.print_reports(console, reports)
    else:
        (report,) = reports.values()
        summary.print_summary(console, Conclusions.of_run(report.run, report.rows))
    return 0


def _publish(given: argparse.Namespace) -> int:
    """1 where a report was left out."""
    count, refused = publish(given.results, given.output)
    print(f"{count} files: {given.output / 'index.html'}")
    for line in refused:
        print(f"left out: {line}", file=sys.stderr)
    return 1 if refused else 0


def _schema(given: argparse.Namespace) -> int:
    print(json.dumps(report_schema(), indent=2))
    return 0


def _compare(given: argparse.Namespace) -> int:
    """1 where the gate fails. What looks slower is not measured again, as a run's own gate does."""
    old, new = (load_report(one) for one in (given.old, given.new))
    has_gpu = any(row.device.startswith("cuda") for row in new.rows)
    forbidden, warnings = machine.check_comparable(old.run.machine, new.run.machine, has_gpu)
    if forbidden:
        now, then = report_path(given.new), report_path(given.old)
        raise ReportError(f"{now}: is of another kind of machine than {then} ({'; '.join(forbidden)})")
    try:
        limits = Thresholds(given.fail_slower)
    except ValueError as error:
        raise ReportError(f"--fail-slower: {error}") from error
    found = gate.compare(old.rows, new.rows, unproven(new.rows), limits.share)
    found.stored, found.started, found.warnings, found.is_strict = str(given.old), old.run.started, warnings, given.strict
    console = _console()
    summary.print_comparison_table(console, found)
    summary.print_lines(console, gate_tables.summary_lines(found))
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
