"""The pages of docs/kernels name what the sources have, and their diagrams are what their command draws."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ecornn.suites.figures.__main__ import FIGURES
from pytest_ecornn.suites.figures.sequence_diagram import Arrow, Diagram, Lifeline, Signal, work
from tests.helpers.reporting import pictures

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "docs/kernels"
PAGES = sorted(KERNELS.glob("*.md"))
NAME = re.compile(r"[A-Za-z_]\w*")


@cache
def sources() -> str:
    files = (path for path in sorted((ROOT / "implementations").rglob("*")) if path.suffix in (".cu", ".cuh", ".py"))
    return "\n".join(path.read_text() for path in files)


def texts(svg: str) -> list[str]:
    return pictures.texts(ElementTree.fromstring(svg))


def is_identifier(name: str) -> bool:
    """Whether a name is one of the sources' and no word or formula: long, with an underscore or a capital inside."""
    return len(name) > 5 and ("_" in name or name[1:] != name[1:].lower())


def test_every_figure_is_drawn_and_shown_on_a_page() -> None:
    shown = re.findall(r"\(figures/(\w+)\.svg\)", "\n".join(page.read_text() for page in PAGES))
    assert sorted(shown) == sorted(FIGURES) == sorted(path.stem for path in (KERNELS / "figures").iterdir())


@pytest.mark.parametrize("name", FIGURES)
def test_a_committed_figure_is_what_is_drawn_and_its_names_are_the_sources(name: str) -> None:
    drawn = FIGURES[name]().render()
    assert (KERNELS / "figures" / f"{name}.svg").read_text() == drawn, "run make docs"
    found = {word for text in texts(drawn)[1:] for word in NAME.findall(text) if is_identifier(word)}
    assert not [word for word in sorted(found) if word not in sources()]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_names_on_a_page_are_the_sources_and_its_files_exist(page: Path) -> None:
    quoted = re.findall(r"`([^`\n]+)`", page.read_text())
    found = {word for text in quoted if not re.search(r"\.(cu|cuh|py|md)$", text) for word in NAME.findall(text)}
    assert not [word for word in sorted(found) if is_identifier(word) and word not in sources()]
    figures = re.findall(r"\(figures/(\w+)\.svg\)", page.read_text())
    shown = [*quoted, *(text for name in figures for text in texts(FIGURES[name]().render()))]
    files = {name for text in shown for name in re.findall(r"[\w/]+\.(?:cuh?|py)\b", text)}
    present = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "implementations").rglob("*.*")]
    assert not [name for name in sorted(files) if not any(path.endswith(f"/{name}") for path in present)]


def diagram(*row: Arrow) -> Diagram:
    return Diagram("a title", [Lifeline(name, "a block") for name in "abc"], [row, work(0, "one") + work(2, "two & three")])


def test_a_diagram_has_its_texts() -> None:
    assert {"a title", "a block", "full", "two & three"} <= set(texts(diagram(Arrow(0, 1, "full", Signal.FULL)).render()))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([Arrow(0, 2, "over", Signal.FULL), Arrow(1, 2, "under", Signal.EMPTY)], "overlap"),
        ([Arrow(0, 1, "a label that is longer than its arrow is", Signal.FULL)], "pixels"),
    ],
)
def test_what_would_overlap_or_does_not_fit_is_refused(row: list[Arrow], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        diagram(*row).render()
