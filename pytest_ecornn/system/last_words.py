"""Record that a live worker writes to disk, from which the controller reports why it died, and in whose code."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class CurrentWork:
    """State of a worker. implementation, case: at work at the time of writing. end: why the worker stopped by itself, in words.

    beside: the baselines that it took turns with. rerun: its row is to be run once more, by another. is_timed: while
    times were measured, or what they are measured with was built.
    """

    implementation: str = ""
    case: str = ""
    beside: str = ""
    end: str = ""
    rerun: bool = False
    is_timed: bool = False


class CrashReport:
    """Last words of one worker. `stack` holds faulthandler's dump of a crash or of a row that took too long."""

    def __init__(self, folder: Path, worker: str):
        self._path, self.stack = folder / f"{worker}.json", folder / f"{worker}.stack"

    def write(self, words: CurrentWork) -> None:
        self._path.write_text(json.dumps(asdict(words)))

    def read(self) -> CurrentWork:
        try:
            return CurrentWork(**json.loads(self._path.read_text()))
        except (OSError, ValueError):  # it died before, or while, it wrote
            return CurrentWork()

    @property
    def timed_out(self) -> bool:
        """Whether its row took too long."""
        return "Timeout (" in self._stack()

    def crash_location(self, source: Path) -> str:
        """Returns the innermost line of `source` in the stack; empty where the stack has none."""
        found = re.search(rf'File "{re.escape(str(source))}", line (\d+)', self._stack())
        return f" at {source.name}:{found[1]}" if found else ""

    def _stack(self) -> str:
        return self.stack.read_text(errors="replace") if self.stack.exists() else ""
