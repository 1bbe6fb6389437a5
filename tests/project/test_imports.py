"""What is imported when. Each test is a new Python, which notes the line of this project that asks for a module first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.foreign import environment

# Parts of packages that are judged by themselves.
PARTS = ("torch._dynamo", "torch._inductor", "torch.fx.experimental", "pytest_ecornn.run.session", "pytest_ecornn.reporting")
ALWAYS = {*sys.stdlib_module_names, "pytest_ecornn"}
OF_LLVM = {"llvmlite"}
MAX_IMPORT_SECONDS = 0.3  # beyond torch's own
# What is imported before, what runs then, and the packages that it may import beside this project's and Python's.
USES = {
    "contract": ("", "from pytest_ecornn import Case, Implementation, Unsupported", set()),
    "nn": ("import torch", "import pytest_ecornn.nn", {"numpy", "torch"}),
    "gru": ("import torch", "nn.GRU(3, 4)(torch.randn(8, 2, 3))[0].sum().backward()", {"numpy", "torch", *OF_LLVM}),
    "mingru": ("import torch", "nn.MinGRU(3, 4)(torch.randn(8, 2, 3))[0].sum().backward()", {"numpy", "torch", *OF_LLVM}),
    "stream": ("import torch", "nn.LSTM(3, 4).stream().warm_up()", {"numpy", "torch", *OF_LLVM}),
}
_NOTES = """
import json, sys

class Importers:
    lines = {}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        frame, own = sys._getframe(1), ""
        while frame is not None and not own:
            module = frame.f_globals.get("__name__") or ""
            own = f"{module}, line {frame.f_lineno}" if module.startswith("pytest_ecornn") else ""
            frame = frame.f_back
        cls.lines.setdefault(name, own)

sys.meta_path.insert(0, Importers)
"""
_WRITES = """
with open("imports.json", "w") as file:
    json.dump({name: line for name, line in Importers.lines.items() if name in sys.modules}, file)
"""


def packages(before: str, code: str, folder: Path) -> dict[str, str]:
    """The packages that code imports after `before`, and the first line of this project that asks for each, "" for none."""
    program = "\n".join([_NOTES, before, "Importers.lines.clear()", code, _WRITES])
    variables = {**environment(), "ECORNN_AUTO": "heuristic"}
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=variables, check=True)
    lines: dict[str, str] = json.loads((folder / "imports.json").read_text())
    return {package_of(name): line for name, line in reversed(lines.items())}


def package_of(module: str) -> str:
    return next((part for part in PARTS if f"{module}.".startswith(f"{part}.")), module.partition(".")[0])


@pytest.mark.parametrize("use", USES)
def test_a_use_imports_no_package_that_it_does_not_need(use: str, tmp_path: Path) -> None:
    before, code, allowed = USES[use]
    code = code if "import" in code else f"from pytest_ecornn import nn\n{code}"
    if allowed >= OF_LLVM:
        packages(before, code, tmp_path)  # compiles its kernels, if nothing has before
    others = {name: line for name, line in packages(before, code, tmp_path).items() if name not in ALWAYS | allowed}
    assert not others, f"{code!r} imports what it does not need: {others}"


def test_a_start_of_pytest_without_an_option_of_ours_imports_nothing_for_us(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    code = "assert pytest.main(['-q', '-p', 'no:cacheprovider', '--assert=plain']) == 0"  # rewritten modules are not noted
    lines = packages("import pytest", code, tmp_path)
    assert "pytest_ecornn" in lines, "pytest has not loaded the plugin"
    others = {name: line for name, line in lines.items() if line and name not in ALWAYS}
    assert not others, f"the plugin imports what it does not need: {others}"


def test_the_import_of_nn_takes_a_moment() -> None:
    code = "import time, torch; start = time.process_time(); import pytest_ecornn.nn; print(time.process_time() - start)"
    command = [sys.executable, "-c", code]
    for _ in range(3):  # the first may compile sources to bytecode
        seconds = float(subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout)
        if seconds < MAX_IMPORT_SECONDS:
            return
    pytest.fail(f"import pytest_ecornn.nn takes {seconds:.2f} s beyond torch's, at most {MAX_IMPORT_SECONDS} s expected")
