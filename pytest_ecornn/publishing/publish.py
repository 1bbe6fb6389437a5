"""Writes the site: each file whole or not at all, one publisher at a time, and nothing that another program wrote."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_ecornn.publishing import pages, stored_runs
from pytest_ecornn.publishing.stored_runs import Machine
from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.system.folder_lock import FolderInUse, FolderLock

_MANIFEST = ".ecornn-site.json"  # the files of the site that the last publisher wrote


def publish(results: Path, site: Path) -> tuple[int, list[str]]:
    """Returns how many files were written, and a line for each report that was left out because it cannot be read.

    Raises ReportError where there is nothing to publish, the site cannot be written, or holds another index.html.
    """
    _check_apart(results, site)
    machines, refused = stored_runs.load(results)
    with _locked(site):
        before = _written_before(site)
        names = list(_write(machines, site))
        files.write(site / _MANIFEST, json.dumps(sorted({*names, *before})))
        for name in set(before).difference(names):
            with suppress(OSError):
                (site / name).unlink()
        _remove_partial_files(site, names)
        files.write(site / _MANIFEST, json.dumps(sorted(names)))
    return len(names), refused


def _check_apart(results: Path, site: Path) -> None:
    """Raises ReportError where the site would be written among the reports, or they lie in the site."""
    one, other = results.resolve(), site.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise ReportError(f"{site}: expected a folder apart from {results}, which holds the reports")


@contextmanager
def _locked(site: Path) -> Iterator[None]:
    try:
        lock = FolderLock(site)
    except (FolderInUse, OSError) as error:
        raise ReportError(f"{site}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def _written_before(site: Path) -> list[str]:
    """The names in the manifest: paths below the site alone, whatever it holds."""
    try:
        found = json.loads((site / _MANIFEST).read_text(encoding="utf-8"))
        names = [name for name in found if isinstance(name, str)]
    except (OSError, ValueError, TypeError):
        if (site / pages.INDEX).exists():
            raise ReportError(f"{site}: holds an {pages.INDEX} of another program; choose an empty folder") from None
        return []
    return [name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts]


def _write(machines: list[Machine], site: Path) -> Iterator[str]:
    """Writes the reports' data, then the pages, of which the index is last. Yields each file's name."""
    for run in (run for one in machines for run in one.runs):
        for path in run.files:
            name = f"{run.path}/{path.name}"
            files.write(site / name, files.read(path))
            yield name
    for name, text in pages.of_machines(machines):
        files.write(site / name, text)
        yield name


def _remove_partial_files(site: Path, names: Sequence[str]) -> None:
    """Removes what publishers that were killed left of these files."""
    for path in map(Path, names):
        for partial in (site / path.parent).glob(f".{glob.escape(path.name)}.*.partial"):
            with suppress(OSError):
                partial.unlink()
