"""Takes into the site what pages link to outside of docs/: the project's other pages, pictures, sources and folders.

Links are relative, so that they work where the repository is browsed. Here each is led to its place in the site, which
mirrors the repository. A link to nothing is left as it is, and `mkdocs build --strict` fails for it.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TARGET = re.compile(r"(?<=\]\()[^)\s#:]+")
LANGUAGES = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".hpp": "cpp", ".toml": "toml"}
IN_NAV = ("CONTRIBUTING.md", "CHANGELOG.md")

_sources: dict[str, Path] = {}  # by place in the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every file that a page links to, and what is linked from there."""
    _sources.clear()
    _sources.update({file.src_uri: DOCS / file.src_uri for file in files.documentation_pages()})
    waiting = [*_sources.values(), *(ROOT / name for name in IN_NAV)]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.is_relative_to(DOCS):
            files.append(_generated(path, config))
        if path.suffix == ".md":
            linked = {found for found in _linked(path) if not found.is_relative_to(DOCS)} - seen
            seen |= linked
            waiting += sorted(linked)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads each link to the place of its target in the site."""
    place = page.file.src_uri
    source, folder = _sources[place], posixpath.dirname(place)

    def led(match: re.Match[str]) -> str:
        path = _resolved(source, match[0])
        return posixpath.relpath(place_of(path), folder or ".") if path else match[0]

    return TARGET.sub(led, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Writes one colon before the code of a docstring, where reStructuredText takes two."""
    return html.replace("::</p>", ":</p>")


def place_of(path: Path) -> str:
    """The place in the site of a file or folder of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    return f"{name}.md" if path.suffix in LANGUAGES else name + "/index.md" * path.is_dir()


def _linked(page: Path) -> Iterable[Path]:
    return filter(None, (_resolved(page, target) for target in TARGET.findall(page.read_text())))


def _resolved(page: Path, target: str) -> Path | None:
    """The file that a link of the page leads to; of a folder its README.md, as where the repository is browsed."""
    path = Path(posixpath.normpath((page.parent / target).as_posix()))
    if not path.exists() or not path.is_relative_to(ROOT) or path == ROOT / "README.md":
        return ROOT / "README.md" if path == ROOT / "README.md" else None
    return path / "README.md" if (path / "README.md").is_file() else path


def _generated(path: Path, config: MkDocsConfig) -> File:
    place = place_of(path)
    _sources[place] = path
    inclusion = InclusionLevel.INCLUDED if place in IN_NAV else InclusionLevel.NOT_IN_NAV
    if path.is_dir():
        return File.generated(config, place, content=_listing(path), inclusion=inclusion)
    if path.suffix in LANGUAGES:
        return File.generated(config, place, content=_code(path), inclusion=inclusion)
    return File.generated(config, place, abs_src_path=str(path), inclusion=inclusion)


def _code(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````{LANGUAGES[path.suffix]}\n{path.read_text()}````\n"


def _listing(folder: Path) -> str:
    """A table of the folder's sources with what each says first."""
    sources = sorted(path for path in folder.iterdir() if path.suffix in LANGUAGES)
    rows = [f"| `{path.name}` | {_first_line(path)} |" for path in sources]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", "| file | what it is |", "| --- | --- |", *rows, ""])


def _first_line(source: Path) -> str:
    """The first line of its docstring, or the comment that it begins with."""
    text = source.read_text()
    said = ast.get_docstring(ast.parse(text)) or "" if source.suffix == ".py" else text if text.startswith("//") else ""
    return said.partition("\n")[0].removeprefix("//").strip().replace("|", "\\|")
