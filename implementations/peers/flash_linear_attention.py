"""minGRU and minLSTM by flash-linear-attention: gates by torch's operations, the scan of HGRN, over [B, T, D] as it is."""

from __future__ import annotations

from pytest_ecornn.implementations.peers._flash_linear_attention import FlashLinearAttention as Base


class FlashLinearAttention(Base):
    pass
