"""Files, modules and options that the documents and docstrings name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "implementations", "pytest_ecornn", "suites", "tests")
ENDINGS = "py|cu|cuh|hpp|cpp|md|txt|json|svg|toml|yml|yaml|css|js|jinja"
# Of a reader's own, of another program, or made when a program runs; capitals stand for any name.
OTHERS_FILES = re.compile(r".*[A-Z]{3}.*|my_scan\.py|(kernels/)?my_scan\.py|reports/local/.*|build/.*|comment\.md")
OTHERS_OPTIONS = {
    "--adapter", "--all-files", "--body-file", "--capture-range", "--constraint", "--dist", "--file", "--lf",
    "--profile-from-start", "--sw", "--temp-dir", "--tx",
}  # fmt: skip
# All but those of docs/hosts, whose commands are mostly other programs'.
PAGES = sorted(
    str(page.relative_to(ROOT))
    for folder in (".", "docs", "docs/kernels", "docs/notes", "implementations")
    for page in (ROOT / folder).glob("*.md")
    if page.name != "CHANGELOG.md"
)
SOURCES = sorted(path for folder in FOLDERS[1:] for path in (ROOT / folder).rglob("*.py"))


@cache
def places() -> str:
    """The paths of all files, a line each, so that an end of one can be found."""
    top = [path for path in ROOT.iterdir() if path.is_file()]
    paths = [*top, *(path for folder in (*FOLDERS, "reports", ".ci", ".github") for path in (ROOT / folder).rglob("*"))]
    return "".join(f"/{path.relative_to(ROOT)}\n" for path in paths)


@cache
def strings() -> tuple[dict[Path, list[str]], set[str]]:
    """Docstrings by file, and the options that the code declares or passes on."""
    docstrings, options = dict[Path, list[str]](), set[str]()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstrings.setdefault(path, []).append(ast.get_docstring(node) or "")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not path.name.startswith("test_"):
                options |= {node.value} if re.fullmatch(r"--[a-z][\w-]+", node.value) else set()
    return docstrings, options


def missing_files(text: str) -> Iterator[str]:
    for name in re.findall(rf"`([\w./-]+/[\w.-]+|[\w-]+\.(?:{ENDINGS}))`", text):
        if re.search(rf"\.({ENDINGS})$", name) and not OTHERS_FILES.fullmatch(name) and f"/{name}\n" not in places():
            yield name


def missing_modules(text: str) -> Iterator[str]:
    for name in re.findall(r"python -m ((?:pytest_ecornn|tests)[\w.]*)", text):
        if not re.search("[A-Z]", name) and find_spec(name.rstrip(".")) is None:
            yield name


def missing_options(text: str, known: set[str]) -> set[str]:
    return set(re.findall(r"(?<![\w`-])`?(--[a-z][\w-]*\w)", text)) - known


@pytest.fixture(scope="module")
def known(pytestconfig: pytest.Config) -> set[str]:
    """Our options, those of pytest and its plugins, and those that pages show of other programs."""
    parser = pytestconfig._parser
    groups = [*parser._groups, parser._anonymous]
    return strings()[1] | OTHERS_OPTIONS | {name for group in groups for option in group.options for name in option.names()}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str, known: set[str]) -> None:
    text = (ROOT / page).read_text()
    assert [*missing_files(text), *missing_modules(text), *missing_options(text, known)] == []


def test_what_docstrings_name_exists(known: set[str]) -> None:
    missing = {
        (str(path.relative_to(ROOT)), name)
        for path, texts in strings()[0].items()
        for text in texts
        for name in (*missing_files(text), *missing_modules(text), *missing_options(text, known))
    }
    assert missing == set()


def test_what_is_missing_is_found() -> None:
    text = "`run/no_such.py`, `run/session.py`, python -m pytest_ecornn.suites.published.gone --join, and `--parts`"
    assert list(missing_files(text)) == ["run/no_such.py"]
    assert list(missing_modules(text)) == ["pytest_ecornn.suites.published.gone"]
    assert missing_options(text, {"--parts"}) == {"--join"}


def test_contributing_lists_every_package() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    packages = {path.parent.name for path in (ROOT / "pytest_ecornn").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == packages
