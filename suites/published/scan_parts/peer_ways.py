"""The ways to run a minGRU or minLSTM after its input product: scan_gpu, and compositions around other people's scans.

A composition makes the gates by torch and calls a package's scan; each is there eager and compiled by torch.compile, in the
layout in which its package wants it: [B, T, D], as the input product makes it, or [B, C, T].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from pytest_ecornn.suites.published.common.item_rows import Unavailable, import_optional

OURS = "scan_gpu"
BTD, BCT = "B,T,D", "B,C,T"
SLOW = ("fused_recurrent",)
# A package's adapter, and its parts (torch's before, the scan, torch's after) for each layout.
PEERS = (
    ("accelerated-scan", "peers._accelerated_scan", {BTD: "BTD", BCT: "BCT"}),
    ("flash-linear-attention", "peers._flash_linear_attention", {BTD: "BTD"}),
)


Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Variant:
    """`call` makes states, laid out as x, of pre-activations. reason: why it cannot, where it is known without a call.

    spending: a call that may write over its pre-activations when it needs them no more, where it has such a form.
    """

    name: str
    layout: str
    call: Call | None = None
    is_compiled: bool = False
    reason: str = ""
    overwriting_call: Call | None = None


def ours(cell: str) -> Variant:
    try:
        scan = import_optional("_scan_gpu_op", "scan")
    except Unavailable as absent:
        return Variant(OURS, BTD, reason=str(absent))

    def call(x: Tensor, overwrites_x: bool = False) -> Tensor:
        output: Tensor = scan(x, None, None, None, None, cell, True, False, overwrites_x)[0]
        return output

    return Variant(OURS, BTD, call, overwriting_call=partial(call, overwrites_x=True))


def peers(cell: str) -> Iterator[Variant]:
    """Eager ones first: a compilation takes seconds. SLOW kernels, several times as slow as the others, are eager only."""
    for is_compiled in (False, True):
        for package, module, parts in PEERS:
            yield from _of(package, module, parts, cell, is_compiled)


def _of(package: str, module: str, parts: dict[str, str], cell: str, is_compiled: bool) -> Iterator[Variant]:
    for layout, name in parts.items():
        try:
            run, kernels = import_optional(module, name), import_optional(module, "KERNELS")
        except Unavailable as absent:
            if not is_compiled:
                yield Variant(f"{package}, {layout}", layout, reason=str(absent))
            continue
        for kernel in kernels:
            if not is_compiled:
                yield Variant(f"{package} {kernel}, {layout}", layout, _bound(run, cell, kernel))
            elif kernel not in SLOW:
                call = _bound(run.compiled(), cell, kernel)  # compiled at the first call
                yield Variant(f"{package} {kernel}, {layout}, compiled", layout, call, is_compiled=True)


def _bound(run: Callable[..., Any], cell: str, kernel: str) -> Call:
    def call(x: Tensor) -> Tensor:
        found: Tensor = run(x, None, cell, kernel, None)
        return found

    return call
