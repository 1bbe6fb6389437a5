"""An implementation's source: its own file, and the files beside it that it may share with others."""

from __future__ import annotations

import zlib
from pathlib import Path

# Shared code is in files whose names begin with _; kernels are where implementations/README.md has them.
_SHARED = ("_*.py", "*.cu", "*.cuh", "cuda/*.py", "cuda/*.cu", "cuda/*.cuh")


def checksum(path: Path) -> int:
    """CRC-32 of names and contents. What is no readable file counts by its name."""
    total = 0
    for file in sorted({path, *(shared for pattern in _SHARED for shared in path.parent.glob(pattern))}):
        total = zlib.crc32(_content(file), zlib.crc32(file.name.encode(errors="surrogateescape"), total))
    return total


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:
        return b""
