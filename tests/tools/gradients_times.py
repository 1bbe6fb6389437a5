"""Times of a layer's parameter gradients in one launch and by products, and the constants of their models fitted to them.

`python -m tests.tools.gradients_times [SECONDS]` needs a CUDA device. A line a size: of the launch and of products, us by
estimate, of the device and of the host; the chosen one's over the faster one's. Then their mean, and the fitted constants.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product, takewhile
from math import ceil
from random import Random
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._common.gradient_sizes import GradientSizes
from pytest_ecornn.implementations._common.padded_gemm import matmul_tn
from pytest_ecornn.implementations._common.weight_gradients import GradientProducts
from pytest_ecornn.implementations._cuda import parameter_gradients as one_launch
from pytest_ecornn.implementations._cuda.bias_gradients import bias_gradients, values_of
from pytest_ecornn.measurement.alternating import Arm, Replay, measure_interleaved, sample_launches

_STEPS_BATCH = *product((2, 8, 20, 35), (16,)), (35, 32), (32, 64), (64, 64), *product((64, 128, 256, 512), (100,))
_ARITHMETIC = (torch.float32, False), (torch.float32, True), (torch.float16, False), (torch.bfloat16, False)  # tf32
_MAX_US, _GRAPH_CALLS, _ENQUEUED_CALLS, _ROUNDS, _HOST_BLOCK_US = 200, 10, 20, 5, 2e3


class Timing(NamedTuple):
    """Times of the device, us, and the chosen one's over the faster one's. width: I. together: by GradientProducts."""

    sizes: GradientSizes
    width: int
    together: bool
    launch_us: float
    products_us: float
    loss: float

    def of_launch(self, shared_sm: float) -> tuple[float, ...]:
        """The factors of a launch's constants, in the order of their table, and its time. shared_sm: _SHARED_SM."""
        sizes, columns, hidden, width = self.sizes, self.sizes.gate_width, self.sizes.hidden, self.width
        tiles, chunk_us = one_launch._tiles(columns, hidden, width, sizes.directions), one_launch._chunk_us
        splits = one_launch._fastest(sizes.rows, tiles, chunk_us(columns, hidden, width, sizes.dtype))[1]
        share = max(1, shared_sm * tiles * one_launch._BLOCKS * splits / one_launch._SMS)
        chunks = ceil(ceil(sizes.rows / one_launch._CHUNK) / (one_launch._BLOCKS * splits))
        kind = sizes.dtype.itemsize, values_of(sizes.dtype, columns, hidden, width) > 1
        return 1, share, splits > 1, *(share * chunks * (kind == of) for of in product((4, 2), (True, False))), self.launch_us

    def of_products(self) -> tuple[float, ...]:
        """The factors of the products' constants, in the order of their table, and their time."""
        sizes = self.sizes
        gflop = 2e-9 * sizes.directions * sizes.rows * sizes.gate_width * (self.width + sizes.hidden)
        return 1, gflop, sizes.rows / 1e3, sizes.splits_last, self.products_us


def drawn(device: torch.device) -> list[tuple[GradientSizes, int]]:
    """Sizes and I of layers whose products take a short time, in random order."""
    layers = [
        (GradientSizes(*steps_batch, hidden, gates * hidden, directions, gates == 3, dtype, device, tf32), width)
        for gates, directions, (dtype, tf32) in product((1, 3, 4), (1, 2), _ARITHMETIC)
        for steps_batch, hidden in product(_STEPS_BATCH, (16, 24, 48, 64, 96, 100, 128, 200, 256))
        for width in (hidden, 2 * hidden, 9 if hidden < 64 else 40)
    ]
    Random(0).shuffle(layers)
    return [layer for layer in layers if layer[0].products_us(layer[1]) < _MAX_US]


def calls(sizes: GradientSizes, width: int) -> dict[str, Callable[[], Any]]:
    """The launch, and the products that would take its place."""
    normal, (steps, batch, hidden, wide, directions) = partial(torch.randn, dtype=sizes.dtype, device=sizes.device), sizes[:5]
    d_gates = normal(directions, steps, batch, wide)
    d_product = normal(directions, steps, batch, hidden) if sizes.splits_last else None
    layer = normal(steps, batch, width), normal(steps, batch, directions * hidden)
    plain = d_gates.squeeze(0), None if d_product is None else d_product.squeeze(0), *layer
    launch = one_launch.ParameterGradients(sizes.rows, batch, wide, hidden, (width,), sizes.dtype, sizes.device, directions)
    run = partial(launch, [one_launch.LayerTensors(*plain)])
    if not sizes.are_together(width):
        return {"launch": run, "apart": partial(products_apart, sizes, d_gates, d_product, *layer)}
    together = GradientProducts(sizes, width, has_initial=False, is_padded=sizes.are_padded((width,)))
    return {"launch": run, "together": partial(together, *plain, None, ())}


