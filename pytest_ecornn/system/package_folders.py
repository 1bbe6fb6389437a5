"""Where this package's code lies: implementations/ and suites/ are in it where it is installed, and beside it in a clone."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path


def _folder(package: str) -> Path:
    return Path(import_module(package).__path__[0])


PACKAGE = _folder("pytest_ecornn")
IMPLEMENTATIONS = _folder("pytest_ecornn.implementations")
SUITES = _folder("pytest_ecornn.suites")


def copy_as_installed(folder: Path) -> Path:
    """Copies the package into the folder as a wheel holds it, times of change included, and returns the copy."""
    copy = folder / PACKAGE.name
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for source, target in ((PACKAGE, copy), (IMPLEMENTATIONS, copy / "implementations"), (SUITES, copy / "suites")):
        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    return copy
