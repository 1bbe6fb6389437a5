"""minGRU's and minLSTM's published figures measured again on this machine, and what a scan is worth beside its peers.

`python -m pytest_ecornn.suites.published.scan --output FOLDER` writes FOLDER/scan.md, FOLDER/scan.json and plots as SVG, anew
after every step, so that what was measured outlives a run that is cut short. Sources: "Were RNNs All We Needed?", arXiv
2410.01201, and a CUDA system for its cells, whose times are in `scan_times`.
"""

from __future__ import annotations

from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.scan_parts import (
    scan_bandwidth,
    scan_errors,
    scan_layer,
    scan_peers,
    scan_times,
)

PLAN = ReportPlan(
    "scan",
    "minGRU and minLSTM by scan on this machine",
    schema_version=2,  # of 1 the peers' peaks are beyond their pre-activations
    parts={  # the cheap ones first
        "layer": ReportPart.of(scan_layer, 0.1),
        "errors": ReportPart.of(scan_errors, 0.05),
        "bandwidth": ReportPart.of(scan_bandwidth, 0.1),
        "times": ReportPart.of(scan_times, 0.3),
        "peers": ReportPart.of(scan_peers, 0.45),
    },
    order=("times", "errors", "bandwidth", "peers", "layer"),
    seconds=330.0,
)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
