"""What oneDNN lacks on some processors: a bfloat16 LSTM, without which torch.nn's raises under autocast."""

from __future__ import annotations

from functools import cache

import torch


@cache
def runs_lstm_under_autocast() -> bool:
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(4, 5)(torch.zeros(2, 3, 4))
    except RuntimeError:
        return False
    return True
