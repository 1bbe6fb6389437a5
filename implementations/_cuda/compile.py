"""CUDA C++ -> machine code by NVRTC, cached on disk: needs no nvcc and no compiler on the user's machine.

A compiled file's name is a digest of everything that it depends on: the source, the headers beside it and all shared ones, the
options, the architecture and the version of NVRTC.
"""

from __future__ import annotations

import ctypes
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from pytest_ecornn.system.cache import cache_dir, write_cached

# Compute capabilities for which the tests compile every kernel. The first is the oldest that is supported; on a device kernels
# are compiled for its own.
ARCHITECTURES = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
HOPPER = (9, 0)  # the compute capability of clusters here
HEADERS = Path(__file__).parent / "include"  # of several implementations: #include "ecornn/..."


class CompilationError(Exception):
    """The compiler's log."""


@dataclass(frozen=True)
class Compiled:
    """Machine code, and the compiler's log of registers, shared memory and spills (empty if loaded from disk)."""

    path: Path
    log: str


class KernelCode(NamedTuple):
    """A `.cu`, the macros it is compiled with, and the compute capability it is compiled for."""

    source: Path
    macros: tuple[tuple[str, str], ...]
    capability: tuple[int, int]

    @property
    def path(self) -> Path:
        """The file of its machine code in the cache folder, whether it exists or not."""
        return cache_dir() / f"{self.source.stem}-{_digest(*self)}.cubin"

    @property
    def is_compiled(self) -> bool:
        return self.path.exists()

    def compile(self) -> None:
        """Raises CompilationError."""
        compile_source(*self)


@cache
def nvrtc_unavailable_reason() -> str | None:
    """Why kernels cannot be compiled here, or None."""
    try:
        from cupy_backends.cuda.api import runtime  # noqa: F401

        nvrtc_version()
    except Exception as error:
        return (
            f"CuPy with NVRTC is needed (pip install pytest-ecornn[cuda13] or [cuda12]): {' '.join(str(error).split())[:200]}"
        )
    return None


def skip_reason(device: torch.device) -> str | None:
    """Why kernels cannot run on `device`, or None."""
    if device.type != "cuda":
        return "runs on a CUDA device"
    if (device.index or 0) >= torch.cuda.device_count():
        return f"no device {device} on this machine, which has {torch.cuda.device_count()}"
    if torch.cuda.get_device_capability(device) < ARCHITECTURES[0]:
        return "needs compute capability 8.0 or newer"
    return nvrtc_unavailable_reason()


def has_clusters(device: torch.device) -> bool:
    """Whether kernels of clusters run there: on a Hopper GPU, and in tests on a CPU."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) == HOPPER


def with_index(name: str) -> torch.device:
    """The CUDA device of that name; without a number the current one."""
    device = torch.device(name)
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def compile_source(source: Path, macros: tuple[tuple[str, str], ...], capability: tuple[int, int]) -> Compiled:
    """Compiles a `.cu` for one compute capability, unless it is cached. Raises CompilationError."""
    path = KernelCode(source, macros, capability).path
    for written in (path, *(Path(folder.name, path.name) for folder in _own_folders)):
        if written.exists():
            return Compiled(written, "")
    code, log = _run_nvrtc(source, _options(source, macros, capability))
    try:
        return Compiled(write_cached(path, code), log)
    except OSError:  # CuPy loads code from files alone
        if not _own_folders:
            _own_folders.append(TemporaryDirectory(prefix="pytest-ecornn-kernels-"))
        return Compiled(write_cached(Path(_own_folders[0].name, path.name), code), log)


_own_folders: list[TemporaryDirectory[str]] = []  # of this process, for where the cache folder cannot be written


def include_folders(source: Path) -> tuple[Path, ...]:
    """Folders that a kernel includes headers of: the shared ones, its own, and where that is in one of kernels this one too."""
    own = source.parent
    return (HEADERS, own, own.parent) if own.parent.name == "kernels" else (HEADERS, own)


def _options(source: Path, macros: tuple[tuple[str, str], ...], capability: tuple[int, int]) -> list[str]:
    own = "a" if capability == (9, 0) else ""  # Hopper's own instructions, which no later architecture has
    architecture = f"--gpu-architecture=sm_{capability[0]}{capability[1]}{own}"
    told = ["--ptxas-options=--verbose", "--ptxas-options=--warn-on-spills"]
    folders = [f"-I{folder}" for folder in include_folders(source)]
    return [architecture, "--std=c++17", "-default-device", *folders, *told, *(f"-D{k}={v}" for k, v in macros)]


def _digest(source: Path, macros: tuple[tuple[str, str], ...], capability: tuple[int, int]) -> str:
    digest = hashlib.sha256(repr((macros, capability, nvrtc_version())).encode())
    for file in (source, Path(__file__), *_headers(HEADERS, include_folders(source)[1:])):
        stat = file.stat()
        digest.update(_file_digest(file, stat.st_mtime_ns, stat.st_size))
    return digest.hexdigest()[:24]


@cache
def _headers(shared: Path, folders: tuple[Path, ...]) -> list[Path]:
    """The shared headers, and those of a kernel's own folders."""
    own = chain.from_iterable(sorted(folder.glob("*.cuh")) for folder in folders)
    return [*sorted(shared.rglob("*.cuh")), *own]


@lru_cache(maxsize=1024)
def _file_digest(file: Path, modified_ns: int, size: int) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


@cache
def nvrtc_version() -> str:
    """The version of NVRTC's wheel, else NVRTC's own, which is loaded for that. Raises what loading it raises."""
    versions = []
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(metadata.version(package))
    if not versions:
        major, minor = ctypes.c_int(), ctypes.c_int()
        _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        versions.append(f"{major.value}.{minor.value}")
    return " ".join(versions)


@cache
def _nvrtc() -> Any:
    """NVRTC's library. CuPy's wrapper of it would import all of CuPy."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)


def _run_nvrtc(source: Path, options: list[str], kind: str = "CUBIN", text: str = "") -> tuple[bytes, str]:
    """Machine code, or of another kind, and the compiler's log. text: in the source's place. Raises CompilationError."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()

    def result(what: str) -> bytes:
        size = ctypes.c_size_t()
        nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        nvrtc[f"nvrtcGet{what}"](program, buffer)
        return buffer.raw

    code = (text or source.read_text()).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, source.name.encode(), 0, None, None)
    try:
        arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        log = result("ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status:
            raise CompilationError(f"{source.name}: NVRTC's error {status}\n{log}")
        return result(kind), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
