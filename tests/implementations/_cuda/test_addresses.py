"""No load of a kernel is from an address that may be null, which only a condition would keep from happening."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import kernel, single_step, wavefront
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.persistent_gpu.single_step import SingleStepConfig
from tests.helpers.kernel_forms import ptx_of
from tests.helpers.requirements import needs_nvrtc
from tests.simulator.clusters_on_cpu import H200

TF32 = KernelSpec(torch.float32, torch.device("cuda", 0), tf32=True, saves_for_backward=True, lengths=True)
PROBLEM = ProblemSize("lstm", 64, 3, MathMode(4, False))  # H is no multiple of 12 units a block: the last block has 4
NULL_OR_ADDRESS = re.compile(r"selp\.b64\s+(%rd\d+), %rd\d+, 0, %p\d+;")
LOADED = re.compile(r"ld\.[\w.]+\s+[^[]+\[(%rd\d+)")


def of_form(kind: type[Form], units: int, inputs: int = 0) -> tuple[Path, Any]:
    form = next(
        form
        for form in candidate_configs(PROBLEM, H200)
        if type(form) is kind and form.units == units and form.is_grid and form.k_partitions > 2
    )
    chosen = TF32._replace(inputs=inputs, saves_for_backward=not inputs)
    return kernel.source_of(chosen, form), kernel.macros(chosen, form)


def of_wave() -> tuple[Path, Any]:
    waves = wavefront.select_wavefronts(PROBLEM, H200, 64, 4, 64)
    wave = next(wave for wave in waves if wave is not None)
    return wavefront._SOURCE, kernel.macros(TF32, wave)


def of_once() -> tuple[Path, Any]:
    return single_step._SOURCE, single_step.select_single_step(
        SingleStepConfig("lstm", 64, 64, 3, MathMode(4, False)), H200
    ).macros(torch.float32)


KERNELS = {
    "grid": lambda: of_form(Form, 12),
    "grid, input product": lambda: of_form(Form, 12, 64),
    "abreast": lambda: of_form(NTiledGridConfig, 12),
    "wave": of_wave,
    "once": of_once,
}


@needs_nvrtc
@pytest.mark.parametrize("name", KERNELS)
def test_no_address_of_a_load_may_be_null(name: str) -> None:
    text = ptx_of(*KERNELS[name]())
    loaded = set(LOADED.findall(text))
    assert len(loaded) > 3
    assert loaded.isdisjoint(NULL_OR_ADDRESS.findall(text))
