"""Forked processes end, answer signals and see their surroundings as new ones do."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.helpers.foreign import Foreign, environment

_LOADED = "import sys; print('torch' in sys.modules)"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('why')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 11)", -11),
    ],
)
def test_a_status_is_that_of_a_new_process(code: str, status: int, tmp_path: Path) -> None:
    assert Foreign(tmp_path).python("-c", code).returncode == status


def test_directory_and_environment_are_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_ANY", "thing")
    done = Foreign(tmp_path).python("-c", "import os; print(os.getcwd(), os.environ['ECORNN_ANY'])")
    assert done.stdout.split() == [str(tmp_path), "thing"]


def test_what_is_read_at_import_takes_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Foreign(tmp_path).python("-c", _LOADED).stdout == "True\n"
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    assert Foreign(tmp_path).python("-c", _LOADED).stdout == "False\n"


def test_a_signal_reaches_the_forked_process(tmp_path: Path) -> None:
    code = "import signal; print(flush=True); signal.pause()"
    command = [*Foreign(tmp_path).command()[:4], "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM
