"""Chooses which layers of persistent_gpu run in a wavefront: those that save the most time."""

from __future__ import annotations

from functools import partial

from pytest_ecornn.implementations._common.recurrent_problem import Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import MAX_LAYERS, WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.cost_coefficients import H200
from pytest_ecornn.implementations.persistent_gpu.cost_model import WavefrontCostModel
from pytest_ecornn.implementations.persistent_gpu.heuristics import clusters, estimated_us_with_queueing, select_config

_MAX_TIME_SHARE = 0.9  # of the time of layers on their own, that a wave must stay below


def single_layer_us(form: Form, device: Device, steps: int) -> float:
    """Estimated us of a layer on its own, at least."""
    return H200.wavefront.input_gemm_us + H200.wavefront.launch_us + steps * estimated_us_with_queueing(form, device)


def select_wavefront(problem: ProblemSize, device: Device, inputs: int, layers: int, steps: int) -> WavefrontConfig | None:
    """The wave of the first of `layers` that saves the most time; None where a layer on its own takes no longer.

    All clusters of a wave run at once. Each has one tile, as the output below is not loaded in time for more. None of its
    weights are streamed. inputs: of the first layer.
    """
    form = select_config(problem, device)
    if isinstance(form, str):
        return None
    best, most_us, each_us = None, 0.0, _MAX_TIME_SHARE * single_layer_us(form, device, steps)
    for some in range(2, min(layers, MAX_LAYERS) + 1):
        for wave in clusters(partial(WavefrontConfig, problem, layers=some, inputs=inputs), problem, device, most_tiles=1):
            won_us = some * each_us - WavefrontCostModel(wave, H200).all_us(steps)
            fits = wave.streamed_fragments == 0 and wave.total_clusters <= device.clusters(wave.blocks)
            if won_us > most_us and fits:
                best, most_us = wave, won_us
    return best


def select_wavefronts(
    problem: ProblemSize, device: Device, inputs: int, layers: int, steps: int
) -> list[WavefrontConfig | None]:
    """Waves of the layers from the first to the last; None: a layer on its own."""
    found: list[WavefrontConfig | None] = []
    while layers > 0:
        wave = select_wavefront(problem, device, inputs, layers, steps)
        found.append(wave)
        layers, inputs = layers - (wave.layers if wave else 1), problem.hidden
    return found
