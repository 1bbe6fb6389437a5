"""`auto` runs what it chose, declares what that declares, and refuses only what no candidate runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_ecornn.autotune import Decision, selection
from pytest_ecornn.contract import Case, Declared, Layer, Weights, cells
from pytest_ecornn.implementations.auto import Auto, candidates, estimates, switch_when_captured
from pytest_ecornn.reference.loop import ReferenceLoop
from tests.helpers import undecided as fixtures
from tests.helpers.requirements import needs_hopper

CPU = torch.device("cpu")


undecided = fixtures.undecided  # used by each test


def built(text: str) -> Auto:
    case = Case.parse(text)
    torch.manual_seed(0)
    shapes = cells.parameter_shapes(case).items()
    weights = Weights({name: nn.Parameter(torch.randn(shape, dtype=getattr(torch, case.dtype))) for name, shape in shapes})
    auto = Auto()
    auto.build(case, weights)
    return auto


@pytest.mark.parametrize(
    ("case", "delegate"),
    [
        ("gru-T5-B2-H4-bfloat16", "fused_cpu"),
        ("lstm-T5-B2-H4-float32-projected", "fused_cpu"),
        ("mingru-T64-B2-H4-float32-resets", "scan_cpu"),
    ],
)
def test_one_candidate_runs_without_timing(case: str, delegate: str) -> None:
    auto = built(case)
    assert auto.delegate == delegate
    assert auto.notes().startswith(f"{delegate}; ")
    chosen = candidates.implementations()[delegate]()
    assert auto.declared == chosen.declared
    assert auto.deterministic == chosen.deterministic
    assert auto.cost(Case.parse(case)) == chosen.cost(Case.parse(case))


@pytest.mark.parametrize("case", ["lstm-T5-B2-H4-float32", "gru-T5-B2-H4-float64-training-ragged"])
def test_layers_on_a_cpu_are_timed_beside_torch_nn(case: str) -> None:
    auto = built(case)
    assert auto.delegate in ("fused_cpu", "torch_cpu")
    assert "measured; fused_cpu " in auto.notes()
    assert ", torch_cpu " in auto.notes()


def test_what_rounds_weights_is_no_candidate() -> None:
    assert all(one.weight_rounding == "none" for one in candidates.implementations().values())


@pytest.mark.parametrize("case", ["mingru-T2-B2-H4-float32", "minlstm_positive-T1-B2-H4-bfloat16-training-state"])
def test_scans_of_a_few_steps_are_timed_beside_the_loop(case: str) -> None:
    auto = built(case)
    (decision,) = selection.decisions().values()
    assert {"scan_cpu", "sequential"} <= set(decision.timings)
    assert auto.delegate == decision.called
    assert "decided in" in auto.notes()


def test_before_it_is_built_it_declares_the_coarsest() -> None:
    assert Auto().declared == Declared("storage", "storage", "storage", "storage", "storage", 2.0**-16)
    assert not Auto.deterministic


def test_deterministic_mode_leaves_deterministic_candidates() -> None:
    case = Case.parse("mingru_positive-T2-B2-H4-float32")
    assert "scan_torch" in candidates.supported(case, CPU)[0]
    torch.use_deterministic_algorithms(True)
    try:
        names, refusals = candidates.supported(case, CPU)
        assert names == ["scan_cpu", "sequential"]
        assert refusals["scan_torch"] == "is not deterministic"
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_layer_runs_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    layer = switch_when_captured(lambda *given: "called", lambda *given: "captured")  # type: ignore[arg-type, return-value]
    assert layer(None, None) == "called"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert layer(None, None) == "captured"


@pytest.mark.parametrize(
    ("case", "measured_us"),  # torch.nn from graphs on an H200
    [
        ("lstm-T1024-B64-H512-float32", 19_038),
        ("lstm-T1024-B64-H512-float32-tf32", 9_309),
        ("lstm-T1024-B16-H768-bfloat16", 6_830),
        ("gru-T1024-B64-H512-bfloat16", 6_468),
        ("lstm-T35-B20-H1500-L2-float32", 3_392),
        ("lstm-T35-B32-H650-L2-float32-training", 3_525),
    ],
)
def test_estimates_of_cudnn_are_near_what_was_measured(case: str, measured_us: float) -> None:
    assert 1 / 1.6 < estimates.cudnn_us(Case.parse(case)) / measured_us < 1.6


@needs_hopper
def test_estimates_of_kernels_that_stream_weights_are_near_what_was_measured() -> None:
    us = estimates.persistent_us(Case.parse("gru-T187-B4-H2816-float16-cuda"), torch.device("cuda", 0))
    assert us is not None
    assert 1 / 1.6 < us / (187 * 6.57) < 1.6


NAMES = ["cudnn", "persistent_gpu", "transposed_gpu"]


@pytest.mark.parametrize(
    ("share", "pruned"),  # persistent_gpu's estimated time over cuDNN's
    [(0.1, {"transposed_gpu"}), (0.5, set()), (1.5, set()), (3.0, {"persistent_gpu"})],
)
def test_cudnn_is_timed_whatever_is_estimated(share: float, pruned: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "persistent_us", lambda case, device: share * estimates.cudnn_us(case))
    _, found = candidates._of_nn_cells(Case.parse("rnn_relu-T672-B1-H32-float32"), CPU, NAMES)
    assert set(found) == pruned


class Moving(ReferenceLoop):
    """Moves the weights when a layer is built, as cuDNN does to have them side by side."""

    def build(self, case: Case, weights: Weights) -> Layer:
        for one in weights.values():
            one.data = one.detach().clone()
        return super().build(case, weights)


class Remembering(ReferenceLoop):
    """Remembers where the weights lie when a layer is built, as one that captures graphs does."""

    def build(self, case: Case, weights: Weights) -> Layer:
        self.addresses = [one.data_ptr() for one in weights.values()]
        return super().build(case, weights)


def test_weights_stay_where_the_winner_as_called_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {"moving": Moving, "remembering": Remembering}
    monkeypatch.setattr(candidates, "implementations", lambda: classes)
    case, auto = Case.parse("lstm-T5-B2-H4-float32"), Auto()
    weights = Weights({name: nn.Parameter(torch.randn(shape)) for name, shape in cells.parameter_shapes(case).items()})
    auto._build_winners(Decision("remembering", "moving", "measured"), case, weights)
    remembering, moving = auto._chosen
    assert isinstance(moving, Moving)
    assert isinstance(remembering, Remembering)
    assert remembering.addresses == [one.data_ptr() for one in weights.values()]
