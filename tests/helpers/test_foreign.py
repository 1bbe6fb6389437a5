"""A run in this process says what one in another does, leaves the process as it was, and runs no row."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hypothesis.configuration
import pytest
import torch

from pytest_ecornn.run.discovery import discover
from pytest_ecornn.system import memory
from tests.helpers import samples
from tests.helpers.foreign import HERE, Foreign

VERIFY = ("--ecornn-verify", "--ecornn-implementations", "mine.py", "--ecornn-only", "mine", "--ecornn-case", samples.CASE)
SETTINGS = "import os, sys, warnings\nos.environ['OF_MINE'] = '1'\nsys.path.append('of mine')\nwarnings.simplefilter('error')\n"


def state(folder: Path) -> dict[str, Any]:
    return {
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "paths": (list(sys.path), list(sys.meta_path), tempfile.tempdir),
        "modules": [name for name, module in sys.modules.items() if str(folder) in str(getattr(module, "__file__", ""))],
        "streams": (sys.stdout, sys.stderr),
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "torch": (torch.get_num_threads(), torch.empty(4).isnan().all().item(), torch.get_rng_state().tolist()),
        "allocator": memory.allocator_behaviour(),
        "hypothesis": vars(hypothesis.configuration)["__hypothesis_home_directory"],
    }


@pytest.fixture
def foreign(foreign: Foreign) -> Foreign:
    foreign.write("mine.py", samples.RIGHT)
    return foreign


@pytest.mark.parametrize("status", [0, 4], ids=["collection", "usage error"])
def test_the_process_is_as_it_was_before(foreign: Foreign, status: int) -> None:
    foreign.write("of_mine.py", SETTINGS)
    discover([])  # own implementations are imported once
    foreign.run_here("--ecornn-bench", "--ecornn-budget", "-1", check=4)
    before = state(foreign.path)
    options = ["--collect-only"] if status == 0 else ["--ecornn-report", "mine.py/report"]
    foreign.run_here("--ecornn-bench", *VERIFY[1:], "-p", "of_mine", *options, check=status)
    assert state(foreign.path) == before


def said(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Sorted lines, as plugins come in another order where pytest is `python -m pytest`.

    Without seconds and times of day, and the name that the program has in its usage.
    """
    texts = (re.sub(r" in \d.*s\b|_\d{8}_\d{6}|^usage: .*", "", text, flags=re.M) for text in (done.stdout, done.stderr))
    return [sorted(text.splitlines()) for text in texts]


@pytest.mark.parametrize(
    "options",
    [["--ecornn-bench", "--ecornn-budget", "-1"], [*VERIFY, "--collect-only", "-q"], ["--help"], ["--version"]],
    ids=["usage error", "collection", "help", "version"],
)
def test_it_says_what_another_process_says(foreign: Foreign, options: list[str]) -> None:
    other = foreign.run(*HERE, *options)
    here = foreign.run_here(*options, check=other.returncode)
    assert said(here) == said(other)


def test_a_row_is_refused(foreign: Foreign) -> None:
    assert "a row touches settings of its process" in foreign.run_here(*VERIFY, check=3).stdout
