"""Runs the persistent kernels very often on a CUDA device: mixed cases back to back, every result as the first of its case.

`python -m pytest_ecornn.suites.soak_gpu` does so alone, beside a busy stream, and in builds with random waits. Exit code 0: all
were right; 1: some were wrong, or a launch gave up a wait, as is said; 2: there is no such device.

Results are compared where they are made, and how many were wrong is asked when all calls have been made, so that launches
follow each other as fast as the host makes them.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, kernel, wavefront
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu
from pytest_ecornn.implementations.sparse_persistent_gpu import kernel as sparse_kernel
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.verification import calls

# Of persistent_gpu, and of sparse_persistent_gpu those that are pruned. Few steps, so that there are many launches; in clusters
# and over the grid, of one tile and of several, by wgmma, with weights that stay on chip and some that do not, both passes and
# the forward one alone.
CASES = tuple(
    Case.parse(text)
    for text in (
        "lstm-T5-B8-H64-float16-cuda-state-training",
        "gru-T8-B20-H200-bfloat16-cuda-bidirectional-ragged-state-training",
        "lstm-T6-B100-H512-float16-cuda-training",
        "lstm-T3-B64-H650-float32-cuda-training",
        "lstm-T8-B1-H1024-float16-cuda-state",
        "gru-T4-B30-H1024-float32-cuda-ragged",
        "rnn_tanh-T3-B3-H33-float32-cuda-batchfirst-ragged-training",
        "rnn_relu-T7-B40-H128-float32-tf32-cuda-training",
        "gru-T4-B17-H512-float32-cuda-training",
        "lstm-T5-B20-H1500-float32-tf32-cuda-training",
        "lstm-T2-B3-H2048-float32-cuda-training",
        "rnn_tanh-T8-B8-H2048-bfloat16-cuda-state",
        "lstm-T1-B12-H650-float16-cuda-state",
        "lstm-T6-B20-H1500-float16-cuda",
        "lstm-T1-B1-H1-bfloat16-cuda-training",
        "gru-T1-B64-H256-float16-cuda-L2-training",
        "gru-T6-B4-H2816-float16-cuda-ragged-state-training",
        "gru-T4-B29-H2816-float32-tf32-cuda-training",
        "gru-T6-B256-H640-float32-cuda-training",
        "lstm-T8-B96-H1024-float32-tf32-cuda-ragged-state-training",
        "lstm-T5-B8-H256-float16-cuda-density0.1-state-training",
        "rnn_tanh-T8-B4-H2304-float32-cuda-density0.3",
        "gru-T6-B20-H512-bfloat16-cuda-bidirectional-density0.2-ragged-state-training",
        "rnn_tanh-T7-B4-H4608-float32-cuda-density0.3",
        "lstm-T4-B8-H2304-float16-cuda-density0.1-training",
        "rnn_relu-T8-B1-H1152-bfloat16-cuda-density0.05-training",
        "rnn_tanh-T3-B33-H300-float32-cuda-density0.5-training",
        "rnn_tanh-T6-B64-H1152-float32-cuda-density0.3-training",
    )
)
PARTS = ("alone", "busy", "jitter")
_COMPILED_BY: tuple[Any, ...] = (kernel, sparse_kernel)  # what compiles with macros of its own
Build = Callable[[Case, Weights], Layer]


@dataclass
class Repeated:
    """A case's layer and the bits of its first result. wrong: [1], int64, later calls that differed, counted on the device."""

    layer: Layer
    call: calls.Call
    first: Tensor
    mismatches: Tensor
    called: int = 0

    @classmethod
    def of(cls, case: Case, build: Build) -> Repeated:
        call = calls.Call(contents.problem(case))
        layer = build(case, call.problem.weights)
        first = _bits(calls.run_call(layer, call))
        return cls(layer, call, first, torch.zeros(1, dtype=torch.int64, device=first.device))

    @property
    def case(self) -> Case:
        return self.call.problem.case

    @property
    def launches(self) -> int:
        """Number of recurrent kernels that one call launches."""
        return self.case.layers * self.case.directions * (2 if self.case.training else 1)

    def again(self) -> None:
        found = _bits(calls.run_call(self.layer, self.call))
        self.mismatches += (found != self.first).any() if found.shape == self.first.shape else 1
        self.called += 1


def _bits(tensors: calls.Tensors) -> Tensor:
    """All of them, in one array."""
    return torch.cat([one.detach().reshape(-1).view(torch.uint8) for one in tensors.values() if one is not None])


class Tally(NamedTuple):
    """launches: of recurrent kernels. wrong: calls of each case that differed from its first, of those cases that have some."""

    launches: int
    mismatches: dict[str, int]


