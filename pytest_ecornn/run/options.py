"""Every command-line option and ini value, declared here and nowhere else, and the mode of an invocation that they make.

A field of `Options` is an option. From it come what pytest parses, the value in a run, what rows of two runs must share, and
tables of docs/cli.md. Without a flag nothing more than this is loaded.
"""
# ruff: noqa: RUF009 - option() makes a field

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from pytest_ecornn.regression.gate_limits import Thresholds
    from pytest_ecornn.results.shard import Shard
    from pytest_ecornn.run.expected_failures import ExpectedFailures

MIN_PAIRS, MIN_REPLICATES = 8, 3  # those of statistics, which would import NumPy
PROFILES = ("quick", "default", "thorough")
# By kind of device: the first that there is and that runs the case.
DEFAULT_BASELINES = {"cpu": ("torch_cpu", "sequential"), "cuda": ("cudnn", "sequential")}
DEFAULT_CASE_OF_STATE_DICT = "T256-B4"
_UNITS = {"SECONDS": " of seconds", "GIB": " of GiB"}  # by what a value is called

# Tables of docs/cli.md, by what a reader wants to do.
RUN, IMPLEMENTATIONS, CASES = "What a run does", "Which implementations", "Which cases"
TIMING, COMPARISON, PROCESSES = "Timing", "Comparison with a stored report", "Processes"

IniType = Literal["string", "bool", "linelist", "paths"]
_INI_DEFAULTS: Mapping[IniType, Any] = {"string": None, "bool": False, "linelist": [], "paths": []}


class Mode(Enum):
    """What an invocation of pytest does, by the flags that ask for it."""

    RUN = "--ecornn-verify or --ecornn-bench"
    SELFCHECK = "--ecornn-selfcheck"
    TESTS = "tests of your own with the fixture ecornn"
    PROFILE_CALL = "--ecornn-profile-call"


@dataclass(frozen=True)
class Option:
    """A command-line option. group: its table in docs/cli.md. settings: of pytest's parser. parse: returns its value in a run.

    setup: returns its value as rows that stand side by side must share it; None where they need not. is_demand: it says what a
    run must do, so without a run it is an error even as a default in addopts, where other options are only not used.
    ini: type of its value in the ini-file, which stands where nothing was typed, or adds_ini to it in `parse`.
    """

    flag: str
    group: str
    settings: Mapping[str, Any]
    parse: Callable[[Option, pytest.Config], Any]
    setup: Callable[[Any], Any] | None
    is_demand: bool
    modes: tuple[Mode, ...]
    ini: IniType | None = None
    adds_ini: bool = False

    def raw(self, config: pytest.Config) -> Any:
        return config.getoption(self.flag)

    @property
    def default(self) -> Any:
        """Returns what `raw` does where nothing was typed."""
        return self.settings.get("default", False if "action" in self.settings else None)

    @property
    def ini_name(self) -> str:
        """The name in the ini-file, and that of pytest's attribute."""
        return self.flag.removeprefix("--").replace("-", "_")

    def take_ini(self, config: pytest.Config) -> None:
        """Puts the ini-file's value where pytest left the default, its own object; workers are handed it as if typed."""
        raw = self.raw(config)
        if (raw is self.default or raw == []) and (value := self._ini_value(config)) is not None:
            setattr(config.option, self.ini_name, value)

    def parsed(self, config: pytest.Config) -> Any:
        """The value in a run. Raises UsageError that names where it was given."""
        try:
            return self.parse(self, config)
        except ValueError as error:
            raise pytest.UsageError(f"{self.source(config)}: {error}") from error
        except pytest.UsageError as error:
            raise pytest.UsageError(str(error).replace(self.flag, self.source(config), 1)) from error

    def source(self, config: pytest.Config) -> str:
        """The name of the ini value where that is the option's value, else the flag: what a usage error is to name."""
        value = self._ini_value(config)
        return self.flag if value is None or value != self.raw(config) else self.ini_name

    def _ini_value(self, config: pytest.Config) -> Any:
        """The ini-file's value as the command line has it; None where there is none, or `parse` reads it."""
        value = config.getini(self.ini_name) if self.ini and not self.adds_ini else None
        if value in (None, []):
            return None
        try:
            texts = [self._read_ini(text, config) for text in (value if isinstance(value, list) else [value])]
        except ValueError as error:
            raise pytest.UsageError(f"{self.ini_name}: {error}") from error
        return texts if isinstance(value, list) else texts[0]

    def _read_ini(self, text: str, config: pytest.Config) -> Any:
        """A text as the parser reads it; a path is from the ini-file's folder."""
        if text.endswith(".csv") or (text and self.settings.get("metavar") == "DIR"):
            return str((config.inipath.parent if config.inipath else config.invocation_params.dir) / text)
        return self.settings.get("type", str)(text)


