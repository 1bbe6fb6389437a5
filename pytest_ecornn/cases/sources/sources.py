"""An implementation's source: its own module or package, and the code beside it that it may share with others."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

INIT = "__init__.py"
# Shared code is in files and packages whose names begin with _; kernels are where implementations/README.md has them.
_SHARED = ("_*.py", "_*/**/*", "*.cu", "*.cuh")
_CODE = (".py", ".cu", ".cuh")


def home(source: Path) -> Path:
    """The folder in which an implementation lies: of its module, or of its package, whose `__init__.py` is its source."""
    return source.parent.parent if source.name == INIT else source.parent


def owns(source: Path, file: Path) -> bool:
    """Whether code in the file is that of an implementation: its module or package, or shared code beside it."""
    if file == source or (source.name == INIT and file.is_relative_to(source.parent)):
        return True
    directory = home(source)
    return file.is_relative_to(directory) and file.relative_to(directory).parts[0].startswith("_")


def checksum(source: Path) -> int:
    """CRC-32 of names and contents. What is no readable file counts by its name."""
    total = 0
    for file in sorted({source, *_files(source)}):
        total = zlib.crc32(_content(file), zlib.crc32(file.name.encode(errors="surrogateescape"), total))
    return total


def _files(source: Path) -> Iterator[Path]:
    """A package's own code and what is shared; below folders code alone."""
    directory = home(source)
    own = source.parent.rglob("*") if source.name == INIT else ()
    shared = (file for pattern in _SHARED for file in directory.glob(pattern))
    yield from (file for file in (*own, *shared) if file.parent == directory or file.suffix in _CODE)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:
        return b""
