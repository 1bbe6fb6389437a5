"""Runs a tool of .venv where the package lies as in a wheel: `python -m tests.tools.as_installed mypy`.

Tools that do not import look for pytest_ecornn.implementations in pytest_ecornn/. The copy is build/as_installed/. Paths that
are printed are those of the clone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from pytest_ecornn.system.package_folders import copy_as_installed

ROOT = Path(__file__).parents[2]
COPY = ROOT / "build/as_installed"
_COPIED = re.compile(r"\bpytest_ecornn[/\\](?=(?:implementations|suites)[/\\])")


def refresh(folder: Path) -> Path:
    """Copies the package and pyproject.toml into the folder anew. Caches that tools have left there stay."""
    shutil.rmtree(folder / "pytest_ecornn", ignore_errors=True)
    copy_as_installed(folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def main() -> int:
    tool, *arguments = sys.argv[1:]
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    done = subprocess.run(command, cwd=refresh(COPY), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(_COPIED.sub("", done.stdout), end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
