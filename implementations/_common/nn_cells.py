"""The cells of torch.nn that kernels run, by name, in the order in which the kernels number them."""

from __future__ import annotations

NN_CELLS = ("rnn_tanh", "rnn_relu", "lstm", "gru")
