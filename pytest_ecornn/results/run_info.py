"""Facts about a run as a whole, beside its rows: when, how, and on which machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ecornn.results.formatting import one_line
from pytest_ecornn.results.score import MutationScore

_OBJECTS = ("packages", "threads", "caches", "gpu")  # of a fingerprint, where they are known


@dataclass
class RunInfo:
    """Facts about one run. `started` is ISO 8601; `seconds` is the duration.

    machine: the fingerprint, nested names to strings and numbers. Its "benchmark_machine_info" and
    "benchmark_commit_info", where there are any, are pytest-benchmark's own and go to benchmark.json only.
    ceilings: what the machine was measured to reach. refused: implementation -> share of its cases that it would not run.
    score: the harness's own, the last that was taken on the machine. skipped: implementation -> reason -> number of rows.
    """

    started: str
    seconds: float
    command: str
    machine: dict[str, Any] = field(default_factory=dict)
    ceilings: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    score: MutationScore | None = None
    skipped: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The machine without what only pytest-benchmark reads."""
        return {name: value for name, value in self.machine.items() if not name.startswith("benchmark_")}

    @property
    def gpu_names(self) -> list[str]:
        """Each kind of GPU once; none where the machine has none."""
        return gpu_names(self.machine)

    @property
    def machine_name(self) -> str:
        """The GPUs, and the CPU."""
        return ", ".join(one_line(name) for name in (*self.gpu_names, self.machine.get("cpu")) if name)

    @property
    def hardware(self) -> str:
        """The GPUs, else the CPU; empty where neither is known."""
        return hardware(self.machine)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def gpu_names(machine: dict[str, Any]) -> list[str]:
    """Returns each kind of GPU of a fingerprint once."""
    return list(dict.fromkeys((machine.get("gpu") or {}).get("names") or []))


def hardware(machine: dict[str, Any]) -> str:
    """Returns the GPUs of a fingerprint, else its CPU; empty where neither is known."""
    return one_line(" and ".join(gpu_names(machine)) or machine.get("cpu") or "")


def check_fingerprint(machine: Any) -> None:
    """Raises ValueError where a fingerprint from a file lacks the shape that comparisons of machines rely on."""
    if not isinstance(machine, dict):
        raise ValueError(f"machine: expected an object, got {type(machine).__name__}")
    for name in _OBJECTS:
        if not isinstance(value := machine.get(name) or {}, dict):
            raise ValueError(f"machine.{name}: expected an object, got {type(value).__name__}")
    names = (machine.get("gpu") or {}).get("names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("machine.gpu.names: expected a list of strings, got something else")
