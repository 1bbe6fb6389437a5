"""The drawing of docs/architecture.md: the packages and the imports that import-linter allows, read from pyproject.toml.

`python -m tests.tools.readme` writes docs/architecture.svg. A package that has no line in CONTENT stops it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg

ROOT = Path(__file__).parents[2]
PACKAGE = "pytest_ecornn."
CONTENT = {
    "suites": "named cases, equivalence, properties, benchmark; published figures",
    "plugin": "options and hooks before a run",
    "selfcheck": "mutants and exploits that must be caught",
    "run": "discovery, session, rows as tests, processes",
    "kernels": "check and compare: any function on tensors",
    "reporting": "Markdown, JSON, CSV, pictures, terminal",
    "regression": "the rule of the regression gate",
    "measurement": "clocks, blocks, noise, replayed graphs, roofline",
    "verification": "comparison, tolerance, properties, guards",
    "reference": "the plain loop, float64 and rounded",
    "cases": "contents, drawn and named cases",
    "results": "rows, journal, statistics",
    "autotune": "times candidates, stores decisions",
    "system": "machine, sensors, locks, memory, graphs",
    "contract": "Case, Weights, Implementation, cells",
    "implementations": "one file or one package each",
}
# In pixels.
WIDTH, ROW, BOX, TOP = 920, 62, 44, 92
LEFT, RIGHT, SIDE, EDGE = 40, 520, 640, 880
BLUE, GREEN, YELLOW = "block-1", "block-3", "wait"
TEXT_SIZE, HEAD = 14, 8


def contracts() -> list[dict[str, object]]:
    """import-linter's, as pyproject.toml has them."""
    found: list[dict[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return found


def layers() -> list[str]:
    """Packages of the core, each of which may import those after it."""
    (layered,) = [one for one in contracts() if one["type"] == "layers"]
    return _short(layered["layers"])


def forbidden(source: str) -> set[str]:
    """What a package must not import, beside what its layer rules out."""
    rules = [one for one in contracts() if one["type"] == "forbidden" and source in _short(one["source_modules"])]
    return {name for rule in rules for name in _short(rule["forbidden_modules"])}


def drawing() -> str:
    """The picture as an SVG that needs nothing from anywhere."""
    core = layers()
    allowed = [name for name in core if name not in forbidden("implementations")]
    knowing = [name for name in core if "implementations" not in forbidden(name)]
    if allowed != core[-len(allowed) :]:
        raise ValueError(f"expected implementations to import the lowest layers, got {allowed}")
    height = _top(len(core)) + 30
    label = "Packages from suites down to contract; each imports those below it"
    parts = [
        *_box(LEFT, 24, EDGE - LEFT, BOX, "suites", YELLOW),
        *(part for row, name in enumerate(core) for part in _box(LEFT, _top(row), RIGHT - LEFT, BOX, name, BLUE)),
        *(part for row in range(1, len(core)) for part in _arrow([(120, _top(row) - ROW + BOX), (120, _top(row))])),
        *_arrow([(120, 24 + BOX), (120, _top(0))]),
        *_implementations(core, allowed, knowing),
        svg.text(LEFT + 96, 24 + BOX + 16, "an arrow also reaches all that is below its head", fill="weak"),
    ]
    return svg.Picture(label, WIDTH, height, parts).document()


def _implementations(core: list[str], allowed: list[str], knowing: list[str]) -> Iterator[Element]:
    """Their box beside the layers that they may import, and the arrows that lead there."""
    top, bottom = _top(core.index(allowed[0])), _top(len(core) - 1) + BOX
    yield from _box(SIDE, top, EDGE - SIDE, bottom - top, "implementations", GREEN)
    for name in allowed:
        yield from _arrow([(SIDE, _middle(core.index(name))), (RIGHT, _middle(core.index(name)))])
    yield from _arrow([(EDGE - 50, 24 + BOX), (EDGE - 50, top)])
    for row in (core.index(name) for name in knowing):
        yield from _arrow([(RIGHT, _middle(row)), (SIDE + 50, _middle(row)), (SIDE + 50, top)], is_dashed=True)
        yield svg.text(RIGHT + 12, _middle(row) - 8, "wrong layers made of scan_cpu", fill="weak")
    judging = [name for name in [*core, "suites"] if name in forbidden("implementations")]
    for line, text in enumerate(["Forbidden here:", *judging]):
        yield svg.text(SIDE + 14, bottom - 16 - 19 * (len(judging) - line), text, fill="red")


def _top(row: int) -> int:
    return TOP + row * ROW


def _middle(row: int) -> int:
    return _top(row) + BOX // 2


def _box(x: int, y: int, width: int, height: int, name: str, fill: str) -> Iterator[Element]:
    yield svg.rectangle(x, y, width, height, fill, stroke="weak", radius=6)
    beside, below = (x + 150, y + 27) if height == BOX else (x + 14, y + 50)
    yield svg.text(x + 14, y + 27, name, size=TEXT_SIZE, is_bold=True)
    yield svg.text(beside, below, CONTENT[name], size=TEXT_SIZE)


def _arrow(points: list[tuple[int, int]], is_dashed: bool = False) -> Iterator[Element]:
    """Lines along the points, each at a right angle to the one before, and a head at the last."""
    (before, y_before), (x, y) = points[-2:]
    along_x, along_y = (x > before) - (x < before), (y > y_before) - (y < y_before)
    base_x, base_y = x - HEAD * along_x, y - HEAD * along_y
    yield svg.polyline([*points[:-1], (base_x, base_y)], "ink", width=1.4, dashes="5 4" if is_dashed else "")
    half_x, half_y = HEAD / 2 * along_y, HEAD / 2 * along_x
    yield svg.path(f"M{x} {y}L{base_x + half_x:g} {base_y + half_y:g}L{base_x - half_x:g} {base_y - half_y:g}z", fill="ink")


def _short(names: object) -> list[str]:
    assert isinstance(names, list)
    return [name.removeprefix(PACKAGE) for name in names]
