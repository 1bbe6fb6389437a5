"""Refits the tolerance rule: random correct implementations, judged by the rule, must never fail and seldom come near.

`python -m pytest_ecornn.suites.tolerance --comparisons 24000` draws cases as the equivalence suite does, runs every correct
implementation at hand on each (this project's, torch's, and the plain loop in another order of summation), and writes how
large the error was for its limit, and which factor on the yardstick's error each comparison would have needed.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.strategies import cases
from pytest_ecornn.contract import DTYPES, Case, Declared, SupportedCases, cells
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.reporting import files
from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.run.discovery import ImplementationInfo, discover
from pytest_ecornn.verification import calls, comparison, verification, yardstick
from pytest_ecornn.verification.layer_rules import layer_rule
from pytest_ecornn.verification.yardstick import Permutation

_OTHER_ORDER = 1001  # a permutation that no yardstick uses


@dataclass
class Tally:
    """Results of one kind of comparison. needed: the factors on the yardstick's rms and maximum that would just pass.

    differing, bias: for elements of 16 bits, each one's largest share over its limit.
    """

    shares: list[float] = field(default_factory=list)
    needed_rms: list[float] = field(default_factory=list)
    needed_maximum: list[float] = field(default_factory=list)
    differing: float = 0.0
    bias: float = 0.0
    failures: list[str] = field(default_factory=list)
    uninformative: int = 0


Tallies = dict[tuple[str, str, str], Tally]


def collect(wanted: int, number: int) -> Tallies:
    """At least `wanted` comparisons of outputs and as many of gradients, spread evenly over cells and dtypes."""
    tallies: Tallies = defaultdict(Tally)
    found = discover([])
    while min(_count(tallies, "outputs"), _count(tallies, "gradients")) < wanted:
        for cell in cells.names():
            for dtype in DTYPES:
                number += 1
                _collect_some(found, cell, dtype, number, tallies)
    return tallies


def _count(tallies: Tallies, group: str) -> int:
    return sum(len(tally.shares) for key, tally in tallies.items() if key[0] == group)


def _collect_some(found: dict[str, ImplementationInfo], cell: str, dtype: str, number: int, tallies: Tallies) -> None:
    @seed(number)
    @settings(max_examples=8, phases=(Phase.generate,), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases(SupportedCases((cell,), (dtype,)), cell, dtype))
    def draw(case: Case) -> None:
        wanted = verification.ReferenceResult(contents.problem(case))
        for name, tensors, declared in _correct(found, case, wanted):
            for one in wanted.compare(tensors, declared):
                group = "gradients" if one.tensor.startswith("grad") else "outputs"
                _add(tallies[group, dtype, name], case, one, wanted, tensors, declared)

    draw()


def _correct(
    found: dict[str, ImplementationInfo], case: Case, wanted: verification.ReferenceResult
) -> Iterator[tuple[str, Any, Declared]]:
    """Each correct implementation's tensors: the discovered ones, and the plain loop on permuted indices."""
    for name, one in found.items():
        if one.cls().refusal(case) is None:
            layer = one.cls().build(case, wanted.problem.weights)
            yield name, calls.run(layer, wanted.problem), one.cls().declared
    for declared in (Declared("storage"), Declared("float32"), Declared("float32", "storage")):
        permutation = Permutation.sample(case, _OTHER_ORDER)
        permuted = permutation.problem(wanted.problem, units=0)
        tensors = calls.run(ReferenceLoop(declared).build(case, permuted.weights), permuted)
        undone = {n: t if t is None else permutation.undo(n, t) for n, t in tensors.items()}
        yield f"loop, {declared.carry}, gate gradients {declared.gate_gradients}", undone, declared


