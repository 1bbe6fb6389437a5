"""The options and ini values as tables of docs/cli.md. `python -m tests.tools.readme` writes them into the page."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from pytest_ecornn import plugin
from pytest_ecornn.run.options import Option, Options

_HEAD = ["| option | default | meaning |", "| --- | --- | --- |"]
_DEFAULT = re.compile(r" Default: (.+?)\.?$")


def options(kind: type[Options] = Options) -> str:
    """A table for each group, as they are declared."""
    groups = groupby(kind.declared().values(), lambda option: option.group)
    return "\n\n".join("\n".join([f"### {title}", "", *_HEAD, *map(_row, group)]) for title, group in groups)


def ini_values() -> str:
    """A table of the ini-file's values."""
    rows = [f"| `{name}` | {kind} | {_cell(meaning)} |" for name, (meaning, kind, _) in _ini().items()]
    return "\n".join(["| value | type | meaning |", "| --- | --- | --- |", *rows])


def _ini() -> dict[str, tuple[str, str, object]]:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    return parser._inidict


def _row(option: Option) -> str:
    settings, text = option.settings, option.settings["help"].replace("%%", "%")
    default = _DEFAULT.search(text)
    shown = default[1] if default else "off" if settings.get("action") == "store_true" else ""
    value = settings.get("metavar") or ("{" + ",".join(settings["choices"]) + "}" if "choices" in settings else "")
    return f"| `{_escape(f'{option.flag} {value}'.strip())}` | {_cell(shown)} | {_cell(_DEFAULT.sub('', text))} |"


def _cell(text: str) -> str:
    """Text of a table's cell, in which options are code."""
    return re.sub(r"--ecornn-[\w-]+", r"`\g<0>`", _escape(text))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
