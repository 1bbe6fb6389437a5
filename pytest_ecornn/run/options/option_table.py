"""Every command-line option, documented here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
