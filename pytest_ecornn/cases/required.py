"""Domains that this project's own implementations must support: inside, answering "unsupported" is a failure."""

from __future__ import annotations

from pytest_ecornn.contract import SupportedCases
from pytest_ecornn.contract.cells import BUILT_IN

NN_CELLS = ("rnn_tanh", "rnn_relu", "lstm", "gru")
MIN_CELLS = ("mingru", "mingru_positive", "minlstm", "minlstm_positive")

REQUIRED_DOMAIN = {
    "sequential": SupportedCases(cells=tuple(cell.name for cell in BUILT_IN), precisions=("ieee",), resets=True),
    "auto": SupportedCases(cells=tuple(cell.name for cell in BUILT_IN), precisions=("ieee",), resets=True),
    "scan_cpu": SupportedCases(cells=MIN_CELLS, resets=True, sparse=False, devices=("cpu",)),
    "torch_cpu": SupportedCases(cells=NN_CELLS, dtypes=("float32", "float64"), projected=False, sparse=False, devices=("cpu",)),
    # Not in 16 bits: whether torch takes cuDNN for bfloat16, and where cuDNN is right in float16, depends on their versions.
    "cudnn": SupportedCases(cells=NN_CELLS, dtypes=("float32", "float64"), projected=False, sparse=False, devices=("cuda",)),
    "transposed_gpu": SupportedCases(cells=NN_CELLS, devices=("cuda",)),
    "row_major_gpu": SupportedCases(cells=NN_CELLS, devices=("cuda",)),
    "persistent_gpu": SupportedCases(cells=NN_CELLS, dtypes=("float32", "bfloat16", "float16"), devices=("cuda",)),
    "sparse_persistent_gpu": SupportedCases(
        cells=NN_CELLS, dtypes=("float32", "bfloat16", "float16"), dense=False, devices=("cuda",)
    ),
    "cusparse_gpu": SupportedCases(cells=NN_CELLS, modes=("inference",), dense=False, devices=("cuda",)),
    "scan_gpu": SupportedCases(cells=MIN_CELLS, resets=True, sparse=False, devices=("cuda",)),
    "scan_gpu_log": SupportedCases(cells=("mingru_positive", "minlstm_positive"), sparse=False, devices=("cuda",)),
}
