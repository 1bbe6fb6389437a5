"""A process's share of a host with several GPUs: one GPU and as many of the cores, without overlap."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from pytest_ecornn.system import machine
from pytest_ecornn.system.own_threads import own_threads

_VARIABLE = "PYTEST_ECORNN_GPU"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class HostShare:
    """GPU `number` of `count` that a run uses, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def beside(self) -> str:
        """The use of the host by others, as a row says it."""
        others = "another GPU" if self.count == 2 else f"{self.count - 1} other GPUs"
        return f"{others} in use, on {machine.usable_cores()} cores"

    def environment(self, gpus: Sequence[str]) -> dict[str, str]:
        """Returns the variables with which a process is to start. gpus: as `gpus_of_one_kind` names them."""
        return {_VISIBLE: gpus[self.number - 1], _VARIABLE: str(self)}

    def cores(self, usable: Sequence[int]) -> list[int]:
        """Returns its cores, neighbours of each other; at least one."""
        first, end = (len(usable) * at // self.count for at in (self.number - 1, self.number))
        return list(usable[first : max(end, first + 1)])

    def take(self) -> None:
        """Binds all threads of this process to its cores."""
        if not hasattr(os, "sched_setaffinity"):
            return
        cores = self.cores(sorted(os.sched_getaffinity(0)))
        for thread in own_threads():
            with suppress(OSError):  # it has just ended
                os.sched_setaffinity(int(thread), cores)
        torch.set_num_threads(len(cores))


def taken() -> HostShare | None:
    """Takes the share that this process was started with, and returns it; None where there is none."""
    text = os.environ.pop(_VARIABLE, "")  # no process that this one starts takes a share of the share
    if not text:
        return None
    share = HostShare(*map(int, text.split("/")))
    share.take()
    return share


def gpus_of_one_kind() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none where they are of several kinds."""
    count = torch.cuda.device_count()
    if len({torch.cuda.get_device_name(index) for index in range(count)}) > 1:
        return []
    given = [one.strip() for one in os.environ.get(_VISIBLE, "").split(",") if one.strip()]
    return (given or list(map(str, range(count))))[:count]
