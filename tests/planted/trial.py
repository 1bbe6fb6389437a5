"""A planted fault tried as the suite would try it, and whether it failed for the reason that its file states."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.discovery import Found, discover
from pytest_ecornn.items import DrawnItem, Item
from pytest_ecornn.process import Process
from pytest_ecornn.property_items import PropertiesItem
from pytest_ecornn.rows import Row

FOLDER = Path(__file__).parent / "faults"
FILES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")

# What the reason of a failed row says, by the check that is meant to have failed.
_REASONS = {
    # Less than the values themselves, in whichever tensor it shows first.
    "equivalence: rounding": r"relative error (0\.\d+|\d[\d.]*e-\d+) is over its limit",
    "equivalence: non-finite": r"expected (nan|-?inf), got|expected [^,]+, got (nan|-?inf)",
    "poison": r"expected -?\d[^,]*, got nan",
    "unchanged": r"expected .* unchanged by the call",
    "form": r"expected (a tensor of shape|the tuple|the final state).*got",
    "required": r"must support .*, but says",
}
_TENSOR = re.compile(r"^  (?P<tensor>[a-z_ ]+?)(_l\d+\w*)?( \(.*?\))?: (?P<problem>.*)")
_PROBLEM = re.compile(r"is over its limit|expected exactly 0|got nothing")
# Where an output is all zero, and so proves nothing, its last step shows as a final state.
_SAME = {"final h": "output"}


@dataclass(frozen=True)
class Fault:
    """One file of `faults/`: the implementation in it and the constants beside it."""

    found: Found
    caught_by: str
    cell: str = "lstm"
    dtype: str = "float32"
    device: str = "cpu"
    profile: str = "quick"

    @classmethod
    def load(cls, path: Path) -> Fault:
        """Found as a third party's file is; `STANDS_FOR` names the own implementation whose duties it takes over."""
        found = discover([path])[path.stem]
        constants = vars(sys.modules[found.kind.__module__])
        if own := constants.get("STANDS_FOR"):
            found = replace(found, name=own, is_own=True)
        given = {name: constants[name.upper()] for name in ("cell", "dtype", "device", "profile") if name.upper() in constants}
        return cls(found, constants["CAUGHT_BY"], **given)

    @property
    def needs(self) -> str:
        """The property that is to catch it; empty where equivalence is to."""
        return self.caught_by.removeprefix("property: ") if self.caught_by.startswith("property: ") else ""

    @property
    def base(self) -> Case:
        return Case(cell=self.cell, dtype=self.dtype, device=self.device, steps=4, batch=2, hidden_size=8)


@dataclass(frozen=True)
class Trial:
    """One planted file, and whether it is caught as it states."""

    path: Path
    kind: str = "fault"

    def __str__(self) -> str:
        return self.path.stem

    @cached_property
    def fault(self) -> Fault:
        return Fault.load(self.path)

    def missing(self) -> str:
        """Why it cannot be tried here; empty where it can."""
        needs_gpu = self.fault.device == "cuda" and not torch.cuda.is_available()
        return "needs a CUDA device" if needs_gpu else ""

    def survived(self) -> str:
        """How it was not caught; empty where it was."""
        row = explored(self.fault, self.fault.profile)
        if is_caught(row, self.fault.caught_by):
            return ""
        return f"expected {self.fault.caught_by!r} to fail, got {row.status}: {row.reason}"


def all_trials() -> list[Trial]:
    return [Trial(path) for path in FILES]


def session(profile: str = "quick") -> Any:
    """As much of a session as a drawn item needs."""
    options = SimpleNamespace(profile=profile, require=())
    lock = SimpleNamespace(shared=nullcontext)
    return SimpleNamespace(options=options, lock=lock, finished={}, again=lambda found: "", current=None, process=Process())


def explored(fault: Fault, profile: str, number: int = 0) -> Row:
    """The row of drawn cases, finished: always the same ones of a number."""
    return item(fault, profile, number).finished()


def item(fault: Fault, profile: str, number: int = 0) -> Item:
    """The test item that is to fail."""
    kind = PropertiesItem if fault.needs else DrawnItem
    return kind(session(profile), fault.found, fault.base, number=number)


def is_caught(row: Row, caught_by: str) -> bool:
    """Whether the row failed, by that check: of several wrong tensors, the first decides."""
    if row.status != "failed":
        return False
    if caught_by.startswith("property: "):
        return f": {caught_by.removeprefix('property: ')} is broken: " in row.reason
    first = next((match for line in row.reason.splitlines() if (match := _TENSOR.match(line))), None)
    if caught_by in _REASONS:
        return bool(re.search(_REASONS[caught_by], first[0] if first else row.reason))
    if first is None or not _PROBLEM.search(first["problem"]):
        return False
    return caught_by.removeprefix("equivalence: ") in (first["tensor"], _SAME.get(first["tensor"]))
