"""cudnn: what it refuses, the weights that it adopts, TF32 as the case says in both directions, and what its notes call it.

Without a GPU the layer is built for the CPU, where torch.nn runs its own kernels through the same code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.required import REQUIRED_DOMAIN
from pytest_ecornn.contract import Case, Implementation, SupportedCases, Weights
from pytest_ecornn.implementations import cudnn
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations.cudnn import Cudnn
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.implementations.torch_cpu import TorchCpu
from pytest_ecornn.reference import precision
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.reference.precision import current, fp32_precision
from pytest_ecornn.reference.rounding import Rounding
from pytest_ecornn.verification.calls import run
from pytest_ecornn.verification.verification import Candidate, failure_message
from tests.helpers.requirements import needs_gpu

CUDA = torch.device("cuda")
CASES = (
    "lstm-T9-B4-I5-H16-L2-float32-bidirectional-batchfirst-ragged-state-training",
    "gru-T7-B3-I6-H8-float32-nobias-ragged",
    "rnn_tanh-T5-B2-H16-float64-state-training",
    "rnn_relu-T5-B2-H16-L3-float32-batchfirst-training-strided",
    "lstm-T5-B2-H32-float32-density0.3",
)
CASES_16_BIT = (
    "lstm-T9-B8-H128-float16-state-training",
    "gru-T9-B8-H64-L2-float16-bidirectional-ragged",
    "lstm-T9-B8-H256-bfloat16-training",
)
PERSISTENT = "void RNN_blockPersist_fp_LSTM_HMMA<__half, __half, float, 128>(float*, int)"
STEPWISE = "void cudnn::rnn::LSTM_elementWise_fp<float, float, float, (cudnnRNNBiasMode_t)2>(int, int)"
GEMM = "void cutlass::device_kernel<cutlass::gemm::PersistentScheduler>(cutlass::Params)"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"


@pytest.fixture(params=["tf32", "ieee"])
def process_precision(request: pytest.FixtureRequest) -> Iterator[str]:
    with fp32_precision("rnn", request.param), fp32_precision("matmul", request.param):
        yield request.param


class CudnnRnn(torch.autograd.Function):
    """Named as cuDNN's node is; notes what cuDNN would read."""

    seen: list[str] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        CudnnRnn.seen.append(current("rnn"))
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        CudnnRnn.seen.append(current("rnn"))
        return gradient * 2


