"""What implementations will not run has a reason, in words."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from pytest_ecornn.contract import Case, Implementation
from pytest_ecornn.implementations.auto import Auto
from pytest_ecornn.implementations.cudnn import Cudnn
from pytest_ecornn.implementations.cusparse_gpu import CusparseGpu
from pytest_ecornn.implementations.fused_cpu_bf16 import FusedCpuBf16
from pytest_ecornn.implementations.fused_cpu_int8 import FusedCpuInt8
from pytest_ecornn.implementations.peers import flashrnn
from pytest_ecornn.implementations.peers.flashrnn import FlashRnn
from pytest_ecornn.implementations.peers.onnxruntime import OnnxRuntime
from pytest_ecornn.implementations.peers.torch_cell_loop import TorchCellLoop
from pytest_ecornn.implementations.peers.torch_compile_cpu import TorchCompileCpu
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu
from pytest_ecornn.implementations.row_major_gpu import RowMajorGpu
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.implementations.scan_gpu import ScanGpu
from pytest_ecornn.implementations.scan_gpu_log import ScanGpuLog
from pytest_ecornn.implementations.scan_torch import ScanTorch
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu
from pytest_ecornn.implementations.transposed_gpu import TransposedGpu
from tests.helpers import peer_doubles

# Cases, and a pattern of the reason; nothing where the case is run.
REFUSED: dict[type[Implementation], str] = {
    Auto: """
lstm-T2-B2-H4-float32-tf32 no candidate runs it: fused_cpu TF32 is a GPU's precision; torch_cpu TF32 *; sequential *
""",
    Cudnn: """
mingru-T2-B2-H4-float32-cuda torch.nn has no mingru
lstm-T2-B2-H4-float32-cuda-projected torch.nn makes the input product itself and cannot be given its result
lstm-T2-B2-H4-float32-cuda-density0.3-training torch.nn computes dense gradients of sparse recurrent weights
lstm-T2-B2-H4-bfloat16-tf32-cuda TF32 is a precision of float32 products
lstm-T2-B2-H4-float32 cuDNN runs on a CUDA device
lstm-T2-B2-H4-float32-tf32-cuda:1
gru-T2-B2-H4-float32-cuda-density0.3
""",
    CusparseGpu: """
lstm-T3-B2-H4-float32-density0.1 cuSPARSE runs on a CUDA device
mingru-T3-B2-H4-float32-cuda no mingru: rnn_tanh, rnn_relu, lstm, gru only
lstm-T3-B2-H4-float32-cuda runs pruned recurrent weights, of a density below 1
lstm-T3-B2-H4-float32-cuda-density0.1-training runs inference alone: torch has no gradient of the non-zeros alone
lstm-T3-B2-H4-float16-cuda-density0.1-tf32 TF32 is a precision of float32 products
""",
    FlashRnn: """
lstm-T4-B8-H128-bfloat16-cuda
gru-T4-B8-H128-bfloat16-cuda no gru*
lstm-T4-B8-H128-float16-cuda runs bfloat16, not float16*
lstm-T4-B8-H128-bfloat16-ragged-cuda *sequences of one length*
lstm-T4-B9-H128-bfloat16-cuda *multiples of 8 and 128*
lstm-T4-B8-H130-bfloat16-cuda *multiples of 8 and 128*
lstm-T4-B8-H128-bfloat16-tf32-cuda TF32 is a precision of float32*
lstm-T4-B8-H128-bfloat16 runs on a CUDA device
""",
    FusedCpuBf16: """
lstm-T3-B2-H4-float32-ragged-resets
lstm-T3-B2-H4-float32-nan_weight
lstm-T3-B2-H4-float32-training runs inference alone: its weights are rounded to bfloat16
""",
    FusedCpuInt8: """
gru-T3-B2-H4-float16-density0.3
gru-T3-B2-H4-bfloat16-training runs inference alone: its weights are rounded to int8
gru-T3-B2-H4-float64 runs float32, bfloat16, float16, not float64
gru-T3-B2-H4-float32-infinite_weight int8 has no NaN and no infinity
mingru-T3-B2-H4-float32 runs rnn_tanh, rnn_relu, lstm, gru, not mingru
""",
    OnnxRuntime: """
