"""Kernels void(int64*) as machine code, loaded from the cache folder by LLVM alone: importing Numba takes 0.3 s.

An object file's name is a digest of all that it depends on: the kernel's name, its files, the processor, LLVM and Numba. Many
processes may share the folder. Where it cannot be written, each process compiles its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging  # noqa: F401 - whose own lock is then taken after these at a fork: Numba logs while it compiles
import os
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from pytest_ecornn.system.cache import cache_dir, write_cached

_OWN_FILES = tuple(sorted(Path(__file__).parent.glob("*.py")))
_NO_FOLDER = (OSError, RuntimeError)  # where the cache folder cannot be read or written, and where there is no home
_lock, _import_lock = Lock(), Lock()
if hasattr(os, "register_at_fork"):  # a child has no thread that would end a compilation, and release Numba's locks
    for lock in (_import_lock, _lock):  # the last is acquired first
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
_addresses: dict[CpuKernel, int] = {}  # of the kernels of this process
_alive: list[Any] = []  # what holds their machine code


class CpuKernel(NamedTuple):
    """A kernel that `function(*names)` of a module makes, which Numba compiles. files: of the module, and those it imports."""

    module: str
    names: tuple[str, ...]
    files: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The file of its machine code in the cache folder, whether it exists or not."""
        text = repr((self.names, _processor(), metadata.version("numba"), _digest(self.files)))
        return cache_dir() / "cpu" / f"{'-'.join(self.names)}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.o"

    @property
    def is_compiled(self) -> bool:
        if self in _addresses:
            return True
        with suppress(*_NO_FOLDER, ImportError):  # of LLVM: to compile the kernel raises it again
            return self.path.exists()
        return False

    def compile(self) -> None:
        """Returns when the kernel is compiled and loaded. Raises what Numba raises."""
        self.address()

    def address(self) -> int:
        """The address of the kernel, compiled at first use."""
        address = _addresses.get(self)
        if address is None:
            address = self._load()
            if not address:
                with _lock:  # for seconds, in which another thread may load what the folder has
                    address = _addresses.get(self) or self._load() or self._compile()
            address = _addresses.setdefault(self, address)
        return address

    def _load(self) -> int:
        """The address of the kernel that the folder has, or 0."""
        with suppress(*_NO_FOLDER):
            checksum, symbol, object_code, *_ = *self.path.read_bytes().split(b"\n", 2), b"", b""
            if checksum == _checksum(symbol, object_code):  # LLVM may crash on a file that is cut short
                return _loaded(symbol.decode(), object_code)
        return 0

    def _compile(self) -> int:
        from pytest_ecornn.implementations._cpu.compile import compiled

        callback, name, object_code = compiled(import_module(self.module).kernel(*self.names))
        _alive.append(callback)
        with suppress(*_NO_FOLDER):
            symbol = name.encode()
            write_cached(self.path, b"\n".join((_checksum(symbol, object_code), symbol, object_code)))
        address: int = callback.address
        return address


@cache
def _digest(files: tuple[Path, ...]) -> str:
    """A digest of the contents of files, and of this folder's."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in (*_OWN_FILES, *files))).hexdigest()


def _checksum(symbol: bytes, object_code: bytes) -> bytes:
    return hashlib.sha256(symbol + object_code).hexdigest().encode()


def _loaded(symbol: str, object_code: bytes) -> int:
    """The address of a symbol of an object file."""
    llvm = _llvm()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    _alive.append(engine)
    address: int = engine.get_function_address(symbol)
    return address


@cache
def _llvm() -> Any:
    with _import_lock:
        from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for name in ("numba_gil_ensure", "numba_gil_release"):  # which would report an exception: no kernel raises
        if not binding.address_of_symbol(name):
            binding.add_symbol(name, abort)
    return binding


@cache
def _processor() -> tuple[str, ...]:
    """The version of LLVM, and the processor that it compiles for."""
    llvm = _llvm()
    return (
        metadata.version("llvmlite"),
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    )
