"""The ways to run a minGRU or minLSTM after its input product: scan_gpu, and compositions around other people's scans.

A composition makes the gates by torch and calls a package's scan; each is there eager and compiled by torch.compile, in the
layout in which its package wants it: [B, T, D], as the input product makes it, or [B, C, T].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pytest_ecornn.suites.published.optional import Absent, fetched

OURS = "scan_gpu"
BTD, BCT = "B,T,D", "B,C,T"
SLOW = ("fused_recurrent",)
# A package's adapter, and its function for each layout.
PEERS = (
    ("accelerated-scan", "peers._accelerated_scan", {BTD: "from_btd", BCT: "from_bct"}),
    ("flash-linear-attention", "peers._flash_linear_attention", {BTD: "from_btd"}),
)


@dataclass(frozen=True)
class Way:
    """`call` makes states, laid out as x, of pre-activations. reason: why it cannot, where it is known without a call."""

    name: str
    layout: str
    call: Callable[[Tensor], Tensor] | None = None
    is_compiled: bool = False
    reason: str = ""


def ours(cell: str) -> Way:
    try:
        scan = fetched("_scan_gpu_op", "scan")
    except Absent as absent:
        return Way(OURS, BTD, reason=str(absent))
    return Way(OURS, BTD, lambda x: scan(x, None, None, None, None, cell, True, False)[0])


def peers(cell: str) -> Iterator[Way]:
    """Eager ones first: a compilation takes seconds. SLOW kernels, several times as slow as the others, are eager only."""
    eager = [way for package, module, functions in PEERS for way in _of(package, module, functions, cell)]
    yield from eager
    for way in eager:
        if way.call is not None and not any(kernel in way.name for kernel in SLOW):
            yield Way(f"{way.name}, compiled", way.layout, way.call, is_compiled=True)


def _of(package: str, module: str, functions: dict[str, str], cell: str) -> Iterator[Way]:
    for layout, name in functions.items():
        try:
            function, kernels = fetched(module, name), fetched(module, "KERNELS")
        except Absent as absent:
            yield Way(f"{package}, {layout}", layout, reason=str(absent))
            continue
        for kernel in kernels:
            yield Way(f"{package} {kernel}, {layout}", layout, _bound(function, cell, kernel))


def _bound(function: Callable[..., Any], cell: str, kernel: str) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        found: Tensor = function(x, None, cell, kernel=kernel)
        return found

    return call
