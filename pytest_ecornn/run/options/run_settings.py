"""Settings that shaped the rows of a run, as the report and the terminal state them."""

from __future__ import annotations

from typing import Any

from pytest_ecornn.measurement import clocks
from pytest_ecornn.results.statistics import CONFIDENCE
from pytest_ecornn.run.options.option_table import default_baselines
from pytest_ecornn.run.session import RunSession


def describe(session: RunSession) -> dict[str, Any]:
    """Settings that shaped the rows, as the report states them."""
    options, devices = session.options, session.devices
    return {
        "cases": ", ".join(options.cases or options.case_sets),
        **({"shard": str(options.shard)} if options.shard else {}),
        "baselines": ", ".join(options.baselines) or default_baselines(devices),
        "budget": f"{options.budget:g} s a row",
        "fewest pairs": options.pairs,
        "profile": options.profile,
        "seed": options.seed,
        "intervals": f"{CONFIDENCE:.0%} of a time, {session.confidence:.4g} of a ratio",
        "smallest difference that counts": clocks.equivalence_margins(devices),
    }
