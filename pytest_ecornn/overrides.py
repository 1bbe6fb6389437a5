"""What stands between torch's functions and its kernels: modes that see every call, and kernels registered over its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.overrides import _pop_mode as pop_function_mode
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode

_OPERATORS = """
    abs add.Tensor addmm amax bmm cat clone copy_ div.Tensor empty.memory_format equal fill_.Scalar gru.input index_select
    linear lstm.input masked_fill.Scalar matmul mkldnn_rnn_layer mm mul.Tensor ne.Tensor nonzero randn.generator
    randperm.generator relu rnn_relu.input rnn_tanh.input sigmoid split.Tensor stack sub.Tensor sum.dim_IntList t tanh
    _to_copy where.self zeros
"""
_KEYS = tuple(f"{prefix}{device}:" for prefix in ("", "Autograd", "Autocast") for device in ("CPU", "CUDA"))


class Overrides:
    """As it is now, to be compared with what it is later."""

    def __init__(self) -> None:
        self._kernels, self._modes = _kernels(), _modes()

    def changes(self) -> Iterator[str]:
        """What has changed since, after modes that were left on have been left."""
        for (kind, before), after in zip(self._modes.items(), _modes().values(), strict=True):
            if before != after:
                yield f"torch's {kind} modes: expected {before} as before, got {after}"
            for _ in range(after - before):
                (pop_function_mode if kind == "function" else pop_dispatch_mode)()  # type: ignore[no-untyped-call]
        for name, kernels in _kernels().items():
            if kernels != self._kernels[name]:
                yield f"torch.ops.aten.{name}: expected torch's own kernel as before, but another is registered over it"


def _modes() -> dict[str, int]:
    return {"function": torch._C._len_torch_function_stack(), "dispatch": torch._C._len_torch_dispatch_stack()}


def _kernels() -> dict[str, list[str]]:
    """Where the kernels of each operator were registered, on what has timed rows."""
    return {
        name: [line for line in torch._C._dispatch_dump_table(f"aten::{name}").splitlines() if line.startswith(_KEYS)]
        for name in _OPERATORS.split()
    }
