"""The README's chart: kernels, and auto in language models and DeepBench, beside cuDNN and the best peer, from stored reports.

`python -m pytest_ecornn.suites.published.front_chart --reports FOLDER FOLDER` writes chart.svg into the first folder. A report
is the first folder's that has one, and each group names its card. Nothing is measured and no case is left out: each series is
every case of a named set that has a time in its report.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.pictures.ratio_chart import Group, Series, render_chart
from pytest_ecornn.reporting.stored.load import load_report
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import deepbench, persistent, sparse, stored
from pytest_ecornn.suites.published.common.bars import mean_ratio
from pytest_ecornn.suites.published.common.parted import from_json
from pytest_ecornn.suites.published.common.report_rows import CALLED, REPLAYED, TIMING_MODES, CaseRows
from pytest_ecornn.suites.published.language_model_parts import throughput
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import BASELINE
from pytest_ecornn.suites.published.persistent_kernel_parts import persistent_flashrnn
from pytest_ecornn.suites.published.scan_kernel_parts import scan_peers

REPORTS = ("persistent", "persistent_kernel", "sparse", "scan_kernel", "language_model", "deepbench")
FOLDERS = [Path("reports/h200"), Path("reports/h100")]
_TIMING_LABELS = {CALLED: "as called", REPLAYED: "device only"}
_COMMITS_A_LINE = 3
_DENSITIES = (0.1, 0.3)  # of the published grid; others were not measured at every size
_NOTES = (
    "As called: with the host's share of a call. Device only: the same call replayed as a CUDA graph.",
    "Fastest other: of cuDNN, cuSPARSE and a dense product (GEMM) per step. Lost: the whole interval lies below 1x.",
    "Cases without a time do not fit on chip or were not reached. All results were compared with float64 beforehand;",
    "scans of 65,536 steps have an error, but no verdict.",
)


class StoredReport(NamedTuple):
    """machine: its fingerprint. rows: of a run; of a suite a list for each of its parts, as its JSON has them."""

    machine: dict[str, Any]
    rows: Any


def stored_reports(folders: Sequence[Path]) -> dict[str, StoredReport]:
    """Each report, of the first folder that has one. Raises ReportError for a file that cannot be read."""
    reports = {}
    for name, path in stored_paths(folders).items():
        if name in stored.PAGES:
            report = load_report(path)
            reports[name] = StoredReport(report.run.machine, report.rows)
        else:
            content = json.loads(files.read(path))
            reports[name] = StoredReport(content["machine"], content["rows"])
    return reports


def stored_paths(folders: Sequence[Path]) -> dict[str, Path]:
    """The file of each report: of the first folder that has one, or else as the first would have it."""
    paths = {name: [stored.file_of(folder, name) for folder in folders] for name in REPORTS}
    return {name: next(filter(Path.exists, of_report), of_report[0]) for name, of_report in paths.items()}


def draw(folders: Sequence[Path]) -> str:
    """The chart of folders of reports. Raises ReportError for a file that cannot be read."""
    reports = stored_reports(folders)
    cards = {name: " or ".join(report.machine["gpu"]["names"]) for name, report in reports.items()}
    groups = [Group(f"{title}, {cards[name]}", series(reports[name].rows)) for title, name, series in _groups()]
    return render_chart("Speedup on one GPU: the baseline's time over ours", groups, [*_NOTES, *_sources(reports)]).document()


def _groups() -> list[tuple[str, str, Callable[[Any], list[Series]]]]:
    """Returns the title of each group, the report that it is of, and what makes its series of that report's rows."""
    return [
        ("persistent_gpu over cuDNN: LSTM and GRU in float16, bfloat16, TF32 and float32", "persistent", persistent_series),
        ("persistent_gpu over FlashRNN: LSTM in bfloat16, H 768, B 16, T 1,024", "persistent_kernel", flashrnn_series),
        ("sparse_persistent_gpu: pruned tanh RNN, forward, float32 and float16, device only", "sparse", sparse_series),
        ("scan_gpu over the fastest other scan: minGRU and minLSTM, forward and backward", "scan_kernel", scan_series),
        ("auto over torch.nn.LSTM: training steps of EcoRNN's language models", "language_model", language_model_series),
        ("auto over cuDNN: DeepBench's layers, device only where a call is short enough", "deepbench", deepbench_series),
    ]


