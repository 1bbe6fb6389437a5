"""Words that the language models train on: drawn by Zipf's law, or those of a text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

ZIPF, PAIRS = "Zipf's law", "pairs"
_PAIRED = 0.9  # of the words of `pairs` that follow from the one before
_SEED = 0
_END = "<eos>"  # of a line


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
