"""summary.svg: how many times as fast as the baseline each implementation is on each case; of a run without times, verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.answer import Answer
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.case_chart import Band, Mark, add_bands
from pytest_ecornn.reporting.pictures.column import LINE, MARGIN, MIDDLE, SIZE, WIDTH, PictureColumn
from pytest_ecornn.reporting.pictures.text_width import cut, width
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import AGAIN, BaselineRatio, Row
from pytest_ecornn.results.run_info import RunInfo
from pytest_ecornn.results.statistics import Ratio

MAX_ROWS = 64  # of all bands; one band is shown whatever it has
_MAX_FAILURES = 4  # that are named
_MAX_NAME, _MAX_BASELINES = 24, 2  # of baselines in a line
_COLOURS = {"passed": "blue", "failed": "red", "unproven": "ochre", "refused": "weak"}  # of how rows ended
_MAX_REASON, _MAX_BESIDE = 200, 16  # of a refusal, of another baseline beside a name
_ITSELF = Ratio(1.0, 1.0, 1.0)
_ENDINGS = {"skipped": "refused", "passed": "not timed"}
# In pixels.
_ROW, _BAR, _BETWEEN = 24, 12, 14
_NAME, _COUNT = 186, 70  # widths of columns


def render(run: RunInfo, conclusions: Conclusions) -> str:
    """Returns the picture. A run that has no time that may be shown gets one of verdicts alone."""
    rows, unproven = conclusions.rows, conclusions.unproven
    timed = [row for row in rows if row.kind == "benchmark"]
    if any(standing.is_publishable(row, unproven) for row in timed):
        return _speeds(run, conclusions, timed)
    column = PictureColumn("Checks that passed, failed or were refused" if rows else "Nothing was run")
    column.write("Nothing was timed." if not timed else "No time may be shown: nothing that was timed is proven.")
    _write_head(column, run, conclusions)
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        status = standing.status(row, unproven)
        counts.setdefault(row.implementation, Counter())["refused" if status == "skipped" else status] += 1
    _add_counts(column, dict(sorted(counts.items())))
    return column.picture().document()


def _speeds(run: RunInfo, conclusions: Conclusions, timed: list[Row]) -> str:
    idle = _idle(timed)
    refused = _refused_cases(timed)
    shown_rows = [row for row in timed if row.implementation not in idle and row.case not in refused]
    bands = bands_of(shown_rows, conclusions.answers, conclusions.unproven)
    shown = select(bands)
    baselines = _baseline_names(bands)
    column = PictureColumn(f"How many times as fast as {baselines}")
    _write_head(column, run, conclusions)
    column.write(f"{conclusions.answer_counts}. Bold: certainly the fastest.")
    add_bands(column, shown, baselines)
    confidence = [line for line in conclusions.basis if line.startswith("confidence")]
    column.write("; ".join(["Bars are intervals, with an arrow where one goes on", *confidence]) + ".")
    if len(shown) < len(bands):
        column.write(
            f"{len(shown)} of {len(bands)} cases are shown: failures first, then the largest certain differences. "
            "report.html has all of them."
        )
    if refused:
        column.write(f"{formatting.count(len(refused), 'case')} not shown: refused by every implementation.")
    if idle:
        column.write(f"Refused every case: {', '.join(formatting.one_line(name, _MAX_NAME) for name in idle)}.")
    return column.picture().document()


def select(bands: Sequence[Band]) -> list[Band]:
    """Returns bands of at most MAX_ROWS rows: those with failures first, then those of the largest certain differences."""
    selected: list[Band] = []
    rows = 0
    for band in sorted(bands, key=lambda one: (not one.has_failed, -one.difference)):
        rows += len(band.marks)
        if selected and rows > MAX_ROWS:
            break
        selected.append(band)
    return selected


def _write_head(column: PictureColumn, run: RunInfo, conclusions: Conclusions) -> None:
    """The machine, how the rows ended, and what failed."""
    column.write(", ".join(filter(None, (run.machine_name, run.started))))
    column.write(conclusions.counts[0])
    lines = conclusions.failure_lines
    for line in lines[:_MAX_FAILURES]:
        column.write(line, fill="red" if line.startswith("failed") else "ochre", max_lines=2)
    if len(lines) > _MAX_FAILURES:
        column.write(f"{len(lines) - _MAX_FAILURES} more such lines are in report.md.")
    column.y += 4


def _idle(timed: Sequence[Row]) -> list[str]:
    """Implementations that refused every case."""
    busy = {row.implementation for row in timed if row.status != "skipped"}
    return sorted({row.implementation for row in timed} - busy)


def _refused_cases(timed: Sequence[Row]) -> set[str]:
    """Cases that every implementation refused."""
    return {row.case for row in timed} - {row.case for row in timed if row.status != "skipped"}


def _baseline_names(bands: Sequence[Band]) -> str:
    """The names of all cases' baselines, or "the baseline" where those are many."""
    names = list(dict.fromkeys(band.baseline for band in bands if band.baseline))
    if not 1 <= len(names) <= _MAX_BASELINES:
        return "the baseline"
    return " or ".join(formatting.one_line(name, _MAX_NAME) for name in names)


