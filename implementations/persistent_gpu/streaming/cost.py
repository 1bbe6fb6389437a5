"""What weights that do not fit on chip take a step, and what a GEMM a step takes, which grids must beat."""

from __future__ import annotations

from math import sqrt

from pytest_ecornn.implementations._common.recurrent_problem import GATES, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.tiling import FRAGMENT_BYTES

_L2_BYTES_PER_US = 4.8e6  # that all multiprocessors read together
_MEMORY_BYTES_PER_US = 3.0e6
_EXCHANGE_US = 2.0  # while blocks exchange states nothing but stages is read
_HIDDEN_PRODUCT = 0.4  # of a product's time that weights arrive in

_GEMM_LAUNCH_US = 4.0
# By the bytes of an element; 4: IEEE float32.
_GEMM_BYTES_PER_US = {2: 2.9e6, 4: 2.5e6}
_GEMM_PRODUCTS_PER_US = {2: 75e6, 4: 7.1e6}
# Elements of a product in float32, beyond which cuBLAS's rate grows as their root, and how far: no faster one was timed.
_SMALL_RESULT, _MOST_RATE_GAIN = 2.5e5, 3.2
_TF32_PRODUCTS_PER_US = 60e6
_TF32_IDLE_ROWS = 100  # sequences whose products take as long as reading W_hh
_UNALIGNED = 2.0  # where rows are no multiple of 16 bytes


def stream_wait_us(form: Form, product_us: float) -> float:
    """Estimated us of a step in which a grid's tiles wait for weights. product_us: of a tile, with all weights there."""
    if not (form.is_grid and form.streamed_fragments):
        return 0.0
    fragment_bytes = FRAGMENT_BYTES * form.blocks
    near = form.l2_fragments * fragment_bytes
    stream_us = near / _L2_BYTES_PER_US + (form.stream_bytes - near) / _MEMORY_BYTES_PER_US
    stages = form.stream_stages * form.stage_fragments * fragment_bytes
    hidden_us = min(stages / _L2_BYTES_PER_US, _EXCHANGE_US)
    hidden_us += _HIDDEN_PRODUCT * product_us * form.tiles / form.products_per_step
    return form.products_per_step * max(0.0, stream_us - hidden_us)


def gemm_step_us(problem: ProblemSize) -> float:
    """Estimated us of a step by a GEMM, which reads all of W_hh, as cuDNN's standard algorithm takes."""
    arithmetic, weights = problem.arithmetic, GATES[problem.cell] * problem.hidden**2
    if arithmetic.bytes == 4 and not arithmetic.is_3xtf32:
        product_us = weights * (problem.batch + _TF32_IDLE_ROWS) / _TF32_PRODUCTS_PER_US
    else:
        products_per_us = _GEMM_PRODUCTS_PER_US[arithmetic.bytes]
        if arithmetic.is_3xtf32:
            results = problem.batch * GATES[problem.cell] * problem.hidden
            products_per_us *= min(_MOST_RATE_GAIN, sqrt(max(1, results / _SMALL_RESULT)))
        product_us = max(
            weights * arithmetic.bytes / _GEMM_BYTES_PER_US[arithmetic.bytes], problem.batch * weights / products_per_us
        )
    is_aligned = arithmetic.is_3xtf32 or problem.hidden * arithmetic.bytes % 16 == 0
    return _GEMM_LAUNCH_US + (1 if is_aligned else _UNALIGNED) * product_us
