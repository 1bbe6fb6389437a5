"""How long a step of persistent_gpu's recurrence takes by forms that it could have, beside what its model of time says.

`python -m pytest_ecornn.suites.forms_gpu --output FILE` measures LSTM by those forms of each kind that promise most; it appends
a line of JSON for each shape to FILE: by this the model's constants are fitted (config.py). All forms of a shape run
on the same tensors; how far their results are from the first form's is told. Exit code 2: there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import torch

from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.nn.form_times import best_candidates, measure
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published.persistent_kernel_parts.persistent_steps import Shape

SIZES = ((200, 32), (512, 64), (650, 32), (768, 16), (768, 112), (1024, 1), (1024, 8), (1024, 16), (1500, 20))
PRECISIONS = (("float16", "ieee"), ("float32", "tf32"), ("float32", "ieee"))


def shapes(sizes: Sequence[tuple[int, int]] = SIZES, passes: Sequence[bool] = (False, True)) -> list[Shape]:
    return [
        Shape(hidden, batch, *precision, is_backward, most_us=0.0)
        for is_backward, (hidden, batch), precision in product(passes, sizes, PRECISIONS)
    ]


def run(file: Path, seconds: float, most: int, wanted: Sequence[Shape]) -> None:
    """Appends a line for each shape, until the time is over."""
    end = time.monotonic() + seconds
    for shape in wanted:
        if time.monotonic() > end:
            print(f"not reached: {shape}")
            continue
        try:
            forms = best_candidates(shape.problem, Device.of(with_index("cuda")), most)
            found = measure(forms, getattr(torch, shape.dtype))
        except RuntimeError as error:  # a launch that gave up costs its shape alone
            print(f"{shape}: {error}")
            continue
        with file.open("a") as lines:
            told = [asdict(one) | {"form": str(one.form), "kind": one.form.kind} for one in found]
            lines.write(json.dumps({"shape": str(shape), "forms": told}) + "\n")
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
