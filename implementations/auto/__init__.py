"""The fastest implementation for a case, chosen by timing those that run it when the layer is built.

Candidates alternate for milliseconds on copies of the weights. Two win: one as called, one for calls that are captured into a
CUDA graph. Decisions are stored on disk. `ECORNN_AUTO=heuristic` times nothing; a backend's name there runs that one.
Source: EcoRNN, arXiv 1805.08899.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pytest_ecornn.autotune import Decision, Problem, select
from pytest_ecornn.contract import Case, Cost, Declared, Implementation, Layer, State, Unsupported, Weights
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.implementations.auto import candidates


class Auto(Noted):
    # Before a layer is built these are the coarsest that a choice may declare; then they are the choice's.
    carry = "storage"
    gate_gradients = "storage"
    saved_gates = "storage"
    products = "storage"
    weight_gradients = "storage"
    activation_error = 2.0**-16
    deterministic = False
    takes_resets = True
    times_in_build = True

    def __init__(self) -> None:
        self._chosen: list[Implementation] = []

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        names, refusals = candidates.supported(case, device)
        if names:
            return None
        return "no candidate runs it: " + "; ".join(f"{name} {why}" for name, why in refusals.items())

    def build(self, case: Case, weights: Weights) -> Layer:
        device = candidates.device_of(case)
        if reason := self.unsupported(case, device):
            raise Unsupported(reason)
        decision, _ = select(
            layer_problem(case), device, partial(candidates.make_choices, case, weights), candidates.implementations()
        )
        layers = self._build_winners(decision, case, weights)
        self._notes = "; ".join([decision.notes(), *filter(None, (one.notes() for one in self._chosen))])
        return layers[0] if len(layers) == 1 else switch_when_captured(*layers)

    def cost(self, case: Case) -> Cost:
        """The choice's cost; before a layer is built, that of the first candidate which runs the case."""
        if self._chosen:
            return self._chosen[0].cost(case)
        names, _ = candidates.supported(case, candidates.device_of(case))
        return candidates.implementations()[names[0]]().cost(case)

    def _build_winners(self, decision: Decision, case: Case, weights: Weights) -> list[Layer]:
        """The layers of the winner as called, and of that on the device if it is another. Declares what they declare.

        The former is built last: one may move the weights (cudnn), another capture graphs of where they lie (transposed_gpu).
        """
        self.delegate, names = decision.called, dict.fromkeys((decision.called, decision.device))
        self._chosen = [candidates.implementations()[name]() for name in names]
        layers = [one.build(case, weights) for one in reversed(self._chosen)][::-1]
        for name in Declared._fields:
            declared = [getattr(one, name) for one in self._chosen]
            setattr(self, name, max(declared) if name == "activation_error" else _coarser(declared))
        self.deterministic = all(one.deterministic for one in self._chosen)
        return layers


def _coarser(declared: list[str]) -> str:
    return "storage" if "storage" in declared else declared[0]


def layer_problem(case: Case) -> Problem:
    """The problem of a layer that an implementation builds."""
    threads = torch.get_num_threads() if case.device == "cpu" else 0
    return Problem(
        case=case, x_grad=case.training, weight_grad=case.training, threads=threads,
        deterministic=torch.are_deterministic_algorithms_enabled(), is_linear=candidates.is_linear(case),
    )  # fmt: skip


def switch_when_captured(called: Layer, captured: Layer) -> Layer:
    """A layer as called, and another while a CUDA graph is captured or torch.compile traces it."""

    def layer(x: Tensor, state: State, *rest: Tensor | None) -> tuple[Tensor, State]:
        if torch.cuda.is_current_stream_capturing() or torch.compiler.is_compiling():
            return captured(x, state, *rest)
        return called(x, state, *rest)

    return layer