lstm-T3-B2-H4-float32
lstm-T3-B2-H4-float32-training *training*
gru-T3-B2-H4-float64 *float64*
gru-T3-B2-H4-float32-projected *projected*
gru-T3-B2-H4-float32-nan LSTM and GRU with biases make finite outputs of NaN: docs/faults.md
rnn_tanh-T3-B2-H4-float32-small RNN's tanh is 0 near 0: docs/faults.md
""",
    PersistentGpu: """
mingru-T3-B2-H4-bfloat16-cuda no mingru: rnn_tanh, rnn_relu, lstm, gru only
lstm-T3-B2-H4-float64-cuda runs bfloat16, float16 and float32, not float64
lstm-T3-B2-H4-float16 runs on a CUDA device
lstm-T1073741824-B1-H1-float16-cuda T and G * B * H must be below 2^30, got 1073741824
""",
    RowMajorGpu: """
mingru-T5-B3-H9-float32-cuda-training no mingru: rnn_tanh, rnn_relu, lstm, gru only
""",
    ScanCpu: """
mingru-T5-B2-H8-float32
lstm-T5-B2-H8-float32 scan_cpu runs mingru and minlstm only: other cells are not linear in their state
mingru-T5-B2-H8-float32-cuda scan_cpu runs on a CPU
mingru-T5-B2-H8-float32-tf32 TF32 is a GPU's precision
""",
    ScanGpu: """
lstm-T2-B1-H1-float32-cuda no lstm: mingru, mingru_positive, minlstm, minlstm_positive only, *
mingru-T2-B1-H1-float32 runs on a CUDA device
mingru-T2-B1-H1-float64-tf32-cuda TF32 is a precision of float32 products
mingru-T2-B65536-H65536-float32-cuda T and G * B * H must be below 2^30, got 8589934592
""",
    ScanGpuLog: """
mingru-T2-B1-H1-float32-cuda no mingru: mingru_positive, minlstm_positive only, log space needs a positive candidate
mingru_positive-T2-B1-H1-float32 runs on a CUDA device
mingru_positive-T2-B1-H1-float64-tf32-cuda TF32 is a precision of float32 products
mingru_positive-T2-B65536-H65536-float32-cuda T and G * B * H must be below 2^30, got 8589934592
""",
    ScanTorch: """
mingru-T2-B1-H1-float32 no mingru: mingru_positive, minlstm_positive only, whose state has a logarithm
mingru_positive-T2-B1-H1-float32-ragged runs sequences of one length
mingru_positive-T2-B1-H1-float32-tf32 TF32 is a GPU's precision
minlstm_positive-T2-B1-H1-bfloat16-large logarithms of large contents are too far off *
minlstm_positive-T2-B1-H1-float32-state-infinite logarithms of infinite contents are too far off *
""",
    SparsePersistentGpu: """
mingru-T3-B2-H4-bfloat16-cuda no mingru: rnn_tanh, rnn_relu, lstm, gru only
lstm-T3-B2-H4-float16-cuda runs pruned recurrent weights, of a density below 1
lstm-T3-B2-H4-float64-cuda-density0.1 runs bfloat16, float16 and float32, not float64
lstm-T3-B2-H4-float16-density0.1 runs on a CUDA device
lstm-T1073741824-B1-H1-float16-cuda-density0.1 T and G * B * H must be below 2^30, got 1073741824
""",
    TorchCellLoop: """
lstm-T3-B2-H4-float64-training
lstm-T3-B2-H4-float16 *float16*
gru-T3-B2-H4-float32-density0.3-training torch.nn computes dense gradients of sparse recurrent weights
""",
    TorchCompileCpu: """
lstm-T3-B2-H4-float64 runs float32, not float64
lstm-T3-B2-H4-float32-training runs inference, not training
gru-T3-B2-H4-float32-ragged *ragged*
mingru-T3-B2-H4-float32 runs rnn_tanh, rnn_relu, lstm, gru, not mingru
""",
    TransposedGpu: """
lstm-T5-B3-H9-float32-training runs on a CUDA device
""",
}


@pytest.mark.parametrize(("kind", "row"), [(kind, row) for kind, rows in REFUSED.items() for row in rows.strip().splitlines()])
def test_what_it_will_not_run_has_a_reason(kind: type[Implementation], row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peer_doubles.install(monkeypatch)
    monkeypatch.setattr(flashrnn, "can_compile", lambda: True)
    name, _, pattern = row.partition(" ")
    case = Case.parse(name)
    reason = kind().refusal(case)
    assert fnmatchcase(reason or "", pattern), reason
