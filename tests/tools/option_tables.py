"""The options and ini values as tables of docs/cli.md, read from pytest's own parser once the plugin has filled it.

`python -m tests.tools.readme` writes them into the page. A new option has to be put into a group here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_ecornn import plugin

# By what a reader wants to do: the options' names without --ecornn-.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "What a run does": ("verify", "bench", "selfcheck", "resume", "report"),
    "Which implementations": ("only", "require", "implementations", "device"),
    "Which cases": ("case", "cases", "shard", "state-dict", "profile", "seed", "correct-cases"),
    "Timing": ("baseline", "budget", "pairs"),
    "Comparison with a stored report": ("compare", "fail-slower", "strict"),
    "Processes": ("isolate", "ray", "timeout", "memory"),
}
_DEFAULT = re.compile(r" Default: (.+?)\.?$")


def parser() -> pytest.Parser:
    """A parser that knows the plugin's options alone."""
    empty = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(empty)
    return empty


def options() -> str:
    """A table for each group. Raises ValueError unless every option is in exactly one."""
    rows = {name: _row(name, action) for name, action in _actions().items()}
    grouped = [f"--ecornn-{name}" for names in GROUPS.values() for name in names]
    if sorted(grouped) != sorted(rows):
        raise ValueError(f"expected each option in one group, got {sorted({*grouped} ^ {*rows})} in none or unknown")
    head = ["| option | default | meaning |", "| --- | --- | --- |"]
    return "\n\n".join(
        "\n".join([f"### {title}", "", *head, *(rows[f"--ecornn-{name}"] for name in names)]) for title, names in GROUPS.items()
    )


def ini_values() -> str:
    """A table of the ini-file's values."""
    rows = [f"| `{name}` | {kind} | {_cell(meaning)} |" for name, (meaning, kind, _) in parser()._inidict.items()]
    return "\n".join(["| value | type | meaning |", "| --- | --- | --- |", *rows])


def _actions() -> dict[str, Mapping[str, Any]]:
    group = parser().getgroup("ecornn")
    return {option.names()[0]: option.attrs() for option in group.options}


def _row(name: str, action: Mapping[str, Any]) -> str:
    text = str(action["help"]).replace("%%", "%")
    default = _DEFAULT.search(text)
    shown = default[1] if default else "off" if action.get("nargs") == 0 else ""
    metavar = action.get("metavar") or ("{" + ",".join(action["choices"]) + "}" if action.get("choices") else "")
    return f"| `{_escape(f'{name} {metavar}'.strip())}` | {_cell(shown)} | {_cell(_DEFAULT.sub('', text))} |"


def _cell(text: str) -> str:
    """Text of a table's cell, in which options are code."""
    return re.sub(r"--ecornn-[\w-]+", r"`\g<0>`", _escape(text))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
