"""Launches: what is remembered of arrays, what the driver is handed, and who waits for whom side by side."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations._cuda import driver, layout_memo, streams
from pytest_ecornn.implementations._cuda.kernel import TensorArg
from pytest_ecornn.implementations._cuda.launch import Launch, Launcher
from pytest_ecornn.implementations._cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations._cuda.streams import launch_concurrently
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import fits_both_directions, select_config
from tests.helpers.requirements import needs_gpu
from tests.simulator.clusters_on_cpu import H200
from tests.simulator.kernels_on_cpu import KernelOnCpu


def counting() -> LayoutMemo[str, int]:
    """Of the number of times that something was computed."""
    numbers = count(1)
    return LayoutMemo(lambda how, arrays: next(numbers))


class OnDevice(Tensor):
    """Says that it lies elsewhere."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 1)


def test_arrays_laid_out_alike_are_found_again_with_their_own_addresses() -> None:
    memo = counting()
    one, other = torch.zeros(3, 4), torch.zeros(3, 4)
    assert memo.get_or_compute("how", {"one": one, "none": None}) == (1, [one.data_ptr(), 0])
    assert memo.get_or_compute("how", {"one": other, "none": None}) == (1, [other.data_ptr(), 0])
    assert memo.get_or_compute("otherwise", {"one": one, "none": None})[0] == 2


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 3),
        torch.zeros(4, 3).T,
        torch.zeros(3, 4, dtype=torch.float64),
        torch.zeros(13)[1:].view(3, 4),
        torch.zeros(3, 4).as_subclass(OnDevice),
        torch.zeros(3, 4, device="meta"),
        None,
    ],
    ids=["shape", "strides", "dtype", "alignment", "device", "no memory", "absence"],
)
def test_another_layout_is_another_matter(other: Tensor | None) -> None:
    memo = counting()
    found = [memo.get_or_compute("how", {"one": one})[0] for one in (torch.zeros(3, 4), other, torch.zeros(3, 4))]
    assert found == [1, 2, 1]


def test_what_was_found_is_forgotten_when_there_is_much_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_memo, "_MAX_ENTRIES", 2)
    memo = counting()
    assert [memo.get_or_compute("how", {"one": torch.zeros(size)})[0] for size in (1, 2, 1, 3, 1, 3)] == [1, 2, 1, 3, 4, 3]


def test_what_raises_raises_again() -> None:
    def refuse(how: str, arrays: Mapping[str, Tensor | None]) -> None:
        raise ValueError(how)

    memo = LayoutMemo(refuse)
    for _ in range(2):
        with pytest.raises(ValueError, match="how"):
            memo.get_or_compute("how", {"one": torch.zeros(1)})


class Driver(dict[str, Any]):
    """Takes the place of the driver's library: reads Params of `types`, and refuses cooperative launches."""

    def __init__(self, types: str):
        super().__init__(cuLaunchKernel=self.launch, cuLaunchCooperativeKernel=lambda *given: 720)
        self.types = types
        self.launched: list[tuple[Any, ...]] = []
        self.during: Any = None

    def launch(self, function: Any, *given: Any) -> int:
        if during := self.during:
            self.during = None
            during()
        *sizes, stream, places, _ = given
        params = ctypes.c_void_p.from_address(places.value).value
        assert params is not None
        values = struct.unpack(f"@{self.types}", ctypes.string_at(params, struct.calcsize(f"@{self.types}")))
        self.launched.append((*sizes, stream.value or 0, list(values)))
        return 0


def test_a_launch_within_another_leaves_its_arguments_alone() -> None:
    library = Driver("Piq")
    launcher = Launcher(1, "Piq", False, library)
    library.during = lambda: launcher(Launch(1, 1), 0, [7, -8, 2**40])
    launcher(Launch(2, 32, 64), 2**40, [16, -1, 2**33])
    launcher(Launch(1, 1), 0, [32, 5, -(2**50)])
    alone, other = (1, 1, 1, 1, 1, 1, 0, 0), (2, 1, 1, 32, 1, 1, 64, 2**40)
    assert library.launched == [(*alone, [7, -8, 2**40]), (*other, [16, -1, 2**33]), (*alone, [32, 5, -(2**50)])]


