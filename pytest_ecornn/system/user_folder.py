"""Prevents folders of pytest-benchmark and Hypothesis where a run was started, unless they were asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from pytest_ecornn.system import cache

_DEFAULT_STORAGE = "file://./.benchmarks"
_USES_OF_STORAGE = ("benchmark_save", "benchmark_autosave", "benchmark_save_data", "benchmark_compare")


def redirect_plugins(config: pytest.Config, scratch: Path) -> None:
    """Sends their files elsewhere. Call it before pytest-benchmark is configured: it makes its folder then."""
    setting, here = config.option, config.invocation_params.dir
    is_default = getattr(setting, "benchmark_storage", None) == _DEFAULT_STORAGE
    if is_default and not any(getattr(setting, name, None) for name in _USES_OF_STORAGE):
        setting.benchmark_storage = f"file://{scratch / 'benchmarks'}"
    if "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ and not (here / ".hypothesis").exists():
        set_hypothesis_home_dir(_writable(cache.cache_dir() / "hypothesis", scratch / "hypothesis"))


def _writable(folder: Path, otherwise: Path) -> Path:
    """The folder, made if need be; the other one where it cannot be written, of which Hypothesis would warn in each row."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return otherwise
    return folder if os.access(folder, os.W_OK) else otherwise
