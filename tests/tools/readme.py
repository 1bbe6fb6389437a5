"""Keeps what the documents quote equal to its source: options, an excerpt of a report, measured speedups, the architecture.

`python -m tests.tools.readme` writes all of it anew; tests hold it equal.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from pytest_ecornn import load_report, plugin
from pytest_ecornn.reporting.pictures.ratio_chart import Series
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.run.options import Option, Options
from pytest_ecornn.suites.published import front_chart, staleness, stored
from pytest_ecornn.suites.published.streaming_parts.stream_calls import BOUND, ONNX, OUT, TORCH
from pytest_ecornn.system import machine
from tests.tools import architecture_drawing

ROOT = Path(__file__).parents[2]
PATHS = front_chart.stored_paths([ROOT / folder for folder in front_chart.FOLDERS])
STEPS = ROOT / "reports/cpu/streaming.json"
EXCERPTED = ("lstm-", "mingru-")
_OPTION_HEAD = ["| option | default | meaning |", "| --- | --- | --- |"]
_DEFAULT = re.compile(r" Default: (.+?)\.?$")


def options(kind: type[Options] = Options) -> str:
    """A table for each group, as they are declared."""
    groups = groupby(kind.declared().values(), lambda option: option.group)
    return "\n\n".join("\n".join([f"### {title}", "", *_OPTION_HEAD, *map(_row, group)]) for title, group in groups)


def ini_values() -> str:
    """A table of the ini-file's values."""
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    rows = [f"| `{name}` | {kind} | {_cell(meaning)} |" for name, (meaning, kind, _) in parser._inidict.items()]
    return "\n".join(["| value | type | meaning |", "| --- | --- | --- |", *rows])


def _row(option: Option) -> str:
    settings, text = option.settings, option.settings["help"].replace("%%", "%")
    default = _DEFAULT.search(text)
    shown = default[1] if default else "off" if settings.get("action") == "store_true" else ""
    value = settings.get("metavar") or ("{" + ",".join(settings["choices"]) + "}" if "choices" in settings else "")
    value = f"[{value}]" if settings.get("nargs") == "?" else value
    return f"| `{_escape(f'{option.flag} {value}'.strip())}` | {_cell(shown)} | {_cell(_DEFAULT.sub('', text))} |"


def _cell(text: str) -> str:
    """Text of a table's cell, in which options are code."""
    return re.sub(r"--ecornn-[\w-]+", r"`\g<0>`", _escape(text))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def excerpt() -> str:
    """The answers of the stored report of a CPU, for some cells."""
    report = (ROOT / "reports/cpu/report.md").read_text()
    header, rule, *rows = report.partition("\n| ")[2].partition("\n\n")[0].splitlines()
    chosen = [row for row in rows if row.removeprefix("| ").startswith(EXCERPTED)]
    return "\n".join([f"| {header}", rule, *chosen])


def speedups() -> str:
    """persistent_gpu beside cuDNN, a row for each set of cases."""
    report = load_report(PATHS["persistent"])
    (card,) = report.run.gpu_names
    series = {one.label: one for one in front_chart.persistent_series(report.rows)}
    labels = dict.fromkeys(label.rpartition(", ")[0] for label in series)
    rows = [_speedup(label, *(series[f"{label}, {column}"] for column in ("device only", "as called"))) for label in labels]
    columns = "device only | lowest case | as called | lowest case | cases"
    head = f"| `persistent_gpu` on one {card}, times as fast as cuDNN | {columns} |"
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", *rows, *ages()])


def steps() -> str:
    """Single steps on a CPU, the smallest stored layer of each use that has a name."""
    report = stored.load(STEPS)
    rows = {row.case.name: row for row in reversed(report.rows["steps"]) if row.case.name}
    names = {"torch.nn": TORCH, "ONNX Runtime": ONNX, "`stream`": OUT, "`stream.bound`": BOUND}
    lines = [
        f"| one step, us, on a thread of {report.machine['cpu']} | {' | '.join([*names, 'times as fast as torch.nn'])} |",
        "| --- |" + " ---: |" * (len(names) + 1),
    ]
    for name, row in reversed(rows.items()):
        layer = str(row.case).partition(", ")[0].replace("lstm", "LSTM").replace("gru", "GRU")
        times = [significant(row.times[candidate].time_us[0]) for candidate in names.values()]
        lines.append(f"| {name}, {layer} | {' | '.join(times)} | **{significant(row.times[BOUND].over[TORCH].ratio, 2)}** |")
    return "\n".join(lines)


def ages(until: str = "HEAD") -> list[str]:
    """Lines on the reports of table and chart of whose kernels files changed until a commit, the last that changed one."""
    until = machine.git(ROOT, "log", "-1", "--format=%h", "--abbrev=7", until, "--", *staleness.KERNEL_FOLDERS) or until
    found = {name: staleness.of_report(path, until) for name, path in PATHS.items()}
    stale = [(name, replace(age, suite=())) for name, age in found.items() if age and age.kernels]
    others = [f"{name}: {age.commit[:7]}, {len(age.kernels)}" for name, age in stale[1:]]
    listed = "; ".join([*(f"{name}: {age}" for name, age in stale[:1]), *others])
    return ["", *textwrap.wrap(f"Older than the kernels of {until}. {listed}.", 128)] if stale else []


def _speedup(label: str, device_only: Series, as_called: Series) -> str:
    return f"| {label} | {_figures(device_only, '**')} | {_figures(as_called)} | {len(as_called.ratios)} |"


def _figures(series: Series, mark: str = "") -> str:
    """The geometric mean, between marks, with its interval; and the lowest case."""
    mean, lowest = series.mean, min(ratio.ratio for ratio in series.ratios)
    interval = f"[{significant(mean.low)}, {significant(mean.high)}]"
    return f"{mark}{significant(mean.ratio, 2)}{mark} {interval} | {significant(lowest)}"


QUOTES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"speedups": speedups, "steps": steps},
    "docs/index.md": {"speedups": speedups, "steps": steps},
    "docs/cli.md": {"options": options, "ini": ini_values},
    "docs/quickstart.md": {"excerpt": excerpt},
}


def quoted(name: str) -> str:
    """The page with its marked parts made anew."""
    text = (ROOT / name).read_text()
    for marker, render in QUOTES[name].items():
        text = _replaced(text, marker, render())
    return text


def _replaced(text: str, marker: str, content: str) -> str:
    """Raises ValueError where the page lacks the marker."""
    start, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->"
    if start not in text or end not in text:
        raise ValueError(f"expected {start.strip()} and {end} around what is quoted")
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{content}\n\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    for page in QUOTES:
        (ROOT / page).write_text(quoted(page))
    (ROOT / "docs/architecture.svg").write_text(architecture_drawing.drawing())