def persistent_series(rows: Sequence[Row]) -> list[Series]:
    """Forward, forward and backward, and decoding, each as called and replayed."""
    times = persistent.rows_of(rows)
    sets = [(name, persistent.Group(mode, persistent.ALL, False)) for mode, name in persistent.PASSES.items()]
    sets.append(("decoding, T 1 and 16", persistent.Group("inference", persistent.ALL, True)))
    series = []
    for (name, group), timing in product(sets, TIMING_MODES):
        of_cases = [times.get(case) for case in filter(group.has, persistent.origins())]
        ratios = [row.ratio(persistent.OURS, persistent.BASELINE, timing) if row else None for row in of_cases]
        series.append(_series(f"{name}, {_TIMING_LABELS[timing]}", ratios))
    return series


def flashrnn_series(rows: dict[str, Any]) -> list[Series]:
    """One case a pass, as called: all that was measured."""
    measured = from_json(list[persistent_flashrnn.Row], rows["flashrnn"])
    names = persistent.PASSES
    return [_series(f"{names[row.mode]}, as called", [row.theirs_over_ours]) for row in measured]


def sparse_series(rows: Sequence[Row]) -> list[Series]:
    """Over cuDNN, over the fastest baseline, and over persistent_gpu with the zeros stored, by density."""
    times = sparse.rows_of(rows)
    baselines: dict[str, Callable[[CaseRows], Ratio | None]] = {
        "over cuDNN": lambda row: row.ratio(sparse.OURS, sparse.CUDNN, REPLAYED),
        "over the fastest other": lambda row: best[1] if (best := sparse.fastest_baseline(row)) else None,
        "over persistent_gpu": sparse.speedup_over_dense,
    }
    return [
        _series(
            f"{name}, density {100 * density:g} %",
            [ratio(times[case]) if case in times else None for case in sparse.origins() if case.density == density],
        )
        for name, ratio in baselines.items()
        for density in _DENSITIES
    ]


def scan_series(rows: dict[str, Any]) -> list[Series]:
    """Over the fastest peer of either layout that is not known to be wrong, as called and replayed."""
    shapes = from_json(list[scan_peers.Row], rows["peers"])

    def over_best_peer(row: scan_peers.Row, timing: str) -> Ratio | None:
        ratios = (ratio for layout in scan_peers.BARS if (ratio := scan_peers.best_ratio(row, layout, timing)))
        return min(ratios, key=lambda ratio: ratio.ratio, default=None)

    return [_series(label, [over_best_peer(row, timing) for row in shapes]) for timing, label in _TIMING_LABELS.items()]


def language_model_series(rows: dict[str, Any]) -> list[Series]:
    """Both models in each vocabulary and precision, as called and replayed."""
    measured = from_json(list[throughput.Row], rows["words"])
    labels = {throughput.EAGER: _TIMING_LABELS[CALLED], throughput.GRAPH: "one CUDA graph a step"}
    return [
        _series(label, [row.arms["auto"].over.get(BASELINE) for row in measured if row.configuration.way == step_kind])
        for step_kind, label in labels.items()
    ]


def deepbench_series(rows: Sequence[Row]) -> list[Series]:
    """Training and inference problems, by pass and precision."""
    passes = {mode: name.removeprefix("training ") for mode, name in deepbench.PASSES.items()}
    return [
        replace(series, label=f"{part.name} set, {passes[variant.mode]}, {variant.precision}")
        for part in deepbench.parts_of(rows)[:2]
        for variant in part.variants
        if (series := deepbench.series_of(part, "auto", variant))
    ]


def _series(label: str, ratios: Sequence[Ratio | None]) -> Series:
    """Returns the series of the cases that have a ratio. Raises ValueError where none has."""
    measured = [ratio for ratio in ratios if ratio is not None]
    if not measured:
        raise ValueError(f"expected at least one measured case of {label!r}, got none of {len(ratios)}")
    return Series(label, measured, mean_ratio(measured), planned=len(ratios))


def _sources(reports: dict[str, StoredReport]) -> list[str]:
    """Driver and versions, and for each report its commit with that commit's date."""
    machines = {name: report.machine for name, report in reports.items()}
    software = dict.fromkeys(
        f"Driver {machine['gpu']['driver']}, CUDA {machine['gpu']['cuda']}, torch {machine['packages']['torch']}"
        for machine in machines.values()
    )
    commits = [
        f"{name} {machine['commit'][:7]} ({machine['benchmark_commit_info']['time'][:10]})"
        for name, machine in machines.items()
    ]
    parts = (commits[at : at + _COMMITS_A_LINE] for at in range(0, len(commits), _COMMITS_A_LINE))
    lines = [", ".join(part) for part in parts]
    return [f"{'; '.join(software)}.", "Measured at commit: " + lines[0], *lines[1:]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="front_chart", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reports", type=Path, nargs="+", default=FOLDERS, metavar="FOLDER", help="where the reports are")
    folders: list[Path] = parser.parse_args(arguments).reports
    try:
        files.write(folders[0] / "chart.svg", draw(folders))
    except (files.ReportError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
