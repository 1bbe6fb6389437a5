"""A language model and its training step: embedding, recurrent layers, dropout, tied softmax, clipping, SGD.

As EcoRNN trains on PTB: Zaremba et al., Recurrent Neural Network Regularization, arXiv 1409.2329, with tied weights.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, linear

from pytest_ecornn.measurement.measurement import gc_disabled
from pytest_ecornn.suites.published.language_model_parts.recurrent_layers import LAYERS, NONE, ModelSizes, make_layer

ZIPF, PAIRS = "Zipf's law", "pairs"
_PAIRED = 0.9  # of the words of `pairs` that follow from the one before
_SEED = 0
_END = "<eos>"  # of a line
AUTOCAST = "bfloat16"
PRECISIONS = ("float32", "tf32", AUTOCAST)
_RATE, _MAX_NORM, _RANGE = 5.0, 0.25, 0.1
_WARM_UP = 3


@dataclass(frozen=True)
class Corpus:
    """words: int64 [N], below `vocabulary`. source: ZIPF, PAIRS or the text's name."""

    words: Tensor
    vocabulary: int
    source: str

    def batches(self, steps: int, batch: int, count: int, device: torch.device) -> Tensor:
        """int64 [count, T + 1, B]: each column goes on where the one before it in time ended, and repeats the corpus."""
        column = count * steps + 1
        starts = torch.arange(batch) * (len(self.words) // batch)
        places = (starts + torch.arange(column)[:, None]) % len(self.words)
        first = torch.arange(count)[:, None] * steps + torch.arange(steps + 1)
        return self.words[places][first].to(device)


def zipf(vocabulary: int, count: int) -> Corpus:
    """`count` words, the k-th most frequent with a probability proportional to 1 / k."""
    generator = torch.Generator().manual_seed(_SEED)
    cumulated = (1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)).cumsum(0)
    draws = torch.rand(count, generator=generator, dtype=torch.float64) * cumulated[-1]
    return Corpus(torch.searchsorted(cumulated, draws).clamp_(max=vocabulary - 1), vocabulary, ZIPF)


def pairs(vocabulary: int, count: int, used: int) -> Corpus:
    """`count` words of `used`, most of which follow from the word before, so that a model learns what a recurrent layer passes.

    Others are uniform.
    """
    generator = torch.Generator().manual_seed(_SEED)
    following = torch.randperm(used, generator=generator)
    jumps = torch.randint(used, (count,), generator=generator)
    follows = torch.rand(count, generator=generator) < _PAIRED
    words = [0]
    for jump, is_next in zip(jumps.tolist(), follows.tolist(), strict=True):
        words.append(int(following[words[-1]]) if is_next else jump)
    return Corpus(torch.tensor(words[1:]), vocabulary, PAIRS)


def read(path: Path) -> Corpus:
    """The words of a text, between spaces, and the end of each line. Raises ValueError for fewer than two, OSError."""
    words = [word for line in path.read_text(encoding="utf-8").splitlines() if line.strip() for word in (*line.split(), _END)]
    ranks = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common())}
    if len(ranks) < 2:
        raise ValueError(f"{path}: expected a text of two words at least, got {len(ranks)}")
    return Corpus(torch.tensor([ranks[word] for word in words]), len(ranks), path.name)


class LanguageModel(nn.Module):
    """Logits [T, B, V] of the next word, and the states. output_dtype: of the recurrent layer's output in the last call."""

    def __init__(self, recurrent: nn.Module, sizes: ModelSizes):
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        nn.init.uniform_(self.embedding.weight, -_RANGE, _RANGE)
        self.bias = nn.Parameter(torch.zeros(sizes.vocabulary))
        self.recurrent, self._dropout, self.output_dtype = recurrent, sizes.dropout, ""

    def forward(self, words: Tensor, state: Any) -> tuple[Tensor, Any]:
        """words: int64 [T, B]."""
        x = dropout(self.embedding(words), self._dropout, self.training)
        output, state = self.recurrent(x, state)
        self.output_dtype = str(output.dtype).removeprefix("torch.")
        return linear(dropout(output, self._dropout, self.training), self.embedding.weight, self.bias), state


class Training:
    """Steps of one model on batches of words [N, T + 1, B], in order and over again; states go on from step to step.

    seed: of initial values and dropout, but for that between cuDNN's layers, which it draws by a seed of its own. Raises what
    make_layer raises.
    """

    def __init__(self, name: str, sizes: ModelSizes, batches: Tensor, device: torch.device, seed: int = 0):
        layer = make_layer(name, sizes, str(device), seed)
        torch.manual_seed(seed + 1)
        self.model = LanguageModel(layer, sizes).to(device, torch.float64 if sizes.precision == "float64" else torch.float32)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE)
        self._batches, self._words, self._number = batches, batches[0].clone(), 0
        shape = LAYERS, sizes.batch, sizes.hidden
        self._state = tuple(torch.zeros(shape, device=device, dtype=self.model.bias.dtype) for _ in range(2))
        self._casts, self._device, self._has_layer = sizes.precision == AUTOCAST, device, name != NONE
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = torch.zeros((), device=device)

    def step(self) -> Tensor:
        """Trains on the next batch and returns its loss, a tensor that later steps may overwrite."""
        self._words.copy_(self._batches[self._number % len(self._batches)])
        self._number += 1
        if self._graph is None:
            self._loss = self._train()
        else:
            self._graph.replay()
        return self._loss

    def capture(self) -> None:
        """Captures all of a step but the choice of words into a CUDA graph, which later steps replay."""
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self.step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with gc_disabled(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._loss = self._train()
        self._graph = graph

    def notes(self) -> str:
        """Returns what auto says of its choice, "" of other layers."""
        notes = getattr(self.model.recurrent, "notes", None)
        return notes() if notes else ""

    def _train(self) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._casts):
            logits, state = self.model(self._words[:-1], self._state)
            loss = cross_entropy(logits.flatten(0, 1), self._words[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), _MAX_NORM)
        self._optimizer.step()
        if self._has_layer:
            for before, after in zip(self._state, state, strict=True):
                before.copy_(after.detach())
        return loss.detach()
