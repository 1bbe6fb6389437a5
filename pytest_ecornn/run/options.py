"""Every command-line option and ini value, documented here and nowhere else, and the mode of an invocation that they make.

Without a flag nothing more than this is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results.regression.gate_limits import Thresholds
from pytest_ecornn.results.shard import Shard, parse_shard

MIN_PAIRS = 8  # statistics.MIN_PAIRS, which would import NumPy
PROFILES = ("quick", "default", "thorough")
# By kind of device: the first that there is and that runs the case.
DEFAULT_BASELINES = {"cpu": ("torch_cpu", "sequential"), "cuda": ("cudnn", "sequential")}
DEFAULT_CASE_OF_STATE_DICT = "T256-B4"
_LIST: dict[str, Any] = {"action": "append", "default": []}


def default_baselines(devices: Iterable[str]) -> str:
    """Names, in words, the baselines that apply on these devices where none is asked for."""
    selected = dict.fromkeys(DEFAULT_BASELINES[device.partition(":")[0]] for device in devices)
    return "; ".join(" where it runs, else ".join(names) for names in selected)


OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--ecornn-verify",
        {
            "action": "store_true",
            "help": "Verify every implementation: drawn and fixed cases, properties. "
            "Tests of your own run too where you give their paths.",
        },
    ),
    (
        "--ecornn-bench",
        {
            "action": "store_true",
            "help": "Verify and time every implementation, and write the comparison. "
            "Tests of your own run as with --ecornn-verify.",
        },
    ),
    (
        "--ecornn-cases",
        {**_LIST, "metavar": "NAME", "help": "Named case set: smoke, seed, edge or full (repeatable). Default: smoke."},
    ),
    (
        "--ecornn-case",
        {
            **_LIST,
            "metavar": "CASE",
            "help": "Run just this case, with its properties, as a test id or a failure prints it (repeatable).",
        },
    ),
    (
        "--ecornn-shard",
        {
            "default": None,
            "metavar": "I/N",
            "help": "Run just the I-th of N shares of the rows, as one job of a CI matrix. A row stays in its share whatever "
            "else is run. The seed is 0 unless given, so that all shares draw alike.",
        },
    ),
    (
        "--ecornn-state-dict",
        {
            "metavar": "FILE[:MODULE]",
            "help": "Run with the weights of a torch.nn.RNN, LSTM or GRU that torch.save wrote as (part of) a state dict; what "
            "is pruned stays so. --ecornn-case says the rest: T256-B4-density0.1 keeps the largest tenth of each recurrent "
            f"weight. Default then: {DEFAULT_CASE_OF_STATE_DICT}.",
        },
    ),
    ("--ecornn-only", {**_LIST, "metavar": "NAME", "help": "Run just this implementation, by exact name (repeatable)."}),
    (
        "--ecornn-require",
        {
            **_LIST,
            "metavar": "NAME",
            "help": "Turn every skip of this implementation into a failure, and fail a run without a row of it (repeatable).",
        },
    ),
    (
        "--ecornn-device",
        {**_LIST, "metavar": "DEVICE", "help": "Run on cpu, cuda or cuda:N (repeatable). Default: cpu."},
    ),
    (
        "--ecornn-implementations",
        {**_LIST, "metavar": "PATH", "help": "A file that holds an implementation, or a folder of such files (repeatable)."},
    ),
    (
        "--ecornn-baseline",
        {
            **_LIST,
            "metavar": "NAME",
            "help": f"Compare with this implementation (repeatable). Default: {default_baselines(['cpu'])}; "
            f"on a GPU {default_baselines(['cuda'])}.",
        },
    ),
    (
        "--ecornn-budget",
        {
            "type": float,
            "default": 10.0,
            "metavar": "SECONDS",
            "help": "Time to measure a row for at most, on a GPU by each of its two clocks; less where the verdict is clear. "
            "Default: 10.",
        },
    ),
    (
        "--ecornn-pairs",
        {
            "type": int,
            "default": MIN_PAIRS,
            "metavar": "N",
            "help": "Fewest pairs of blocks, within the budget. A report that later runs are compared with should hold 100. "
            f"Default: {MIN_PAIRS}.",
        },
    ),
    (
        "--ecornn-compare",
        {
            "metavar": "FILE",
            "help": "Fail where a row got slower than in this report.json of such a machine, or is not proven.",
        },
    ),
    (
        "--ecornn-fail-slower",
        {
            **_LIST,
            "metavar": "LIMIT",
            "help": "By how much a row may be slower: 5%%, or for an implementation, a cell, a column or several of them "
            "scan_cpu=3%%, lstm=10%%, scan_cpu:lstm=2%%, device-only=2%%; the most specific wins (repeatable). Default: 5%%.",
        },
    ),
    (
        "--ecornn-strict",
        {
            "action": "store_true",
            "help": "With --ecornn-compare: fail too where a row that the stored report compares is unclear, after one more "
            "measurement, or cannot be judged.",
        },
    ),
    (
        "--ecornn-profile",
        {
            "choices": PROFILES,
            "default": None,
            "help": "How many cases are drawn of each cell in a dtype: 8, 50, or 125 and longer ones. "
            "Default: quick with --ecornn-bench, default with --ecornn-verify alone.",
        },
    ),
    (
        "--ecornn-seed",
        {
            "type": int,
            "default": None,
            "metavar": "N",
            "help": "Seed of what is drawn per run: which boundary sizes are tried, and what a self-check draws. "
            "Default: drawn at random, and printed; a resumed run keeps its own.",
        },
    ),
    (
        "--ecornn-selfcheck",
        {
            "action": "store_true",
            "help": "Try the harness itself, and nothing else: planted faults, and cases of right implementations. "
            "Reports show the last score.",
        },
    ),
    (
        "--ecornn-correct-cases",
        {
            "type": int,
            "default": 1000,
            "metavar": "N",
            "help": "How many cases of right implementations a self-check draws at least. Default: 1000.",
        },
    ),
    (
        "--ecornn-report",
        {"default": "reports/local", "metavar": "DIR", "help": "Where the report is written. Default: reports/local."},
    ),
    (
        "--ecornn-isolate",
        {
            "action": "store_true",
            "help": "Run rows in workers of pytest-xdist, one unless -n is given, and replace each that dies or hangs: "
            "it costs one row. Only so is an exit by native code noticed. Needs the extra [test]: pytest-timeout.",
        },
    ),
    (
        "--ecornn-ray",
        {
            "metavar": "ADDRESS",
            "help": "Run rows as --ecornn-isolate does, in workers on the hosts of a Ray cluster: one for each GPU; on CPUs "
            "one for each core, or with --ecornn-bench one for each host. ADDRESS is auto, local, host:port or "
            "ray://host:port, as ray.init takes it. Needs the extras [ray] and [test].",
        },
    ),
    (
        "--ecornn-timeout",
        {
            "type": float,
            "default": 300.0,
            "metavar": "SECONDS",
            "help": "With --ecornn-isolate: time that a row may take, save waiting for the machine. A drawn row of "
            "--ecornn-profile thorough may need more. Default: 300.",
        },
    ),
    (
        "--ecornn-memory",
        {
            "type": float,
            "default": None,
            "metavar": "GIB",
            "help": "With --ecornn-isolate: memory that a worker may allocate on the host (Linux). "
            "Default: four fifths of what is available, shared out among the workers.",
        },
    ),
    ("--ecornn-resume", {"action": "store_true", "help": "Go on after an interrupted run: finished rows are not repeated."}),
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

        from pytest_ecornn.run.run_seed import seed_of

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
