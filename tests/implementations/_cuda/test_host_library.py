"""The library of the compiled host path: built whole or not at all, and never by a process that has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_ecornn.implementations._cuda.host import library
from pytest_ecornn.implementations._cuda.host.library import HostLibrary, host_library

_IN_A_THREAD = """
import sys, threading, time
from pytest_ecornn.implementations._cuda.host.library import HostLibrary
threading.Thread(target=HostLibrary(sys.argv[1]).compile).start()
time.sleep(1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def compiler(folder: Path, commands: str) -> str:
    """A program in a compiler's place, whose last arguments are -o FILE."""
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\nfor output; do :; done\n{commands}\n")
    script.chmod(0o755)
    return str(script)


def test_what_the_compiler_makes_lies_in_the_cache_folder(folder: Path) -> None:
    made = HostLibrary(compiler(folder, 'echo made > "$output"'))
    assert not made.is_compiled
    made.compile()
    assert made.is_compiled
    assert made.path.read_text() == "made\n"
    assert [*made.path.parent.iterdir()] == [made.path]
    with pytest.raises(ImportError):
        made.load()


def test_a_compiler_that_fails_leaves_its_log_alone(folder: Path) -> None:
    failing = HostLibrary(compiler(folder, 'echo half > "$output"; echo "no Python.h" >&2; exit 1'))
    with pytest.raises(RuntimeError, match=r"no Python\.h"):
        failing.compile()
    assert not failing.is_compiled
    assert [(one.suffix, one.read_text()) for one in failing.path.parent.iterdir()] == [(".log", "no Python.h\n")]


def test_a_build_that_failed_is_tried_again_after_a_day_and_without_its_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(folder, "exit 1"))
    host_library.cache_clear()
    made = host_library()
    assert isinstance(made, HostLibrary)
    with pytest.raises(RuntimeError):
        made.compile()
    host_library.cache_clear()
    assert host_library() == f"its build failed, and is tried again in a day, or without {made.log}"
    yesterday = time.time() - 25 * 3600
    os.utime(made.log, (yesterday, yesterday))
    host_library.cache_clear()
    assert host_library() == made
    os.utime(made.log)
    host_library.cache_clear()
    assert isinstance(host_library(), str)
    made.log.unlink()
    host_library.cache_clear()
    assert host_library() == made
    host_library.cache_clear()


def test_other_sources_and_versions_have_other_libraries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [HostLibrary("g++").path]
    assert HostLibrary("clang++").path == HostLibrary(None).path == paths[0]
    monkeypatch.setattr(library.torch, "__version__", "9.0")
    paths.append(HostLibrary("g++").path)
    (folder / "replay.cpp").write_text("")
    monkeypatch.setattr(library, "_SOURCE", folder / "replay.cpp")
    paths.append(HostLibrary("g++").path)
    assert len({*paths}) == len(paths)


def test_a_process_that_ends_ends_its_compiler(folder: Path) -> None:
    slow = compiler(folder, f"echo $$ > {folder / 'process'}; exec sleep 60")
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", _IN_A_THREAD, slow], check=False, timeout=50, stderr=subprocess.DEVNULL)
    assert time.monotonic() - begin < 30
    assert not Path("/proc", (folder / "process").read_text().strip()).exists()
    assert not HostLibrary(slow).log.exists()


def test_a_machine_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.shutil, "which", lambda name: None)
    host_library.cache_clear()
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path))
    assert host_library() == "no C++ compiler: g++, c++, clang++"
    host_library.cache_clear()
    HostLibrary(None).path.touch()  # made on another machine
    assert host_library() == HostLibrary(None)
    host_library.cache_clear()
