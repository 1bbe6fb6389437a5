"""Tables of the language models' losses."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.suites.published.language_model_parts import losses
from pytest_ecornn.suites.published.language_model_parts.losses import CurveRow, SeedRow
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import BASELINE


def render_curves(rows: Sequence[CurveRow]) -> str:
    """A line for each model, precision and layer."""
    header = ("model", "layer", "last loss", "rms error", "limit", "largest error", "limit", "agrees")
    lines = [_curve_line(row, name) for row in rows for name in losses.ARMS if name in row.arms]
    text = (
        f"{losses.STEPS} steps, the same words and initial values, no dropout. Of drawn words nine in ten follow from the one "
        "before, so that the loss falls as the recurrent layer learns it. Errors are relative to losses in float64. "
        "A curve agrees where they are within twice those of the yardstick, a plain loop in the same precision, and a few "
        "roundings."
    )
    return document(["## Losses without dropout", text, table(header, lines, header[2:7])])


def _curve_line(row: CurveRow, name: str) -> list[str]:
    curve = row.arms[name]
    if curve.reason:
        return [row.label, name, *["-"] * 5, escape(curve.reason)]
    figures = (curve.rms, row.limits[0], curve.maximum, row.limits[1])
    return [row.label, name, f"{curve.last:.4f}", *(f"{one:.2g}" for one in figures), "yes" if row.agrees(name) else "no"]


def render_seeds(rows: Sequence[SeedRow]) -> str:
    """A line for each model, precision and layer."""
    header = ("model", "layer", "mean loss", "standard deviation", "agrees")
    lines = [_seed_line(row, name) for row in rows for name in losses.ARMS if name in row.losses or name in row.reasons]
    text = (
        f"{losses.SEEDS} seeds of {losses.STEPS} steps each; a run's loss is the mean of its last {losses.LAST} steps. A mean "
        f"agrees where it differs from {BASELINE}'s by no more than both standard deviations together."
    )
    return document(["## Losses with dropout", text, table(header, lines, header[2:4])])


def _seed_line(row: SeedRow, name: str) -> list[str]:
    if name in row.reasons:
        return [row.label, name, "-", "-", escape(row.reasons[name])]
    of_seeds = row.losses[name]
    agrees = "yes" if BASELINE in row.losses and row.agrees(name) else "no"
    return [row.label, name, f"{fmean(of_seeds):.4f}", significant(stdev(of_seeds), 2), agrees]
