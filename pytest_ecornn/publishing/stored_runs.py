"""Stored results of machines: RESULTS/MACHINE/RUN/*.json, or RESULTS/MACHINE/*.json where a machine has one run.

Reports of the published suites are pages: their Markdown, with its pictures inside.
"""

from __future__ import annotations

import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from pytest_ecornn.reporting import files, standing
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.stored.load import REPORT_NAME, Report, load_report
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.run_info import hardware
from pytest_ecornn.suites.published import staleness, stored, stored_rows

_LAYOUT = "RESULTS/MACHINE/RUN/report.json, or RESULTS/MACHINE/report.json"
REPORT_PAGE = "report.html"
_PICTURE = "data:image/svg+xml;base64,"


@dataclass(frozen=True)
class Source:
    """Rows of one report of a run. page: where the site shows it. path: its JSON file. unproven: keys of what proves nothing.

    begun: when, ISO 8601, and of which commit; empty where that is not known. caveat: why none of its answers is certain; empty
    where all ratios of the report hold at once.
    """

    page: str
    rows: list[Row]
    path: Path
    begun: tuple[str, str]
    unproven: set[standing.Key] = field(default_factory=set)
    caveat: str = ""

    @cached_property
    def age(self) -> str:
        """What changed since it was measured; empty where nothing has, or git does not tell."""
        age = staleness.of_report(self.path)
        return str(age) if age and age.is_stale else ""


@dataclass(frozen=True)
class SuiteReport:
    """The report of a published suite, or a page about a run's report. path: of its JSON file. body: its page, as HTML."""

    name: str
    path: Path
    title: str
    body: Markup
    rows: list[Row]

    @cached_property
    def source(self) -> Source:
        head = stored_rows.load_json(self.path)
        machine = stored_rows.fingerprint(head)
        begun = _started(head, machine), str(machine.get("commit") or "")
        return Source(f"{self.name}.html", self.rows, self.path, begun, caveat=f"{self.name}: not verified")


@dataclass(frozen=True)
class StoredRun:
    """One run. name: its folder below the machine's; empty where that holds it.

    location: the folder. started: ISO 8601. fingerprint: of the machine, as a report has it; empty where no report has one.
    """

    machine: str
    name: str
    location: Path
    report: Report | None
    suites: list[SuiteReport]
    started: str
    fingerprint: dict[str, Any]

    @cached_property
    def sources(self) -> list[Source]:
        """Reports that have rows, the run's own first."""
        own = []
        if found := self.report:
            begun = found.run.started, str(found.run.machine.get("commit") or "")
            alone = found.run.settings.get("ratios")
            caveat = f"{self.name}: each ratio {alone}" if alone else ""
            own = [Source(REPORT_PAGE, found.rows, self.location / REPORT_NAME, begun, standing.unproven(found.rows), caveat)]
        return [*own, *(suite.source for suite in self.suites if suite.path.name != REPORT_NAME)]

    @property
    def path(self) -> str:
        """The folder that the site has it in."""
        return f"{self.machine}/{self.name}" if self.name else self.machine

    @property
    def files(self) -> list[Path]:
        """The JSON files that it was read from."""
        own = [self.location / REPORT_NAME] if self.report else []
        return list(dict.fromkeys([*own, *(suite.path for suite in self.suites)]))

    @property
    def hardware(self) -> str:
        """The GPUs, else the CPU; empty where that is not known."""
        return hardware(self.fingerprint)


@dataclass(frozen=True)
class Machine:
    """Runs on one machine, the newest last."""

    name: str
    runs: list[StoredRun] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The hardware of the newest run that names it; else the folder's name."""
        return next((run.hardware for run in reversed(self.runs) if run.hardware), self.name)


