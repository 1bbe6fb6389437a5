"""How long a step of persistent_gpu's recurrence takes by forms that it could have, beside what its model of time says.

`python -m pytest_ecornn.suites.forms_gpu --output FILE` measures LSTM by those forms of each kind that promise most; it appends
a line of JSON for each shape to FILE: by this the model's constants are fitted (cost_coefficients.py). All forms of a shape run
on the same tensors; how far their results are from the first form's is told. Exit code 2: there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs, estimated_us_with_queueing
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.persistent_gpu.kernel import Shape as TrackShape
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published.common.alternating import Arm, Replay, measure_interleaved
from pytest_ecornn.suites.published.persistent_parts.persistent_steps import CELL, Op, Shape

STEPS, ROUNDS = 128, 5
SIZES = ((200, 32), (512, 64), (650, 32), (768, 16), (768, 112), (1024, 1), (1024, 8), (1024, 16), (1500, 20))
PRECISIONS = (("float16", "ieee"), ("float32", "tf32"), ("float32", "ieee"))


@dataclass(frozen=True)
class Measured:
    """model_us, us: a step by the model, and by the clock the least of some. error: how far from the first form's at most."""

    form: str
    kind: str
    model_us: float
    us: float
    error: float


def shapes(sizes: Sequence[tuple[int, int]] = SIZES, passes: Sequence[bool] = (False, True)) -> list[Shape]:
    return [
        Shape(hidden, batch, *precision, is_backward, most_us=0.0)
        for is_backward, (hidden, batch), precision in product(passes, sizes, PRECISIONS)
    ]


def best_candidates(problem: Any, device: Device, most: int) -> list[Form]:
    """Returns at most `most` forms of each kind, best first by the model."""
    found: dict[str, list[Form]] = {}
    for form in sorted(candidate_configs(problem, device), key=lambda form: estimated_us_with_queueing(form, device)):
        found.setdefault(form.kind, []).append(form)
    return [form for forms in found.values() for form in forms[:most]]


@contextmanager
def force_config(form: Form) -> Iterator[None]:
    """Within it passes of the form's problem are of that form, if it does what they need. Not for several threads at once."""
    usual = kernel.compile_layer

    def plan(shape: TrackShape, kind: KernelSpec) -> Any:
        is_other = kind.problem(shape.cell, shape.hidden, shape.batch) != form.problem
        if is_other or (kind.inputs and isinstance(form, BlockConfig)):
            return usual(shape, kind)
        return form, kernel.make_kernel(kind, form)

    kernel.get_layer_kernel.cache_clear()  # but not the usual plans, which take their kernels with them
    try:
        with patch.object(kernel, "compile_layer", plan):
            yield
    finally:
        kernel.get_layer_kernel.cache_clear()


def measured(shape: Shape, most: int, rounds: int = ROUNDS) -> list[Measured]:
    """Measures the most promising forms of one shape, in blocks that alternate."""
    device = with_index("cuda")
    kind = KernelSpec(getattr(torch, shape.dtype), device, shape.precision == "tf32", shape.is_backward)
    forms = best_candidates(kind.problem(CELL, shape.hidden, shape.batch), Device.of(device), most)
    ops, arms = [], []
    for form in forms:
        torch.manual_seed(0)
        with force_config(form):
            ops.append(Op(shape, STEPS))
            arms.append(Arm([Replay(ops[-1])], STEPS))
    measure_interleaved(arms, rounds)
    kernel.status_of(device).check()  # which replays do not ask
    wanted = ops[0]()[0].float() if ops else torch.zeros(())
    found = []
    for form, op, arm in zip(forms, ops, arms, strict=True):
        with force_config(form):
            error = (op()[0].float() - wanted).abs().max().item()
        model_us = estimated_us_with_queueing(form, Device.of(device))
        found.append(Measured(str(form), form.kind, model_us, min(arm.samples_us), error))
    return found


def run(file: Path, seconds: float, most: int, wanted: Sequence[Shape]) -> None:
    """Appends a line for each shape, until the time is over."""
    end = time.monotonic() + seconds
    for shape in wanted:
        if time.monotonic() > end:
            print(f"not reached: {shape}")
            continue
        try:
            found = measured(shape, most)
        except RuntimeError as error:  # a launch that gave up costs its shape alone
            print(f"{shape}: {error}")
            continue
        with file.open("a") as lines:
            lines.write(json.dumps({"shape": str(shape), "forms": [asdict(one) for one in found]}) + "\n")
        for one in sorted(found, key=lambda one: one.us):
            print(f"{shape}: {one.us:.2f} us, model {one.model_us:.2f}, error {one.error:.1e}, {one.form}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="forms_gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="to append to")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no shape begins")
    parser.add_argument("--most", type=int, default=2, help="forms of each kind")
    parser.add_argument("--hidden", type=int, nargs="+", help="sizes alone, of those that are measured")
    parser.add_argument("--passes", nargs="+", choices=("forward", "backward"), default=("forward", "backward"))
    given = parser.parse_args(arguments)
    sizes = [size for size in SIZES if not given.hidden or size[0] in given.hidden]
    chosen = shapes(sizes, [name == "backward" for name in given.passes])
    return exit_code(parser.prog, lambda: run(given.output, given.seconds, given.most, chosen))


if __name__ == "__main__":
    raise SystemExit(main())
