"""report.md: the comparison for people, with everything that a stranger needs to believe or to doubt it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pytest_ecornn.measurement.noise.bounds import describe
from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting import (
    answer_table,
    boundary_sizes,
    comparison_tables,
    gate_tables,
    report_columns,
    standing,
    undecided,
)
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.markdown_syntax import code_block, document, escape, table
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.run_info import RunInfo

_HOW_TO_READ = """\
## How to read it

- **Case**: T time steps, B batch, I input, H hidden, L layers, then dtype and options.
  `pytest --ecornn-bench --ecornn-case CASE` runs it again.
- **Fastest** has the smallest time of one call among the implementations whose results were verified. "a or b" names those
  that the measurement cannot separate, the smallest time first.
- **Ratio** is its time over the baseline's, with the interval that holds it. The two took turns, block by block.
- **Verdict**: *faster* where the whole interval lies below 1 by more than the clock can resolve, *same* where it lies within
  that of 1, *unclear* otherwise. *Others slower*: the baseline is the fastest. *Alone*: nothing else has a proven time.
- **Bold** is certain: the verdict is *faster* or *others slower*, and every other implementation is slower as well, by its
  verdict where the two took turns, else by intervals that do not overlap. Nothing else is bold, in any table or picture."""

_DETAILS = """\
## How to read the details

- **Time** is that of one call: the median over blocks of calls, with its confidence interval. All run the same case, and
  every call gets contents that no call before it had.
- A **ratio** and its interval come from pairs of blocks, so it may differ a little from the quotient of two times in a
  table, which were taken minutes apart. Intervals of ratios are so wide that all of a run hold together, 19 times of 20.
- **Noise floor** is what the same clocks and pairs say of one implementation against itself (an A/A test).
- **Error** is that of the output, the final state or the gradient that came nearest to its limit, as a share of the limit
  (over 1 would fail), and the largest error relative to the reference's largest value. The reference is computed in float64.
  A tensor that could not show a mistake (vanished or chaotic) is uninformative and never counts as passed.
- **Share of floor** is how near the time comes to the least that this machine could take: the fewest bytes and operations
  that any algorithm must move and do, at the measured ceilings. GB/s and GFLOP/s are of the algorithm's own traffic and work.
- **unproven**: some case drawn at random, of the same implementation, cell, dtype and device, failed. Its times are withheld
  here and stored in report.json."""

_DEVICE_ONLY = """
- **Device only** is the same call replayed as a CUDA graph: the GPU's time without Python's, the launches' and the allocator's.
  Up to 16 graphs take turns, on inputs and outputs that together exceed the L2 unless calls are small, and x changes before
  every block.
  Its ratio and verdict come from pairs of their own. **Host time** is how long a call keeps the program until it returns."""

_DISTURBED = """
- **Disturbed** rows were timed while others used the machine. Blocks in which the program's threads waited for a processor were
  measured again, as long as the budget lasted. A verdict rests on pairs of undisturbed blocks where there are enough. Else its
  interval is so wide that it holds whatever the waits have cost."""

_PUBLISHED = """
- **Published** times are of the same case on other systems, as its set names them. **Ratio to published** is the time over the
  fastest of them (under 1 is faster)."""

_STATE_DICT = """
- **weights** in a case's name are those of a state dict, by a checksum: `--ecornn-state-dict FILE` gives them to a run."""


def _details(rows: list[Row]) -> str:
    device_only = _DEVICE_ONLY if "replay" in standing.columns(rows) else ""
    is_disturbed = any(describe(timing) for row in rows for timing in (row.timing, row.replay))
    return (
        _DETAILS
        + device_only
        + (_DISTURBED if is_disturbed else "")
        + (_PUBLISHED if any(row.published for row in rows) else "")
        + (_STATE_DICT if any("-weights" in row.case for row in rows) else "")
    )


def render(run: RunInfo, conclusions: Conclusions, compared: RegressionReport | None = None) -> str:
    rows, answers = conclusions.rows, conclusions.answers
    return document([
        "# Recurrent layers, verified and timed",
        _header(run),
        *([answer_table.markdown_table(answers)] if answers else []),
        _certainty(run, conclusions),
        *gate_tables.section(compared),
        *undecided.section(conclusions.undecided),
        *failures(conclusions),
        *([_HOW_TO_READ] if answers else []),
        _details(rows),
        *comparison_tables.sections(rows, conclusions.unproven),
        *_verification(rows),
        *_skipped(rows, run),
        *_machine(run, rows),
    ])  # fmt: skip


def _header(run: RunInfo) -> str:
    gpu = run.fingerprint.get("gpu")
    facts = [run.started, run.fingerprint.get("cpu"), gpu.get("names") if isinstance(gpu, dict) else gpu]
    first = ", ".join(escape(_value(fact), 120) for fact in facts if fact)
    return f"{first}; the run took {formatting.duration(run.seconds * 1e6)}."


def _certainty(run: RunInfo, conclusions: Conclusions) -> str:
    """The basis of the answers, in lines that the terminal shows too, and the harness's own score."""
    own = run.score.one_line() if run.score else "no score on this machine (pytest --ecornn-selfcheck takes one)"
    lines = [*filter(None, [conclusions.answer_counts]), *conclusions.certainty, f"the harness itself: {own}"]
    return "\n".join(["How sure this is:", "", *(f"- {escape(line)}" for line in lines)])


