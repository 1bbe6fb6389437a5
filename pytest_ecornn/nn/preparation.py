"""Compiles and decides ahead for ranges of shapes, so that no later call does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pytest_ecornn.autotune.problem import NEIGHBOURHOOD, bucket
from pytest_ecornn.nn.backend_choice import choose_untried, without_timing
from pytest_ecornn.nn.module_candidates import KernelCompilation, kind_of, module_problem, options_of
from pytest_ecornn.nn.recurrent import GRU, LSTM, RNN

Range = int | tuple[int, int]


def prepare(
    model: nn.Module, batch: Range, steps: Range, *, training: bool = False, x_grad: bool = False, has_state: bool = False
) -> list[str]:
    """Compiles the kernels and makes the decisions of a model's RNN, LSTM and GRU. Returns a line for each decision.

    model: on the device, in the dtype and mode in which it will be called; under autocast call this under it too. batch, steps:
    B and T, each a number or the least and the greatest one. training: weights that require gradients get them. x_grad: so does
    the input, as that of a layer behind others. has_state: calls give initial states.

    Compiled kernels and decisions lie in the cache folder, ECORNN_CACHE_DIR, which may be copied to equal machines and be
    read-only there. On a CPU there is nothing to prepare. Raises ValueError for ranges that are empty or begin below 1.
    """
    sequences, lengths = _range("batch", batch), _range("steps", steps)
    notes: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, (RNN, GRU, LSTM)) and (weight := layer._flat_weights[0]) is not None and weight.is_cuda:
            place = f"{name}: " if name else ""
            with torch.set_grad_enabled(training or x_grad), torch.cuda.stream(torch.cuda.Stream(weight.device)):
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
    for batch in dict.fromkeys([*buckets[:: 2 * NEIGHBOURHOOD.bit_length() - 2], buckets[-1], *buckets]):  # far ones first
        for steps in long:
            x, hx = call(batch, steps)
            lines[f"B {batch}, T {steps}"] = choose_untried(layer, x, x, hx).notes
    return [f"{kind}: {line}" for kind, line in lines.items()]


def _greatest_of_buckets(sizes: range) -> list[int]:
    """The greatest size of each bucket that the range reaches into."""
    return [size for size in sizes if size == sizes[-1] or bucket(size) != bucket(size + 1)]
