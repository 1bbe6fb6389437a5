"""Steps of a layer whose shapes vary, and `main`, by which a process of its own times them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from random import Random

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.autotune import selection
from pytest_ecornn.system.cache import cache_dir

TORCH, OURS = "torch.nn", "pytest_ecornn.nn"
SLOW_MS = 100.0
_BUFFERS = 4  # that steps read in turn, so that memory does not grow with their number
_LEARNING_RATE = 1e-3
Step = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Scenario:
    """A layer and its calls. cell: the class. batches, lengths: bounds of B and T, of which each step draws its own.

    is_ragged: sequences have lengths of 1 to T. mode: "training" or "inference".
    """

    cell: str
    input_size: int
    hidden_size: int
    precision: str
    batches: tuple[int, int]
    lengths: tuple[int, int]
    layers: int = 1
    directions: int = 1
    is_ragged: bool = False
    mode: str = "training"
    steps: int = 300
    seed: int = 1

    def __str__(self) -> str:
        layers, inputs = f"{self.layers} x " * (self.layers > 1), f"{self.input_size} -> "
        sizes = f"{layers}{inputs * (self.input_size != self.hidden_size)}{self.hidden_size}"
        batches, lengths = (f"{low}..{high}" if low < high else f"{low}" for low, high in (self.batches, self.lengths))
        others = ", both directions" * (self.directions > 1) + ", by lengths" * self.is_ragged
        return f"{self.cell} {sizes} {self.precision}, B {batches}, T {lengths}{others}"


@dataclass(frozen=True)
class StepTimes:
    """Times of a process. total_s: of all steps, from the first on. again_s: of the same shapes once more.

    slow_steps: those of over SLOW_MS. digest: SHA-256 of the losses in float32. decisions: choices of a backend.
    kernels: compiled ones in its cache at its end.
    """

    total_s: float
    again_s: float
    first_ms: float
    longest_ms: float
    slow_steps: int
    digest: str
    decisions: int
    kernels: int


def make_step(scenario: Scenario, library: str, device: torch.device) -> Step:
    """Returns a step on x [T, B, I] and lengths [B], or None: of SGD, which returns the loss, or of inference: the output.

    By lengths torch.nn packs, which waits for the device, and unpacks.
    """
    torch.manual_seed(scenario.seed)
    layer: nn.Module = getattr(import_module(library), scenario.cell)(
        scenario.input_size, scenario.hidden_size, scenario.layers, bidirectional=scenario.directions > 1, device=device,
        dtype=getattr(torch, scenario.precision),
    )  # fmt: skip
    optimizer = torch.optim.SGD(layer.parameters(), lr=_LEARNING_RATE)

    def forward(x: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is not None and library == TORCH:
            packed = layer(pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False))[0]
            return pad_packed_sequence(packed, total_length=len(x))[0]
        output: Tensor = (layer(x) if lengths is None else layer(x, lengths=lengths))[0]
        return output

    def train(x: Tensor, lengths: Tensor | None) -> Tensor:
        optimizer.zero_grad()
        loss = forward(x, lengths).float().square().sum() / x.shape[1]
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train if scenario.mode == "training" else torch.no_grad()(forward)


def draw_inputs(scenario: Scenario, device: torch.device) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yields each step's x [T, B, I] and, of ragged ones, lengths [B]."""
    random, width = Random(scenario.seed), scenario.input_size
    largest = scenario.lengths[1] * scenario.batches[1] * width
    buffers = torch.randn(_BUFFERS, largest, device=device, dtype=getattr(torch, scenario.precision))
    for number in range(scenario.steps):
        length, batch = random.randint(*scenario.lengths), random.randint(*scenario.batches)
        lengths = [random.randint(1, length) for _ in range(batch)]
        x = buffers[number % _BUFFERS, : length * batch * width].view(length, batch, width)
        yield x, torch.tensor(lengths, device=device) if scenario.is_ragged else None


def measure(scenario: Scenario, library: str, device: torch.device) -> StepTimes:
    """Times the steps, then the same once more. Raises ValueError for losses that are not finite."""
    step, inputs = make_step(scenario, library, device), [*draw_inputs(scenario, device)]
    (times_ms, results), (again_ms, _) = (_timed(step, inputs, device) for _ in range(2))
    losses = torch.stack(results).float().cpu()
    if not losses.isfinite().all():
        raise ValueError("expected finite losses")
    slow, digest = sum(time_ms > SLOW_MS for time_ms in times_ms), sha256(losses.numpy().tobytes()).hexdigest()
    decisions, kernels = len(selection.decisions()), len([*cache_dir().rglob("*.cubin")])
    total_s, again_s = sum(times_ms) / 1e3, sum(again_ms) / 1e3
    return StepTimes(total_s, again_s, times_ms[0], max(times_ms), slow, digest, decisions, kernels)


def _timed(
    step: Step, inputs: Sequence[tuple[Tensor, Tensor | None]], device: torch.device
) -> tuple[list[float], list[Tensor]]:
    """Returns each step's milliseconds, until the device is done, and what it returned."""
    synchronize: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times_ms, results = [], []
    synchronize()
    for x, lengths in inputs:
        start = time.perf_counter()
        results.append(step(x, lengths))
        synchronize()
        times_ms.append(1e3 * (time.perf_counter() - start))
    return times_ms, results


def main(text: str) -> None:
    """Prints "ready" once imports are done and the device has a context, waits for a line, and prints StepTimes as JSON.

    text: the job, as JSON.
    """
    job = json.loads(text)
    device = torch.device(job["device"])
    torch.zeros(1, device=device)
    torch.use_deterministic_algorithms(job["is_deterministic"])
    import_module(job["library"])
    print("ready", flush=True)
    input()
    print(json.dumps(asdict(measure(Scenario(**job["scenario"]), job["library"], device))))
