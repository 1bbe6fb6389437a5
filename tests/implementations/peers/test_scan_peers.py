"""Other people's scans as layers: gates, layout, padding and initial state around a stand-in for each package's scan."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Implementation, cells
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS
from pytest_ecornn.implementations.peers import _accelerated_scan, _flash_linear_attention, _peer
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.verification.verification import Candidate, failure_message
from tests.helpers import peer_doubles

PEERS = [
    "accelerated_scan", "accelerated_scan_compiled", "accelerated_scan_bct", "accelerated_scan_bct_compiled",
    "flash_linear_attention", "flash_linear_attention_compiled",
]  # fmt: skip
EAGER = [name for name in PEERS if "compiled" not in name]
BY_SEQUENCE = [name for name in PEERS if "bct" in name]
JUDGED = (
    "mingru-T20-B3-I9-H37-float32-batchfirst-training",
    "mingru_positive-T33-B5-H16-float32-state-training-seed1",
    "minlstm-T18-B2-I7-H24-L2-float32-bidirectional-batchfirst-state-training",
    "minlstm_positive-T17-B4-H1-float32-nobias-state-training-near_one",
    "mingru-T48-B3-H33-float32-bidirectional-state-training-near_one-seed3",
    "minlstm-T20-B2-H32-float32-state-training-saturated",
    "minlstm_positive-T20-B2-H32-float32-state-training-large",
    "mingru-T20-B3-H40-bfloat16-bidirectional-batchfirst-state-training",
    "mingru_positive-T30-B2-H24-bfloat16-state-training-near_one-seed5",
    "minlstm-T20-B2-I5-H31-float16-batchfirst-state-training-strided",
    "mingru-T1-B1-H1-float32",
    "minlstm-T9-B3-H12-float32-nan",
    "mingru_positive-T11-B2-I3-H8-float32-denormal-offset",
)
PROJECTED = (
    "mingru-T20-B3-H37-float32-batchfirst-projected-training",
    "minlstm_positive-T19-B2-H12-bfloat16-bidirectional-state-projected-training",
)
Scan = Callable[..., Tensor]


def made(name: str) -> Implementation:
    return discover([])[name].cls()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    peer_doubles.install(monkeypatch)
    monkeypatch.setattr(_accelerated_scan, "_kernel", lambda case: "warp")


@pytest.fixture(params=["warp", "scalar"])
def kernel(request: pytest.FixtureRequest, installed: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel that accelerated-scan's layers take."""
    monkeypatch.setattr(_accelerated_scan, "_kernel", lambda case: request.param)
    return str(request.param)


def by_reference(x: Tensor, first: Tensor | None, cell: str) -> Tensor:
    """[B, T, G*H] -> [B, T, H]."""
    gates = len(cells.get(cell).gates)
    case = Case(cell=cell, steps=x.shape[1], batch=len(x), hidden_size=x.shape[2] // gates, projected=True, batch_first=True)
    state = None if first is None else first[None]
    return cells.reference(case, {}, x, state, None)[0]


def judged(name: str, case: Case) -> None:
    assert failure_message(name, case, Candidate.build(name, discover([])[name].cls, case).verify()) == ""


# The functions.


def scans() -> list[tuple[str, Scan]]:
    def time_last(x: Tensor, first: Tensor | None, cell: str, kernel: str, bias: Tensor | None) -> Tensor:
        return _accelerated_scan.BCT(x.mT, first, cell, kernel, bias).mT

    own: list[tuple[str, Scan]] = [(one, _accelerated_scan.BTD) for one in _accelerated_scan.KERNELS]
    own += [(one, time_last) for one in _accelerated_scan.KERNELS]
    return own + [(one, _flash_linear_attention.BTD) for one in _flash_linear_attention.KERNELS]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("has_state", [False, True], ids=["zeros", "state"])
@pytest.mark.parametrize("steps", [1, 31, 32, 33])
@pytest.mark.parametrize("cell", MIN_CELLS)
@pytest.mark.parametrize(("kernel", "scan"), scans(), ids=["warp", "scalar", "warp-bct", "scalar-bct", "chunk", "recurrent"])
def test_outputs_and_gradients_are_the_reference_s(kernel: str, scan: Scan, cell: str, steps: int, has_state: bool) -> None:
    x = torch.randn(3, steps, len(cells.get(cell).gates) * 5, dtype=torch.float64, requires_grad=True)
    first = torch.randn(3, 5, dtype=torch.float64, requires_grad=True) if has_state else None
    leaves = [one for one in (x, first) if one is not None]
    got, wanted = scan(x, first, cell, kernel, None), by_reference(x, first, cell)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)
    weight = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves, weight), torch.autograd.grad(wanted, leaves, weight), rtol=1e-10, atol=1e-12
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("kernel", "scan"), scans(), ids=["warp", "scalar", "warp-bct", "scalar-bct", "chunk", "recurrent"])
def test_gradients_of_gradients_are_refused(kernel: str, scan: Scan) -> None:
    x = torch.randn(3, 4, 10, requires_grad=True)
    (gradient,) = torch.autograd.grad(scan(x, None, "mingru", kernel, None).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=f"{kernel} is differentiable once"):
        (x.sum() + gradient.square().sum()).backward()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("kernel", "scan"), scans(), ids=["warp", "scalar", "warp-bct", "scalar-bct", "chunk", "recurrent"])
