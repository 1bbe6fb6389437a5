"""An implementation's own files: its module or package, the modules that it imports, the C and CUDA files that they name."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pytest_ecornn.cases.sources.sources import INIT, home

MAX_FILES, MAX_BYTES = 64, 2**20
C_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hip", ".c", ".cc", ".cpp", ".metal", ".cl")
TOOL_CHAIN = "_cuda"  # whose modules compile and launch: their numbers are about no layer's size
_INCLUDE_ROOTS = ("", f"{TOOL_CHAIN}/include")
_C_NAME = re.compile(rf"[\w.+-]+(?:{'|'.join(map(re.escape, C_SUFFIXES))})\b")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"\n]+)"', re.M)


def own_files(source: Path) -> list[tuple[Path, str]]:
    """Paths and texts, the source's first: a module, or a package's `__init__.py`.

    C and CUDA files that none names count where they bear a module's name, or lie in the package.
    """
    found: dict[Path, str] = {}
    seen, waiting = set[Path](), deque([source])
    while waiting and len(found) < MAX_FILES:
        path = waiting.popleft()
        if path in seen:
            continue
        seen.add(path)
        if (text := _text(path)) is None:
            continue
        found[path] = text
        waiting.extend(_named(path, text, source))
        if path == source:
            beside = source.parent.rglob("*") if source.name == INIT else source.parent.glob(f"{source.stem}*")
            waiting.extend(sorted(one for one in beside if one.suffix in C_SUFFIXES))
    return list(found.items())


def _text(path: Path) -> str | None:
    """The file's text; None for what cannot be read, or is too long to have been written by hand."""
    try:
        return path.read_text(errors="replace") if path.is_file() and path.stat().st_size <= MAX_BYTES else None
    except OSError:
        return None


def _named(path: Path, text: str, source: Path) -> Iterator[Path]:
    """The files that a file names, beside the source, below it, or from where headers are included."""
    folders = list(dict.fromkeys([source.parent, home(source)]))
    if path.suffix != ".py":
        for name in _INCLUDE.findall(text):
            yield path.parent / name
            yield from (folder / root / name for folder in folders for root in _INCLUDE_ROOTS)
        return
    for parts in (one for one in _imported(text) if TOOL_CHAIN not in one):
        for first in range(len(parts)):
            places = [folder.joinpath(*parts[first:]) for folder in folders]
            yield from (position for module in places for position in (module.with_name(f"{module.name}.py"), module / INIT))
    for name in dict.fromkeys(_C_NAME.findall(text)):
        yield from (source.parent / name, *sorted(source.parent.glob(f"*/{name}")))


def _imported(text: str) -> Iterator[list[str]]:
    """The parts of the names of modules that may be imported."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            yield from filter(None, [module, *([*module, name.name] for name in node.names)])
