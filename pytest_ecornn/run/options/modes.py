"""Modes of a pytest invocation: a run, a self-check, or nothing of ours, where options of a run are an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_ecornn.run.options.option_table import OPTIONS

# What a run must do. Without a run they are an error even as defaults in addopts, where other options are only not used.
_DEMANDS = (
    "verify",
    "bench",
    "cases",
    "case",
    "state-dict",
    "only",
    "require",
    "compare",
    "fail-slower",
    "strict",
    "resume",
    "shard",
)
_SELFCHECK_OPTION = "--ecornn-correct-cases"
_ALSO_OF_SELFCHECK = (_SELFCHECK_OPTION, "--ecornn-seed")


def is_active(config: pytest.Config) -> bool:
    """Whether one of the flags was given; without them the plugin does nothing."""
    return bool(config.getoption("--ecornn-verify") or config.getoption("--ecornn-bench"))


def check_is_run(config: pytest.Config) -> None:
    """Raises UsageError where options of ours are asked for, but nothing of ours is to run."""
    for name in _asked_options(config):
        flag = "--ecornn-selfcheck" if name == _SELFCHECK_OPTION else "--ecornn-verify or --ecornn-bench"
        raise pytest.UsageError(f"{name} expected {flag} beside it, without which it does nothing")


def is_selfcheck(config: pytest.Config) -> bool:
    """Whether the harness is to try itself. Raises UsageError where it is to do something else as well, or try nothing."""
    if not config.getoption("--ecornn-selfcheck"):
        return False
    for name in _asked_options(config):
        if name not in ("--ecornn-selfcheck", *_ALSO_OF_SELFCHECK):
            raise pytest.UsageError(f"--ecornn-selfcheck tries the harness alone: expected no {name}")
    if (wanted := config.getoption(_SELFCHECK_OPTION)) < 1:
        raise pytest.UsageError(f"{_SELFCHECK_OPTION} must be a number over 0, got {wanted}")
    return True


def _asked_options(config: pytest.Config) -> Iterator[str]:
    """Options that were typed, or that say what to run, and are not as they are by default."""
    typed = {str(argument).partition("=")[0] for argument in config.invocation_params.args}
    for name, settings in OPTIONS:
        default = settings.get("default", False if "action" in settings else None)
        if (name in typed or name.removeprefix("--ecornn-") in _DEMANDS) and config.getoption(name) != default:
            yield name
