"""minGRU's and minLSTM's published figures measured again on this machine, and what a scan is worth beside its peers.

`python -m pytest_ecornn.suites.published.scan --output FOLDER` writes FOLDER/scan.md, FOLDER/scan.json and plots as SVG, anew
after every step, so that what was measured outlives a run that is cut short. Sources: "Were RNNs All We Needed?", arXiv
2410.01201, and a CUDA system for its cells, whose times are in `scan_times`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.scan_parts import (
    scan_bandwidth,
    scan_errors,
    scan_layer,
    scan_peer_tables,
    scan_peers,
    scan_times,
)

PLAN = ReportPlan(
    "scan",
    "minGRU and minLSTM by scan on this machine",
    schema_version=2,  # of 1 the peers' peaks are beyond their pre-activations
    parts={  # the cheap ones first
        "layer": Section(scan_layer.measure, scan_layer.render, 0.1, row=scan_layer.Row),
        "errors": Section(scan_errors.measure, scan_errors.render, 0.05, scan_errors.figures, scan_errors.Row),
        "bandwidth": Section(scan_bandwidth.measure, scan_bandwidth.render, 0.1, row=scan_bandwidth.Row),
        "times": Section(scan_times.measure, scan_times.render, 0.3, scan_times.figures, scan_times.Row),
        "peers": Section(scan_peers.measure, scan_peer_tables.render, 0.45, row=scan_peers.Row),
    },
    order=("times", "errors", "bandwidth", "peers", "layer"),
    seconds=330.0,
)


def main(arguments: Sequence[str] | None = None) -> int:
    return PLAN.main((__doc__ or "").splitlines()[0], arguments)


if __name__ == "__main__":
    raise SystemExit(main())
