"""Runs the persistent kernels very often on a CUDA device: mixed cases back to back, every result as the first of its case.

`python -m pytest_ecornn.suites.soak_gpu` does so alone, beside a busy stream, and in builds with random waits. Exit code 0: all
were right; 1: some were wrong, or a launch gave up a wait, as is said; 2: there is no such device.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, kernel, wavefront
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu
from pytest_ecornn.implementations.sparse_persistent_gpu import kernel as sparse_kernel
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.promises.repeats import BackgroundLoad, Build, Repeated, Tally, repeat

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
    outcomes: list[bool] = []
    code = exit_code(parser.prog, lambda: outcomes.append(run(given.parts, given.launches, given.seeds)))
    return code or int(not all(outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
