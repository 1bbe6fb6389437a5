"""What this project's own implementations must support: inside, answering "unsupported" is a failure."""

from __future__ import annotations

from pytest_ecornn.cells import BUILT_IN
from pytest_ecornn.strategies import Domain

MIN_CELLS = ("mingru", "mingru_positive", "minlstm", "minlstm_positive")

REQUIRED_DOMAIN = {
    "sequential": Domain(cells=tuple(cell.name for cell in BUILT_IN)),
    "scan_cpu": Domain(cells=MIN_CELLS, sparse=False),
    "torch_cpu": Domain(
        cells=("rnn_tanh", "rnn_relu", "lstm", "gru"), dtypes=("float32", "float64"), projected=False, sparse=False
    ),
}
