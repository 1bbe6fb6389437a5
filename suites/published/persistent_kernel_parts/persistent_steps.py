"""persistent_gpu's recurrence alone, on ready gate pre-activations: microseconds a step, beside its bars and the floor.

An LSTM's op replayed from CUDA graphs, its time divided by the steps. The layer that consists of this op is verified before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.persistent_gpu.config import TILE, WARPS, Form
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, compile_layer, status_of
from pytest_ecornn.implementations.persistent_gpu.kernel import Shape as TrackShape
from pytest_ecornn.measurement.alternating import Arm, Replay, measure_interleaved
from pytest_ecornn.measurement.capture import graph_count
from pytest_ecornn.nn.form_times import Recurrence
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import percent, ratio_interval, significant
from pytest_ecornn.results.statistics import MIN_PAIRS, median_interval
from pytest_ecornn.suites.published.common.bars import MaxTarget, Times
from pytest_ecornn.suites.published.common.candidates import prepare
from pytest_ecornn.suites.published.common.item_rows import ItemRow, list_reasons, measure_each
from pytest_ecornn.suites.published.common.report_rows import precision_of

OURS = "persistent_gpu"
CELL, STEPS = "lstm", 1024
_BLOCK_US = 10e3
# Of an H200, for the floor of a step.
CLOCKS_A_US = 1980
LATENCY_US = 0.2  # one way, measured, every block telling all others a few bytes
TOLD_BYTES_A_CLOCK = 32  # that come to a block
PRODUCT_CLOCKS = 6.1  # of a quarter of a multiprocessor, for 16 rows, 8 columns and 32 bytes of what is summed over
QUARTERS = 4
FRAGMENT_BYTES = 8192  # of the weights, of all warps of a block
SHARED_BYTES_A_CLOCK, LEFT_OVER_BYTES_A_CLOCK = 128, 64  # from shared memory, and by way of it from the L2 cache


@dataclass(frozen=True)
class Shape:
    hidden: int
    batch: int
    dtype: str
    precision: str
    is_backward: bool
    most_us: float  # a step

    @property
    def case(self) -> Case:
        """The layer that is this op, in training the op and its gradients."""
        mode = "training" if self.is_backward else "inference"
        return Case(
            cell=CELL, steps=STEPS, batch=self.batch, hidden_size=self.hidden, dtype=self.dtype, precision=self.precision,
            projected=True, mode=mode, device="cuda",
        )  # fmt: skip

    @property
    def problem(self) -> ProblemSize:
        return ProblemSize(CELL, self.hidden, self.batch, MathMode.of(self.dtype, self.precision), self.is_backward)

    def op(self) -> Recurrence:
        """The op on tensors of its own."""
        return Recurrence(self.problem, getattr(torch, self.dtype), STEPS)

    @property
    def bar(self) -> MaxTarget:
        return MaxTarget(self.most_us)

    def __str__(self) -> str:
        direction = "backward" if self.is_backward else "forward"
        return f"{direction}, H {self.hidden}, B {self.batch}, {precision_of(self.case)}"


_FORWARD_US = {(256, 8): 0.7, (512, 56): 1.0, (512, 112): 1.2, (512, 128): 1.7, (768, 16): 1.6, (768, 112): 2.4,
               (1024, 16): 1.95, (1024, 1): 1.5}  # fmt: skip
_BACKWARD_US = {(512, 56): 1.7, (512, 112): 2.3, (768, 16): 2.8}
SHAPES = (
    *(Shape(*size, "float16", "ieee", False, most) for size, most in _FORWARD_US.items()),
    Shape(512, 64, "float32", "tf32", False, 2.5),
    Shape(512, 64, "float32", "ieee", False, 4.5),
    *(Shape(*size, "float16", "ieee", True, most) for size, most in _BACKWARD_US.items()),
)


@dataclass(frozen=True)
class Row(ItemRow):
    """step_us: median, low, high; of the form that was chosen. Or the reason why there is no time."""

    shape: Shape
    step_us: Times | None = None
    floor_us: float = 0.0
    form: str = ""
    reason: str = ""


def measure(deadline: float) -> Iterator[Row]:
    """A row for each shape; of what begins after `deadline` (of time.monotonic) only the reason."""
    return measure_each(SHAPES, deadline, _row, lambda shape, why: Row(shape, reason=why))


def _row(shape: Shape) -> Row:
    if isinstance(candidate := prepare(shape.case, OURS), str):
        return Row(shape, reason=candidate)
    kind = KernelSpec(getattr(torch, shape.dtype), with_index("cuda"), shape.precision == "tf32", shape.is_backward)
    form, _ = compile_layer(TrackShape(CELL, STEPS, shape.batch, shape.hidden, batch_first=False), kind)
    first = shape.op()
    graphs = graph_count(first.moved_bytes, torch.cuda.get_device_properties(with_index("cuda")).L2_cache_size)
    arm = Arm([Replay(op) for op in (first, *(shape.op() for _ in range(graphs - 1)))], STEPS, _BLOCK_US)
    measure_interleaved([arm], MIN_PAIRS)
    status_of(with_index("cuda")).check()  # which replays do not ask
    return Row(shape, median_interval(arm.samples_us), floor_us(form), str(form))


def render(rows: Sequence[Row]) -> str:
    figures = ("us a step", "bar", "holds", "floor, us", "floor's share")
    lines = [[escape(row.label), *_figures(row), escape(row.form) or "-"] for row in rows]
    text = (
        f"{CELL}, T {STEPS:,}: the op alone, on ready gate pre-activations (backward: on what the forward pass kept and ready "
        "gradients of the output), replayed from CUDA graphs over buffers that exceed the L2 cache, save where sixteen do not; "
        f"time over T with its interval (99 %, {MIN_PAIRS} blocks). The layer that is this op, in training with its gradients, "
        "was compared with the float64 reference before. The floor is of the form that was chosen: the latency of a handoff "
        "between all blocks of a cluster and what is handed on, and the products on the tensor cores or the reads of their "
        "weights on the chip, whichever takes longer; gates, barriers and stores come on top."
    )
    steps = table(("pass and shape", *figures, "form"), lines, figures)
    return document(["## A step of the recurrence", text, steps, list_reasons(rows)])


def _figures(row: Row) -> tuple[str, ...]:
    bar = row.shape.bar
    if row.step_us is None:
        return "-", str(bar), "-", "-", "-"
    floor = significant(row.floor_us), percent(row.floor_us / row.step_us[0])
    return ratio_interval(*row.step_us), str(bar), bar.is_met(row.step_us), *floor


def handoff_us(form: Form) -> float:
    """Time until all blocks' values of one tile of sequences have arrived, in microseconds."""
    return LATENCY_US + form.received_bytes / TOLD_BYTES_A_CLOCK / CLOCKS_A_US


def busy_us(form: Form) -> float:
    """The products of a tile, or the reads of their weights, whichever takes longer: they overlap."""
    products = form.fragments * WARPS / QUARTERS * form.problem.arithmetic.products * PRODUCT_CLOCKS * form.tile_batch / TILE
    from_smem, streamed = form.smem_fragments * FRAGMENT_BYTES, form.streamed_fragments * FRAGMENT_BYTES
    reads = from_smem / SHARED_BYTES_A_CLOCK + streamed / LEFT_OVER_BYTES_A_CLOCK
    return max(products, reads) / CLOCKS_A_US


def floor_us(form: Form) -> float:
    """Least time of a step of all tiles, in microseconds: one tile's states travel during another's products.

    A step cannot end before its states have come from every block of the cluster, nor before the tensor cores have multiplied
    what a block keeps of the weights and read that part of it which is not in registers. What gates, barriers and stores take
    comes on top: a floor is what a perfect overlap would leave.
    """
    busy = busy_us(form)
    return max(form.tiles * busy, busy + handoff_us(form))
