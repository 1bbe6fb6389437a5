"""g++'s libraries, kept by what they are made of: compiled once for all tests, runs and clones of a user.

The folder is `kernels_on_cpu` in the user's cache folder, or in ECORNN_CACHE_DIR.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from pytest_ecornn.system.cache import cache_dir
from tests.simulator.file_cache import FileCache

IS_SANITIZED = os.environ.get("ECORNN_SANITIZED") == "address"  # in processes of tests/simulator/sanitized_cpu.py
LIBRARIES = FileCache(cache_dir() / "kernels_on_cpu", most_bytes=2**30)
_OPTIONS = (
    *("-O1", "-std=c++17", "-shared", "-fPIC", "-fno-gnu-unique", "-w"),
    *(("-fsanitize=address", "-fsanitize-recover=address", "-g1") if IS_SANITIZED else ()),
    "-U_FORTIFY_SOURCE",  # which takes a jump from one stack to another for a fault
)


@dataclass(frozen=True)
class Library:
    """C++ that is compiled when it is loaded.

    headers: path and text of each file that the source may include. options: added to those of every library. needs: others
    that it calls.
    """

    text: str
    headers: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    needs: tuple[Library, ...] = ()

    @cached_property
    def key(self) -> str:
        """Names what g++ makes: the same where the preprocessor makes the same of two sources, for the same g++ and options.

        The preprocessor takes 0.1 s, so that its answer is kept too, by the texts.
        """
        settings = (_version(), _OPTIONS, self.options, [library.key for library in self.needs])
        texts = LIBRARIES.get(name := f"{_digest(settings, self.text, self.headers)}.key")
        if texts is not None and (key := texts.read_text()):
            return key
        with tempfile.TemporaryDirectory() as folder:
            command = self._command(Path(folder))
            preprocessed = subprocess.run([*command, "-E", "-P"], check=True, capture_output=True).stdout
        key = _digest(settings, preprocessed)
        LIBRARIES.put(name, lambda path: path.write_text(key))
        return key

    @cached_property
    def loaded(self) -> ctypes.CDLL:
        """The library. Raises CalledProcessError where g++ does not compile it."""
        for library in self.needs:
            _ = library.loaded
        try:
            return ctypes.CDLL(str(self.path))
        except OSError:  # it, or what it needs, lies elsewhere now
            self.path.unlink(missing_ok=True)
            return ctypes.CDLL(str(self.path))

    @property
    def path(self) -> Path:
        """The compiled file."""
        return LIBRARIES.get(f"{self.key}.so") or LIBRARIES.put(f"{self.key}.so", self._compile)

    def _compile(self, path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            needs = [str(library.path) for library in self.needs]
            subprocess.run([*self._command(Path(folder)), "-o", str(path), *needs], check=True)

    def _command(self, folder: Path) -> list[str]:
        """What compiles the source, written into the folder with its headers."""
        for header, text in self.headers:
            (folder / header).parent.mkdir(parents=True, exist_ok=True)
            (folder / header).write_text(text)
        source = folder / "kernel.cpp"
        source.write_text(self.text)
        return ["g++", *_OPTIONS, *self.options, f"-I{folder}", str(source)]


def headers_of(*folders: Path) -> tuple[tuple[str, str], ...]:
    """Path and text of each header in the folders. A later one's header takes the place of another at the same path."""
    files = {path: text for folder in folders for path, text in _headers_in(folder)}
    return tuple(sorted(files.items()))


def _headers_in(folder: Path) -> Iterator[tuple[str, str]]:
    for file in folder.rglob("*"):
        if file.suffix in (".cuh", ".hpp"):
            yield str(file.relative_to(folder)), _text(file, file.stat().st_mtime_ns)


@cache
def _text(file: Path, changed_at_ns: int) -> str:
    return file.read_text()


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def _version() -> str:
    return subprocess.run(["g++", "-v"], check=True, capture_output=True, text=True).stderr
