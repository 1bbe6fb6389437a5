"""`make quick`: runs the tests that a change touches.

`python -m tests.tools.quick [--base COMMIT | --commit COMMIT] [--list] [PYTEST ARGUMENT ...]`. `make test` stays what every
commit must pass.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("pytest_ecornn", "implementations", "suites")
KERNELS = "tests/implementations/_cuda"
TABLES = {"implementations/persistent_gpu/": "tests/implementations/test_persistent_kernels.py"}  # a family's table of kernels
ALWAYS = ("tests/frozen/test_frozen.py",)
OF_BUILD = ("tests/project", "tests/frozen")
_TEXT = (".py", ".cu", ".cuh")
_WORD, _COMMON_NAMES = re.compile(r"[\w.-]+"), {"__init__.py", "README.md"}
_INCLUDE = re.compile(r'^#include "(.+)"$', re.M)


class Tree:
    """The files of a clone. texts: path and text of each Python and CUDA file; of the others the path alone counts."""

    def __init__(self, texts: Mapping[str, str]):
        self._texts = texts

    def tests_of(self, path: str) -> set[str]:
        """The test files and folders that a change of the file touches."""
        if path.startswith("tests/"):
            return self._of_test_file(path)
        name = PurePosixPath(path).name
        touched = {file for file, words in self._words.items() if name in words}
        if path.endswith((".cu", ".cuh")):
            return touched | self._of_kernel(path)
        if path.startswith(PRODUCT):
            return touched | self._importers(_module(path)) | self._mirrored(path)
        is_document = path.endswith(".md") or path.startswith(("docs/", "reports/"))
        return touched | ({"tests/project"} if is_document else set(OF_BUILD))

    def _of_test_file(self, path: str) -> set[str]:
        folder, name = str(PurePosixPath(path).parent), PurePosixPath(path).name
        if name.startswith("test_"):
            return {path} & self._texts.keys()
        if name == "conftest.py":
            return {file for file in self._tests if str(PurePosixPath(file).parent) == folder}
        if path.endswith(".py"):
            return self._importers(_module(path), through="tests/") | self._in(folder)
        return self._of_test_data(folder)

    def _of_test_data(self, folder: str) -> set[str]:
        """Tests of the nearest folder above that has some, and those that import a helper of that folder."""
        while not (tests := self._in(folder)):
            folder = str(PurePosixPath(folder).parent)
        helpers = {path for path in self._texts if str(PurePosixPath(path).parent) == folder} - self._tests
        return tests.union(*(self._importers(_module(path), through="tests/") for path in helpers))

    def _of_kernel(self, path: str) -> set[str]:
        """Tests of the families of kernels that a file is part of, and those of every kernel."""
        families = {path} if path.endswith(".cu") else self._including(PurePosixPath(path).name)
        return {KERNELS}.union(*(self._mirrored(source) for source in families))

    def _including(self, header: str) -> set[str]:
        """The kernels that include a header, through others too."""
        including = {path for path, headers in self._includes.items() if header in headers}
        headers = {_name(path) for path in including if path.endswith(".cuh") and _name(path) != header}
        return {path for path in including if path.endswith(".cu")}.union(*map(self._including, headers))

    def _importers(self, module: str, through: str = "") -> set[str]:
        """The tests that import a module, themselves or by a file whose path begins with `through`."""
        importers, new = set[str](), {module}
        while new:
            files = set[str]().union(*(self._importing.get(name, ()) for name in new)) - importers
            importers |= files
            new = {_module(path) for path in files if through and path.startswith(through)}
        return importers & self._tests

    def _mirrored(self, path: str) -> set[str]:
        """The test file of a module, or else those of its package, or of the package that holds it; and its family's table."""
        tables = {tests for folder, tests in TABLES.items() if path.startswith(folder)}
        parts = PurePosixPath(path.removeprefix("pytest_ecornn/")).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for end in range(len(parts), 0, -1):
            folder = "/".join(("tests", *parts[:end]))
            own = f"{folder.rpartition('/')[0]}/test_{parts[end - 1]}.py"
            if own in self._tests:
                return {own} | tables
            if tests := self._in(folder):
                return tests | tables
        return {"tests/end_to_end/test_runs.py"}

    def _in(self, folder: str) -> set[str]:
        """The folder, if it has tests."""
        return {folder} if any(file.startswith(f"{folder}/") for file in self._tests) else set()

    @cached_property
    def _tests(self) -> set[str]:
        return {path for path in self._texts if path.startswith("tests/") and PurePosixPath(path).name.startswith("test_")}

    @cached_property
    def _words(self) -> dict[str, set[str]]:
        """What each test file says that may be the name of a file."""
        return {path: set(_WORD.findall(self._texts[path])) - _COMMON_NAMES for path in self._tests}

    @cached_property
    def _includes(self) -> dict[str, set[str]]:
        """The names of the headers that each CUDA file includes."""
        return {path: {_name(header) for header in _INCLUDE.findall(text)} for path, text in self._texts.items()}

    @cached_property
    def _importing(self) -> dict[str, set[str]]:
        """The Python files that name a module, or what may be one, in an import."""
        files = defaultdict[str, set[str]](set)
        for path, text in self._texts.items():
            for name in _imported(text) if path.endswith(".py") else ():
                files[name].add(path)
        return dict(files)


def _imported(text: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def _module(path: str) -> str:
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"pytest_ecornn.{name}" if path.startswith(PRODUCT[1:]) else name


def _name(path: str) -> str:
    return PurePosixPath(path).name


def select(tree: Tree, changed: Iterable[str]) -> list[str]:
    """The tests to run for these changed files, without those that lie in a folder that is run as a whole."""
    touched = set(ALWAYS).union(*map(tree.tests_of, changed))
    return sorted(path for path in touched if not any(path.startswith(f"{folder}/") for folder in touched))


def changed_files(base: str | None, commit: str | None) -> list[str]:
    """The files of a commit, or those that have changed since `base`; else uncommitted ones, else the last commit's."""
    if commit:
        return git("diff", "--name-only", f"{commit}~1", commit)
    since = git("diff", "--name-only", base or "HEAD") + git("ls-files", "--others", "--exclude-standard")
    return since or ([] if base else git("diff", "--name-only", "HEAD~1"))


def git(*arguments: str, folder: Path = ROOT) -> list[str]:
    """The lines that git prints in a clone. Ends the process where it fails."""
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"make quick: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def clone() -> Tree:
    """The files that git knows here, as they are now."""
    paths = git("ls-files", "--cached", "--others", "--exclude-standard")
    return Tree({path: (ROOT / path).read_text() for path in paths if path.endswith(_TEXT) and (ROOT / path).is_file()})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make quick", description="Runs the tests that a change touches.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--base", help="a commit, since which files have changed; else uncommitted ones, else the last commit's")
    which.add_argument("--commit", help="a commit that changed files")
    parser.add_argument("--list", action="store_true", help="print the tests' paths and run nothing")
    options, passed = parser.parse_known_args(arguments)
    changed = changed_files(options.base, options.commit)
    tests = select(clone(), changed)
    print(f"make quick: {len(changed)} changed files, tests of {len(tests)} paths: {' '.join(tests)}", flush=True)
    return 0 if options.list else int(pytest.main(["--numprocesses", "2", "--dist", "worksteal", *tests, *passed]))


if __name__ == "__main__":
    sys.exit(main())
