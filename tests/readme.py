"""Keeps what the README quotes equal to its source: the options' help, and an excerpt of the committed report.

`python -m tests.readme README.md reports/cpu/report.md` writes both; a test holds them equal.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pytest_ecornn.options import help_text

EXCERPTED = ("lstm", "mingru")


def quoted(readme: str, report: str) -> str:
    """`readme` with its marked parts made anew."""
    readme = _replaced(readme, "options", f"```\n{help_text()}\n```")
    return _replaced(readme, "excerpt", "\n\n".join(_first_table(report, cell) for cell in EXCERPTED))


def _replaced(text: str, name: str, content: str) -> str:
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{content}\n\n{end}{rest.partition(end)[2]}"


def _first_table(report: str, cell: str) -> str:
    section = re.search(rf"^## {cell}, inference\n(.*?)(?=^## |\Z)", report, re.M | re.S)
    table = re.search(r"^\|.*?(?=\n\n|\Z)", section[1], re.M | re.S) if section else None
    if table is None:
        raise ValueError(f"the report has no table of {cell}")
    return table[0]


if __name__ == "__main__":
    readme, report = map(Path, sys.argv[1:])
    readme.write_text(quoted(readme.read_text(), report.read_text()))