def _verification(rows: list[Row]) -> Iterator[str]:
    drawn_rows = [row for row in rows if row.kind == "drawn" and row.status != "skipped"]
    fixed_rows = [row for row in rows if row.kind == "fixed" and row.status != "skipped"]
    checked = [row for row in rows if row.kind == "properties" and row.status != "skipped"]
    if drawn_rows or fixed_rows or checked:
        yield "## Verification"
    if drawn_rows:
        yield (
            "Cases drawn at random, each compared with the float64 reference. Fewest informative: of the tensor that was least "
            "often able to show a mistake, how often it was."
        )
        counts = ["Examples", "Fewest informative", "Uninformative", "Refused"]
        header = ["Implementation", "Cell", "Dtype", "Device", "Status", *counts]
        yield table(header, [_drawn_line(row) for row in standing.in_order(drawn_rows)], right=counts)
        yield from boundary_sizes.section(standing.in_order(drawn_rows))
    if checked:
        yield "Properties that need no reference, on cases of their own. Fewest checks: of the property that applied least."
        header = ["Implementation", "Cell", "Dtype", "Device", "Status", "Cases", "Fewest checks", "Not applicable", "Refused"]
        yield table(header, [_drawn_line(row) for row in standing.in_order(checked)], right=header[5:])
    if fixed_rows:
        yield "Cases verified and not timed:"
        header = ["Case", "Implementation", "Status", *comparison_tables.headings(report_columns.ERRORS)]
        lines = [
            [escape(row.case), escape(row.implementation), row.status, *comparison_tables.errors(row)]
            for row in standing.in_order(fixed_rows)
        ]
        yield table(header, lines, right=[column.heading for column in report_columns.ERRORS if column.is_aligned_right])


def _drawn_line(row: Row) -> list[str]:
    tensor, fewest = min(row.informative.items(), key=lambda one: one[1], default=("", 0))
    least = f"{fewest} ({escape(tensor)})" if tensor else "none"
    counts = [str(row.examples), least, str(sum(row.uninformative.values())), str(row.refused)]
    return [*map(escape, (row.implementation, row.cell, row.dtype, row.device, row.status)), *counts]


def failures(conclusions: Conclusions) -> Iterator[str]:
    """The section of what failed, each reason once."""
    if conclusions.failures:
        yield "## Failed"
    for group in conclusions.failures:
        cases = ", ".join(f"{escape(row.case)} ({escape(row.kind)})" for row in group.shown)
        more = f" and {group.more} more" if group.more else ""
        yield f"**{escape(group.implementation)}** on {cases}{more}:"
        yield code_block(group.reason)


def _skipped(rows: list[Row], run: RunInfo) -> Iterator[str]:
    """A line an implementation: how many of its rows, what share of its cases, and why."""
    asked = Counter(row.implementation for row in rows if row.kind != "control")
    lines = [
        [
            escape(name),
            f"{sum(reasons.values())} of {asked[name]}",
            _refused_share(run, name),
            escape(standing.reasons_line(reasons)),
        ]
        for name, reasons in standing.skipped(rows).items()
    ]
    if lines:
        yield "## Skipped"
        yield "What an implementation does not support is not run. A number in brackets counts the rows of a reason."
        yield table(["Implementation", "Rows", "Share of cases", "Reasons"], lines, right=["Rows", "Share of cases"])


def _refused_share(run: RunInfo, name: str) -> str:
    return formatting.percent(run.refused[name]) if name in run.refused else ""


def _machine(run: RunInfo, rows: list[Row]) -> Iterator[str]:
    yield "## Machine"
    yield _facts(run.fingerprint)
    if run.ceilings:
        yield "### Ceilings"
        yield "Measured in this run; the floor of a case is computed from them."
        yield from _ceilings(run.ceilings)
    yield "## Settings"
    timers = dict.fromkeys(row.timing.clock for row in rows if row.timing is not None)
    yield _facts({**run.settings, **({"clock": ", ".join(timers)} if timers else {})})
    yield code_block(run.command)


def _ceilings(ceilings: dict[str, Any]) -> Iterator[str]:
    """Rates by the size of the working set side by side, the others below each other."""
    points = {name: value for name, value in ceilings.items() if name.endswith("_points") and isinstance(value, dict)}
    if others := {name: value for name, value in ceilings.items() if name not in points}:
        yield _facts(others)
    if points:
        names = [f"{escape(_name(name.removesuffix('_points')))} (GB/s)" for name in points]
        sizes = dict.fromkeys(size for rates in points.values() for size in rates)
        lines = [[_size(size), *(_value(rates.get(size, "")) for rates in points.values())] for size in sizes]
        yield table(["Working set", *names], lines, right=["Working set", *names])


def _facts(data: dict[str, Any]) -> str:
    lines = [[escape(name), escape(value)] for name, value in _flat(data)]
    return table(["What", "Value"], lines) if lines else "None recorded."


def _flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in ((str(key), value) for key, value in data.items()):
        name = f"{prefix}{_name(key)}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}: ")
        elif isinstance(value, int) and (key.endswith("_bytes") or prefix == "caches: "):
            yield name.removesuffix(" bytes"), formatting.size(value)
        else:
            yield name, _value(value)


def _name(key: str) -> str:
    name = key.replace("_gb_per_s", " (GB/s)").replace("_gflop_per_s", " (GFLOP/s)")
    return name.replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    if isinstance(value, float):
        return formatting.significant(value)
    return ", ".join(map(_value, value)) if isinstance(value, list | tuple) else str(value)


def _size(count: object) -> str:
    try:
        return formatting.size(float(str(count)))
    except ValueError:
        return escape(count)
