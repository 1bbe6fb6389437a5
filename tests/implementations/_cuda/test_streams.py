"""Launches side by side: where they go, and who waits for whom."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.streams import launch_concurrently
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import fits_both_directions, select_config
from tests.helpers.requirements import needs_gpu
from tests.simulator.clusters_on_cpu import H200


@pytest.mark.parametrize(
    ("hidden", "batch", "fits"), [(256, 8, True), (256, 64, False), (512, 24, True), (512, 56, False), (1024, 1, False)]
)
def test_two_directions_run_at_once_where_all_their_clusters_do(hidden: int, batch: int, fits: bool) -> None:
    form = select_config(ProblemSize("lstm", hidden, batch, MathMode(2, False)), H200)
    assert isinstance(form, Form)
    assert form.is_grid == (hidden == 1024)  # which has the device for itself
    assert fits_both_directions(form, H200) == fits


@needs_gpu
def test_on_a_gpu_what_comes_after_waits_for_all() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    wide, found = torch.randn(4096, 4096, device=device), [torch.zeros((), device=device) for _ in range(2)]
    streams: list[int] = []

    def launch(number: int) -> None:
        streams.append(torch.cuda.current_stream(device).cuda_stream)
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
    assert len(set(streams)) == 2


@needs_gpu
def test_on_a_gpu_one_that_fails_leaves_the_stream_in_order() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    made = torch.zeros((), device=device)

    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        launch_concurrently(fail, lambda: made.add_(1), device)  # type: ignore[arg-type,return-value]
    assert made.item() == 1