@pytest.fixture
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of torch.nn's layer one that ends, as with batch_first or lengths, a few nodes after cuDNN's."""

    def layer_of(case: Case, module: torch.nn.RNNBase) -> Any:
        return lambda x, state, lengths: (CudnnRnn.apply(x).transpose(0, 1).contiguous(), x[0])

    CudnnRnn.seen.clear()
    monkeypatch.setattr(torch_nn, "make_layer", layer_of)


def judged(name: str) -> str:
    """What fails of the case."""
    case = Case.parse(name)
    return failure_message("cudnn", case, Candidate.build("cudnn", Cudnn, case).verify())


def built(name: str) -> tuple[Any, Weights]:
    case = Case.parse(name)
    weights = contents.make_weights(case)
    return Cudnn().build(case, weights), weights


LSTM_DEFECT = "lstm-T16-B8-H48-float16-cuda"
RNN_DEFECT = "rnn_tanh-T16-B8-H64-float16-cuda-bidirectional-training"


@pytest.mark.parametrize(
    ("name", "is_wrong"),
    [
        (LSTM_DEFECT, True),
        ("gru-T16-B16-I5-H184-L2-float16-cuda-bidirectional", True),
        ("lstm-T16-B8-H48-float16-cuda-nobias", False),
        ("lstm-T16-B8-H48-float16-cuda-ragged", False),
        ("lstm-T16-B7-H48-float16-cuda", False),
        ("lstm-T16-B8-H64-float16-cuda", False),
        ("lstm-T16-B8-H200-float16-cuda", False),
        ("lstm-T16-B8-H48-bfloat16-cuda", False),
        (RNN_DEFECT, True),
        ("rnn_relu-T16-B8-H32-L3-float16-cuda-bidirectional-training", True),
        ("rnn_tanh-T16-B8-H64-float16-cuda-training", False),
        ("rnn_tanh-T16-B8-H64-float16-cuda-bidirectional", False),
        ("rnn_tanh-T16-B8-H48-float16-cuda-bidirectional-training", False),
        ("rnn_tanh-T16-B8-H288-float16-cuda-bidirectional-training", False),
    ],
)
def test_the_known_defects_of_one_version_are_refused(name: str, is_wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    reason = Cudnn().unsupported(Case.parse(name), CUDA)
    assert ("cuDNN 9.19 is wrong here" in reason if reason else False) == is_wrong
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92000)
    assert Cudnn().unsupported(Case.parse(name), CUDA) is None


@needs_gpu
@pytest.mark.parametrize("name", [LSTM_DEFECT, RNN_DEFECT])
def test_what_is_refused_as_a_defect_is_one(name: str) -> None:
    if Cudnn().unsupported(Case.parse(name), CUDA) is None:
        pytest.skip("another version of cuDNN")
    assert judged(name)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference_through_torch_nn_of_a_cpu(name: str) -> None:
    assert judged(name) == ""


def test_building_draws_no_random_numbers() -> None:
    before = torch.random.get_rng_state()
    built(CASES[0])
    assert torch.equal(before, torch.random.get_rng_state())


def test_inference_copies_the_weights_and_training_adopts_them() -> None:
    x = torch.ones(4, 2, 8)
    for mode, is_seen in (("", False), ("-training", True)):
        layer, weights = built("gru-T4-B2-H8-float32" + mode)
        with torch.no_grad():
            before = layer(x, None, None)[0]
            weights["weight_hh_l0"].zero_()
            assert torch.equal(before, layer(x, None, None)[0]) is not is_seen


@pytest.mark.usefixtures("_stub")
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [("float32", "ieee"), ("float32-tf32", "tf32"), ("bfloat16", "tf32"), ("float16", None), ("float64", None)],
)
def test_precision_is_the_cases_forward_and_backward_and_the_processes_around(
    dtype: str, wanted: str | None, process_precision: str
) -> None:
    """Of 16 bits bfloat16 alone needs tensor cores allowed."""
    layer, _ = built(f"lstm-T2-B2-H4-{dtype}-training")
    output, _ = layer(torch.ones(2, 2, 4, requires_grad=True), None, None)
    assert current("rnn") == process_precision
    output.sum().backward()
    assert current("rnn") == process_precision
    assert CudnnRnn.seen == [wanted or process_precision] * 2


def test_precision_is_put_back_after_an_error(process_precision: str) -> None:
    def fail(wanted: str) -> None:
        with fp32_precision("rnn", wanted):
            assert current("rnn") == wanted
            raise ZeroDivisionError

    for wanted in ("ieee", "tf32"):
        with pytest.raises(ZeroDivisionError):
            fail(wanted)
        assert current("rnn") == process_precision


@pytest.mark.usefixtures("process_precision")
@pytest.mark.parametrize("shape", [(5, 6), (3, 5, 6)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_ieee_linear_is_linear_with_gradients(shape: tuple[int, ...], has_bias: bool) -> None:
    x, weight = torch.randn(*shape, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    given = [x, weight, *([torch.randn(4, dtype=torch.float64)] if has_bias else [])]
    leaves = [tensor.requires_grad_() for tensor in given]
    bias = given[2] if has_bias else None

    def own(*tensors: torch.Tensor) -> torch.Tensor:
        return precision._linear(lambda operand: operand, *tensors)

    torch.testing.assert_close(own(*given), torch.nn.functional.linear(x, weight, bias))
    assert torch.autograd.gradcheck(own, leaves)


def test_tf32_products_have_operands_of_11_bits() -> None:
    x, weight = torch.tensor([[1 + 2**-10 + 2**-11, -3.0]]), torch.tensor([[1.0, 2.0**-20], [float("inf"), 0.0]])
    product = precision.tf32_linear(Rounding())(x, weight, None)
    assert product.tolist() == [[1 + 2**-10 - 3 * 2**-20, float("inf")]]


def test_sequential_multiplies_in_ieee_precision_forward_and_backward(process_precision: str) -> None:
    class Products(torch_nn.OperatorRecorder):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "mm" in str(func):
                self.names.add(current("matmul"))
            return func(*args, **(kwargs or {}))

    case = Case.parse("lstm-T4-B3-I5-H8-L2-float32-bidirectional-batchfirst-ragged-state-training")
    problem = contents.problem(case)
    with Products() as products:
        run(ReferenceLoop().build(case, problem.weights), problem)
    assert products.names <= {"ieee", "none"}
    assert products.names
    assert current("matmul") == process_precision


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([PERSISTENT, GEMM, PERSISTENT], "persistent (RNN_blockPersist_fp_LSTM_HMMA)"),
        ([GEMM, STEPWISE, ELEMENTWISE], "standard (LSTM_elementWise_fp)"),
        (["void elemWiseRNNcell<float, float>(int)"], "standard (elemWiseRNNcell)"),
        (
            [STEPWISE, "void persistRNN_addBias<float>()", PERSISTENT],
            "persistent and standard (persistRNN_addBias, RNN_blockPersist_fp_LSTM_HMMA, LSTM_elementWise_fp)",
        ),
        ([GEMM, "void (anonymous namespace)::scale(int)"], "algorithm unknown (device_kernel, scale)"),
        ([], "algorithm unknown: the profiler saw no kernels"),
    ],
)
def test_algorithm_is_told_by_the_cells_kernels(names: list[str], wanted: str) -> None:
    assert cudnn._algorithm(names) == wanted


@pytest.mark.parametrize(("number", "wanted"), [(91900, "9.19"), (90100, "9.1"), (8902, "8.9")])
def test_version_is_written_as_cudnn_writes_it(number: int, wanted: str) -> None:
    assert cudnn._version(number) == wanted


def test_only_the_warning_of_scattered_weights_is_silenced() -> None:
    with cudnn._suppress_weight_warning():
        warnings.warn("RNN module weights are not part of single contiguous chunk of memory. This means", stacklevel=1)
        with pytest.raises(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)


def test_a_profiler_that_fails_gives_no_names() -> None:
    def broken() -> None:
        raise RuntimeError

    assert cudnn._kernel_names(broken) == []


@pytest.mark.parametrize(
    ("kind", "domain"),
    [(Cudnn, "cudnn"), (TorchCpu, "torch_cpu"), (ScanCpu, "scan_cpu"), (ReferenceLoop, "sequential")],
)
def test_what_is_required_of_a_device_is_supported_there(kind: type[Implementation], domain: str) -> None:
    required: SupportedCases = REQUIRED_DOMAIN[domain]
    for device in ("cpu", "cuda:1"):
        case = Case(cell=required.cells[0], dtype="float32", steps=2, batch=2, hidden_size=4, device=device)
        supported = kind().unsupported(case, torch.device(device)) is None
        assert required.has_kind(case) is supported


@needs_gpu
@pytest.mark.parametrize("name", [*CASES, *CASES_16_BIT])
def test_agrees_with_the_reference_on_a_gpu(name: str) -> None:
    candidate = Candidate.build("cudnn", Cudnn, Case.parse(f"{name}-cuda"))
    assert failure_message("cudnn", candidate.case, candidate.verify()) == ""
    assert candidate.implementation.notes().startswith("cuDNN ")
    assert "copies" not in candidate.implementation.notes()


@needs_gpu
@pytest.mark.parametrize("mode", ["", "-training"])
def test_tf32_is_coarser_than_ieee_whatever_the_process_allows(mode: str, process_precision: str) -> None:
    errors = {}
    for token in ("", "-tf32"):
        case = Case.parse(f"lstm-T8-B64-H512-float32{token}-cuda{mode}")
        problem = contents.problem(case)
        found = run(Cudnn().build(case, problem.weights), problem)
        wanted = run(ReferenceLoop().build(case, problem.weights), problem)
        errors[token] = {name: (found[name] - wanted[name]).abs().max() for name in found}
    for name, error in errors[""].items():
        assert error < errors["-tf32"][name] / 10, name
    assert current("rnn") == process_precision


@needs_gpu
def test_training_keeps_the_leaves_and_their_values() -> None:
    case = Case.parse("lstm-T8-B8-H64-float32-cuda-training")
    weights = contents.make_weights(case)
    before = {name: parameter.detach().clone() for name, parameter in weights.items()}
    Cudnn().build(case, weights)
    assert all(parameter.is_leaf and torch.equal(parameter, before[name]) for name, parameter in weights.items())


@needs_gpu
def test_persistent_algorithm_is_named() -> None:
    implementation, case = Cudnn(), Case.parse("lstm-T32-B16-H512-float16-cuda")
    implementation.build(case, contents.make_weights(case))
    assert "persistent (" in implementation.notes()
