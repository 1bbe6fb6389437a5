"""Every command-line option and ini value, documented here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results.regression.gate_limits import Thresholds
from pytest_ecornn.results.shard import Shard, parse_shard
from pytest_ecornn.run.options.option_table import (
    DEFAULT_CASE_OF_STATE_DICT,
    OPTIONS,
)


@dataclass(frozen=True)
class Options:
    """The options of one run, as given; names are checked where they are resolved."""

    verify: bool
    bench: bool
    case_sets: tuple[str, ...]
    cases: tuple[str, ...]
    shard: Shard | None
    state_dict: str | None
    only: tuple[str, ...]
    require: tuple[str, ...]
    devices: tuple[str, ...]
    implementations: tuple[Path, ...]
    baselines: tuple[str, ...]
    budget: float
    pairs: int
    compare: Path | None
    limits: Thresholds
    strict: bool
    profile: str
    seed: int
    report: Path
    resume: bool
    isolate: bool
    timeout: float
    memory_bytes: int | None

    @classmethod
    def from_config(cls, config: pytest.Config) -> Options:
        """Raises UsageError for a value that no run could use."""

        from pytest_ecornn.run.options.run_seed import seed_of

        def given(name: str) -> Any:
            return config.getoption(f"--ecornn-{name}")

        for name, unit in (("budget", "seconds"), ("timeout", "seconds"), ("memory", "GiB")):
            if given(name) is not None and not 0 < given(name) < float("inf"):
                raise pytest.UsageError(f"--ecornn-{name} must be a number of {unit} over 0, got {given(name)}")
        for name in ("report", "state-dict", "compare", "implementations"):
            if "" in (given(name) if isinstance(given(name), list) else [given(name)]):
                raise pytest.UsageError(f"--ecornn-{name}: expected a path, got an empty one")
        if given("pairs") < 1:
            raise pytest.UsageError(f"--ecornn-pairs must be a number over 0, got {given('pairs')}")
        here = config.invocation_params.dir
        compare = here / given("compare") if given("compare") else None
        return cls(
            verify=given("verify"),
            bench=given("bench"),
            case_sets=tuple(given("cases")) or ("smoke",),
            cases=_cases(config),
            shard=_shard(config),
            state_dict=str(here / given("state-dict")) if given("state-dict") else None,
            only=tuple(given("only")),
            require=tuple(given("require")),
            devices=tuple(given("device")) or ("cpu",),
            implementations=(
                *(here / path for path in given("implementations")),
                *config.getini("ecornn_implementations"),
            ),
            baselines=tuple(given("baseline")),
            budget=given("budget"),
            pairs=given("pairs"),
            compare=compare,
            limits=_limits(config),
            strict=given("strict") or config.getini("ecornn_strict"),
            profile=given("profile") or ("quick" if given("bench") else "default"),
            seed=seed_of(config),
            report=here / given("report"),
            resume=given("resume"),
            isolate=given("isolate") or given("ray") is not None,
            timeout=given("timeout"),
            memory_bytes=int(given("memory") * 2**30) if given("memory") else None,
        )


def _cases(config: pytest.Config) -> tuple[str, ...]:
    """Raises UsageError where named sets are to run with given weights, which have their sizes."""
    if not config.getoption("--ecornn-state-dict"):
        return tuple(config.getoption("--ecornn-case"))
    if sets := config.getoption("--ecornn-cases"):
        raise pytest.UsageError(f"--ecornn-state-dict expected --ecornn-case beside it, got --ecornn-cases {sets[0]}")
    return tuple(config.getoption("--ecornn-case")) or (DEFAULT_CASE_OF_STATE_DICT,)


def _shard(config: pytest.Config) -> Shard | None:
    text = config.getoption("--ecornn-shard")
    try:
        return None if text is None else parse_shard(text)
    except ValueError as error:
        raise pytest.UsageError(f"--ecornn-shard: {error}") from error


def _limits(config: pytest.Config) -> Thresholds:
    """The ini-file's and then the command line's, which wins. Raises UsageError for what the gate cannot use."""
    has_report, given = config.getoption("--ecornn-compare"), config.getoption("--ecornn-fail-slower")
    if has_report and not config.getoption("--ecornn-bench"):
        raise pytest.UsageError("--ecornn-compare compares times: expected --ecornn-bench beside it")
    if given and not has_report:
        raise pytest.UsageError("--ecornn-fail-slower expected --ecornn-compare FILE beside it, to be slower than")
    if config.getoption("--ecornn-strict") and not has_report:
        raise pytest.UsageError("--ecornn-strict expected --ecornn-compare FILE beside it, to be strict about")
    for source, texts in (("ecornn_fail_slower", config.getini("ecornn_fail_slower")), ("--ecornn-fail-slower", given)):
        try:
            Thresholds(texts)
        except ValueError as error:
            raise pytest.UsageError(f"{source}: {error}") from error
    return Thresholds([*config.getini("ecornn_fail_slower"), *given])


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("ecornn", "verified benchmarks of recurrent layers")
    for name, settings in OPTIONS:
        group.addoption(name, **settings)
    parser.addini(
        "ecornn_implementations",
        "Files or folders of implementations, as --ecornn-implementations takes them, relative to the ini-file.",
        type="paths",
        default=[],
    )
    parser.addini("ecornn_strict", "Whether a comparison is strict, as with --ecornn-strict.", type="bool", default=False)
    parser.addini("ecornn_fail_slower", "Limits as --ecornn-fail-slower takes them, one a line.", type="linelist", default=[])
