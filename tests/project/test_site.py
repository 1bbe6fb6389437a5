"""The documentation builds as a site without a warning, every page is in its navigation, and what is generated is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ecornn.run.options import Options
from tests.tools import architecture_drawing, readme

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def navigation() -> list[str]:
    """Pages of mkdocs.yml's nav, in order."""
    section = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    return re.findall(r"[\w/-]+\.md", section)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs the extra [docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    listed = navigation()
    assert sorted(pages - set(listed)) == []
    assert len(listed) == len(set(listed))


@pytest.mark.test_all
def test_pages_fetch_nothing(site: Path) -> None:
    """Neither a font nor a script nor a picture comes from another place."""
    fetched = re.compile(
        r"<(?:script|img|iframe)[^>]* src=\"?(?:https?:)?//|<link[^>]* rel=\"?stylesheet[^>]* href=\"?(?:https?:)?//"
    )
    assert [page.name for page in site.rglob("*.html") if fetched.search(page.read_text())] == []


@pytest.mark.test_all
def test_tables_and_lists_are_rendered(site: Path) -> None:
    """Python-Markdown takes a table or list that follows a line of text, or a row that follows none, for text."""
    unrendered = re.compile(r"<p>(?:[^<]*\n)?(?:\| |[-*] \w)")
    assert [page.name for page in site.rglob("*.html") if unrendered.search(page.read_text())] == []


def test_the_option_tables_hold_every_option() -> None:
    flags = [option.flag for option in Options.declared().values()]
    assert re.findall(r"^\| `(--[\w-]+)", readme.options(), re.M) == flags


def test_the_architecture_is_drawn_as_the_import_rules_say() -> None:
    assert architecture_drawing.drawing() == (DOCS / "architecture.svg").read_text(), "run make docs"
    assert len(architecture_drawing.layers()) == 14  # the thirteen packages, and the plugin