def _as_given(option: Option, config: pytest.Config) -> Any:
    value = option.raw(config)
    return tuple(value) if isinstance(value, list) else value


def option(
    flag: str,
    group: str,
    help: str,
    *,
    parse: Callable[[Option, pytest.Config], Any] = _as_given,
    unset: Any = None,
    setup: Callable[[Any], Any] | None = None,
    is_demand: bool = False,
    is_list: bool = False,
    modes: tuple[Mode, ...] = (Mode.RUN,),
    ini: IniType | None = None,
    adds_ini: bool = False,
    **settings: Any,
) -> Any:
    """A field of `Options`. unset: its value without a configuration, or what makes it, if that is not the parser's default."""
    if is_list:
        settings |= {"action": "append", "default": []}
    declared = Option(flag, group, {**settings, "help": help}, parse, setup, is_demand, modes, ini, adds_ini)
    value = (() if is_list else declared.default) if unset is None else unset
    return field(default_factory=value if callable(value) else lambda: value, metadata={"option": declared})


def default_baselines(devices: Iterable[str]) -> str:
    """Names, in words, the baselines that apply on these devices where none is asked for."""
    selected = dict.fromkeys(DEFAULT_BASELINES[device.partition(":")[0]] for device in devices)
    return "; ".join(" where it runs, else ".join(names) for names in selected)


def _over_0(option: Option, config: pytest.Config) -> Any:
    value = option.raw(config)
    if value is not None and not 0 < value < float("inf"):
        unit = _UNITS.get(option.settings["metavar"], "")
        raise pytest.UsageError(f"{option.flag} must be a number{unit} over 0, got {value}")
    return value


def _bytes(option: Option, config: pytest.Config) -> int | None:
    gib = _over_0(option, config)
    return None if gib is None else int(gib * 2**30)


def _check_path(option: Option, text: str | None) -> None:
    if text == "":
        raise pytest.UsageError(f"{option.flag}: expected a path, got an empty one")


def _path(option: Option, config: pytest.Config) -> Path | None:
    text = option.raw(config)
    _check_path(option, text)
    return None if text is None else config.invocation_params.dir / text


def _implementations(option: Option, config: pytest.Config) -> tuple[Path, ...]:
    for text in option.raw(config):
        _check_path(option, text)
    return (*(config.invocation_params.dir / text for text in option.raw(config)), *config.getini("ecornn_implementations"))


def _case_sets(option: Option, config: pytest.Config) -> tuple[str, ...]:
    """Names, and paths of files from the folder in which pytest was started."""
    folder = config.invocation_params.dir
    return tuple(str(folder / text) if text.endswith(".csv") else text for text in option.raw(config)) or ("smoke",)


def _cases(option: Option, config: pytest.Config) -> tuple[str, ...]:
    """Names, sweeps, and paths of files. Raises UsageError where named sets are to run with given weights, which have sizes."""
    folder = config.invocation_params.dir
    texts = option.raw(config) or config.getoption("--ecornn-profile-call")
    cases = tuple(str(folder / text) if text.endswith(".txt") else text for text in texts)
    if not config.getoption("--ecornn-state-dict"):
        return cases
    sets, declared = config.getoption("--ecornn-cases"), Options.declared()["case_sets"]
    if sets and declared.source(config) == declared.flag:
        raise pytest.UsageError(f"--ecornn-state-dict expected {option.flag} beside it, got --ecornn-cases {sets[0]}")
    return cases or (DEFAULT_CASE_OF_STATE_DICT,)


def _shard(option: Option, config: pytest.Config) -> Shard | None:
    from pytest_ecornn.results.shard import parse_shard

    text = option.raw(config)
    return None if text is None else parse_shard(text)


def _xfail(option: Option, config: pytest.Config) -> ExpectedFailures | None:
    from pytest_ecornn.run.expected_failures import ExpectedFailures

    path = _path(option, config)
    return None if path is None else ExpectedFailures.read(path)


