"""A page about the problems of a published set, made from the report.json of a run. Nothing is measured."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.markdown_syntax import document, escape
from pytest_ecornn.reporting.stored.load import load_report
from pytest_ecornn.results.rows import Row
from pytest_ecornn.suites.published.common.parted import headline


class Section(NamedTuple):
    """Markdown, and the charts below it by their files' names."""

    text: str
    charts: Mapping[str, str] = {}


@dataclass(frozen=True)
class PublishedPage:
    """Tables and charts of a report's rows. options: of the run that measures what it shows, beside the device's."""

    name: str
    title: str
    sections: Callable[[Sequence[Row]], Iterable[Section]]
    options: Sequence[str]

    def write(self, folder: Path) -> Path:
        """Writes NAME.md and its charts beside the folder's report.json. Raises ReportError where that cannot be read."""
        report = load_report(folder)
        try:
            machine = headline(report.run.machine)
        except (LookupError, TypeError) as error:
            raise files.ReportError(f"expected a report's machine ({type(error).__name__}: {error})") from error
        intervals = f"Intervals: {report.run.settings.get('intervals', 'unknown')}."
        parts = [f"# {self.title}", escape(f"{machine}; begun {report.run.started}. {intervals}")]
        for section in self.sections(report.rows):
            parts += [section.text.strip(), *(f"![{name}]({name})" for name in section.charts)]
            for name, picture in section.charts.items():
                files.write(folder / name, picture)
        path = folder / f"{self.name}.md"
        files.write(path, document(parts))
        return path

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """The command. Returns the exit code."""
        help_text = f"that holds the report.json of pytest --ecornn-bench {shlex.join(self.options)}"
        parser = argparse.ArgumentParser(prog=self.name, description=f"Writes {self.name}.md and charts beside a report.json.")
        parser.add_argument("folder", type=Path, metavar="FOLDER", help=help_text)
        try:
            print(self.write(parser.parse_args(arguments).folder))
        except files.ReportError as error:
            parser.error(str(error))
        return 0
