"""replay.cpp's library, built at first use by the machine's C++ compiler, in the cache folder. Nothing waits for it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pytest_ecornn.system.cache import cache_dir

_SOURCE, _NAME = Path(__file__).with_name("replay.cpp"), "ecornn_host"
_COMPILERS = ("g++", "c++", "clang++")
_OPTIONS = ("-std=c++20", "-O2", "-w", "-fPIC", "-shared", "-fvisibility=hidden")
_POLL_SECONDS, _RETRY_SECONDS = 0.1, 24 * 3600


class HostLibrary(NamedTuple):
    """The library for this Python and torch: what is compiled beside the calls, as kernels are.

    compiler: None where the library lies in the cache folder, made on another machine.
    """

    compiler: str | None

    @property
    def path(self) -> Path:
        """Its file in the cache folder, whether it exists or not."""
        made_of = (torch.__version__, sysconfig.get_config_var("SOABI"), *_OPTIONS, _abi(), _SOURCE.read_bytes())
        return cache_dir() / f"host-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:24]}.so"

    @property
    def log(self) -> Path:
        """What the compiler wrote when it failed."""
        return self.path.with_suffix(".log")

    @property
    def has_failed(self) -> bool:
        """Whether its build failed within a day: for want of memory or room it may succeed later."""
        try:
            return time.time() - self.log.stat().st_mtime < _RETRY_SECONDS
        except OSError:
            return False

    @property
    def is_compiled(self) -> bool:
        return self.path.exists()

    def compile(self) -> None:
        """Returns when the library is there, or the process ends. Raises RuntimeError with the compiler's log, and OSError."""
        path = self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        run = subprocess.Popen([*self._command(), "-o", partial], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            log = _log_of(run)
            if run.returncode:
                if run.returncode > 0:  # not where it was ended with its process
                    self.log.write_text(log)
                raise RuntimeError(log)
            partial.replace(path)  # whole or not at all, beside other processes that do so too
        finally:
            partial.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        folder = Path(torch.__file__).parent
        includes = [sysconfig.get_paths()["include"], str(folder / "include")]
        libraries = [f"-L{folder / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]  # which torch has loaded
        return [str(self.compiler), *_OPTIONS, _abi(), *(f"-I{include}" for include in includes), str(_SOURCE), *libraries]

    @cache  # noqa: B019 - there is one
    def load(self) -> Any:
        """The module. Raises ImportError."""
        loader = ExtensionFileLoader(_NAME, str(self.path))
        spec = spec_from_file_location(_NAME, self.path, loader=loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        return module


def _abi() -> str:
    return f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"


def _log_of(run: subprocess.Popen[str]) -> str:
    """Waits for the compiler, which is ended with this process. Returns what it wrote."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return run.communicate(timeout=_POLL_SECONDS)[1]
        if not threading.main_thread().is_alive():
            run.kill()


@cache
def host_library() -> HostLibrary | str:
    """The library, made by this machine's compiler or there already, or why there is none."""
    compiler = next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), *_COMPILERS)))), None)
    if sys.platform != "linux":
        return "built on Linux alone"
    library = HostLibrary(compiler)
    if not library.is_compiled and compiler is None:
        return f"no C++ compiler: {', '.join(_COMPILERS)}"
    if not library.is_compiled and library.has_failed:
        return f"its build failed, and is tried again in a day, or without {library.log}"
    return library
