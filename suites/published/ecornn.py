"""EcoRNN's published figures measured again on this machine's CUDA device: layout of the product, its hit rates, and launches.

`python -m pytest_ecornn.suites.published.ecornn --output FOLDER` writes FOLDER/ecornn.md and FOLDER/ecornn.json, anew after
every step, so that what was measured outlives a run that is cut short: --resume goes on after it. `pytest --ecornn-bench
--ecornn-cases ecornn` times its LSTM. Source: EcoRNN, arXiv 1805.08899.
"""

from __future__ import annotations

from functools import partial

from pytest_ecornn.suites.published.common import launches
from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.ecornn_parts import hit_rates, product_layout

PARTS = {
    "layout": ReportPart.of(product_layout, 0.3),
    "launches": ReportPart.of(launches, 0.4),
    "hit_rates": ReportPart.of(hit_rates, 0.3),
}
# Of version 3 and before it is no report in parts.
PLAN = ReportPlan("ecornn", "EcoRNN's figures on this machine", 4, PARTS, ("layout", "hit_rates", "launches"), seconds=240.0)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
