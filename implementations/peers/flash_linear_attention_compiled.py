"""flash_linear_attention with gates by torch.compile: one kernel for them, two for the scan."""

from __future__ import annotations

from pytest_ecornn.implementations.peers._flash_linear_attention import FlashLinearAttention as Base


class FlashLinearAttentionCompiled(Base):
    is_compiled = True
