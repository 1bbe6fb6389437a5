"""Published results measured again: everything but the measuring itself, which takes a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.measurement import alternating
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import ecornn, stored
from pytest_ecornn.suites.published.common import bars, candidates, launches
from pytest_ecornn.suites.published.common.item_rows import OUT_OF_MEMORY
from pytest_ecornn.suites.published.common.launches import kind_of
from pytest_ecornn.suites.published.ecornn_parts import hit_rates, product_layout
from pytest_ecornn.suites.published.ecornn_parts.hit_rates import METRIC, parse
from tests.helpers.studies import SMALL, Off, cells_of, event, implementations

REPORTS = Path(__file__).parents[3] / "reports/h200"


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_64x32_64x16_4x1_v_bz_TNT", "product"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_32x128_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)", "product"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage6", "product"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(int)", "product"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)", "product"),
        ("void LSTM_elementWise_fp<float, float, float, (cudnnRNNBiasMode_t)2>(int, int)", "pointwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda>(int)", "pointwise"),
        ("step_forward", "pointwise"),
        ("step_backward", "pointwise"),
        ("scan_forward", "scan"),
        ("scan_backward", "scan"),
        ("void at::native::tensor_kernel_scan_outer_dim<float>(float*)", "scan"),
        ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>>(float)", "other"),
        ("void at::native::CatArrayBatchedCopy<float, unsigned int, 2>(float*)", "other"),
    ],
)
def test_a_kernel_is_known_by_its_name(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def ncu(*kernels: tuple[str, str]) -> str:
    rows = [f'"{n}","7","python","h","{name}","{METRIC}","%","{value}"' for n, (name, value) in enumerate(kernels)]
    header = '"ID","Process ID","Process Name","Host Name","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    return "\n".join(["==PROF== Connected to process 7", "==PROF== Disconnected", header, *rows])


def test_the_last_product_has_the_hit_rate() -> None:
    text = ncu(("randn", "9"), ("sgemm_a(int, int)", "11"), ("sgemm_b(int, int)", "48.25"), ("splitKreduce_kernel", "90"))
    assert parse(text) == (48.25, "sgemm_b(int, int)")
    assert parse(ncu(("some", "1"), ("unknown", "1,000.5"))) == (1000.5, "unknown")


@pytest.mark.parametrize(
    ("text", "message"),
    [("==ERROR== ERR_NVGPUCTRPERM", f"no {METRIC}"), (ncu(("sgemm", "n/a")), "as a number, got 'n/a'")],
)
def test_what_ncu_did_not_measure_is_no_hit_rate(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_trace_is_broken_down() -> None:
    events = [
        {"ph": "M", "name": "process_name"},
        event("cpu_op", "aten::mm", 0, 50),
        event("cuda_runtime", "cudaLaunchKernelExC_v11060", 1, 5),
        event("cuda_driver", "cuLaunchKernelEx", 2, 3),
        event("cuda_runtime", "cudaLaunchKernel", 3, 2, thread=2),
        event("cuda_runtime", "cudaGraphLaunch", 10, 20),
        event("cuda_runtime", "cudaMemcpyAsync", 40, 4),
        event("kernel", "sgemm", 100, 10, thread=7),
        event("kernel", "step_forward", 105, 7, thread=8),
        event("gpu_memcpy", "Memcpy DtoD", 120, 2, thread=7),
        event("kernel", "step_forward", 130, 1, thread=7),
    ]
    wanted = launches.Breakdown(
        launches=3, launch_us=27, kernels=3, product_us=10, pointwise_us=8, other_us=2, gaps_us=8 + 8
    )  # fmt: skip
    assert launches.breakdown(events) == wanted
    assert wanted.product_share == 0.5
    assert launches.breakdown([]) == launches.Breakdown(0, 0, 0, 0, 0, 0, 0)


@pytest.mark.usefixtures("fake_clock")
def test_blocks_alternate_and_calls_rotate() -> None:
    made: list[str] = []
    first, second = (alternating.Arm([partial(made.append, f"{name}{k}") for k in range(2)], work=5) for name in "ab")
    alternating.measure_interleaved([first, second], rounds=2)
    assert "".join(call[0] for call in made) == "aaa" + "bbb" + "aaaa" + "bbbb" + "bbbb" + "aaaa"
    assert [call for call in made if call[0] == "a"] == [f"a{n % 2}" for n in range(11)]
    assert first.samples_us == [pytest.approx(1000 / 3 / 5)] * 2


def test_the_mean_of_ratios_is_geometric_and_has_the_mean_of_their_bounds() -> None:
    mean = bars.mean_ratio([Ratio(2.0, 1.0, 4.0), Ratio(8.0, 4.0, 9.0)])
    assert (mean.ratio, mean.low, mean.high) == pytest.approx((4.0, 2.0, 6.0))


def test_what_was_not_measured_says_why() -> None:
    layout, rates, calls = (list(stored.load(REPORTS / "ecornn.json").rows[name]) for name in ecornn.PLAN.order)
    layout[0] = product_layout.Row(64, 512, "float32", reason=OUT_OF_MEMORY)
    text = product_layout.render(layout)
    assert cells_of(text, "\\[64 x 512\\] x \\[2048 x 512\\]")[0][1:] == ["float32", "-", "-", "-", "almost 2x"]
    assert f"- B 64, H 512, float32: {OUT_OF_MEMORY}" in text
    rates[1] = hit_rates.Row("transposed", reason="ncu had not finished after 60 s")
    text = hit_rates.render(rates)
    assert [cells_of(text, name)[0][1] for name in ("X W^T", "W X^T")] == ["21.8 %", "-"]
    assert "- W X^T: ncu had not finished" in text
    calls[2] = launches.Row("training", "transposed_gpu", reason="needs CuPy")
    text = launches.render(calls)
    assert set(cells_of(text, "training")[2][2:]) == {"-"}
    assert "- transposed_gpu, training: needs CuPy" in text


class Broken(ReferenceLoop):
    """A layer that cannot be built."""

    def build(self, case: Case, weights: Weights) -> Layer:
        raise RuntimeError("no kernel image\nis available")


def test_only_what_is_right_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = implementations(sequential=ReferenceLoop, off=Off, broken=Broken)
    monkeypatch.setattr(candidates, "_implementations", lambda: known)
    prepared = {name: candidates.prepare(SMALL, name) for name in ("sequential", "off", "broken", "cudnn")}
    assert prepared["off"] == candidates.WRONG
    assert "off is wrong on lstm-T3" in capsys.readouterr().out
    assert prepared["broken"] == "raised RuntimeError: no kernel image"
    assert "absent" in str(prepared["cudnn"])
    candidate = prepared["sequential"]
    assert not isinstance(candidate, str)
    output, _ = candidates.call_of(candidate)()[0]
    assert output.shape == (SMALL.steps, SMALL.batch, SMALL.hidden_size)
    assert "IEEE" in str(candidates.prepare(replace(SMALL, precision="tf32"), "sequential"))
