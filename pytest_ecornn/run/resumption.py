"""Whether the rows of an interrupted run can stand beside new ones: the same machine, set-up, choice of rows and sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_ecornn.results import formatting
from pytest_ecornn.results.journal import Journal, JournalError
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.system import machine

_MAX_VALUE_LENGTH = 200  # of a set-up's value in an error


def check(rows: Journal, now: dict[str, Any], items: Iterable[CheckItem]) -> None:
    """Raises JournalError where the journal was begun under another header than `now`, or has rows of none of the items."""
    before = rows.header
    differences = machine.same_machine(before.get("machine", {}), now["machine"])
    differences += _changes(before.get("setup", {}), now["setup"])
    differences += _strangers(rows, items)
    if differences:
        raise JournalError(
            f"{rows.path}: its rows cannot stand beside new ones ({'; '.join(differences)}); "
            "repeat the options of the interrupted run, or run without --ecornn-resume"
        )


def _strangers(rows: Journal, items: Iterable[CheckItem]) -> list[str]:
    """The first row that this run would never have written."""
    known = {item.empty_row().key for item in items} if rows.rows else set()
    return [f"{' '.join(row.key)} is no row of this run" for row in rows.rows if row.key not in known][:1]


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences between two runs' set-up; a changed source is given by its implementation's name."""
    names = [name for name in now if name != "sources" and before.get(name) != now[name]]
    sources = before.get("sources", {})
    return [
        *(f"{name}: {_words(before.get(name))} and {_words(now[name])}" for name in names),
        *(f"{name} has changed" for name, checksum in now["sources"].items() if sources.get(name, checksum) != checksum),
    ]


def _words(value: Any) -> str:
    """A value of the set-up in a few words."""
    text = (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
    return formatting.one_line(text, _MAX_VALUE_LENGTH)
