"""Known defects of cuDNN: shapes at which its results are far from its own in float32 (docs/notes/cudnn.md).

Source: this project's drawn cases, in cuDNN 9.19 on compute capability 9.0. Other versions are assumed to have none.
"""

from __future__ import annotations

from pytest_ecornn.contract import Case

_VERSIONS = range(91900, 92000)


def defect(case: Case, version: int) -> str | None:
    """Describes the defect of this version's float16 kernels at the case's shape; None where none is known."""
    is_on_tensor_cores = case.dtype == "float16" and case.batch % 8 == 0 and case.hidden_size % 8 == 0
    if version not in _VERSIONS or not is_on_tensor_cores or case.ragged:
        return None
    hidden = case.hidden_size
    if case.cell in ("lstm", "gru") and case.bias and hidden % 32 and 32 < hidden < 192:
        return (
            f"cuDNN 9.19 is wrong here: float16 {case.cell} with biases, B a multiple of 8, H of 8 but not of 32 from 40 to 184"
        )
    if case.cell.startswith("rnn") and case.training and case.bidirectional and hidden % 32 == 0 and hidden <= 256:
        return (
            "cuDNN 9.19 is wrong here: the backward pass of a bidirectional float16 RNN, B a multiple of 8, H of 32 up to 256"
        )
    return None
