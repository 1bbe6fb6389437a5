"""torch's own kernels, over which Python code may register others: nothing but the end of its library takes them away."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_OPERATORS = """
    abs add.Tensor addmm amax bmm cat clone copy_ div.Tensor empty.memory_format equal fill_.Scalar gru.input index_select
    linear lstm.input masked_fill.Scalar matmul mkldnn_rnn_layer mm mul.Tensor ne.Tensor nonzero randn.generator
    randperm.generator relu rnn_relu.input rnn_tanh.input sigmoid split.Tensor stack sub.Tensor sum.dim_IntList t tanh
    _to_copy where.self zeros
"""
_KEYS = tuple(f"{prefix}{device}:" for prefix in ("", "Autograd", "Autocast") for device in ("CPU", "CUDA"))


class Overrides:
    """Snapshot of the registered kernels, to be compared with later ones."""

    def __init__(self) -> None:
        self._kernels, self._by_python = _kernels(), _by_python()

    def changes(self) -> Iterator[str]:
        """Yields a line for each operator whose kernels have changed since."""
        changed = [name for name, kernels in _kernels().items() if kernels != self._kernels[name]]
        for name in dict.fromkeys([*changed, *sorted(_by_python() - self._by_python)]):
            yield (
                f"torch.ops.aten.{name}: expected torch's own kernel as before, but another is registered over it, "
                "which this process keeps"
            )


def _kernels() -> dict[str, list[str]]:
    """Returns where each operator's kernels were registered, on devices that have timed rows."""
    return {
        name: [line for line in torch._C._dispatch_dump_table(f"aten::{name}").splitlines() if line.startswith(_KEYS)]
        for name in _OPERATORS.split()
    }


def _by_python() -> set[str]:
    """Operators for which Python code has registered kernels, on what has timed rows: any of torch's own."""
    registered = (one.split("/") for one in getattr(torch.library, "_impls", ()))
    return {name for library, name, key in registered if library == "aten" and f"{key}:".endswith(_KEYS)}
