"""A decision: the winner as called and the winner on the device alone, the times that decided, and what they cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

TIE = 1.03  # times apart by less go to the candidate that comes first
CLEAR = 1.3  # times apart by more need no second sample, nor another number of sequences between two


@dataclass(frozen=True)
class Timing:
    """Times of a call in us: as called, with the host's work, and on the device alone, replayed from a CUDA graph."""

    called_us: float
    device_us: float


@dataclass(frozen=True)
class Decision:
    """The winners of a problem.

    source: measured, disk, frozen, ranks, neighbours, compiling, forced, heuristic or only. reason: why it was not measured, or
    "". timings: of each candidate that was timed, at T steps. failures: why others were not. probe_ms: the cost of timing;
    compile_ms: of the candidates' first calls, which includes compiling. is_stable: False where other work disturbed the
    timing, so that it is not stored. lengths: T at which candidates were timed. samples: their timings there, of one that was
    hopeless at the first length only that.
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
    lengths: tuple[int, ...] = ()
    samples: Mapping[str, Sequence[Timing]] = field(default_factory=dict)

    @classmethod
    def untimed(cls, name: str, source: str, reason: str = "") -> Decision:
        """One winner without timing."""
        return cls(name, name, source, reason)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], source: str) -> Decision:
        """Reads what `to_json` made. Raises ValueError for anything else."""
        try:
            timings = {name: _timing(timing) for name, timing in fields["timings"].items()}
            samples = {name: [*map(_timing, timings)] for name, timings in fields["samples"].items()}
            lengths = tuple(map(int, fields["lengths"]))
            called, device = fields["called"], fields["device"]
            costs = float(fields["probe_ms"]), float(fields["compile_ms"])
            failures = dict(fields.get("failures", {}))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"expected a decision, got {fields!r}") from error
        if not (isinstance(called, str) and isinstance(device, str)):
            raise ValueError(f"expected the winners' names, got {called!r} and {device!r}")
        return cls(called, device, source, "", timings, failures, *costs, lengths=lengths, samples=samples)

    def at(self, steps: int) -> Decision:
        """The decision for T steps, by the times between and beyond the lengths at which candidates were timed."""
        if not self.lengths:
            return self
        timings = {name: timing_at(self.lengths, samples, steps) for name, samples in self.samples.items()}
        called = fastest(timings, {name: timing.called_us for name, timing in timings.items()})
        device = fastest(timings, {name: timing.device_us for name, timing in timings.items()})
        return replace(self, called=called, device=device, timings=timings)

    @property
    def clear_winner(self) -> str | None:
        """The candidate that others take CLEAR times as long as, at all lengths, as called and on the device; None for none."""
        for name, samples in self.samples.items():
            others = [timings for other, timings in self.samples.items() if other != name]
            pairs = [pair for timings in others for pair in zip(samples, timings, strict=False)]
            if len(samples) == len(self.lengths) and pairs and all(_is_far_faster(*pair) for pair in pairs):
                return name
        return None

    def is_among(self, names: Collection[str]) -> bool:
        """Whether both winners are of `names`."""
        return self.called in names and self.device in names

    def to_json(self) -> dict[str, Any]:
        timings = {name: asdict(timing) for name, timing in self.timings.items()}
        samples = {name: [*map(asdict, of_name)] for name, of_name in self.samples.items()}
        costs = {"probe_ms": round(self.probe_ms, 3), "compile_ms": round(self.compile_ms, 3)}
        failures = {"failures": dict(self.failures)} if self.failures else {}
        winners = {"called": self.called, "device": self.device}
        return {**winners, "timings": timings, "lengths": [*self.lengths], "samples": samples, **failures, **costs}

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


def timing_at(lengths: Sequence[int], samples: Sequence[Timing], steps: int) -> Timing:
    """The timing at T steps from those at one or two lengths.

    On the device a step more takes as long as between the two. A call takes as much longer than that as at the longer length,
    and never less than at the shorter one, where the host may be what it waits for.
    """
    shorter, longer = samples[0], samples[-1]
    if len(samples) == 1:
        scale = max(1.0, steps / lengths[0])
        return Timing(shorter.called_us * scale, shorter.device_us * scale)
    slope = max(0.0, longer.device_us - shorter.device_us) / (lengths[1] - lengths[0])
    device_us = max(shorter.device_us + slope * (steps - lengths[0]), shorter.device_us * min(1.0, steps / lengths[0]))
    called_us = device_us + max(0.0, longer.called_us - longer.device_us)
    return Timing(max(called_us, min(shorter.called_us, longer.called_us)), device_us)


def _timing(fields: Mapping[str, Any]) -> Timing:
    return Timing(float(fields["called_us"]), float(fields["device_us"]))


def _is_far_faster(timing: Timing, other: Timing) -> bool:
    return CLEAR * timing.called_us < other.called_us and CLEAR * timing.device_us < other.device_us
