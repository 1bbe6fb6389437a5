"""The problem that a decision is about: all that the times of its candidates depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_ecornn.contract import Case

_MAX_EXACT = 4
NEIGHBOURHOOD = 4  # B over the least B at which decisions may spare another between them


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A case and the options of a call that a case does not have.

    caller: "layer" of an Implementation, or "module" of `pytest_ecornn.nn`, whose calls cost the host more. x_grad,
    weight_grad: which gradients a call in training computes. autocast: its dtype, "" for none. dropout: between layers.
    evaluation: of a module that is not in training. deterministic: only deterministic candidates may run. threads: of a CPU.
    is_linear: times from T 5 on are linear in T, so that one decision serves all of them. variant: more of the key.
    """

    case: Case
    caller: str = "layer"
    x_grad: bool = False
    weight_grad: bool = False
    autocast: str = ""
    dropout: bool = False
    evaluation: bool = False
    deterministic: bool = False
    threads: int = 0
    is_linear: bool = False
    variant: str = ""

    @property
    def key(self) -> str:
        """The problem as text: no index of the device, nothing of the data and where it lies.

        B is rounded up to its bucket, and so is T, unless times are linear in it: then 5 stands for all T from 5 on.
        """
        return self.key_of(self.case.batch)

    def key_of(self, batch: int) -> str:
        """The key of the same problem with B sequences."""
        device, steps = self.case.device.partition(":")[0], self.case.steps
        steps = min(steps, _MAX_EXACT + 1) if self.is_linear else bucket(steps)
        case = replace(
            self.case, steps=steps, batch=bucket(batch), device=device, contents="normal", layout="contiguous", weights="",
            seed=0,
        )  # fmt: skip
        flags = ("x_grad", "weight_grad", "dropout", "evaluation", "deterministic")
        options = [name.replace("_", "") for name in flags if getattr(self, name)]
        options += [f"autocast_{self.autocast}"] * bool(self.autocast) + [f"threads{self.threads}"] * bool(self.threads)
        options += [self.variant] * bool(self.variant)
        return " ".join([self.caller, str(case), *options])

    def neighbours(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Buckets of fewer and of more sequences with their keys, the nearest first, up to a factor of NEIGHBOURHOOD."""
        batch, span = bucket(self.case.batch), range(1, NEIGHBOURHOOD * self.case.batch + 1)
        buckets = [size for size in span if bucket(size) == size and NEIGHBOURHOOD * size >= batch]
        below, above = [size for size in buckets if size < batch], [size for size in buckets if size > batch]
        return [(size, self.key_of(size)) for size in reversed(below)], [(size, self.key_of(size)) for size in above]


def bucket(size: int) -> int:
    """The bucket of T or B: the size itself up to 4, then the next of 6, 8, 12, 16, 24, 32, ...: two to an octave."""
    if size <= _MAX_EXACT:
        return size
    octave: int = 1 << (size - 1).bit_length()
    return octave * 3 // 4 if size <= octave * 3 // 4 else octave