def _seed(option: Option, config: pytest.Config) -> int:
    from pytest_ecornn.run.run_seed import seed_of

    return seed_of(config)


def _limits(option: Option, config: pytest.Config) -> Thresholds:
    """The ini-file's and then the command line's, which wins. Raises UsageError for what the gate cannot use."""
    from pytest_ecornn.regression.gate_limits import Thresholds

    has_report, typed = config.getoption("--ecornn-compare"), option.raw(config)
    if has_report and not config.getoption("--ecornn-bench"):
        raise pytest.UsageError("--ecornn-compare compares times: expected --ecornn-bench beside it")
    if typed and not (has_report or config.getoption("--ecornn-against")):
        raise pytest.UsageError(
            f"{option.flag} expected --ecornn-compare FILE beside it, or --ecornn-against REV, to be slower than"
        )
    for source, texts in (("ecornn_fail_slower", config.getini("ecornn_fail_slower")), (option.flag, typed)):
        try:
            Thresholds(texts)
        except ValueError as error:
            raise pytest.UsageError(f"{source}: {error}") from error
    return Thresholds([*config.getini("ecornn_fail_slower"), *typed])


def _no_limits() -> Thresholds:
    from pytest_ecornn.regression.gate_limits import Thresholds

    return Thresholds()


def _strict(option: Option, config: pytest.Config) -> bool:
    if option.raw(config) and not config.getoption("--ecornn-compare"):
        raise pytest.UsageError(f"{option.flag} expected --ecornn-compare FILE beside it, to be strict about")
    return bool(option.raw(config) or config.getini("ecornn_strict"))


def _against(option: Option, config: pytest.Config) -> Any:
    if option.raw(config) and config.getoption("--ecornn-verify") and not config.getoption("--ecornn-bench"):
        raise pytest.UsageError(f"{option.flag} compares times: expected --ecornn-bench beside it")
    return option.raw(config)


def _replicates(option: Option, config: pytest.Config) -> Any:
    count = option.raw(config)
    if count != 1 and count < MIN_REPLICATES:
        raise pytest.UsageError(f"{option.flag} expected at least {MIN_REPLICATES} processes, or 1, got {count}")
    if count != 1 and not config.getoption("--ecornn-bench"):
        raise pytest.UsageError(f"{option.flag} repeats timed rows: expected --ecornn-bench beside it")
    return count


