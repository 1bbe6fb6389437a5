"""Modules for users of torch.nn: its RNN, LSTM and GRU by persistent_gpu's kernels, minGRU and minLSTM by parallel scans."""

from __future__ import annotations

from pytest_ecornn.autotune import freeze
from pytest_ecornn.nn.conversion import from_torch, replace, to_torch
from pytest_ecornn.nn.preparation import prepare
from pytest_ecornn.nn.recurrent import GRU, LSTM, RNN
from pytest_ecornn.nn.scan import MinGRU, MinLSTM

__all__ = ["GRU", "LSTM", "RNN", "MinGRU", "MinLSTM", "freeze", "from_torch", "prepare", "replace", "to_torch"]
