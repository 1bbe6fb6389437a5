"""A decision: the winner as called and the winner on the device alone, the times that decided, and what they cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

TIE = 1.03  # times apart by less go to the candidate that comes first


@dataclass(frozen=True)
class Timing:
    """Times of a call in us: as called, with the host's work, and on the device alone, replayed from a CUDA graph."""

    called_us: float
    device_us: float


@dataclass(frozen=True)
class Decision:
    """The winners of a problem.

    source: measured, disk, frozen, ranks, forced, heuristic or only. reason: why it was not measured, or "". timings: of each
    candidate that was timed. failures: why others were not. probe_ms: the cost of timing; compile_ms: of the candidates' first
    calls, which includes compiling. is_stable: False where other work disturbed the timing, so that it is not stored.
    """

    called: str
    device: str
    source: str
    reason: str = ""
    timings: Mapping[str, Timing] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    probe_ms: float = 0.0
    compile_ms: float = 0.0
    is_stable: bool = True

    @classmethod
    def untimed(cls, name: str, source: str, reason: str = "") -> Decision:
        """One winner without timing."""
        return cls(name, name, source, reason)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], source: str) -> Decision:
        """Reads what `to_json` made. Raises ValueError for anything else."""
        try:
            timings = {
                name: Timing(float(one["called_us"]), float(one["device_us"])) for name, one in fields["timings"].items()
            }
            called, device = fields["called"], fields["device"]
            costs = float(fields["probe_ms"]), float(fields["compile_ms"])
            failures = dict(fields.get("failures", {}))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"expected a decision, got {fields!r}") from error
        if not (isinstance(called, str) and isinstance(device, str)):
            raise ValueError(f"expected the winners' names, got {called!r} and {device!r}")
        return cls(called, device, source, "", timings, failures, *costs)

    def is_among(self, names: Collection[str]) -> bool:
        """Whether both winners are of `names`."""
        return self.called in names and self.device in names

    def to_json(self) -> dict[str, Any]:
        timings = {name: asdict(timing) for name, timing in self.timings.items()}
        costs = {"probe_ms": round(self.probe_ms, 3), "compile_ms": round(self.compile_ms, 3)}
        failures = {"failures": dict(self.failures)} if self.failures else {}
        return {"called": self.called, "device": self.device, "timings": timings, **failures, **costs}

    def notes(self) -> str:
        """Summarises what was chosen, by how much, and what the choice cost."""
        if self.source == "only":
            return self.called + (f": {'; '.join(self.failures.values())}" if self.failures else "")
        parts = [self.called if self.called == self.device else f"{self.called} as called, {self.device} from graphs"]
        parts.append(f"{self.source}: {self.reason}" if self.reason else self.source)
        if len(self.timings) > 1:
            parts.append(", ".join(f"{name} {timing.called_us:.4g} us" for name, timing in self.timings.items()) + " as called")
            if any(timing.device_us != timing.called_us for timing in self.timings.values()):
                parts[-1] += ", " + ", ".join(f"{timing.device_us:.4g}" for timing in self.timings.values()) + " from graphs"
            parts.append(f"decided in {self.probe_ms:.0f} ms beside {self.compile_ms:.0f} ms of first calls")
        parts += [f"{name} was not timed: {why}" for name, why in self.failures.items()]
        return "; ".join(parts)


def fastest(names: Iterable[str], times_us: Mapping[str, float]) -> str:
    """The first of `names` that is no more than TIE slower than the fastest of them."""
    timed = [name for name in names if name in times_us]
    least = min(times_us[name] for name in timed)
    return next(name for name in timed if times_us[name] <= TIE * least)