@dataclass(frozen=True, eq=False, repr=False)
class Options:
    """The options of one run, as given; names are checked where they are resolved."""

    verify: bool = option(
        "--ecornn-verify",
        RUN,
        "Verify every implementation: drawn and fixed cases, properties. Tests of your own run too where you give their paths.",
        action="store_true",
        is_demand=True,
    )
    bench: bool = option(
        "--ecornn-bench",
        RUN,
        "Verify and time every implementation, and write the comparison. Tests of your own run as with --ecornn-verify.",
        action="store_true",
        is_demand=True,
    )
    selfcheck: bool = option(
        "--ecornn-selfcheck",
        RUN,
        "Try the harness itself, and nothing else: planted faults, and cases of right implementations. "
        "Reports show the last score.",
        action="store_true",
        modes=(Mode.SELFCHECK,),
    )
    profile_call: tuple[str, ...] = option(
        "--ecornn-profile-call",
        RUN,
        "Call the implementation of --ecornn-only once on this case, for a profiler, and do nothing else. It is built and "
        "warmed up before. On a GPU ncu --profile-from-start off sees this call alone; nsys has it as the range ecornn.",
        is_list=True,
        metavar="CASE",
        modes=(Mode.PROFILE_CALL,),
    )
    resume: bool = option(
        "--ecornn-resume",
        RUN,
        "Go on after an interrupted run: finished rows are not repeated.",
        action="store_true",
        is_demand=True,
    )
    seconds: float = option(
        "--ecornn-seconds",
        RUN,
        "Begin no more rows after this time. Where rows are left, the exit code is not 0, and --ecornn-resume goes on. "
        "Default: no limit.",
        type=float,
        default=None,
        metavar="SECONDS",
        parse=_over_0,
    )
    report: Path = option(
        "--ecornn-report",
        RUN,
        "Where the report is written. Default: reports/local; of the fixture ecornn alone, none unless given.",
        ini="string",
        default="reports/local",
        metavar="DIR",
        modes=(Mode.RUN, Mode.TESTS),
        parse=_path,
        unset=Path("reports/local"),
    )
    only: tuple[str, ...] = option(
        "--ecornn-only",
        IMPLEMENTATIONS,
        "Run just this implementation, by exact name (repeatable). Those of this project that round weights run by name alone.",
        is_list=True,
        metavar="NAME",
        setup=sorted,
        is_demand=True,
        modes=(Mode.RUN, Mode.PROFILE_CALL),
    )
    require: tuple[str, ...] = option(
        "--ecornn-require",
        IMPLEMENTATIONS,
        "Turn every skip of this implementation into a failure, and fail a run without a row of it (repeatable).",
        is_list=True,
        metavar="NAME",
        is_demand=True,
    )
    implementations: tuple[Path, ...] = option(
        "--ecornn-implementations",
        IMPLEMENTATIONS,
        "A file that holds an implementation, or a folder of such files (repeatable).",
        is_list=True,
        ini="paths",
        adds_ini=True,
        metavar="PATH",
        parse=_implementations,
        modes=(Mode.RUN, Mode.PROFILE_CALL),
    )
    devices: tuple[str, ...] = option(
        "--ecornn-device",
        IMPLEMENTATIONS,
        "Run on cpu, cuda or cuda:N (repeatable). Default: cpu.",
        is_list=True,
        metavar="DEVICE",
        parse=lambda option, config: tuple(option.raw(config)) or ("cpu",),
        unset=("cpu",),
        setup=sorted,
        modes=(Mode.RUN, Mode.PROFILE_CALL),
    )
    cases: tuple[str, ...] = option(
        "--ecornn-case",
        CASES,
        "Run just this case, with its properties, as a test id or a failure prints it (repeatable). Or a sweep of them: "
        "lstm-T35-B{1,8}-H{256..2048} has each B and H 256, 512, 1024, 2048. {a..b} doubles a while it does not pass b, and "
        "{a..b..s} adds s. Or a file NAME.txt with one of these a line.",
        is_list=True,
        metavar="CASE",
        parse=_cases,
        is_demand=True,
    )
    case_sets: tuple[str, ...] = option(
        "--ecornn-cases",
        CASES,
        "Case set: smoke, seed, edge or full; batched, deepbench, deepbench_pruned, ecornn, persistent, scan or sparse, of "
        "published results; what a plugin adds; or a CSV file (repeatable). Default: smoke.",
        is_list=True,
        ini="linelist",
        metavar="NAME",
        parse=_case_sets,
        unset=("smoke",),
        is_demand=True,
    )
    all_failures: bool = option(
        "--ecornn-all-failures",
        CASES,
        "Go on after the first failure of a row of drawn cases or properties, and list each kind of failure with a case.",
        action="store_true",
    )
    xfail: ExpectedFailures | None = option(
        "--ecornn-xfail",
        CASES,
        "Rows that must still fail: a file with IMPLEMENTATION CASE REASON a line, the first two by name or glob; "
        "properties:CASE is the row of its properties. Such a failure fails no run. A run in which such a row passes fails.",
        metavar="FILE",
        parse=_xfail,
        setup=lambda expected: [" ".join(line) for line in expected.lines],
        is_demand=True,
    )
    shard: Shard | None = option(
        "--ecornn-shard",
        CASES,
        "Run just the I-th of N shares of the rows, as one job of a CI matrix. A row stays in its share whatever "
        "else is run. The seed is 0 unless given, so that all shares draw alike.",
        default=None,
        metavar="I/N",
        parse=_shard,
        setup=str,
        is_demand=True,
    )
    state_dict: str | None = option(
        "--ecornn-state-dict",
        CASES,
        "Run with the weights of a torch.nn.RNN, LSTM or GRU that torch.save wrote as (part of) a state dict; what "
        "is pruned stays so. --ecornn-case says the rest: T256-B4-density0.1 keeps the largest tenth of each recurrent "
        f"weight. Default then: {DEFAULT_CASE_OF_STATE_DICT}.",
        metavar="FILE[:MODULE]",
        parse=lambda option, config: (path := _path(option, config)) and str(path),
        is_demand=True,
        modes=(Mode.RUN, Mode.PROFILE_CALL),
    )
    profile: str = option(
        "--ecornn-profile",
        CASES,
        "How many cases are drawn of each cell in a dtype: 8, 50, or 125 and longer ones. "
        "Default: quick with --ecornn-bench, default with --ecornn-verify alone.",
        choices=PROFILES,
        default=None,
        parse=lambda option, config: option.raw(config) or ("quick" if config.getoption("--ecornn-bench") else "default"),
        unset="default",
        setup=str,
    )
    seed: int = option(
        "--ecornn-seed",
        CASES,
        "Seed of what is drawn per run: which boundary sizes are tried, and what a self-check draws. "
        "Default: drawn at random, and printed; a resumed run keeps its own.",
        type=int,
        default=None,
        metavar="N",
        parse=_seed,
        unset=0,
        modes=(Mode.RUN, Mode.SELFCHECK),
    )
    correct_cases: int = option(
        "--ecornn-correct-cases",
        CASES,
        "How many cases of right implementations a self-check draws at least. Default: 1000.",
        type=int,
        default=1000,
        metavar="N",
        parse=_over_0,
        modes=(Mode.SELFCHECK,),
    )
    baselines: tuple[str, ...] = option(
        "--ecornn-baseline",
        TIMING,
        f"Compare with this implementation (repeatable). Default: {default_baselines(['cpu'])}; "
        f"on a GPU {default_baselines(['cuda'])}.",
        is_list=True,
        ini="linelist",
        metavar="NAME",
        setup=list,
    )
    budget: float = option(
        "--ecornn-budget",
        TIMING,
        "Time to measure a row for at most, on a GPU by each of its two clocks; less where the verdict is clear. Default: 10; "
        "for functions of the fixture ecornn 2.",
        ini="string",
        modes=(Mode.RUN, Mode.TESTS),
        type=float,
        default=10.0,
        metavar="SECONDS",
        parse=_over_0,
        setup=float,
    )
    pairs: int = option(
        "--ecornn-pairs",
        TIMING,
        "Fewest pairs of blocks, within the budget. A report that later runs are compared with should hold 100. "
        f"Default: {MIN_PAIRS}.",
        type=int,
        default=MIN_PAIRS,
        metavar="N",
        parse=_over_0,
        setup=int,
    )
    replicates: int = option(
        "--ecornn-replicates",
        TIMING,
        "Time each row in so many processes, one after another, and take a ratio's interval from theirs: memory and code lie "
        "elsewhere in each. Default: 1; of a row that looks slower than in a stored report, as many as that has.",
        type=int,
        default=1,
        metavar="N",
        parse=_replicates,
    )
    lock_clocks: int | None = option(
        "--ecornn-lock-clocks",
        TIMING,
        "On a GPU: lock its clocks at MHZ, or at the default that NVML reports, and unlock them when the run ends. Where the "
        "driver refuses, as it does all users but root, the run goes on, and its report says so. Default: off.",
        nargs="?",
        const=0,
        type=int,
        default=None,
        metavar="MHZ",
        parse=lambda option, config: option.raw(config) and _over_0(option, config),
        setup=int,
    )
    compare: Path | None = option(
        "--ecornn-compare",
        COMPARISON,
        "Fail where a row got slower than in this report.json of such a machine, or is not proven.",
        metavar="FILE",
        parse=_path,
        is_demand=True,
    )
    against: str | None = option(
        "--ecornn-against",
        COMPARISON,
        "Time each implementation in turn with that of a git revision or a folder, as NAME@REV, and fail where it is slower; "
        "functions of the fixture ecornn too. What is unchanged is not timed twice.",
        metavar="REV",
        parse=_against,
        setup=str,
        is_demand=True,
        modes=(Mode.RUN, Mode.TESTS),
    )
    limits: Thresholds = option(
        "--ecornn-fail-slower",
        COMPARISON,
        "By how much a row may be slower: 5%%, or for an implementation, a cell, a column or several of them "
        "scan_cpu=3%%, lstm=10%%, scan_cpu:lstm=2%%, device-only=2%%; the most specific wins (repeatable). Default: 5%%.",
        is_list=True,
        ini="linelist",
        adds_ini=True,
        metavar="LIMIT",
        parse=_limits,
        unset=_no_limits,
        is_demand=True,
        modes=(Mode.RUN, Mode.TESTS),
    )
    strict: bool = option(
        "--ecornn-strict",
        COMPARISON,
        "With --ecornn-compare: fail too where a row that the stored report compares is unclear, after one more "
        "measurement, or cannot be judged.",
        ini="bool",
        adds_ini=True,
        action="store_true",
        parse=_strict,
        is_demand=True,
    )
    isolate: bool = option(
        "--ecornn-isolate",
        PROCESSES,
        "Run rows in workers of pytest-xdist, one unless -n is given, and replace each that dies or hangs: "
        "it costs one row. Only so is an exit by native code noticed. Needs the extra [test]: pytest-timeout.",
        action="store_true",
        parse=lambda option, config: option.raw(config) or config.getoption("--ecornn-ray") is not None,
    )
    ray: str | None = option(
        "--ecornn-ray",
        PROCESSES,
        "Run rows as --ecornn-isolate does, in workers on the hosts of a Ray cluster: one for each GPU; on CPUs "
        "one for each core, or with --ecornn-bench one for each host. ADDRESS is auto, local, host:port or "
        "ray://host:port, as ray.init takes it. Needs the extras [ray] and [test].",
        metavar="ADDRESS",
    )
    timeout: float = option(
        "--ecornn-timeout",
        PROCESSES,
        "With --ecornn-isolate: time that a row may take, save waiting for the machine. A drawn row of "
        "--ecornn-profile thorough may need more. Default: 300.",
        type=float,
        default=300.0,
        metavar="SECONDS",
        parse=_over_0,
    )
    memory_bytes: int | None = option(
        "--ecornn-memory",
        PROCESSES,
        "With --ecornn-isolate: memory that a worker may allocate on the host (Linux). "
        "Default: four fifths of what is available, shared out among the workers.",
        type=float,
        default=None,
        metavar="GIB",
        parse=_bytes,
    )

    @classmethod
    def from_config(cls, config: pytest.Config) -> Options:
        """Raises UsageError for a value that no run could use."""
        declared = cls.declared()
        for declaration in declared.values():
            declaration.take_ini(config)
        return cls(**{name: declaration.parsed(config) for name, declaration in declared.items()})

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """The options by field, those of a group in a row."""
        return {declaration.name: declaration.metadata["option"] for declaration in fields(cls)}

    @property
    def setup(self) -> dict[str, Any]:
        """What rows of two runs must share to stand side by side, by field; without what is None."""
        setups = ((name, declared.setup, getattr(self, name)) for name, declared in self.declared().items())
        return {name: setup(value) for name, setup, value in setups if setup is not None and value is not None}


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("ecornn", "verified benchmarks of recurrent layers")
    for declared in Options.declared().values():
        group.addoption(declared.flag, **declared.settings)
        if declared.ini:
            meaning = f"As {declared.flag}{', one a line' if declared.ini == 'linelist' else ''}."
            parser.addini(declared.ini_name, meaning, type=declared.ini, default=_INI_DEFAULTS[declared.ini])


