"""Modules for users of torch.nn: its RNN, LSTM and GRU, run by persistent_gpu's kernels wherever those run."""

from __future__ import annotations

from pytest_ecornn.nn.recurrent import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN"]
