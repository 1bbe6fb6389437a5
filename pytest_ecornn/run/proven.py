"""Whether a run that ended well has proven what was asked for. None passes by running nothing, or by skipping everything."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.run.suites import is_narrowed
from pytest_ecornn.verification.verification import rerun_command

_MAX_NAMED = 3  # implementations of which nothing was proven
_MAX_REASON_LENGTH = 200


def judge(session: RunSession, config: pytest.Config, rows: Sequence[Row]) -> tuple[pytest.ExitCode, list[str]]:
    """The exit code of a run that ended well, and why it is another than OK."""
    if lines := list(_unrun(session, config, rows)):
        return pytest.ExitCode.TESTS_FAILED, lines
    asked = _asked_rows(rows)
    if not asked or any(row.status != "skipped" for row in asked) or _may_run_in_another_shard(session):
        return pytest.ExitCode.OK, []
    skipped = f"{formatting.count(len(asked), 'row')} skipped ({_reason(asked)}), of {_options(session, config)}"
    return pytest.ExitCode.NO_TESTS_COLLECTED, [f"nothing was {_verb(asked)}: {skipped}"]


def remarks(session: RunSession, rows: Sequence[Row]) -> Iterator[str]:
    """A line on each implementation that was named and of which nothing was proven: a case that it runs, or why it runs none.

    Asks implementations once more, so that a report should have been written before.
    """
    for name in _skipping(session, rows)[:_MAX_NAMED]:
        of_name = [row for row in _asked_rows(rows) if row.implementation == name]
        yield f"nothing was {_verb(of_name)} of {name}: {_advice(session, name, of_name)}"


def stale_lines(session: RunSession, config: pytest.Config, rows: Sequence[Row]) -> Iterator[str]:
    """A warning of each line of --ecornn-xfail that no row of a whole run matched."""
    expected = session.options.xfail
    if expected is None or session.options.shard or is_narrowed(config):
        return
    for line in expected.lines:
        if not any(line.matches(row) for row in rows):
            nearest = line.nearest(rows)
            said = f"{line.implementation} {line.case}{nearest and f', but {nearest} is'}: {line.reason}"
            yield f"WARNING: {expected.name}: no row of this run is {said}"


def _unrun(session: RunSession, config: pytest.Config, rows: Sequence[Row]) -> Iterator[str]:
    """What has no row, a line each."""
    if session.options.shard:
        return  # it may have one in another shard
    ran = {row.implementation for row in rows if row.kind != "control"}
    for name in session.options.require:
        if name not in ran:
            yield f"{name} is required, but no row of it ran"
    if not ran and not session.options.require and not is_narrowed(config):
        yield "no row ran: expected pytest to collect the shipped suites; see python_functions and --ignore"


def _asked_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows that prove what was asked for: timed ones, or where there is none to be timed those that verify."""
    return [row for row in rows if row.kind == "benchmark"] or [row for row in rows if row.kind != "control"]


def _verb(asked: Sequence[Row]) -> str:
    return "timed" if asked[0].kind == "benchmark" else "verified"


def _may_run_in_another_shard(session: RunSession) -> bool:
    if not session.options.shard:
        return False
    items = session.benchmark_items() or session.items()
    return any(not item.refusal for item in items if item.kind != "control")


def _reason(rows: Sequence[Row]) -> str:
    """The commonest reason of skipped rows."""
    return formatting.one_line(Counter(row.reason for row in rows).most_common(1)[0][0], _MAX_REASON_LENGTH)


def _options(session: RunSession, config: pytest.Config) -> str:
    """The options that chose the rows, as a command line has them."""
    options = session.options
    values = [("--ecornn-only", name) for name in options.only]
    values += [("--ecornn-case", case) for case in options.cases]
    values += [("--ecornn-cases", name) for name in options.case_sets if not options.cases]
    values += [("--ecornn-device", device) for device in options.devices]
    values += [(flag, config.getoption(flag)) for flag in ("-k", "-m") if config.getoption(flag)]
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in values)


def _skipping(session: RunSession, rows: Sequence[Row]) -> list[str]:
    """Implementations that were named, or given by a file, and only skipped."""
    named = {
        name
        for name, implementation in session.implementations.items()
        if not implementation.is_own or name in session.options.only
    }
    proven = {row.implementation for row in _asked_rows(rows) if row.status != "skipped"}
    skipping = dict.fromkeys(row.implementation for row in _asked_rows(rows))
    return [name for name in skipping if name in named - proven]


def _advice(session: RunSession, name: str, rows: Sequence[Row]) -> str:
    implementation = session.implementations[name]
    kinds = {row.kind for row in rows}
    if any(not item.refusal for item in session.items() if item.implementation.name == name and item.kind in kinds):
        return _reason(rows)
    if not (case := session.support.accepted(implementation)):
        return f"no case was found that it runs here: {_reason(rows)}"
    is_timed = rows[0].kind == "benchmark"
    options = session.locator_options(implementation, is_timed)
    return f"it runs {case}: {rerun_command(name, [case], options, is_timed=is_timed)}"
