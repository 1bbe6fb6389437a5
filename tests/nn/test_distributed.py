"""The modules of pytest_ecornn.nn on two processes, by DDP and FSDP2: gradients of one process that has all sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ecornn.nn import GRU, LSTM, MinGRU, MinLSTM

pytestmark = [
    pytest.mark.ci_only,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch.distributed has no gloo here"),
]
KINDS = (LSTM, GRU, MinGRU, MinLSTM)


def made(kind: Callable[..., nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind(4, 9, num_layers=2)


def backward(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of all parameters, whole where they are sharded."""
    module(x)[0].square().mean().backward()
    found = [parameter.grad for parameter in module.parameters()]
    return [getattr(one, "full_tensor", lambda one=one: one)() for one in found if one is not None]


def compare(rank: int, store: str) -> None:
    """Runs in each of the two processes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.linspace(-1, 1, 80).view(5, 4, 4)
    own = x[:, 2 * rank : 2 * rank + 2]
    for kind in KINDS:
        wanted = backward(made(kind), x)
        sharded = made(kind)
        torch.distributed.fsdp.fully_shard(sharded)
        for module in (DistributedDataParallel(made(kind)), sharded):
            found = backward(module, own)
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other)
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(compare, (str(tmp_path / "store"),), nprocs=2)
