"""An implementation's own files: its module, the modules beside it that it imports, and the C and CUDA files that they name."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

MAX_FILES, MAX_BYTES = 64, 2**20
C_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hip", ".c", ".cc", ".cpp", ".metal", ".cl")
_C_NAME = re.compile(rf"[\w.+-]+(?:{'|'.join(map(re.escape, C_SUFFIXES))})\b")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"\n]+)"', re.M)


def own_files(module: Path) -> list[tuple[Path, str]]:
    """Paths and texts, the module's first. C and CUDA files that none names count where they bear its name."""
    found: dict[Path, str] = {}
    waiting = deque([module])
    while waiting and len(found) < MAX_FILES:
        path = waiting.popleft()
        if path in found or (text := _text(path)) is None:
            continue
        found[path] = text
        waiting.extend(_named(path, text, module.parent))
        if path == module:
            waiting.extend(sorted(one for one in module.parent.glob(f"{module.stem}*") if one.suffix in C_SUFFIXES))
    return list(found.items())


def _text(path: Path) -> str | None:
    """The file's text; None for what cannot be read, or is too long to have been written by hand."""
    try:
        return path.read_text(errors="replace") if path.is_file() and path.stat().st_size <= MAX_BYTES else None
    except OSError:
        return None


def _named(path: Path, text: str, folder: Path) -> Iterator[Path]:
    """The files beside it, or in a folder there, that a file names."""
    if path.suffix != ".py":
        yield from (path.parent / name for name in _INCLUDE.findall(text))
        return
    for name in _imported(text):
        yield folder / f"{name}.py"
    for name in dict.fromkeys(_C_NAME.findall(text)):
        yield from (folder / name, *sorted(folder.glob(f"*/{name}")))


def _imported(text: str) -> Iterator[str]:
    """The last parts of the names of modules that may be imported."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.rpartition(".")[2] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from filter(None, [(node.module or "").rpartition(".")[2], *(name.name for name in node.names)])
