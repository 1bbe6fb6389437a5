"""`python -m pytest_ecornn.nn explain "LSTM H 768 B 32 float16"`: the forms that persistent_gpu could have, and their times.

The times are estimates (implementations/persistent_gpu), beside cuDNN's (implementations/auto/estimates.py).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.auto import estimates
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import (
    candidate_configs,
    estimated_us_with_queueing,
    gemm_step_us,
    select_config,
)
from pytest_ecornn.implementations.persistent_gpu.wavefront import select_wavefronts

_EXAMPLE = "LSTM H 768 B 32 float16"
_CELLS = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}
_PRECISIONS = ("float16", "bfloat16", "tf32", "float32")
_CHIPS = {
    "H100": Device(132, 232_448, 16),
    "H200": Device(132, 232_448, 16),
    "A100": Device(108, 166_912, 1),
    "L40S": Device(142, 101_376, 1),
}
_MAX_LINES, _TIMED = 15, 5
_MAX_SIZE = 2**30  # of gates, units and sequences together, as kernels index them


class Layer(NamedTuple):
    """What is asked about. precision: as `_PRECISIONS` names it."""

    cell: str
    hidden: int
    batch: int
    precision: str

    @property
    def dtype(self) -> str:
        return "float32" if self.precision == "tf32" else self.precision

    @property
    def math(self) -> str:
        return "tf32" if self.precision == "tf32" else "ieee"

    def problem(self, is_backward: bool) -> ProblemSize:
        return ProblemSize(self.cell, self.hidden, self.batch, MathMode.of(self.dtype, self.math), is_backward)


def add_command(commands: Any) -> None:
    """Adds the command to a parser's."""
    help_text = "prints which form persistent_gpu has for a layer, the other candidates and cuDNN, with estimated times"
    parser = commands.add_parser("explain", help=help_text, description=help_text)
    parser.add_argument("text", nargs="+", metavar="LAYER", help=f"cell, H, B and precision, such as {_EXAMPLE!r}")
    parser.add_argument("--layers", type=_size, default=1, metavar="L", help="layers of a call (default: 1)")
    parser.add_argument("--directions", type=int, default=1, choices=(1, 2), help="directions of a call (default: 1)")
    parser.add_argument("--steps", type=_size, default=64, metavar="T", help="time steps of a call (default: 64)")
    help_text = "the chip whose forms are listed (default: this machine's GPU, without one H100)"
    parser.add_argument("--chip", choices=_CHIPS, help=help_text)
    help_text = f"compiles and times the {_TIMED} best forms of each pass on this machine's GPU"
    parser.add_argument("--time", action="store_true", help=help_text)
    parser.set_defaults(run=lambda given: run(given, parser))


def _size(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def parse_layer(text: str) -> Layer:
    """The layer that a text names. Raises ValueError that says what was expected."""
    match = re.fullmatch(r"(\w+) +H *(\d+) +B *(\d+) +(\w+)", text.strip(), re.IGNORECASE)
    cell, hidden, batch, precision = match.groups() if match else ("", "0", "0", "")
    layer = Layer(_CELLS.get(cell.upper(), ""), int(hidden), int(batch), precision.lower())
    if not layer.cell or layer.precision not in _PRECISIONS or not 0 < 4 * layer.hidden * layer.batch < _MAX_SIZE:
        raise ValueError(
            f"expected a cell ({', '.join(_CELLS)}), H, B and a precision ({', '.join(_PRECISIONS)}), such as {_EXAMPLE!r}, "
            f"with 4 * H * B below 2^30, got {text!r}"
        )
    return layer


def run(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Prints the answer. Exits with code 2 where the layer or the chip is wrong."""
    has_gpu = torch.cuda.is_available()
    if given.time and (given.chip or not has_gpu):
        parser.error("--time takes this machine's GPU, " + ("not --chip" if has_gpu else "and torch finds none"))
    try:
        layer = parse_layer(" ".join(given.text))
    except ValueError as error:
        parser.error(str(error))
    if has_gpu and not given.chip:
        device, chip = Device.of(with_index("cuda")), torch.cuda.get_device_name()
    else:
        device, chip = _CHIPS[given.chip or "H100"], given.chip or "H100, as torch finds no GPU here"
    print(f"{layer.cell}, H {layer.hidden}, B {layer.batch}, {layer.precision}: {device.num_sms} multiprocessors ({chip})")
    for is_backward in (False, True):
        print()
        sys.stdout.writelines(f"{line}\n" for line in _pass_lines(layer, is_backward, device, given.time))
    print()
    sys.stdout.writelines(f"{line}\n" for line in _call_lines(layer, given, device))
    return 0


def _pass_lines(layer: Layer, is_backward: bool, device: Device, is_timed: bool) -> Iterator[str]:
    """Yields the forms of a pass, best first."""
    problem = layer.problem(is_backward)
    choice = select_config(problem, device)
    forms = sorted(candidate_configs(problem, device), key=lambda form: estimated_us_with_queueing(form, device))
    times = _timed_us(forms[:_TIMED], layer) if is_timed else {}
    unit = "us a step, estimated and timed" if times else "us a step, estimated"
    yield f"{'backward' if is_backward else 'forward'}: the best of {len(forms)} forms that fit, {unit}; > is chosen"
    for form in forms[:_MAX_LINES]:
        timed = f"{times[form]:9.2f}" if form in times else " " * 9 * bool(times)
        us = estimated_us_with_queueing(form, device)
        partitions = f"; {form.k_partitions} K partitions" * (form.k_partitions > 1)
        yield f"{'>' if form == choice else ' '}{us:9.2f}{timed}  {form.kind}: {str(form).partition(': ')[2]}{partitions}"
    if isinstance(choice, str):
        yield f"> none: {choice}"
    yield f" {gemm_step_us(problem):9.2f}{' ' * 9 * bool(times)}  a GEMM a step"


def _timed_us(forms: list[Form], layer: Layer) -> dict[Form, float]:
    """Us of a step by form."""
    from pytest_ecornn.nn.form_times import measure

    return {measured.form: measured.us for measured in measure(forms, getattr(torch, layer.dtype))}


def _call_lines(layer: Layer, given: argparse.Namespace, device: Device) -> Iterator[str]:
    """Yields the times of a whole call by persistent_gpu and cuDNN, and which layers run at once."""
    for mode in ("inference", "training"):
        case = Case(
            cell=layer.cell, steps=given.steps, batch=layer.batch, input_size=layer.hidden, hidden_size=layer.hidden,
            layers=given.layers, bidirectional=given.directions == 2, dtype=layer.dtype, precision=layer.math, device="cuda",
            mode=mode,
        )  # fmt: skip
        persistent_us = estimates.persistent_us_on(case, device)
        ours = "runs it by no form" if persistent_us is None else f"{persistent_us:,.0f} us"
        sizes = f"L {given.layers}, {given.directions} direction{'s' * (given.directions > 1)}, I {layer.hidden}"
        yield f"{mode}, T {given.steps}, {sizes}: persistent_gpu {ours}, cuDNN {estimates.cudnn_us(case):,.0f} us, estimated"
    if given.layers > 1 and given.directions == 1:
        waves = select_wavefronts(layer.problem(False), device, layer.hidden, given.layers, given.steps)
        yield from (f"at once: {wave}" for wave in dict.fromkeys(waves) if wave)
