"""A published report's two files: Markdown to read, and JSON from which it is continued or joined."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pytest_ecornn.suites.published.common.rebuilt import from_json

Report = TypeVar("Report")


def write_report(report: Any, markdown: str, folder: Path, name: str, schema_version: int) -> None:
    """Writes FOLDER/NAME.md and FOLDER/NAME.json. report: a dataclass."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(markdown)
    (folder / f"{name}.json").write_text(json.dumps({"schema_version": schema_version, **asdict(report)}) + "\n")


def read_report(kind: type[Report], path: Path, schema_version: int) -> Report:
    """Returns the report that `write_report` wrote. Raises ValueError for one of another schema version."""
    fields = json.loads(path.read_text())
    if (version := fields.pop("schema_version", None)) != schema_version:
        raise ValueError(f"{path}: expected schema version {schema_version}, got {version}")
    report: Report = from_json(kind, fields)
    return report