def load(results: Path) -> tuple[list[Machine], list[str]]:
    """Returns the machines by name, and a line for each report that cannot be read.

    Raises ReportError where there is no folder, or nothing in it can be published.
    """
    if not results.is_dir():
        raise ReportError(f"{results}: expected a folder, {_LAYOUT}")
    refused: list[str] = []
    machines = []
    for folder in _folders(results):
        runs = [run for where in (folder, *_folders(folder)) for run in _run(folder, where, refused)]
        if runs:
            machines.append(Machine(folder.name, sorted(runs, key=lambda run: (run.started, run.name))))
    if not machines:
        raise ReportError(refused[0] if refused else f"{results}: holds no report; expected {_LAYOUT}")
    return machines, refused


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def _run(machine: Path, folder: Path, refused: list[str]) -> Iterator[StoredRun]:
    """Yields the run that a folder holds, if any."""
    report, suites, path = None, list[SuiteReport](), folder / REPORT_NAME
    if path.is_file():
        try:
            report = load_report(path)
        except ReportError as error:
            refused.append(str(error))
    for name, suite in _suites(folder, report is not None):
        try:
            suites.append(SuiteReport(name, suite, *read_suite(folder, name), stored_rows.load(suite)))
        except ReportError as error:
            refused.append(str(error))
    if report or suites:
        name = "" if folder == machine else folder.name
        started, fingerprint = (report.run.started, report.run.machine) if report else _of_suites(suites)
        yield StoredRun(machine.name, name, folder, report, suites, started, fingerprint)


def _suites(folder: Path, has_report: bool) -> Iterator[tuple[str, Path]]:
    """Yields name and JSON file of each suite's report in a folder, and of each page about the run's."""
    own_pages = ("index", Path(REPORT_PAGE).stem)
    for path in sorted(folder.glob("*.json")):
        if path.stem not in own_pages and (path.stem in stored.NAMES or path.with_suffix(".md").is_file()):
            yield path.stem, path
    if has_report:
        yield from ((name, folder / REPORT_NAME) for name in stored.PAGES if (folder / f"{name}.md").is_file())


def _of_suites(suites: Sequence[SuiteReport]) -> tuple[str, dict[str, Any]]:
    """Returns when the last of them began, and the machine of the last by name."""
    started, _ = max(suite.source.begun for suite in suites)
    return started, stored_rows.fingerprint(stored_rows.load_json(suites[-1].path))


def _started(head: dict[str, Any], machine: dict[str, Any]) -> str:
    """When the last process of a suite's report began; of those that do not say so, when its commit was made."""
    try:
        began = max(float(run["began"]) for run in head["runs"])
        return datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds")
    except (LookupError, TypeError, ValueError, OverflowError, OSError):
        commit = machine.get("benchmark_commit_info")
        return str(commit.get("time") or "") if isinstance(commit, dict) else ""


def read_suite(folder: Path, name: str) -> tuple[str, Markup]:
    """Returns title and HTML of a suite's report, from its Markdown, else rendered anew from its JSON file.

    HTML in it is escaped. Pictures are SVG files of the same folder; others are left out. Raises ReportError.
    """
    if (text := folder / f"{name}.md").is_file():
        return _html(files.read(text), folder)
    with tempfile.TemporaryDirectory() as rendered:
        stored.load(folder / f"{name}.json").write_page(Path(rendered))
        return _html(files.read(Path(rendered) / f"{name}.md"), Path(rendered))


def _html(text: str, folder: Path) -> tuple[str, Markup]:
    first, _, rest = text.partition("\n")
    title, text = (first.removeprefix("# "), rest) if first.startswith("# ") else ("", text)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.add_render_rule("image", lambda self, tokens, index, options, env: _picture(tokens[index], folder))
    numbers, region = count(1), '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>'
    markdown.add_render_rule("table_open", lambda *given: region.format(next(numbers)))
    markdown.add_render_rule("table_close", lambda *given: "</table></div>")
    markdown.add_render_rule("link_open", _outside_link)
    for kind in ("th_open", "td_open"):
        markdown.add_render_rule(kind, _aligned_cell)
    return title, Markup(markdown.render(text))


def _outside_link(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
    """A link to another site; one to a file of the repository leads nowhere here."""
    address = str(tokens[index].attrGet("href"))
    return str(Markup('<a href="{}">').format(address)) if address.startswith(("https://", "http://")) else "<a>"


def _aligned_cell(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
    """A cell of a table with a class in place of its style, which the page's policy forbids."""
    token = tokens[index]
    is_right = "right" in str(token.attrs.pop("style", ""))
    return f'<{token.tag} class="right">' if is_right else f"<{token.tag}>"


def _picture(token: Any, folder: Path) -> str:
    """The picture that a token names, inlined: a page needs no other file."""
    name = str(token.attrGet("src"))
    path = folder / name
    if "/" in name or path.suffix != ".svg":
        return ""
    try:
        encoded = b64encode(path.read_bytes()).decode()
    except OSError:  # no such file, among others
        return ""
    return str(Markup('<img src="{}{}" alt="{}">').format(_PICTURE, encoded, path.stem))
