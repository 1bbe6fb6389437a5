"""Timed rows in fresh processes, for `--ecornn-replicates` and the gate: an interval of one process does not hold the next.

Each process is pytest once more with the run's options, on timed rows alone. What it measured is read from its journal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path

import pytest

from pytest_ecornn.measurement.noise.bounds import ratio_of
from pytest_ecornn.results import journal
from pytest_ecornn.results.formatting import count, one_line
from pytest_ecornn.results.replicates import with_replicates
from pytest_ecornn.results.rows import Row, widened
from pytest_ecornn.results.statistics import EQUIVALENCE_MARGINS, verdict
from pytest_ecornn.run.options import Options

LABELS = "ECORNN_REPLICATED_ROWS"  # names a file with the labels of the rows that a replicate times, a line each
# Options of the run that are not a replicate's, or that it has otherwise.
_LEFT_OUT = {
    "verify", "resume", "require", "report", "xfail", "shard", "seed", "seconds", "compare", "limits", "strict", "replicates",
    "lock_clocks",
}  # fmt: skip


class Replicates:
    """Repeats rows in fresh processes. folder: for what they write. say: shows a line."""

    def __init__(self, config: pytest.Config, options: Options, folder: Path, say: Callable[[str], None]):
        self._config, self._options, self._folder, self._say = config, options, folder, say
        self.warnings: list[str] = []

    def measure(
        self, rows: Sequence[Row], processes: int, confidence: float, seconds: Callable[[], float], is_afresh: bool = False
    ) -> list[Row]:
        """The rows with what so many further processes measured. A row that fails in one of them has failed.

        confidence: of a ratio's interval. seconds: that are left, after which no row begins. is_afresh: without the rows' own
        figures, for which they were chosen.
        """
        others: dict[tuple[str, str, str], list[Row]] = {row.key: [] for row in rows}
        self._folder.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        labels = folder / "labels"
        labels.write_text("".join(f"{row.implementation}-{row.case}\n" for row in rows), encoding="utf-8")
        for number in range(1, processes + 1):
            if (left := seconds()) <= 0:
                self.warnings.append(f"the time is over after {number - 1} of {processes} further processes")
                break
            self._say(f"{count(len(rows), 'row')} once more, in further process {number} of {processes}")
            for row in self._run(folder / f"{number}", labels, left):
                others[row.key].append(row)
        return [_judged(with_replicates(row, others[row.key], confidence, is_afresh), confidence) for row in rows]

    def _run(self, folder: Path, labels: Path, seconds: float) -> Iterator[Row]:
        """Yields what a new process measured. A process that ends early is said to have."""
        folder.mkdir()
        output, limit = folder / "output.txt", [f"--ecornn-seconds={seconds}"] if seconds < inf else []
        environment = {
            name: value for name, value in os.environ.items() if name not in ("GITHUB_STEP_SUMMARY", "PYTEST_ADDOPTS")
        }
        with output.open("w", encoding="utf-8") as file:
            done = subprocess.run(
                [*self._command(), f"--ecornn-report={folder}", *limit],
                stdout=file, stderr=subprocess.STDOUT, check=False, cwd=self._config.invocation_params.dir,
                env={**environment, LABELS: str(labels)},
            )  # fmt: skip
        try:
            rows = journal.read(folder / journal.NAME)[1]
        except journal.JournalError:
            rows = []
        expected = len(labels.read_text(encoding="utf-8").splitlines())
        if len(rows) < expected:
            last = one_line(output.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2], 200)
            self.warnings.append(f"a further process timed {len(rows)} of {expected} rows, exit code {done.returncode}: {last}")
        yield from rows

    def _command(self) -> list[str]:
        """pytest as it was called, without options of other plugins: with its plugins, ini-file, paths and our options."""
        config, setting = self._config, self._config.option
        command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={config.rootpath}", f"--import-mode={setting.importmode}"]
        command += [f"-c{config.inipath}"] if config.inipath else []
        command += [f"-p{name}" for name in (*setting.plugins, "no:cacheprovider")]
        command += [f"-o{value}" for value in (*(setting.override_ini or ()), "addopts=")]
        workers = getattr(setting, "numprocesses", None) or 0
        if workers or (config.pluginmanager.hasplugin("xdist") and not self._options.isolate):  # which takes no -n0
            command.append(f"-n{workers}")
        for name, declared in Options.declared().items():
            value = declared.raw(config)
            if name not in _LEFT_OUT and value != declared.default:
                values = value if isinstance(value, list) else [value]
                command += [declared.flag if value is True else f"{declared.flag}={text}" for text in values]
        command.append(f"--ecornn-seed={self._options.seed}")
        return command + (config.args if config.args_source == pytest.Config.ArgsSource.ARGS else [])


def _judged(row: Row, confidence: float) -> Row:
    """The row, whose intervals hold what disturbed all processes alike."""
    for name, margin in EQUIVALENCE_MARGINS.items():
        timing = getattr(row, name)
        for against in timing.against if timing else ():
            if against.replicates:
                ratio = widened(ratio_of(timing, against, confidence), against.doubts)
                against.low, against.high, against.verdict = ratio.low, ratio.high, verdict(ratio, margin)
    return row
