"""scan_gpu on this machine: its errors over length, its share of a copy's bandwidth, and what it is worth beside its peers.

`python -m pytest_ecornn.suites.published.scan_kernel --output FOLDER` writes FOLDER/scan_kernel.md, its JSON and plots as SVG,
anew after every step, so that what was measured outlives a run that is cut short: --resume goes on after it. `scan` has times
over length.
"""

from __future__ import annotations

from functools import partial

from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.scan_kernel_parts import scan_bandwidth, scan_errors, scan_layer, scan_peers

PARTS = {  # the cheap ones first
    "layer": ReportPart.of(scan_layer, 0.15),
    "errors": ReportPart.of(scan_errors, 0.1),
    "bandwidth": ReportPart.of(scan_bandwidth, 0.15),
    "peers": ReportPart.of(scan_peers, 0.6),
}
ORDER = ("errors", "bandwidth", "peers", "layer")
# Of version 1 the peers' peaks are beyond their pre-activations.
PLAN = ReportPlan("scan_kernel", "scan_gpu's kernel on this machine", 2, PARTS, ORDER, seconds=240.0)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