def test_what_the_driver_refuses_is_said_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "error_text", {720: "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks"}.__getitem__)
    launcher = Launcher(1, "P", True, Driver("P"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the CUDA driver refused Launch\(grid=300, .*_TOO_LARGE: too many blocks"):
            launcher(Launch(300, 32), 0, [16])
    assert len(launcher._idle) == 1


class Recording(KernelOnCpu):
    """Keeps what it was to run."""

    def _load(self, *source: Any) -> None:
        self.passed: list[Sequence[int]] = []

    def _run(self, launch: Launch, passed: Sequence[int]) -> None:
        self.passed.append(passed)


def test_a_prepared_launch_runs_on_other_arrays(tmp_path: Any) -> None:
    arguments = {"x": TensorArg(torch.float32, 4), "count": int, "y": TensorArg(torch.float32, 4, is_optional=True)}
    kernel = Recording(tmp_path, "kernel", (), arguments, torch.device("cpu"))
    x = torch.zeros(4)
    kernel.bind(Launch(1, 1), {"x": x, "y": None}, count=3)([32, 0])
    kernel.bind(Launch(1, 1), {"y": None, "x": x}, count=3)([48, 64])  # in its own order
    assert kernel.passed == [(32, 3, 0), (64, 3, 48)]
    with pytest.raises(ValueError, match="expected 2 addresses, got 1"):
        kernel.bind(Launch(1, 1), {"x": x, "y": None}, count=3)([32])
    with pytest.raises(ValueError, match="expected x"):
        kernel.bind(Launch(1, 1), {"x": x.double(), "y": None}, count=3)
    with pytest.raises(ValueError, match="expected the arguments x, count, y, got x, count"):
        kernel.bind(Launch(1, 1), {"x": x}, count=3)


# Side by side.


@pytest.mark.parametrize(
    ("hidden", "batch", "fits"), [(256, 8, True), (256, 64, False), (512, 24, True), (512, 56, False), (1024, 1, False)]
)
def test_two_directions_run_at_once_where_all_their_clusters_do(hidden: int, batch: int, fits: bool) -> None:
    form = select_config(ProblemSize("lstm", hidden, batch, MathMode(2, False)), H200)
    assert isinstance(form, Form)
    assert form.is_grid == (hidden == 1024)  # which has the device for itself
    assert fits_both_directions(form, H200) == fits


def test_a_side_stream_is_not_the_stream_beside_it_that_the_pool_hands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = iter((5, 5, 9))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=next(handles)))
    monkeypatch.setattr(torch.cuda, "Event", SimpleNamespace)
    assert streams._SideStream(torch.device("cuda", 0), 5).stream.cuda_stream == 9


@needs_gpu
def test_on_a_gpu_what_comes_after_waits_for_all() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    wide, found = torch.randn(4096, 4096, device=device), [torch.zeros((), device=device) for _ in range(2)]
    handles: list[int] = []

    def launch(number: int) -> None:
        handles.append(torch.cuda.current_stream(device).cuda_stream)
        grown = wide
        for _ in range(30):  # some time, and the same bits wherever it runs
            grown = grown * 1.01
        found[number].copy_(grown.sum())

    before = wide.clone()
    for _ in range(20):
        launch_concurrently(lambda: launch(0), lambda: launch(1), device)
        wide.zero_()  # which must not be seen
        wide.copy_(before)
        assert torch.equal(found[0], found[1])
        assert found[0] != 0
    assert len(set(handles)) == 2


@needs_gpu
def test_on_a_gpu_one_that_fails_leaves_the_stream_in_order() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    made = torch.zeros((), device=device)

    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        launch_concurrently(fail, lambda: made.add_(1), device)  # type: ignore[arg-type,return-value]
    assert made.item() == 1
