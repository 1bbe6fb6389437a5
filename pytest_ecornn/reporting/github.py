"""What GitHub shows of a run: annotations on lines of files, a job's summary, and a comment on a pull request."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting import answer_table, gate_tables, markdown
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.markdown_syntax import document, escape
from pytest_ecornn.results.formatting import one_line, printable
from pytest_ecornn.results.rows import AGAIN, EXPECTED, Row

MAX_CHARS = 60_000  # of a comment, of which GitHub takes 65,536, and of a summary
_MAX_ANSWERS = 50
_MAX_REASON = 2_000  # characters in an annotation
_REST = "More is in report.md."


class Problem(NamedTuple):
    """A row that failed, or that the gate fails for. what: in a word or two."""

    implementation: str
    case: str
    what: str
    message: str


def is_job() -> bool:
    """Whether a job of GitHub Actions reads the output."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def place(path: Path, line: int, root: Path) -> str:
    """The properties of a line below the job's checkout, or below `root` where no job names one; none elsewhere."""
    top, path = Path(os.environ.get("GITHUB_WORKSPACE") or root).resolve(), path.resolve()
    return f"file={_escaped(path.relative_to(top).as_posix(), ':,')},line={line}," if path.is_relative_to(top) else ""


def problems(rows: Iterable[Row], compared: RegressionReport | None = None) -> list[Problem]:
    """Problems in turns: the first of each implementation, then the second. GitHub shows ten annotations of a step."""
    failed = (row for row in rows if row.status == "failed" and not row.reason.startswith(EXPECTED))
    found = [Problem(row.implementation, row.case, "failed", row.reason) for row in failed]
    if compared:
        found += [Problem(one.implementation, one.case, "slower", gate_tables.sentence(one)) for one in compared.slower]
        worse = (one for one in compared.changes if one.is_worse and one.now != "failed")
        found += [Problem(one.implementation, one.case, f"passed then, {one.now} now", one.reason) for one in worse]
    turns = defaultdict[str, Iterator[int]](count)
    return sorted(found, key=lambda one: next(turns[one.implementation]))


def annotation(problem: Problem, at: str) -> str:
    """The workflow command that shows the problem, at its `place`."""
    title = one_line(f"{problem.implementation} {problem.what}: {problem.case}", 200)
    reason, again, command = problem.message.partition(AGAIN)
    cut = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
    message = _escaped(printable(f"{cut}{again}{command}" or problem.what))
    return f"::error {at}title={_escaped(title, ':,')}::{message}"


def _escaped(text: str, further: str = "") -> str:
    """Text as workflow commands hold it. further: characters that end a property's value."""
    for character in f"%\r\n{further}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def append_summary(title: str, rows: list[Row], compared: RegressionReport | None = None) -> None:
    """Appends the outcome to the file that a job shows, where there is one. Raises ReportError."""
    if not (name := os.environ.get("GITHUB_STEP_SUMMARY")):
        return
    conclusions = Conclusions.of_rows(rows, {})
    heading = gate_tables.headline(compared) if compared else f"{title}: {escape(conclusions.counts[0])}"
    tables = gate_tables.shown_rows(compared) if compared else ()
    blocks = [f"## {heading}", *tables, *_details(conclusions, compared)]
    try:
        with Path(name).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(document(_fitting(blocks, MAX_CHARS)))
    except OSError as error:
        raise ReportError(f"{name}: cannot be written ({error.strerror or error})") from error


def comment(conclusions: Conclusions, compared: RegressionReport) -> str:
    """comment.md: the verdict, the rows that need a look, and all else folded."""
    shown = [f"## {gate_tables.headline(compared)}", *gate_tables.shown_rows(compared)]
    blocks = [*shown, "<details><summary>Details</summary>", *_details(conclusions, compared)]
    return document([*_fitting(blocks, MAX_CHARS - len("\n\n</details>")), "</details>"])


def _details(conclusions: Conclusions, compared: RegressionReport | None) -> Iterator[str]:
    """What the gate says of all rows, what failed, and the answers."""
    if compared:
        yield "\n".join(f"- {escape(line)}" for line in gate_tables.summary_lines(compared))
    yield from markdown.failures(conclusions)
    answers = [answer for answer in conclusions.answers if answer.verdict != "skipped"]
    if answers:
        yield answer_table.markdown_table(answers[:_MAX_ANSWERS])
    if len(answers) > _MAX_ANSWERS:
        yield _REST


def _fitting(blocks: Iterable[str], limit: int) -> list[str]:
    """The blocks that fit into so many characters, in order, and a word where one does not."""
    kept, cut = list[str](), list[str]()
    for block in filter(None, blocks):
        (kept if len(document([*kept, block, _REST])) <= limit else cut).append(block)
    return [*kept, *([_REST] if cut else [])]
