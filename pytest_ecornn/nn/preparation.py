"""Compiles and decides ahead for ranges of shapes, so that no later call does."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import nullcontext
from math import log2
from typing import Any

import torch
from torch import Tensor, nn

from pytest_ecornn.autotune.problem import NEIGHBOURHOOD, bucket
from pytest_ecornn.nn.backend_choice import choose_untried, without_timing
from pytest_ecornn.nn.module_candidates import KernelCompilation, kind_of, module_problem, options_of
from pytest_ecornn.nn.recurrent import GRU, LSTM, RNN
from pytest_ecornn.reference.precision import fp32_precision

Range = int | tuple[int, int]
_EXAMPLE = "LSTM I 256 H 512 float16"


def prepare(
    model: nn.Module, batch: Range, steps: Range, *, training: bool = False, x_grad: bool = False, has_state: bool = False
) -> list[str]:
    """Compiles the kernels and makes the decisions of a model's RNN, LSTM and GRU. Returns a line for each decision.

    model: on the device, in the dtype and mode in which it will be called; under autocast call this under it too. batch, steps:
    B and T, each a number or the least and the greatest one. training: weights that require gradients get them. x_grad: so does
    the input, as that of a layer behind others. has_state: calls give initial states.

    Compiled kernels and decisions lie in the cache folder, ECORNN_CACHE_DIR, which may be copied to equal machines and be
    read-only there. Raises ValueError for ranges that are empty or begin below 1.
    """
    sequences, lengths = _range("batch", batch), _range("steps", steps)
    notes: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, (RNN, GRU, LSTM)) and (weight := layer._flat_weights[0]) is not None:
            if layer.backend == "persistent_gpu" and not weight.is_cuda:
                continue  # it runs nowhere
            place = f"{name}: " if name else ""
            stream = torch.cuda.stream(torch.cuda.Stream(weight.device)) if weight.is_cuda else nullcontext()
            with torch.set_grad_enabled(training or x_grad), stream:
                notes += [place + line for line in _prepare(layer, weight, sequences, lengths, x_grad, has_state)]
    return notes


def _range(name: str, given: Range) -> range:
    first, last = (given, given) if isinstance(given, int) else given
    if not 1 <= first <= last:
        raise ValueError(f"expected {name} as a number from 1 on, or as the least and the greatest, got {given!r}")
    return range(first, last + 1)


def _prepare(layer: Any, weight: Tensor, sequences: range, lengths: range, x_grad: bool, has_state: bool) -> list[str]:
    """A line for each decision of a layer."""
    long, compilations = _greatest_of_buckets(lengths), []

    def call(batch: int, steps: int) -> tuple[Tensor, Any]:
        outer = (batch, steps) if layer.batch_first else (steps, batch)
        x = weight.new_empty(*outer, layer.input_size).requires_grad_(x_grad)
        states = weight.new_empty(layer.num_layers * (1 + layer.bidirectional), batch, layer.hidden_size)
        return x, ((states, states) if layer.mode == "LSTM" else states) if has_state else None

    for batch in sequences:  # all are compiled at once
        x, hx = call(batch, long[-1])
        if without_timing(layer, x, x, hx) is None:
            problem = module_problem(options_of(layer), kind_of(layer, x, x, hx), lambda: None, None)
            compilations.append(KernelCompilation(problem.kernel_cases(long), x.device))
            compilations[-1].is_running()
    for compilation in compilations:
        compilation.wait()
    buckets = _greatest_of_buckets(sequences)
    lines = {f"B {batch}, T {steps}": "" for batch in buckets for steps in long}
    apart = 2 * int(log2(NEIGHBOURHOOD))  # buckets, two to an octave
    for batch in dict.fromkeys([*buckets[::apart], buckets[-1], *buckets]):  # those first that spare others
        for steps in long:
            x, hx = call(batch, steps)
            lines[f"B {batch}, T {steps}"] = choose_untried(layer, x, x, hx).notes
    return [f"{kind}: {line}" for kind, line in lines.items()]


def _greatest_of_buckets(sizes: range) -> list[int]:
    """The greatest size of each bucket that the range reaches into."""
    return [size for size in sizes if size == sizes[-1] or bucket(size) != bucket(size + 1)]


def add_command(commands: Any) -> None:
    """Adds `python -m pytest_ecornn.nn prepare LAYER --batch 1-64 --steps 5-120` to a parser's commands."""
    help_text = "compiles the kernels of a layer and decides what runs it, for ranges of B and T, on this machine's GPU"
    parser = commands.add_parser("prepare", help=help_text, description=help_text)
    add = parser.add_argument
    add("text", nargs="+", metavar="LAYER", help=f"cell, I, H and precision, such as {_EXAMPLE!r}")
    add("--batch", type=_parse_range, required=True, metavar="B[-B]", help="sequences, such as 32 or 1-64")
    add("--steps", type=_parse_range, required=True, metavar="T[-T]", help="time steps, such as 35 or 5-120")
    add("--layers", type=int, default=1, metavar="L", help="layers (default: 1)")
    add("--bidirectional", action="store_true", help="both directions")
    add("--batch-first", action="store_true", help="x is [B, T, I]")
    add("--training", action="store_true", help="calls compute gradients of weights")
    parser.set_defaults(run=lambda given: _run(given, parser))


def _parse_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, or two such as 1-64, got {text!r}")
    return int(match[1]), int(match[2] or match[1])


def _run(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Prints a line for each decision. Exits with code 2 where the layer is wrong or there is no GPU."""
    text = " ".join(given.text)
    match = re.fullmatch(r"(LSTM|GRU|RNN) +I *(\d+) +H *(\d+) +(float16|bfloat16|float32|tf32)", text, re.IGNORECASE)
    if match is None or not torch.cuda.is_available():
        parser.error(f"expected a CUDA device and a layer such as {_EXAMPLE!r}, got {text!r}")
    precision = match[4].lower()
    layer = {"LSTM": LSTM, "GRU": GRU, "RNN": RNN}[match[1].upper()](
        int(match[2]), int(match[3]), given.layers, bidirectional=given.bidirectional, batch_first=given.batch_first,
        device="cuda", dtype=getattr(torch, "float32" if precision == "tf32" else precision),
    )  # fmt: skip
    with fp32_precision("rnn", "tf32" if precision == "tf32" else "ieee"):
        lines = prepare(layer.train(given.training), given.batch, given.steps, training=given.training)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0
