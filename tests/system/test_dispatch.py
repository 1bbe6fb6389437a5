"""A mode sees every operator, whether torch's compiler is there or not, and does not load it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from pytest_ecornn.system.dispatch import DispatchMode
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign


class Seen(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_operators_are_seen_before_the_compiler_is_imported_and_after() -> None:
    for _ in range(2):
        with Seen() as seen:
            torch.ones(2).add_(1)
        assert seen.names == ["aten.ones.default", "aten.add_.Tensor"]
        importlib.import_module("torch._dynamo")


def test_a_mode_is_not_compiled() -> None:
    graphs: list[Any] = []
    doubled = torch.compile(lambda x: x + x, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    with Seen() as seen:
        assert doubled(torch.ones(2)).tolist() == [2, 2]
    assert len(graphs) <= 1  # the function's own
    assert "aten.add.Tensor" in seen.names


def test_verifying_and_timing_does_not_load_the_compiler(tmp_path: Path) -> None:
    foreign = Foreign(tmp_path)
    text = (
        "import sys\ndef pytest_unconfigure(config):\n    print('loaded:', {'torch', 'torch._dynamo'} & sys.modules.keys())\n"
    )
    foreign.write("conftest.py", text)
    done = foreign.run("--ecornn-bench", "--ecornn-case", samples.CASE, *QUICK, check=0, fresh=True)
    assert "loaded: {'torch'}" in done.stdout
