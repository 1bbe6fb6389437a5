"""g++'s libraries, kept on disk by what they are made of: compiled once for all tests, workers and runs.

The folder is build/kernels_on_cpu, which `make clean` removes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build/kernels_on_cpu"


def compiled(source: Path, headers: Sequence[Path], options: Sequence[str], libraries: Sequence[str] = ()) -> Path:
    """The library of a source, which includes files of the folders `headers`. libraries: paths of others that it calls.

    Two sources are the same where the preprocessor makes the same of them, for the same compiler, options and libraries.
    Workers that compile one at the same time put the same file into place.
    """
    command = ["g++", *options, *(f"-I{one}" for one in headers)]
    preprocessed = subprocess.run([*command, "-E", "-P", str(source)], check=True, capture_output=True).stdout
    key = hashlib.sha256(repr((_version(), tuple(options), tuple(libraries))).encode() + preprocessed).hexdigest()
    library = FOLDER / f"{key[:32]}.so"
    if not library.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(partial), str(source), *libraries], check=True)
        partial.replace(library)
    return library


@cache
def _version() -> str:
    return subprocess.run(["g++", "-v"], check=True, capture_output=True, text=True).stderr
