"""Memory for what kernels write, and where parameters lie: asked for and found in little time, and no less right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.implementations._cuda import memory
from pytest_ecornn.implementations._cuda.memory import ZeroedPool, empty, zeros
from pytest_ecornn.implementations.persistent_gpu.parameters import FrozenParameters, aligned, parameter_pointers
from pytest_ecornn.verification.calls import PoisonedAllocations
from tests.helpers.requirements import needs_gpu

CPU = torch.device("cpu")
DEVICES = [CPU, pytest.param(torch.device("cuda", 0), marks=needs_gpu)]


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from([torch.float16, torch.float32, torch.uint8]))
def test_memory_is_laid_out_as_torch_has_it(device: torch.device, shape: list[int], dtype: torch.dtype) -> None:
    found, wanted = empty(tuple(shape), dtype, device), torch.empty(shape, dtype=dtype, device=device)
    assert (found.shape, found.stride(), found.dtype, found.device) == (wanted.shape, wanted.stride(), wanted.dtype, device)


def test_a_mode_sees_that_memory_is_made_and_for_inference_it_knows_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    with PoisonedAllocations():
        assert empty((2, 3), torch.float32, CPU).isnan().all()
    monkeypatch.setattr(memory, "_FAST_EMPTY", {})  # of a torch that has no such function
    assert empty((2, 3), torch.float32, CPU).shape == (2, 3)
    with torch.inference_mode():
        assert empty((1,), torch.float32, CPU).is_inference()


@pytest.mark.parametrize("device", DEVICES)
def test_zeros_are_zeros_though_the_memory_was_used(device: torch.device) -> None:
    for _ in range(3):
        used = torch.full((1000,), 7, dtype=torch.uint8, device=device)
        del used
        found = zeros(1000, device)
        assert (found.dtype, found.device, found.shape) == (torch.uint8, device, (1000,))
        assert not found.any()


@pytest.mark.parametrize("device", DEVICES)
def test_launches_of_a_pass_have_zeros_of_their_own(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[torch.Tensor]()

    def zeros_once_used(size: int, of_device: torch.device) -> torch.Tensor:
        made.append(zeros(size, of_device))
        return made[-1]

    monkeypatch.setattr(memory, "zeros", zeros_once_used)
    pool = ZeroedPool(4, device)
    assert pool.take(0) == ()
    assert made == []
    (first,), (second,), (larger,) = pool.take(1000), pool.take(1024), pool.take(2049)
    assert (first, second - first, larger) == (made[0].data_ptr(), 1024, made[1].data_ptr())
    assert sum(one.nbytes for one in made) == 4 * 1024 + 2 * 2304
    large = ZeroedPool(4, device)
    for _ in range(4):
        large.take(memory._MAX_POOL_BYTES // 2 + 1)
    assert len(made) == 2 + 4  # so large that each has its own


@needs_gpu
def test_zeros_are_set_in_each_replay_of_a_graph() -> None:
    device = torch.device("cuda", 0)
    zeros(16, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = zeros(16, device)
        seen = found.clone()
        found.fill_(1)
    for _ in range(2):
        graph.replay()
    assert not seen.any()


def parameters() -> list[torch.Tensor | None]:
    return [torch.rand(6, 4), torch.rand(6, 2), torch.rand(6), None]


def test_where_parameters_lie_is_found_once_where_nobody_else_has_them() -> None:
    given_ = parameters()
    fixed = FrozenParameters(given_)
    found = parameter_pointers(fixed, 0, 4, 16)
    assert found.addresses == tuple(0 if one is None else one.data_ptr() for one in given_)
    assert parameter_pointers(fixed, 0, 4, 16) is found
    assert parameter_pointers(fixed, 1, 4, 16).addresses == found.addresses[1:]
    assert parameter_pointers(given_, 0, 4, 16) is not parameter_pointers(
        given_, 0, 4, 16
    )  # which may be laid out anew meanwhile


def test_copies_are_made_anew_in_each_call() -> None:
    strided = torch.rand(4, 6).T
    fixed = FrozenParameters([strided])
    first = parameter_pointers(fixed, 0, 1, 16)
    strided.fill_(3)
    (again,) = parameter_pointers(fixed, 0, 1, 16).tensors
    assert again is not None
    assert first.tensors[0] is not again
    assert (again == 3).all()
    assert again.is_contiguous()


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_matrices_are_aligned_and_vectors_may_lie_anywhere(width: int) -> None:
    room = torch.rand(64)
    matrix, vector = room[1:61].view(6, 10), room[1:7]
    found = aligned(matrix, width)
    assert found.data_ptr() % width == 0
    assert (found == matrix).all()
    assert (found is matrix) == (width <= matrix.itemsize)
    assert aligned(vector, width) is vector
