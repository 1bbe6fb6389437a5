"""The problem that a decision is about: all that the times of its candidates depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_ecornn.contract import Case

_MAX_EXACT_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A case and the options of a call that a case does not have.

    caller: "layer" of an Implementation, or "module" of `pytest_ecornn.nn`, whose calls cost the host more. x_grad,
    weight_grad: which gradients a call in training computes. autocast: its dtype, "" for none. dropout: between layers.
    evaluation: of a module that is not in training. deterministic: only deterministic candidates may run. threads: of a CPU.
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

    @property
    def key(self) -> str:
        """The problem as text, T rounded up to its bucket: no index of the device, nothing of the data and where it lies."""
        device = self.case.device.partition(":")[0]
        case = replace(
            self.case, steps=bucket(self.case.steps), device=device, contents="normal", layout="contiguous", weights="", seed=0
        )
        flags = ("x_grad", "weight_grad", "dropout", "evaluation", "deterministic")
        options = [name.replace("_", "") for name in flags if getattr(self, name)]
        options += [f"autocast_{self.autocast}"] * bool(self.autocast) + [f"threads{self.threads}"] * bool(self.threads)
        return " ".join([self.caller, str(case), *options])


def bucket(steps: int) -> int:
    """The bucket of T: T itself up to 4, then the next of 6, 8, 12, 16, 24, 32, ...: two to an octave."""
    if steps <= _MAX_EXACT_STEPS:
        return steps
    octave: int = 1 << (steps - 1).bit_length()
    return octave * 3 // 4 if steps <= octave * 3 // 4 else octave