def repeat(repeated: Sequence[Repeated], launches: int, seed: int = 0, beside: Callable[[], None] = lambda: None) -> Tally:
    """So many launches or a few more, of cases drawn by `seed`. beside: called before each call."""
    draw, made = random.Random(seed), 0
    before = [int(one.mismatches) for one in repeated]
    while made < launches:
        one = draw.choice(repeated)
        beside()
        one.again()
        made += one.launches
    found = {str(one.case): int(one.mismatches) - wrong for one, wrong in zip(repeated, before, strict=True)}
    return Tally(made, {case: wrong for case, wrong in found.items() if wrong})


class BackgroundLoad:
    """Keeps a stream of its own busy with large products, as long as it is called often."""

    _SIZE, _PRODUCTS = 4096, 16

    def __init__(self) -> None:
        self._operand = torch.randn(self._SIZE, self._SIZE, device="cuda", dtype=torch.float16)
        self._result = torch.empty_like(self._operand)
        self._stream, self._done = torch.cuda.Stream(), torch.cuda.Event()
        self._stream.wait_stream(torch.cuda.current_stream())

    def __call__(self) -> None:
        if not self._done.query():
            return
        with torch.cuda.stream(self._stream):
            for _ in range(self._PRODUCTS):
                torch.mm(self._operand, self._operand, out=self._result)
            self._done.record()


@contextmanager
def jittered(seed: int) -> Iterator[None]:
    """Within it every launch is of a build with random waits, compiled at first use. Not for several threads at once.

    What kernels do not wait for, but must, shows then (ecornn/common/jitter.cuh).
    """
    before = [module.macros for module in _COMPILED_BY]
    for module, macros in zip(_COMPILED_BY, before, strict=True):
        module.macros = _with_jitter(macros, seed)
    _forget()
    try:
        yield
    finally:
        for module, macros in zip(_COMPILED_BY, before, strict=True):
            module.macros = macros
        _forget()


def _with_jitter(macros: Any, seed: int) -> Any:
    return lambda *given: (*macros(*given), ("JITTER", f"{seed}u"))


def _forget() -> None:
    wavefront.clear_cache()
    sparse_kernel.clear_cache()


def built(cases: Sequence[Case] = CASES, build: Build | None = None) -> list[Repeated]:
    """Each after its first call."""
    return [Repeated.of(case, build or _build) for case in cases]


def _build(case: Case, weights: Weights) -> Layer:
    return (PersistentGpu() if case.density == 1 else SparsePersistentGpu()).build(case, weights)


def jitter(repeated: Sequence[Repeated], launches: int, seeds: int) -> Tally:
    """So many launches in all, in a build for each seed."""
    total, wrong = 0, dict[str, int]()
    for seed in range(seeds):
        with jittered(seed):
            found = repeat(repeated, launches // seeds, seed)
        total += found.launches
        wrong |= {f"{case} by seed {seed}": count for case, count in found.mismatches.items()}
    return Tally(total, wrong)


def lines(name: str, found: Tally, seconds: float) -> Iterator[str]:
    yield f"{name}: {found.launches} launches in {seconds:.0f} s, {sum(found.mismatches.values())} calls wrong"
    yield from (f"  {case}: {count} wrong" for case, count in found.mismatches.items())


def run(parts: Sequence[str], launches: int, seeds: int) -> bool:
    """Whether all was right, which it prints part by part. Raises RuntimeError where a launch gave up a wait."""
    is_right, repeated = True, built()
    making: dict[str, Callable[[], Tally]] = {
        "alone": lambda: repeat(repeated, launches),
        "busy": lambda: repeat(repeated, launches, 1, BackgroundLoad()),
        "jitter": lambda: jitter(repeated, launches, seeds),
    }
    for name in parts:
        start = time.monotonic()
        found = making[name]()
        torch.cuda.synchronize()
        kernel.status_of(with_index("cuda")).check()
        print(*lines(name, found, time.monotonic() - start), sep="\n", flush=True)
        is_right &= not found.mismatches
    return is_right


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak_gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="beside a busy stream, or with random waits")
    parser.add_argument("--launches", type=int, default=100_000, help="of recurrent kernels, in each part")
    parser.add_argument("--seeds", type=int, default=10, help="builds with random waits, each compiled for some 20 s")
    parser.add_argument("--patience", type=float, metavar="SECONDS", help="until a kernel gives up a wait; more when watched")
    given = parser.parse_args(arguments)
    if given.patience is not None:
        kernel.WATCHDOG_NS = int(given.patience * 1e9)
    return exit_code(parser.prog, lambda: run(given.parts, given.launches, given.seeds))


if __name__ == "__main__":
    raise SystemExit(main())
