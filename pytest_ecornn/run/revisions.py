"""Another revision of the sources beside today's: `--ecornn-against`, a git revision or a folder.

Its files are imported while its modules stand in the place of today's, so that what they import is of that revision too. What a
function imports when it is called is today's. Operators and extension modules of a fixed name cannot be there twice, so another
process times this package's own implementations (`revision_worker`). The package beside implementations/ is today's for both.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import modulefinder
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pytest_ecornn.measurement.remote import RemoteProcess
from pytest_ecornn.regression.gate_limits import COLUMNS, Thresholds
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.rows import Row, Timing
from pytest_ecornn.system.machine import git
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE

_OF_TYPE_CHECKERS = ("pytest_ecornn.kernels", "pytest_ecornn.reporting")  # alone, in pytest_ecornn/__init__.py
# What runs in the process, whose arguments are a revision's folder and how many threads torch has.
_SERVE = (
    "import sys, pytest_ecornn; pytest_ecornn.__path__.insert(0, sys.argv[1])\n"
    "from pytest_ecornn.run.revision_worker import main; main(int(sys.argv[2]))"
)
_NAMED = b'"pytest_ecornn.implementations.'  # in what imports any of them, by its name


class NotThere(Exception):
    """One line: why something of today has no counterpart that can be timed."""


class Revision:
    """Another state of the files below `root`. label: as reports name it."""

    def __init__(self, text: str, directory: Path, scratch: Path):
        """directory: where pytest started. scratch: where a revision is exported to, which the run's processes share.

        Raises UsageError for what is neither a folder nor a revision.
        """
        top = git(directory, "rev-parse", "--show-toplevel")
        self.root = Path(top or directory).resolve()
        if (directory / text).is_dir():
            self.folder, self.label = (directory / text).resolve(), (directory / text).resolve().name
            return
        commit = git(directory, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}") if top else None
        if not commit:
            raise pytest.UsageError(f"--ecornn-against: expected a git revision or a folder, got {text!r}")
        self.folder, self.label = (scratch / commit[:12]).resolve(), commit[:7]
        if not self.folder.exists():
            _export(self.root, commit, self.folder)

    def counterpart(self, file: Path) -> Path:
        """The file there. Raises NotThere."""
        file = file.resolve()
        other = self.folder / file.relative_to(self.root) if file.is_relative_to(self.root) else None
        if other is None or not other.is_file():
            raise NotThere(f"{file.name} is not in {self.label}")
        return other

    def load(self, file: Path, load: Callable[[Path], Any]) -> Any:
        """What `load` makes of the counterpart, which it imports. Raises NotThere.

        That is raised too where neither a module that was imported has changed, nor a file of other code beside one.
        """
        other = self.counterpart(file)
        with self._modules() as modules:
            loaded = load(other)
        files = {other, *(Path(module.__file__) for module in modules if module.__file__)}
        files |= {
            file for one in files for file in one.parent.iterdir() if file.suffix not in (".py", ".pyc") and file.is_file()
        }
        if all(_are_same(file, self.root / file.relative_to(self.folder)) for file in files):
            raise NotThere(f"unchanged since {self.label}")
        return loaded

    def process(self, seconds: float) -> RemoteProcess:
        """The process that times this package's own implementations as they are there. seconds: as `RemoteProcess`."""
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-P", "-c", _SERVE, str(self.folder), str(torch.get_num_threads())]
        return RemoteProcess(command, {**os.environ, "PYTHONPATH": path}, seconds)

    def check_own(self, module: str) -> None:
        """Raises NotThere for a module of this package's own implementations that is as it was, with all that it imports there.

        What lies beside these counts as well, in folders of their own: kernels, and what is imported by a text.
        """
        home, package = self.folder / "implementations", self.folder / "pytest_ecornn"
        if not (home.is_dir() and package.is_dir()):
            raise NotThere(f"this package is not in {self.label}")
        modulefinder.packagePathMap[package.name] = [str(self.folder)]
        finder = modulefinder.ModuleFinder([str(self.folder)], excludes=_OF_TYPE_CHECKERS)
        try:
            finder.import_hook(module)
        except (ImportError, SyntaxError) as error:
            raise NotThere(str(error)) from None
        paths = [getattr(imported, "__file__", None) for imported in finder.modules.values()]
        files = {file for path in paths if path and (file := Path(path).resolve()).is_relative_to(home)}
        is_choosing = any(_NAMED in file.read_bytes() for file in files)
        folders = {home} if is_choosing else {file.parent for file in files} - {home}
        files |= {file for folder in folders for file in folder.rglob("*") if file.suffix != ".pyc" and file.is_file()}
        if all(_are_same(file, IMPLEMENTATIONS / file.relative_to(home)) for file in files):
            raise NotThere(f"unchanged since {self.label}")

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the same name in the counterpart of its module. Raises NotThere."""
        name = getattr(function, "__qualname__", "<callable>")
        if "<" in name:
            raise NotThere(f"expected a function of a module, got {name}")
        own = inspect.unwrap(function)
        try:
            source = Path(inspect.getfile(own))
        except TypeError:
            raise NotThere(f"{name} has no source file") from None
        module = self.load(source, lambda file: _imported(own.__module__, file))
        former: Any = module
        for part in name.split("."):
            former = getattr(former, part, None)
        if not callable(former):
            raise NotThere(f"{name} is not in {self.label}")
        return former  # type: ignore[no-any-return]

    @contextmanager
    def _modules(self) -> Iterator[list[ModuleType]]:
        """Within it, imports find the revision's modules instead of today's. Yields a list of these, filled at the end."""
        own = [name for name, module in sys.modules.items() if self._has(getattr(module, "__file__", None))]
        before, path, loaded = {name: sys.modules.pop(name) for name in own}, list(sys.path), list[ModuleType]()
        below = [Path(entry or ".").resolve() for entry in path]
        sys.path[:0] = [str(self.folder / entry.relative_to(self.root)) for entry in below if entry.is_relative_to(self.root)]
        importlib.invalidate_caches()
        try:
            yield loaded
        finally:
            sys.path[:] = path
            for name, module in list(sys.modules.items()):
                if (file := getattr(module, "__file__", None)) and Path(file).is_relative_to(self.folder):
                    loaded.append(module)
                    if not name.startswith("ecornn_implementations_"):
                        del sys.modules[name]
            sys.modules.update(before)

    def _has(self, file: str | None) -> bool:
        """Whether a module of today's has a counterpart. This package itself is never another."""
        path = Path(file).resolve() if file else None
        if path is None or path.is_relative_to(Path(__file__).resolve().parents[2]) or not path.is_relative_to(self.root):
            return False
        return (self.folder / path.relative_to(self.root)).is_file()


