"""The harness's score: how many planted faults it caught, and how often it was wrong about what is right."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pytest_ecornn.results.typed_json import typed
from pytest_ecornn.system import cache


@dataclass
class MutationScore:
    """Counts of planted faults that the harness caught, and of its false alarms.

    families: how many were caught and how many tried, by kind ("fault", "cheat") and family. public: likewise of what stands
    for cheats that others have published, by family. left_out: how many need a GPU.
    survivors and false_alarms: by name. correct: cases of right implementations that were verified. implementations: by name,
    those that are right. taken: ISO 8601. seed: of what was drawn.
    """

    taken: str
    seconds: float
    version: str
    commit: str
    seed: int = 0
    families: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    left_out: int = 0
    correct: int = 0
    implementations: list[str] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    public: dict[str, list[int]] = field(default_factory=dict)

    def add_planted(self, kind: str, name: str, is_caught: bool, public: Iterable[str] = ()) -> None:
        """A planted fault or cheat that was tried; its family is its name's first word. public: families that it stands for."""
        own = self.families.setdefault(kind, {})
        for families, family in ((own, name.partition("_")[0]), *((self.public, family) for family in public)):
            caught, tried = families.get(family, [0, 0])
            families[family] = [caught + is_caught, tried + 1]
        if not is_caught:
            self.survivors.append(name)

    def add_correct(self, name: str, implementation: str, cases: int, is_right: bool) -> None:
        """Adds one trial of a right implementation, with its number of verified cases."""
        self.correct += cases
        if implementation not in self.implementations:
            self.implementations.append(implementation)
        if not is_right:
            self.false_alarms.append(name)

    def one_line(self) -> str:
        kills = []
        for kind, families in self.families.items():
            caught, tried = map(sum, zip(*families.values(), strict=True))
            kills.append(f"{caught} of {tried} planted {kind}s caught")
        if self.public:
            whole = sum(caught == tried for caught, tried in self.public.values())
            kills.append(f"{whole} of {len(self.public)} families of public cheats caught")
        alarms = f"{len(self.false_alarms) or 'no'} false alarm{'s' if len(self.false_alarms) > 1 else ''}"
        commit, _, dirty = self.commit.partition("-")
        own = f", commit {commit[:12]}{'-' * bool(dirty)}{dirty}" if commit else ""
        found = f"{', '.join([*kills, alarms])} in {self.correct:,} verified cases"
        if self.implementations:
            found += f" of {len(self.implementations)} right implementations"
        return f"{found} (seed {self.seed}, version {self.version}{own}, {self.taken[:10]})"

    def lines(self) -> Iterator[str]:
        """The whole score, for a terminal."""
        for kind, families in (self.families | ({"public cheat": self.public} if self.public else {})).items():
            found = ", ".join(f"{name} {caught}/{tried}" for name, (caught, tried) in sorted(families.items()))
            yield f"{kind}s caught: {found}"
        yield f"survivors: {', '.join(self.survivors) or 'none'}"
        yield f"false alarms: {', '.join(self.false_alarms) or 'none'}"
        if self.left_out:
            yield f"left out: {self.left_out} that need a CUDA device"
        yield self.one_line()


def path() -> Path:
    return cache.cache_dir() / "score.json"


def save(score: MutationScore) -> Path:
    """Raises OSError where it cannot be written."""
    path().parent.mkdir(parents=True, exist_ok=True)
    partial = path().with_suffix(".partial")
    partial.write_text(json.dumps(asdict(score), indent=1) + "\n", encoding="utf-8")
    return partial.replace(path())


def load_last() -> MutationScore | None:
    """The last score that was taken on this machine; None where there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        return MutationScore(**typed(MutationScore, json.loads(path().read_text(encoding="utf-8"))))
    return None