def test_a_bias_is_added_and_16_bits_are_only_of_x_and_the_output(kernel: str, scan: Scan) -> None:
    x, bias = torch.randn(2, 40, 8).bfloat16(), torch.tensor([-7.0] * 4 + [0.5] * 4)
    got = scan(x, None, "mingru", kernel, bias)
    assert got.dtype == torch.bfloat16
    wanted = by_reference(x.double() + bias.double(), None, "mingru").bfloat16()
    assert (got != wanted).float().mean() < 0.01  # some lie between two
    torch.testing.assert_close(got, wanted, rtol=2**-7, atol=1e-6)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("kernel", "scan"), scans()[::2], ids=["warp", "warp-bct", "chunk"])
def test_a_kernel_or_cell_that_there_is_not_is_an_error(kernel: str, scan: Scan) -> None:
    x = torch.randn(1, 2, 8)
    with pytest.raises(ValueError, match=r"kernel must be one of .*, got 'cub'"):
        scan(x, None, "mingru", "cub", None)
    with pytest.raises(ValueError, match=r"cell must be one of mingru, .*; got 'lstm'"):
        scan(x, None, "lstm", kernel, None)


def test_what_a_kernel_is_given_is_what_it_takes() -> None:
    padded = _accelerated_scan.padded
    assert [padded(t, "warp", True) for t in (1, 32, 33, 4096, 40_000, 65_536)] == [32, 32, 64, 4096, 65_536, 65_536]
    assert [padded(t, "scalar", False) for t in (1, 100_000)] == [1, 100_000]
    assert [padded(t, "scalar", True) for t in (1, 2048, 2049)] == [2048, 2048, 4096]
    with pytest.raises(ValueError, match="warp takes at most 65536 steps, got 65537"):
        padded(65_537, "warp", False)


# The layers.


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", JUDGED)
@pytest.mark.parametrize("name", EAGER)
def test_the_layer_passes_the_tolerance_rule(name: str, case: str) -> None:
    judged(name, Case.parse(case))


@pytest.mark.parametrize("case", PROJECTED)
@pytest.mark.parametrize("name", [name for name in EAGER if name not in BY_SEQUENCE])
def test_pre_activations_pass_the_tolerance_rule(name: str, case: str, kernel: str) -> None:
    judged(name, Case.parse(case))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", [name for name in PEERS if "compiled" in name])
def test_the_compiled_layer_is_one_graph_before_the_scan_and_one_after(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[object] = []

    def count(graph: Callable[..., object], example_inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, backend=count, **options))
    for steps in range(2, 12):  # more often than torch compiles one piece of code
        graphs.clear()
        judged(name, Case.parse(f"minlstm-T{steps}-B2-I7-H4-float32-batchfirst-state{'-training' * (steps == 11)}"))
        assert len(graphs) == 2


