"""Weights in bfloat16 in one buffer for cuDNN: torch.nn's modules do not flatten them, so each of their calls copies them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def flatten_bfloat16(module: nn.RNNBase) -> None:
    """Moves a module's parameters into one buffer as cuDNN reads them, if they are bfloat16 on a CUDA device and not shared."""
    weights = [weight for weight in module._flat_weights if isinstance(weight, Tensor)]
    if not all(weight.is_cuda and weight.dtype == torch.bfloat16 for weight in weights):
        return
    is_whole = len(weights) == len(module._flat_weights_names) == len({weight.data_ptr() for weight in weights})
    if not (is_whole and weights and torch.backends.cudnn.enabled and torch._use_cudnn_rnn_flatten_weight()):
        return
    with torch.cuda.device_of(weights[0]), torch.no_grad():
        torch._cudnn_rnn_flatten_weight(
            weights, (4 if module.bias else 2) + bool(module.proj_size), module.input_size,
            torch.backends.cudnn.rnn.get_cudnn_mode(module.mode), module.hidden_size, module.proj_size, module.num_layers,
            module.batch_first, bool(module.bidirectional),
        )  # fmt: skip
