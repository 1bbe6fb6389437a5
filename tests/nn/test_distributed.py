"""The modules of pytest_ecornn.nn on two processes, by DDP and FSDP2: gradients of one process that has all sequences."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pytest_ecornn.autotune import selection
from pytest_ecornn.nn import GRU, LSTM, MinGRU, MinLSTM

pytestmark = [
    pytest.mark.test_all(keep=4),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch.distributed has no gloo here"),
]
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA devices on this machine")
KINDS = (LSTM, GRU, MinGRU, MinLSTM)


def made(kind: Callable[..., nn.Module], **options: str) -> nn.Module:
    torch.manual_seed(0)
    return kind(4, 9, num_layers=2, **options)


def backward(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of all parameters, whole where they are sharded."""
    module(x)[0].square().mean().backward()
    found = [parameter.grad for parameter in module.parameters()]
    return [getattr(one, "full_tensor", lambda one=one: one)() for one in found if one is not None]


def leave() -> NoReturn:
    """Ends a process at once.

    FSDP2 retains gloo's threads, which may abort while the interpreter is finalized. Source: pytorch#190489.
    """
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def compare(rank: int, store: str) -> None:
    """Runs in each of the two processes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.linspace(-1, 1, 80).view(5, 4, 4)
    own = x[:, 2 * rank : 2 * rank + 2]
    for kind in KINDS:
        wanted = backward(made(kind), x)
        sharded = made(kind)
        fully_shard(sharded)
        for module in (DistributedDataParallel(made(kind)), sharded):
            torch.testing.assert_close(backward(module, own), wanted)
    leave()


def train(module: nn.Module, x: torch.Tensor) -> list[float]:
    """Losses of steps by SGD."""
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.5), []
    for _ in range(8):
        optimizer.zero_grad()
        loss = module(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        time.sleep(0.05)  # ranks look for a decision every 0.2 s
    return losses


def choose(rank: int, store: str, device: str, folder: str) -> None:
    """Runs in each of the two processes: they choose alike, and their mean losses are those of one process."""
    os.environ["ECORNN_CACHE_DIR"] = f"{folder}/{rank}"  # or a rank would read what the other stored
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.linspace(-1, 1, 32, device=device).view(2, 4, 4)  # of T 2 the loop is a candidate
    kind = GRU if device == "cuda" else MinGRU
    alone = train(made(kind, backend="heuristic").to(device), x)
    module = made(kind).to(device)
    losses = torch.tensor(train(DistributedDataParallel(module), x[:, 2 * rank : 2 * rank + 2]), device=device)
    torch.distributed.all_reduce(losses)
    torch.testing.assert_close(losses / 2, torch.tensor(alone, device=device), rtol=1e-3, atol=1e-3)
    module(x[:, 2 * rank : 2 * rank + 2])
    chosen = [None, None]
    torch.distributed.all_gather_object(chosen, module.notes().partition(";")[0])
    sources = [None, None]
    timed = [one.source for one in selection.decisions().values() if one.timings]
    torch.distributed.all_gather_object(sources, timed)
    assert chosen[0] == chosen[1]
    assert sorted({source for of_rank in sources for source in of_rank}) == ["measured", "ranks"]
    leave()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_two_gpus)])
def test_two_processes_choose_alike(device: str, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(choose, (str(tmp_path / "store"), device, str(tmp_path)), nprocs=2)


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(compare, (str(tmp_path / "store"),), nprocs=2)
