"""The code that goes to other hosts: the user's folder, and this package where it is a checkout; and their paths there."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE, SUITES, copy_as_installed

_EXCLUDED = (".git", ".venv", "venv", ".tox", "__pycache__", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache")
_MAX_FILE_BYTES = 64 * 2**20
# What libraries read from the environment to decide what they compute. Places on disk are each host's own.
_VARIABLES = (
    *("PYTEST_ADDOPTS", "PYTEST_DISABLE", "PYTEST_PLUGINS", "HYPOTHESIS_", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "TORCH"),
    *("PYTORCH", "CUBLAS_", "CUPY_", "TRITON_", "NVIDIA_TF32"),
)
_PLACES = ("_DIR", "_HOME", "_PATH", "_DIRECTORY")


class Folders(NamedTuple):
    """Paths of the user's folder and of the package's on one host."""

    root: str
    package: str
    implementations: str
    suites: str


class Travel:
    """Code that goes along. root: the user's folder, which is pytest's root directory where the run was started in it."""

    def __init__(self, config: pytest.Config, report: Path):
        self._started_in = config.invocation_params.dir
        self.root = config.rootpath if self._started_in.is_relative_to(config.rootpath) else self._started_in
        self._named = {str(argument).rpartition("=")[2].partition(":")[0] for argument in config.invocation_params.args}
        self._report = report
        self.here = Folders(str(self.root), str(PACKAGE), str(IMPLEMENTATIONS), str(SUITES))

    def runtime_env(self, folder: Path) -> dict[str, Any]:
        """The environment that Ray gives to each worker process. folder: for a copy of the package, if it travels."""
        inside = PACKAGE.is_relative_to(self.root)
        is_installed = any(PACKAGE.is_relative_to(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
        packages = [] if inside or is_installed else [str(copy_as_installed(folder))]
        return {"working_dir": str(self.root), "py_modules": packages, "excludes": list(self._excludes())}

    @property
    def started_in(self) -> str:
        """The folder in which the run was started, relative to the root."""
        return str(self._started_in.relative_to(self.root))

    def variables(self, there: Folders) -> dict[str, str]:
        """The environment variables of a worker beside those of its host."""
        names = [name for name in os.environ if name.startswith(_VARIABLES) and not name.endswith(_PLACES)]
        paths = [translate(path, self.here, there) for path in sys.path if self._is_travelling(path)]
        return {**{name: os.environ[name] for name in names}, "PYTHONPATH": os.pathsep.join(paths)}

    def _is_travelling(self, path: str) -> bool:
        return bool(path) and Path(path).is_relative_to(self.root) and not Path(path).is_relative_to(sys.prefix)

    def _excludes(self) -> Iterator[str]:
        """Patterns of .gitignore's kind."""
        yield from _EXCLUDED
        for folder in (self._report, Path(tempfile.gettempdir())):  # Ray writes into the second while it packs
            if folder != self.root and folder.is_relative_to(self.root):
                yield f"/{folder.relative_to(self.root)}"
        for path in map(Path, _walk(self.root)):
            if path.name == "pyvenv.cfg" or self._is_large(path):
                yield f"/{(path.parent if path.name == 'pyvenv.cfg' else path).relative_to(self.root)}"

    def _is_large(self, path: Path) -> bool:
        """Whether the file stays behind: no argument names it."""
        is_named = str(path) in self._named or os.path.relpath(path, self._started_in) in self._named
        return not is_named and path.is_file() and path.stat().st_size > _MAX_FILE_BYTES


def translate(text: str, source: Folders, target: Folders) -> str:
    """The text, its paths in the folders of one host replaced by those of another."""
    for before, after in sorted(zip(source, target, strict=True), reverse=True):  # what lies in the other first
        if text == before:
            return after
        text = text.replace(before + os.sep, after + os.sep)
    return text


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _EXCLUDED]
        yield from (os.path.join(folder, name) for name in names)