def is_active(config: pytest.Config) -> bool:
    """Whether one of the flags was given; without them the plugin does nothing."""
    return bool(config.getoption("--ecornn-verify") or config.getoption("--ecornn-bench"))


def check_is_run(config: pytest.Config) -> None:
    """Raises UsageError where options of ours are asked for, but nothing of ours is to run."""
    for asked in _asked_options(config):
        if Mode.TESTS not in asked.modes:
            raise pytest.UsageError(f"{asked.flag} expected {asked.modes[0].value} beside it, without which it does nothing")


_ALONE = {Mode.SELFCHECK: "tries the harness alone", Mode.PROFILE_CALL: "makes one call alone"}


def is_alone(config: pytest.Config, mode: Mode) -> bool:
    """Whether such a mode was asked for. Raises UsageError where something else is to be done as well, or nothing could be."""
    if not config.getoption(mode.value):
        return False
    for asked in _asked_options(config):
        if mode not in asked.modes:
            raise pytest.UsageError(f"{mode.value} {_ALONE[mode]}: expected no {asked.flag}")
    for declared in Options.declared().values():
        if mode in declared.modes:
            declared.parse(declared, config)
    return True


def _asked_options(config: pytest.Config) -> Iterator[Option]:
    """Options that were typed, or that say what to run, and are not as they are by default."""
    typed = {str(argument).partition("=")[0] for argument in config.invocation_params.args}
    for declared in Options.declared().values():
        if (declared.flag in typed or declared.is_demand) and declared.raw(config) != declared.default:
            yield declared
