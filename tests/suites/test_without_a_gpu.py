"""The suites' commands on a machine without a GPU: each says so in one line, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.foreign import Foreign

PUBLISHED = ("clocks", "ecornn", "host_time", "language_model", "persistent_kernel", "scan_kernel", "sparse_kernel", "varying")
NAMES = (*PUBLISHED, "acceptance_gpu", "forms_gpu", "soak_gpu")
MODULES = [
    (f"published.{name}" if name in PUBLISHED else name, [] if name == "soak_gpu" else ["--output", "new"]) for name in NAMES
]
RUN = """
import runpy, sys
for module, arguments in %s:
    sys.argv[1:] = arguments
    try:
        runpy.run_module(f"pytest_ecornn.suites.{module}", run_name="__main__")
    except SystemExit as end:
        print(end.code)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device on this machine")
def test_each_command_says_so_in_one_line(tmp_path: Path) -> None:
    done = Foreign(tmp_path).python("-c", RUN % MODULES)
    said = [f"{name}: it measures on a CUDA device, and torch finds none on this machine" for name in NAMES]
    assert (done.stderr.splitlines(), done.stdout.split()) == (said, ["2"] * len(NAMES))
    assert not list(tmp_path.rglob("new"))