@pytest.mark.usefixtures("installed")
def test_the_product_by_sequence_writes_time_last_and_outputs_are_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    pipeline = _accelerated_scan.BCT
    monkeypatch.setattr(_accelerated_scan, "BCT", lambda x, *rest: seen.append(x) or pipeline(x, *rest))
    case = Case.parse("mingru-T32-B3-I9-H5-float32-batchfirst")
    judged("accelerated_scan_bct", case)
    assert {tuple(x.shape) for x in seen} == {(3, 10, 32)}
    assert all(x.is_contiguous() for x in seen)


# What they refuse.


@pytest.mark.parametrize("name", PEERS)
def test_an_absent_package_is_named_with_what_installs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_peer, "find_spec", lambda package: None)
    case = Case.parse("mingru-T2-B1-H1-float32-cuda")
    found = made(name).unsupported(case, torch.device("cuda"))
    assert found is not None
    assert ("accelerated_scan" if "accelerated" in name else "fla") in found
    assert "pytest-ecornn[peers]" in found


REFUSED = {
    "mingru-T2-B2-H1-float32-cuda": "",
    "lstm-T2-B2-H1-float32-cuda": "no lstm",
    "mingru-T2-B2-H1-float32-cuda-ragged": "sequences of one length",
    "mingru-T2-B2-H1-float64-cuda": "scans in float32",
    "mingru-T2-B2-H1-float32-cuda-state-infinite": "makes NaN of what is infinite",
    "mingru-T2-B2-H1-bfloat16-tf32-cuda": "TF32 is a precision of float32",
    "mingru-T2-B2-H1-float32": "runs on a CUDA device",
}


@pytest.mark.parametrize("name", PEERS)
def test_what_it_will_not_run_has_a_reason(name: str, kernel: str) -> None:
    def reason(text: str) -> str:
        case = Case.parse(text)
        return made(name).unsupported(case, torch.device(case.device)) or ""

    assert {
        text: refused for text, refused in REFUSED.items() if refused not in reason(text) or bool(reason(text)) != bool(refused)
    } == {}
    of_layout = reason("mingru-T2-B2-H1-float32-cuda-projected")  # channels last, where time would be
    assert ("[B, G*H, T]" in of_layout) == (name in BY_SEQUENCE)
    if "accelerated" in name:
        assert "B * H * T must be below 2^31" in reason("mingru-T65536-B64-H512-float32-cuda")
        assert "H must be at most 65535" in reason("mingru-T32-B1-H65536-float32-cuda")


def test_scalar_is_taken_where_nothing_compiles_warp_or_time_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.utils.cpp_extension

    case = Case.parse("mingru-T65536-B1-H1-float32-cuda")
    monkeypatch.setattr(torch.utils.cpp_extension, "CUDA_HOME", None)
    assert _accelerated_scan._kernel(case) == "scalar"
    monkeypatch.setattr(torch.utils.cpp_extension, "CUDA_HOME", "/usr/local/cuda")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert _accelerated_scan._kernel(case) == "warp"
    assert _accelerated_scan._kernel(replace(case, steps=65_537)) == "scalar"


@pytest.mark.parametrize("name", PEERS)
def test_notes_tell_the_package_and_the_kernel(name: str, kernel: str) -> None:
    case = Case.parse("mingru-T5-B2-H8-float32")
    own = made(name)
    own.build(case, Candidate.build(name, lambda: made(name), case).weights)
    assert own.notes() == (f"accelerated_scan 0.3.1, {kernel}" if "accelerated" in name else "fla 0.6.0, chunk")


@pytest.mark.parametrize("name", PEERS)
def test_cost_holds_the_product_and_grows_with_what_torch_does_alone(name: str) -> None:
    case = Case.parse("mingru-T64-B8-H256-float32-batchfirst")
    eager, compiled = (made(name.removesuffix("_compiled") + end).cost(case) for end in ("", "_compiled"))
    assert eager.bytes > compiled.bytes > cells.minimum_cost(case).bytes
    assert eager.operations == compiled.operations > cells.minimum_cost(case).operations


def test_discovery_imports_neither_the_packages_nor_compilers() -> None:
    heavy = ("numba", "fla", "accelerated_scan", "flashrnn", "triton", "torch._dynamo", "torch.utils.cpp_extension")
    code = (
        f"import sys, pytest_ecornn.run.discovery as d; d.discover([]); sys.exit(any(name in sys.modules for name in {heavy}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