def _add_counts(column: PictureColumn, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Adds a row for each implementation: its counts by the words of _COLOURS, as a bar and as numbers."""
    words = [word for word in _COLOURS if any(of_one.get(word) for of_one in counts.values())]
    names = {name: cut(formatting.one_line(name), _NAME, SIZE) for name in counts}
    left = MARGIN + max((width(name, SIZE) for name in names.values()), default=0.0) + _BETWEEN
    most = max((sum(of_one.values()) for of_one in counts.values()), default=0)
    scale = (WIDTH - MARGIN - _COUNT * len(words) - left) / max(most, 1)
    ends = [WIDTH - MARGIN - _COUNT * number for number in reversed(range(len(words)))]
    for end, word in zip(ends, words, strict=True):
        column.parts.append(svg.text(end, column.y + SIZE, word, anchor="end", size=SIZE, fill=_COLOURS[word], is_bold=True))
    column.y += LINE if words else 0
    for number, (name, of_one) in enumerate(counts.items()):
        column.parts.append(svg.rectangle(0, column.y, WIDTH, _ROW, ("band", "page")[number % 2], role="band"))
        column.parts.append(svg.text(MARGIN, column.y + _ROW / 2 + MIDDLE, names[name], size=SIZE))
        _add_bar(column, [(word, of_one.get(word, 0)) for word in words], left, scale)
        for end, word in zip(ends, words, strict=True):
            count = svg.text(end, column.y + _ROW / 2 + MIDDLE, of_one.get(word, 0), anchor="end", size=SIZE)
            column.parts.append(count)
        column.y += _ROW


def _add_bar(column: PictureColumn, parts: Sequence[tuple[str, int]], left: float, scale: float) -> None:
    for word, count in parts:
        if count:
            top = column.y + (_ROW - _BAR) / 2
            column.parts.append(svg.rectangle(left, top, count * scale, _BAR, _COLOURS[word], role="bar"))
            left += count * scale


def bands_of(rows: Sequence[Row], summary: Sequence[Answer], unproven: Collection[standing.Key]) -> list[Band]:
    """Returns a band for each case, in their order. summary: the cases' answers, of which the certainly fastest is bold."""
    by_case = standing.by_case(standing.in_order(rows))
    bold: dict[str, dict[str, str]] = {}
    for answer in summary:
        bold.setdefault(answer.case, {})[answer.column] = answer.bold
    return [_band(case, of_case, bold.get(case, {}), unproven) for case, of_case in by_case.items()]


def _band(case: str, rows: Sequence[Row], bold: dict[str, str], unproven: Collection[standing.Key]) -> Band:
    """rows: all of the case. bold: the certainly fastest by column."""
    baselines = standing.baselines(rows)
    marks = [mark for row in rows for mark in _marks(row, baselines, bold, unproven)]
    base = next(iter(baselines), "")
    if base and all(row.implementation != base for row in rows):
        compared = next(ratio for row in rows if (ratio := standing.ratio_to(row, base)))
        marks.insert(0, Mark(base, "baseline", _ITSELF, formatting.duration(compared.time_us)))
    details = [word for word in (rows[0].mode, rows[0].device) if word not in case.split("-")]
    return Band(case, ", ".join(details), base, marks)


def _marks(row: Row, baselines: Sequence[str], bold: dict[str, str], unproven: Collection[standing.Key]) -> Iterator[Mark]:
    """Yields a row's mark, and one below it of the device alone where that was measured."""
    if standing.is_publishable(row, unproven) is None:
        status = standing.status(row, unproven)
        verdict = _ENDINGS.get(status, status)
        reason = formatting.one_line(row.reason.partition(AGAIN)[0], _MAX_REASON)
        yield Mark(row.implementation, verdict, note=f"{verdict}: {reason}" if reason else verdict)
    for column, words in standing.COLUMNS.items():
        if timing := standing.is_publishable(row, unproven, column):
            verdict, speed, note = _speed(row, baselines, column, unproven)
            of = standing.headline(row, baselines, column)
            beside = f" / {formatting.one_line(of.baseline, _MAX_BESIDE)}" if of and of.baseline != baselines[0] else ""
            is_below = column != "timing"
            name, is_bold = (words if is_below else row.implementation) + beside, bold.get(column) == row.implementation
            yield Mark(name, verdict, speed, formatting.duration(timing.time_us), note, is_bold, is_below)


def _speed(
    row: Row, baselines: Sequence[str], column: str, unproven: Collection[standing.Key]
) -> tuple[str, Ratio | None, str]:
    """The verdict, the speed, and what stands in its place where there is none."""
    if row.implementation in baselines[:1]:
        return "baseline", _ITSELF, ""
    ratio = standing.headline(row, baselines, column)
    if ratio is None:
        return "not compared", None, "timed alone" if not baselines else "not compared"
    verdict = standing.verdict(row, ratio, unproven)
    return "unclear" if verdict == "unproven baseline" else verdict, _inverse(ratio), f"{verdict}, without a finite ratio"


def _inverse(ratio: BaselineRatio) -> Ratio:
    """How many times as fast as the baseline. What is not above 0 becomes infinite."""
    return Ratio(*(1 / value if value > 0 else inf if value <= 0 else value for value in (ratio.ratio, ratio.high, ratio.low)))