def products_apart(sizes: GradientSizes, d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor) -> None:
    """Computes the gradients of each direction on its own, as persistent_gpu's backward pass does."""
    later, earlier = slice(sizes.batch, None), slice(-sizes.batch)
    for direction in range(sizes.directions):
        rows, of_product = d_gates[direction].flatten(0, 1), None if d_product is None else d_product[direction].flatten(0, 1)
        states = output.narrow(2, direction * sizes.hidden, sizes.hidden).flatten(0, 1)
        own, before = (earlier, states[later]) if direction else (later, states[earlier])
        matmul_tn(rows, inputs.flatten(0, 1), sizes.tf32)
        for part in (rows[own],) if of_product is None else (rows[own, : 2 * sizes.hidden], of_product[own]):
            matmul_tn(part, before, sizes.tf32)
        bias_gradients(rows, of_product)


def measure(sizes: GradientSizes, width: int) -> Timing:
    """Times both and prints their line. A graph is of several calls: timeit repeats them."""
    torch.backends.cuda.matmul.allow_tf32 = sizes.tf32
    both = calls(sizes, width)
    arms = [Arm([Replay(partial(timeit, call, number=_GRAPH_CALLS))], _GRAPH_CALLS) for call in both.values()]
    measure_interleaved(arms, _ROUNDS)
    host = sample_launches(both, sizes.device, _ROUNDS, _HOST_BLOCK_US, _ENQUEUED_CALLS)[1]
    measured = [min(arm.samples_us) for arm in arms]
    loss = measured[not sizes.suit_one_launch(width)] / min(measured)
    launch_us = one_launch.launch_us(sizes.rows, sizes.gate_width, sizes.hidden, width, sizes.dtype, sizes.directions)
    times = zip(both, (launch_us, sizes.products_us(width)), measured, map(min, host.values()), strict=True)
    layer = "T{} B{} H{} GH{} D{} I{} {}{}".format(*sizes[:5], width, str(sizes.dtype)[6:], " tf32" * sizes.tf32)
    print(layer, *("| {} {:.1f} {:.1f} {:.1f}".format(*row) for row in times), f"| {loss:.2f}", flush=True)
    return Timing(sizes, width, "together" in both, measured[0], measured[1], loss)


def fit(rows: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
    """The least sum of squared relative errors, and the constants. rows: factors, then us. Raises ValueError for too few."""
    measured = np.array(rows, float, ndmin=2)
    weighted = measured[:, :-1] / measured[:, -1:]
    constants, _, rank, _ = np.linalg.lstsq(weighted, np.ones(len(measured)), rcond=None)
    if rank < max(1, len(constants)):
        raise ValueError(f"expected times that determine all constants, got {len(rows)}: measure for longer")
    return float(np.square(weighted @ constants - 1).sum()), [round(float(constant), 2) for constant in constants]


def tables(timings: Sequence[Timing]) -> Iterator[str]:
    """The lines of the fitted constants, as both modules have them."""
    (_, constants), percent = min((fit([timing.of_launch(n / 100) for timing in timings]), n) for n in range(70, 111))
    yield "_LAUNCH_US, _BLOCK_US, _ADDING_US, _SHARED_SM = {}, {}, {}, {}".format(*constants[:3], percent / 100)
    yield "_CHUNK_US = {{4: ({}, {}), 2: ({}, {})}}".format(*constants[3:])
    yield "_PRODUCTS_US = {"
    for name, *kind in ("ieee", 4, False), ("tf32", 4, True), ("16 bits", 2, False):
        some = [timing for timing in timings if [timing.sizes.dtype.itemsize, timing.sizes.tf32] == kind]
        rows = ([timing.of_products() for timing in some if timing.together == value] for value in (True, False))
        yield f'    "{name}": {tuple(tuple(fit(part)[1]) for part in rows)},'
    yield "}"


def main() -> None:
    end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 120)
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    timings = [measure(*layer) for layer in takewhile(lambda _: time.monotonic() < end, drawn(torch.device("cuda", 0)))]
    loss = np.array([timing.loss for timing in timings])
    print(f"{len(loss)} sizes: {np.exp(np.log(loss).mean()):.3f} of the faster's time, {(loss > 1.1).mean():.1%} lose >10 %")
    print(*tables(timings), sep="\n")


if __name__ == "__main__":
    main()