def _are_same(file: Path, today: Path) -> bool:
    return today.is_file() and file.read_bytes() == today.read_bytes()


def _imported(name: str, file: Path) -> ModuleType:
    """The module of that file, under its own name. Raises NotThere with what it raised."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise NotThere(f"{file.name} is not a Python source file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise NotThere(f"importing {file.name} raised {type(error).__name__}: {error}") from error
    return module


def _export(root: Path, commit: str, folder: Path) -> None:
    """Writes the revision's files, at once: another process may do the same."""
    archive = subprocess.run(["git", "-C", str(root), "archive", commit], capture_output=True, check=True).stdout
    part = folder.with_name(f"{folder.name}-{id(archive)}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(part, filter="data")
    try:
        part.rename(folder)
    except OSError:  # another process was first
        return


def slower(rows: Iterable[Row], label: str, limits: Thresholds) -> list[str]:
    """Rows that take longer than in the revision of that label, the whole interval beyond the limit, a line each."""
    lines = []
    for row in rows:
        for column, name in COLUMNS.items():
            timing: Timing | None = getattr(row, column)
            limit = limits.share(row.implementation, row.cell, column)
            for against in timing.against if timing and row.kind == "benchmark" else ():
                if against.baseline == f"{row.implementation}@{label}" and against.low > 1 + limit:
                    interval = f"{ratio_interval(against.ratio, against.low, against.high)} times as long as in {label}, {name}"
                    lines.append(f"{row.implementation} {row.case}: {interval}: over {limit:.3g}")
    return lines
