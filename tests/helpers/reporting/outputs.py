"""What reports hold and show: CSV, tables of the terminal, elements of pages, words of commands."""

from __future__ import annotations

import csv
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

Said = Callable[..., str]


class Page(HTMLParser):
    """The elements of a page: names, attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in self.raw else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside].append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def csv_of(folder: Path) -> list[dict[str, str]]:
    """The lines of a report's CSV."""
    with (folder / "report.csv").open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


def printed(table: Table, width: int) -> str:
    """The table as a terminal so wide shows it."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs `python -m pytest_ecornn`: what a command writes that ends with this status, as errors where it is not 0."""
    from pytest_ecornn.__main__ import main  # here, as tests/conftest.py has this fixture for processes that run no command

    def of_command(*arguments: object, status: int = 0) -> str:
        assert main(list(map(str, arguments))) == status
        written = capsys.readouterr()
        return written.err if status else written.out

    return of_command
