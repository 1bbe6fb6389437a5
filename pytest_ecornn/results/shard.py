"""A share of a run's rows, for the jobs of a CI matrix: a row is in the same one on every machine, whatever else is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

_FORM = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class Shard:
    """number: from 1 to count."""

    number: int
    count: int

    def has(self, row: str) -> bool:
        """Whether a row is in it, by its name: implementation and case."""
        return int.from_bytes(sha256(row.encode()).digest()[:8], "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """I/N. Raises ValueError for another form, and for an I that is not one of 1 to N."""
    found = _FORM.fullmatch(text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"expected I/N, I from 1 to N, got {text}")
    return Shard(int(found[1]), int(found[2]))
