"""FlashRNN's LSTM as a layer: products, layout, biases and directions around a stand-in that rounds as its kernel does."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.implementations.peers import _peer, flashrnn
from pytest_ecornn.implementations.peers.flashrnn import FlashRnn
from pytest_ecornn.verification.verification import Candidate, failure_message
from tests.helpers import peer_doubles

JUDGED = (
    "lstm-T20-B8-I9-H64-bfloat16-batchfirst-training",
    "lstm-T33-B8-H96-bfloat16-state-training-seed1",
    "lstm-T9-B3-I7-H24-L2-bfloat16-bidirectional-batchfirst-state-training",
    "lstm-T17-B4-H16-bfloat16-nobias-state-training",
    "lstm-T20-B2-H32-bfloat16-state-training-saturated",
    "lstm-T40-B8-H64-bfloat16-projected-training",
    "lstm-T20-B8-H64-bfloat16-density0.3-training",
    "lstm-T1-B1-H1-bfloat16",
    "lstm-T9-B3-H12-bfloat16-nan",
)
SUPPORTED = Case.parse("lstm-T4-B8-H128-bfloat16-cuda")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    peer_doubles.install(monkeypatch)
    monkeypatch.setattr(flashrnn, "can_compile", lambda: True)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", JUDGED)
def test_the_layer_passes_the_tolerance_rule(case: str) -> None:
    candidate = Candidate.build("flashrnn", FlashRnn, Case.parse(case))
    assert failure_message("flashrnn", candidate.case, candidate.verify()) == ""


def test_an_absent_package_or_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_peer, "find_spec", lambda package: None)
    found = FlashRnn().unsupported(SUPPORTED, torch.device("cuda"))
    assert found == "needs flashrnn and triton (pip install pytest-ecornn[peers])"
    peer_doubles.install(monkeypatch)
    monkeypatch.setattr(flashrnn, "can_compile", lambda: False)
    assert "nvcc" in (FlashRnn().unsupported(SUPPORTED, torch.device("cuda")) or "")


@pytest.mark.usefixtures("installed")
def test_what_does_not_build_is_unsupported_with_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> object:
        raise RuntimeError("Error building extension 'lstm_f'\nnvcc fatal")

    monkeypatch.setattr(flashrnn, "load", fail)
    with pytest.raises(Unsupported, match=r"^does not build: Error building extension 'lstm_f'$"):
        FlashRnn().build(replace(SUPPORTED, device="cpu"), {})  # type: ignore[arg-type]


@pytest.mark.usefixtures("installed")
def test_building_asks_torch_for_the_device_s_sizes_and_leaves_random_states(monkeypatch: pytest.MonkeyPatch) -> None:
    module, asked = flashrnn.import_quietly("flashrnn.flashrnn.flashrnn"), list[object]()

    def build(*given: object) -> None:
        asked.append(module.get_gpu_info)
        random.random()

    monkeypatch.setattr(flashrnn, "fused_lstm", build)
    before, own = random.getstate(), module.get_gpu_info
    flashrnn.load(8, 128, "cpu")
    assert asked == [flashrnn._sizes]
    assert module.get_gpu_info is own
    assert random.getstate() == before


def test_the_note_tells_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashrnn, "version", lambda package: "1.0.8")
    assert FlashRnn().notes() == "flashrnn 1.0.8, cuda_fused, biases and gates in float32"


def test_cost_is_over_the_product_s_and_grows_with_training() -> None:
    inference = FlashRnn().cost(SUPPORTED)
    training = FlashRnn().cost(replace(SUPPORTED, mode="training"))
    rows, width = SUPPORTED.steps * SUPPORTED.batch, 4 * SUPPORTED.hidden_size
    assert inference.operations == 2 * 2 * rows * width * SUPPORTED.hidden_size
    assert training.operations == 3 * inference.operations
    assert training.bytes > 2 * inference.bytes
