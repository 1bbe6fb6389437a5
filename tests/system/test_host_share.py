"""A process's share of a host with several GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch

from pytest_ecornn.system.gpus import host_share
from pytest_ecornn.system.gpus.host_share import HostShare, gpus_of_one_kind

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("cores", [7, 8, 64])
def test_shares_divide_the_cores_among_them(count: int, cores: int) -> None:
    usable = [2 * core for core in range(cores)]
    shares = [HostShare(number, count).cores(usable) for number in range(1, count + 1)]
    assert list(chain.from_iterable(shares)) == usable
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_each_has_a_core_where_there_are_too_few() -> None:
    assert [HostShare(number, 4).cores([5, 6]) for number in (1, 2, 3, 4)] == [[5], [5], [6], [6]]


def test_a_process_takes_the_share_that_it_was_started_with() -> None:
    code = (
        "import os, threading, time, torch\n"
        "from pytest_ecornn.system.gpus import host_share\n"
        "threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
        "share = host_share.taken()\n"
        "threads = [sorted(os.sched_getaffinity(int(one))) for one in os.listdir('/proc/self/task')]\n"
        "print(share, threads, torch.get_num_threads(), os.environ['CUDA_VISIBLE_DEVICES'], share.beside, sep='|')\n"
    )
    usable = sorted(os.sched_getaffinity(0))
    share = HostShare(2, 2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **share.environment(["GPU-a", "GPU-b"])}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    ).stdout.strip()  # fmt: skip
    shown, threads, count, visible, beside = said.split("|")
    mine = share.cores(usable)
    assert (shown, visible, count) == ("2/2", "GPU-b", str(len(mine)))
    assert set(map(str, eval(threads))) == {str(mine)}
    assert beside == f"another GPU in use, on {len(mine)} cores"


def test_a_process_that_was_given_none_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ECORNN_GPU", raising=False)
    assert host_share.taken() is None


@pytest.mark.parametrize(
    ("given", "count", "gpus"),
    [(None, 2, ["0", "1"]), ("3,1", 2, ["3", "1"]), ("GPU-a, GPU-b", 2, ["GPU-a", "GPU-b"]), ("", 0, []), ("2,9", 1, ["2"])],
)
def test_gpus_are_named_as_the_environment_names_them(
    given: str | None, count: int, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert gpus_of_one_kind() == gpus


def test_gpus_of_several_kinds_are_not_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: ("H100", "A100")[index])
    assert gpus_of_one_kind() == []
