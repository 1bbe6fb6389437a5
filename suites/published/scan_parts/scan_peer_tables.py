"""scan_gpu beside its peers as tables: one for each shape, and one of the bars, which are of the best peer at each shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import relative_error, significant, size
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio, mean_ratio
from pytest_ecornn.suites.published.scan_parts.peer_ways import BCT, BTD, OURS
from pytest_ecornn.suites.published.scan_parts.scan_peers import CALLED, REPLAYED, Row, VariantResult

BARS = {BTD: MinTarget(2.5), BCT: MinTarget(1.6)}
MEAN_BAR = MinTarget(2.0)  # of layout BCT
MEMORY_BAR = MinTarget(2.0)  # the thriftiest peer's peak over scan_gpu's


def render(rows: Sequence[Row]) -> str:
    parts = [
        "## Beside other people's scans",
        "A layer after its input product, forward and backward (the gradient of the pre-activations), B x T x D. Peers make "
        "the gates by torch, eager or compiled by torch.compile, and call their package's scan in the layout that it wants: as "
        "the input product writes it (B,T,D), or transposed (B,C,T), which is given to them so. Times in us, a peer's over "
        f"scan_gpu's with its interval (99 %, {MIN_PAIRS} pairs of blocks of one run): over 1 scan_gpu is faster. Host: until "
        "a call returns; a time as called that is hardly more is the host's. Peak: the most memory of another call, whose "
        "pre-activations are its own, as an input product's are, to be freed or written over when they are needed no more; "
        "less than those and the output nobody can hold. Error: the largest of output and gradient of both calls in a sample "
        "of channels against float64; bold where it is over the harness's limit, and such a peer counts for no bar. Beyond "
        "4,096 steps there is an error without a verdict.",
    ]
    for row in rows:
        parts += [f"### {escape(row.label)}", _table(row)]
    return document([*parts, _bars(rows)])


def _table(row: Row) -> str:
    if reason := _common_reason(row):
        return f"Nothing measured: {escape(reason)}."
    figures = (
        "as called, us", "called, over scan_gpu's", "host, us", "replayed, us", "replayed, over scan_gpu's", "peak",
        "peak over scan_gpu's", "peak over the least", "error",
    )  # fmt: skip
    lines = [[escape(name), *_cells(row, one)] for name, one in row.figures.items()]
    reasons = [
        f"- {escape(name)}: {escape(why)}" for name, one in row.figures.items() if (why := one.reason or one.not_replayed)
    ]
    return document([table(("way", *figures), lines, figures), "\n".join(reasons)]).strip()


def _common_reason(row: Row) -> str:
    """Returns the one reason why no way has been measured; empty where there is none or several."""
    reasons = {one.reason for one in row.figures.values()}
    return next(iter(reasons)) if len(reasons) == 1 else ""


def _least_bytes(row: Row) -> int:
    """Returns the bytes of the pre-activations and the output; the gradient may overwrite the pre-activations."""
    return row.shape.bytes_of(row.shape.gates + 1)


def _cells(row: Row, figures: VariantResult) -> Iterator[str]:
    yield from _times(figures, CALLED)
    yield "-" if figures.host_us is None else significant(figures.host_us)
    yield from _times(figures, REPLAYED)
    yield "-" if figures.peak_bytes is None else size(figures.peak_bytes)
    own = row.figures[OURS].peak_bytes
    yield significant(figures.peak_bytes / own) if own and figures.peak_bytes and figures is not row.figures[OURS] else "-"
    yield "-" if figures.peak_bytes is None else significant(figures.peak_bytes / _least_bytes(row))
    if figures.reason:
        yield "-"
    else:
        error = relative_error(figures.error)
        yield f"**{error}**" if figures.is_right is False else error


def _times(figures: VariantResult, way: str) -> Iterator[str]:
    yield significant(figures.time_us[way][0], 4) if way in figures.time_us else "-"
    yield format_ratio(figures.over_ours[way]) if way in figures.over_ours else "-"


def _bars(rows: Sequence[Row]) -> str:
    """The lowest over all shapes of each figure, and the geometric mean that a bar is of."""
    lines: list[list[str]] = []
    for layout, bar in BARS.items():
        for way in (CALLED, REPLAYED):
            found = [(best, row) for row in rows if (best := best_ratio(row, layout, way))]
            label = f"best {layout} peer's time over scan_gpu's, {way}"
            lines += _lowest(label, bar, found)
            if layout == BCT and found:
                mean = mean_ratio([ratio for ratio, _ in found])
                lines.append(
                    [f"the same, geometric mean of {len(found)}", format_ratio(mean), "-", str(MEAN_BAR), MEAN_BAR.is_met(mean)]
                )
    peaks = [(Ratio(peak, peak, peak), row) for row in rows if (peak := memory_ratio(row))]
    lines += _lowest("thriftiest peer's peak memory over scan_gpu's", MEMORY_BAR, peaks, lambda one: significant(one.ratio))
    return document(["### Bars", table(("lowest of", "measured", "where", "bar", "holds"), lines)]).strip() if lines else ""


def _lowest(
    label: str, bar: MinTarget, found: Sequence[tuple[Ratio, Row]], text: Callable[[Ratio], str] = format_ratio
) -> Iterator[list[str]]:
    if found:
        ratio, row = min(found, key=lambda one: one[0].ratio)
        yield [label, text(ratio), escape(row.label), str(bar), bar.is_met(ratio)]


def best_ratio(row: Row, layout: str, way: str) -> Ratio | None:
    """Returns the time of a layout's fastest peer over scan_gpu's; None where either has none that counts."""
    peers = [one for one in _counted(row) if one.layout == layout and way in one.over_ours]
    return min(peers, key=lambda one: one.time_us[way][0]).over_ours[way] if peers else None


def memory_ratio(row: Row) -> float | None:
    """The least peak of a peer, of any layout, over scan_gpu's."""
    peaks, own = [one.peak_bytes for one in _counted(row) if one.peak_bytes], row.figures[OURS].peak_bytes
    return min(peaks) / own if peaks and own else None


def _counted(row: Row) -> list[VariantResult]:
    """Peers' that are not known to be wrong; none where scan_gpu itself is."""
    correct = {name: one for name, one in row.figures.items() if not one.reason and one.is_right is not False}
    return [one for name, one in correct.items() if name != OURS] if OURS in correct else []
