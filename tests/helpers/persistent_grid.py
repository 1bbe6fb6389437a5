"""persistent_gpu over the whole grid, all its blocks at once on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.implementations import persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.verification import calls, verification
from tests.helpers.persistent import plant_fault, small, with_weights
from tests.simulator import clusters_on_cpu

A100 = Device(108, 166_912, 1)
ARITHMETICS = (MathMode(2, False), MathMode(4, False), MathMode(4, True))


def assert_it_fits(form: Form, device: Device) -> None:
    """All groups of a grid run at once, and keep all weights."""
    assert form.is_grid
    assert form.blocks * form.clusters <= device.num_sms
    assert form.wide * form.tiles * form.clusters >= form.problem.batch > form.wide * form.tiles * (form.clusters - 1)
    assert (form.streamed_fragments, form.stream_stages) == (0, 0)
    assert form.shared_bytes <= device.shared_bytes
    assert form.launch.grid == form.blocks * form.clusters


@pytest.fixture
def sizes() -> dict[str, int]:
    """Of the form that is forced."""
    return {"units": 12, "tiles": 1, "groups": 2, "reg_fragments": 1, "buffers": 0, "load_threads": 0}


@pytest.fixture
def on_cpu(sizes: dict[str, int]) -> Iterator[None]:
    with clusters_on_cpu.running_layers(
        lambda shape, kind: form_of(kind.problem(shape.cell, shape.hidden, shape.batch), **sizes)
    ):
        yield


def form_of(
    problem: ProblemSize, units: int, tiles: int, groups: int, reg_fragments: int, buffers: int, load_threads: int
) -> Form:
    blocks, threads = -(-problem.hidden // units), load_threads or (0, 256, 128)[buffers]
    form = Form(
        problem, units, blocks, tiles, groups, is_grid=True, buffers=buffers, load_threads=threads, reallocates_registers=True
    )
    return with_weights(form, reg_fragments, 0, 0)


TF32 = {"dtype": "float32", "precision": "tf32"}
PRECISIONS = [{"dtype": "float16"}, {"dtype": "bfloat16"}, {"dtype": "float32"}, TF32]
NOT_CHECKED = ("|| Packet::is_valid(packets[i], epoch)", "|| packets[i].w >= 0")
NOT_PUBLISHED = ("i < PACKETS; i += THREADS", "i < PACKETS - 1; i += THREADS")


def assert_a_lost_packet_is_reported(
    monkeypatch: pytest.MonkeyPatch, *planted: str, batch: int = 3, rounds: int = 2000
) -> None:
    """By NaN, and by an error of the next call alone. rounds: of all threads, after which a wait times out."""
    case = small("gru", hidden_size=40, batch=batch, has_state=True, mode="inference")
    problem = contents.problem(case)
    layer = persistent_gpu.make_layer(case, problem.weights, torch.device("cpu"))
    monkeypatch.setattr(kernel, "WATCHDOG_NS", rounds)
    with monkeypatch.context() as patch, torch.inference_mode():
        plant_fault(*planted, patch)
        found = calls.run(layer, problem)
    assert all(torch.as_tensor(one).isnan().any() for one in found.values())
    waited = f"an earlier launch of a persistent kernel on cpu is wrong: a block waited {rounds / 1e9:g} s"
    with pytest.raises(RuntimeError, match=waited):
        calls.run(layer, problem)
    clusters_on_cpu.forget()
    found = calls.run(layer, problem)
    assert not [
        one for one in verification.ReferenceResult(problem).compare(found, PersistentGpu().declared) if one.status == "failed"
    ]
