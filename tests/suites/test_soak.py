"""Many launches and random waits: their logic on a CPU, and some of it on a GPU."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.implementations import persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaConfig
from pytest_ecornn.implementations.sparse_persistent_gpu import heuristics
from pytest_ecornn.implementations.sparse_persistent_gpu.config import SparseConfig
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.suites import soak_gpu
from pytest_ecornn.suites.soak_gpu import Repeated, Tally, jittered, repeat
from tests.helpers import persistent
from tests.helpers.kernel_forms import copied, source_of, variants
from tests.helpers.persistent import plant_fault
from tests.helpers.requirements import needs_compiler, needs_hopper, needs_nvrtc
from tests.helpers.simulated_kernels import KERNELS, Seen
from tests.simulator.clusters_on_cpu import H200, Broken, ClustersOnCpu

on_cpu = persistent.on_cpu  # a fixture
IN_CLUSTERS = [
    Case.parse(text) for text in ("lstm-T4-B9-H40-float16-ragged-state-training", "gru-T3-B2-H9-float32-bidirectional-training")
]
OVER_THE_GRID = [Case.parse(text) for text in ("lstm-T4-B9-H40-float16-ragged-state", "rnn_tanh-T5-B3-H17-float32")]


def on_clusters(case: Case, weights: Weights) -> Layer:
    return persistent_gpu.make_layer(case, weights, torch.device("cpu"))


# Calls again and again.


def one_wrong(number: int) -> Callable[[Case, Weights], Layer]:
    """Builds layers whose call of that number, from 0, is wrong in one bit."""

    def build(case: Case, weights: Weights) -> Layer:
        right, called = ReferenceLoop().build(case, weights), 0

        def layer(*arguments: Any) -> Any:
            nonlocal called
            output, final = right(*arguments)
            if called == number:
                value = output.detach()  # not every torch has a derivative of nextafter
                output = output + (torch.nextafter(value, value + 1) - value)
            called += 1
            return output, final

        return layer

    return build


SEVERAL = [Case.parse(text) for text in ("lstm-T3-B2-H4-float32-training", "gru-T2-B1-H3-float32-bidirectional-L2")]


def test_what_is_right_is_called_so_cases_are_mixed_and_launches_are_counted_as_kernels_are() -> None:
    repeated = [Repeated.of(case, ReferenceLoop().build) for case in SEVERAL]
    assert [one.launches for one in repeated] == [2, 4]
    beside: list[int] = []
    assert repeat(repeated, 20, beside=lambda: beside.append(1)) == Tally(
        sum(one.launches * one.called for one in repeated), {}
    )
    assert min(one.called for one in repeated) > 0
    assert len(beside) == sum(one.called for one in repeated)


@pytest.mark.parametrize("number", [1, 4])
def test_one_wrong_bit_of_one_call_is_counted(number: int) -> None:
    repeated = [Repeated.of(SEVERAL[0], one_wrong(number)), Repeated.of(SEVERAL[1], ReferenceLoop().build)]
    assert repeat(repeated, 60).mismatches == {str(SEVERAL[0]): 1}
    assert repeat(repeated, 10).mismatches == {}  # since then


def test_a_first_call_that_is_wrong_makes_all_others_differ() -> None:
    one = Repeated.of(SEVERAL[0], one_wrong(0))
    assert repeat([one], 6).mismatches == {str(one.case): 3}


# Random waits.


@pytest.mark.test_all(keep=3)
@needs_nvrtc
@pytest.mark.parametrize(
    "name",
    [
        "cluster_forward", "cluster_backward", "grid_forward", "grid_forward_ntiled", "wavefront_forward", "wgmma_forward",
        "wgmma_backward",
    ],
)  # fmt: skip
def test_without_jitter_a_kernel_is_as_if_there_were_none(name: str, tmp_path: Path) -> None:
    name = f"{name}.cu"
    source = source_of(name)
    without = copied(source, tmp_path)
    without.write_text(re.sub(r' *jitter\(.*\);\n|#include "ecornn/common/jitter.cuh"\n', "", source.read_text()))
    assert "jitter" not in without.read_text()

    def code(of: Path, *more: tuple[str, str]) -> bytes:
        made, log = compiler._run_nvrtc(of, compiler._options(of, (*variants(name)[0], *more), (9, 0)))
        assert "ignored" not in log
        return made

    assert code(source) == code(without)
    assert len(code(source, ("JITTER", "1u"))) > len(code(source))


def repeated_alike_by_every_seed(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Watched(ClustersOnCpu):
        def _load(self, source: Path, name: str, macros: tuple[tuple[str, str], ...]) -> Any:
            seen.append(dict(macros).get("JITTER", "none"))
            return super()._load(source, name, macros)

    monkeypatch.setattr(kernel, "Kernel", Watched)
    repeated = soak_gpu.built(cases, on_clusters)
    for one in repeated:
        one.again()
    found = soak_gpu.jitter(repeated, launches=12, seeds=2)
    assert found.mismatches == {}
    assert found.launches >= 12
    assert set(seen) == {"none", "0u", "1u"}
    with jittered(7):
        pass
    assert repeat(repeated, 4).mismatches == {}
    assert seen[-1] == "none"


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_in_clusters_random_waits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated_alike_by_every_seed(IN_CLUSTERS, monkeypatch)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_there_are_random_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = soak_gpu.built(IN_CLUSTERS[:1], on_clusters)
    plant_fault("jitter.cuh", "sleep_ns(of_block / 16 % 16384)", "spin_until([] { return false; })", monkeypatch)
    one.again()
    with jittered(0), pytest.raises(Broken, match="hangs"):
        one.again()


@needs_compiler
def test_over_the_grid_random_waits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with KERNELS["grid"].running({}, Seen()):
        repeated_alike_by_every_seed(OVER_THE_GRID, monkeypatch)


# The commands.


def problems(is_pruned: bool) -> list[tuple[ProblemSize, float]]:
    """Of each pass of the cases that are pruned or not, with its density."""
    return [
        (
            ProblemSize(case.cell, case.hidden_size, case.batch, MathMode.of(case.dtype, case.precision), is_backward),
            case.density,
        )
        for case in soak_gpu.CASES
        if (case.density < 1) == is_pruned
        for is_backward in (False, True)[: 1 + case.training]
    ]


def test_cases_are_short_and_of_every_kind_of_form() -> None:
    assert max(case.steps for case in soak_gpu.CASES) <= 8
    found = [select_config(problem, H200) for problem, _ in problems(is_pruned=False)]
    forms = [form for form in found if isinstance(form, Form)]
    assert len(forms) == len(found)
    assert {(form.is_grid, form.problem.is_backward) for form in forms} == set(product((False, True), repeat=2))
    several = {(form.is_grid, form.tiles > 1, form.clusters > 1) for form in forms}
    assert several >= {(False, True, True), (True, True, True), (True, False, False), (False, False, False)}
    assert {form.problem.is_backward for form in forms if form.is_grid and form.streamed_fragments} == {False, True}
    assert {form.tile_batch for form in forms if isinstance(form, NTiledGridConfig)} > {8}
    for kind in (BlockConfig, WgmmaConfig):
        assert {form.problem.is_backward for form in forms if isinstance(form, kind)} == {False, True}


def test_pruned_cases_are_of_every_kind_of_form() -> None:
    found = [
        heuristics.select_config(one, heuristics.expected_counts(one, density), H200)
        for one, density in problems(is_pruned=True)
    ]
    forms = [form for form in found if isinstance(form, SparseConfig)]
    assert len(forms) == len(found)
    assert {(form.cluster > 1, form.problem.is_backward) for form in forms} == set(product((False, True), repeat=2))
    assert {form.tiles > 1 for form in forms} == {form.smem_pairs > 0 for form in forms} == {False, True}


def without_a_gpu(build: Callable[[Case, Weights], Layer], monkeypatch: pytest.MonkeyPatch) -> None:
    """The soak runs a layer on the CPU, as if that were the GPU."""
    made = soak_gpu.built
    monkeypatch.setattr(soak_gpu, "built", lambda: made(SEVERAL, build))
    monkeypatch.setattr(soak_gpu, "BackgroundLoad", lambda: lambda: None)
    monkeypatch.setattr(soak_gpu, "with_index", lambda name: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_a_soak_says_what_was_right(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    without_a_gpu(ReferenceLoop().build, monkeypatch)
    assert soak_gpu.main(["--launches", "12", "--seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"(\w+): 1\d launches in 0 s, 0 calls wrong", said) == list(soak_gpu.PARTS)


def test_a_soak_says_what_was_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    without_a_gpu(one_wrong(2), monkeypatch)
    assert soak_gpu.main(["--parts", "alone", "--launches", "40"]) == 1
    assert f"  {SEVERAL[0]}: 1 wrong" in capsys.readouterr().out


def test_a_soak_tells_of_a_launch_that_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_gpu(ReferenceLoop().build, monkeypatch)
    ctypes.c_int32.from_address(kernel.status_of(torch.device("cpu")).address).value = 1
    with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cpu is wrong"):
        soak_gpu.main(["--parts", "alone", "--launches", "2"])


# On a GPU.


@needs_hopper
@pytest.mark.parametrize("parts", ["alone busy --launches 4000", "jitter --launches 1000 --seeds 1"])
def test_on_a_gpu_some_thousand_launches_are_right(parts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak_gpu.main(["--parts", *parts.split()]) == 0, capsys.readouterr().out