def _add(
    tally: Tally,
    case: Case,
    one: comparison.TensorCheck,
    wanted: verification.ReferenceResult,
    tensors: Any,
    declared: Declared,
) -> None:
    if one.status == "uninformative":
        tally.uninformative += 1
        return
    tally.shares.append(one.share)
    if one.status == "failed":
        tally.failures.append(f"{case}: {one.message}")
    reference, yard = (
        wanted.tensors[one.tensor],
        wanted.baseline_errors(declared, yardstick.run_counts(wanted.tensors["output"].numel())[-1])[one.tensor],
    )
    rule = layer_rule(case, one.tensor, reference.shape)
    values = comparison.to_float64(tensors[one.tensor], reference.device)
    found = comparison.errors(values, reference, rule.slices, wanted.valid(one.tensor), rule.subnormal, rule.dtype)
    for label, error in found.items():
        own = yard.get(label, comparison.NO_ERROR)
        floors = comparison.limits(rule, comparison.NO_ERROR, error)
        tally.needed_rms.append(_factor(error.rms - floors.rms, own.rms))
        tally.needed_maximum.append(_factor(error.maximum - floors.maximum, own.maximum))
        limits = comparison.limits(rule, own, error)
        tally.differing = max(tally.differing, error.shares.differing / limits.differing)
        tally.bias = max(tally.bias, error.shares.bias / limits.bias)


def _factor(excess: float, own: float) -> float:
    return 0.0 if excess <= 0 else excess / own if own else float("inf")


def render(tallies: Tallies, seconds: float) -> str:
    text = [
        "Random correct implementations on drawn cases, judged by the rule of `pytest_ecornn/verification/comparison.py`:",
        f"rms <= {comparison.RMS_FACTOR:g} x yardstick + {comparison.RMS_FLOOR:g} eps / sqrt(n), "
        f"maximum <= {comparison.MAX_FACTOR:g} x yardstick + {comparison.MAX_FLOOR:g} eps, whole tensor and each slice; "
        f"both plus {comparison.SUM_FLOOR:g} eps sqrt(terms) (1 + {comparison.FEW_SUMS:g} / n) of float32 (float64) "
        "for the longest sums.",
        "Share: worst error over its limit (1 would be a false alarm). Factor needed: on the yardstick's error, floors kept.",
        "Of 16 bits also, each over its limit: the largest share of elements that differ from the rounded reference, and bias.",
        f"Made by `make tolerance` in {seconds:.0f} s.",
    ]
    header = (
        "tensors", "dtype", "implementation", "comparisons", "false alarms", "informative", "share, 99.9 %", "share, largest",
        "rms factor needed", "maximum factor needed", "differing", "bias",
    )  # fmt: skip
    lines = [[*key, *_figures(tally)] for key, tally in sorted(tallies.items())]
    lines += [[f"**{group}**", "all", "all", *_figures(_merged(tallies, group))] for group in ("outputs", "gradients")]
    return document(["# The tolerance rule, fitted", "\n".join(text), table(header, lines)])


def _merged(tallies: Tallies, group: str) -> Tally:
    merged = Tally()
    for key, tally in tallies.items():
        if key[0] == group:
            merged.shares += tally.shares
            merged.needed_rms += tally.needed_rms
            merged.needed_maximum += tally.needed_maximum
            merged.failures += tally.failures
            merged.differing, merged.bias = max(merged.differing, tally.differing), max(merged.bias, tally.bias)
            merged.uninformative += tally.uninformative
    return merged


def _figures(tally: Tally) -> list[str]:
    count = len(tally.shares)
    shares, informative = np.array(tally.shares or [0.0]), count / max(1, count + tally.uninformative)
    needed = (max(factors, default=0) for factors in (tally.needed_rms, tally.needed_maximum))
    others = (np.quantile(shares, 0.999), shares.max(), *needed, tally.differing, tally.bias)
    return [str(count), str(len(tally.failures)), f"{informative:.1%}", *(f"{value:.2f}" for value in others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=24_000, help="of outputs, and as many of gradients")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=None, help="a Markdown file; standard output unless given")
    given_ = parser.parse_args()
    start = time.monotonic()
    tallies = collect(given_.comparisons, given_.seed)
    text = render(tallies, time.monotonic() - start)
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    print(*failures[:20], text, sep="\n")
    if given_.output:
        files.write(given_.output, text)
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
