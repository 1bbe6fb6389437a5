"""A kernel that Numba compiled runs in other processes without Numba, and none trusts a file that is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.implementations._cpu import machine_code
from pytest_ecornn.implementations._cpu.machine_code import CpuKernel

_RUN = """
import json, sys
import torch
from pytest_ecornn.implementations.fused_cpu.ops import recur
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence
x, w = torch.linspace(-1, 1, 48).view(3, 2, 8), torch.linspace(-1, 1, 64).view(8, 8)
layer = Recurrence("rnn_tanh", 8, torch.float32, torch.float32, False, False, 1)
print(json.dumps([recur(layer, x, None, None, w, None, None, None)[0].tolist(), "numba" in sys.modules]))
"""
_COUNT = """
from pytest_ecornn.implementations._cpu.memory import fetch_add


def kernel(step):
    def run(raw):
        if step == "two":
            fetch_add(raw)
        fetch_add(raw)

    return run
"""


def started(folder: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", _RUN], env={**os.environ, "ECORNN_CACHE_DIR": folder}, **pipes)


def outcome(process: subprocess.Popen[str]) -> tuple[Any, bool]:
    """The output, and whether Numba was imported."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    output, has_numba = json.loads(out)
    return output, has_numba


def test_later_processes_load_what_two_compile_at_once(tmp_path: Path) -> None:
    at_once = [started(str(tmp_path)) for _ in range(2)]
    (first, compiles), (second, _) = map(outcome, at_once)
    assert compiles
    later, imports_numba = outcome(started(str(tmp_path)))
    assert not imports_numba
    assert first == second == later
    (written,) = (tmp_path / "cpu").iterdir()
    written.write_bytes(written.read_bytes()[:-999])  # as of a disk that was full
    assert [*map(outcome, [started(str(tmp_path)), started("/dev/null/absent")])] == [(first, True)] * 2


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module of kernels, and a cache folder of its own."""
    file = tmp_path / "counting_kernels.py"
    file.write_text(_COUNT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_code, "_addresses", {})
    monkeypatch.delitem(sys.modules, "counting_kernels", raising=False)
    return file


def test_names_and_text_tell_kernels_apart(counting: Path) -> None:
    one, two = (CpuKernel("counting_kernels", (name,), (counting,)) for name in ("one", "two"))
    assert not one.is_compiled
    one.compile()
    assert one.is_compiled
    assert not two.is_compiled
    path = one.path
    counting.write_text(_COUNT + "\n")
    machine_code._digest.cache_clear()  # a file's text is read once a process
    assert one.path != path


def test_what_numba_cannot_compile_raises_its_error_in_every_call(counting: Path) -> None:
    counting.write_text("def kernel():\n    def run(raw):\n        return raw.no_such_name\n    return run\n")
    kernel = CpuKernel("counting_kernels", (), (counting,))
    for _ in range(2):
        with pytest.raises(Exception, match="no_such_name"):
            kernel.compile()
    assert not kernel.is_compiled


def test_without_a_home_kernels_are_compiled_in_each_process(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ECORNN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    kernel = CpuKernel("counting_kernels", ("one",), (counting,))
    assert not kernel.is_compiled
    kernel.compile()
    assert kernel.is_compiled


_FORK = """
import os, threading, time
from pathlib import Path
from pytest_ecornn.implementations._cpu.machine_code import CpuKernel
kernels = [CpuKernel("counting_kernels", (name,), (Path("counting_kernels.py"),)) for name in ("one", "two")]
threading.Thread(target=kernels[0].compile).start()
time.sleep(0.2)
child = os.fork()
if child == 0:
    kernels[1].compile()
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_child_of_a_process_that_compiles_compiles_too(counting: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", _FORK]
    done = subprocess.run(command, cwd=counting.parent, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n", done.stderr
