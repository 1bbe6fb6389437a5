"""A CUDA graph copies the weights to where the loop reads them: it was captured with the addresses of the first call."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "property: each_weight_seen"
CELL = "lstm"
DEVICE = "cuda"


class Fault(Loop):
    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        graphs: dict[str, tuple[torch.cuda.CUDAGraph, Parameters]] = vars(self).setdefault("_graphs", {})
        if suffix not in graphs:
            rooms = {name: value.detach().clone() for name, value in found.items()}
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for name, buffer in rooms.items():
                    buffer.copy_(weights[name + suffix].detach())
            graphs[suffix] = graph, rooms
        graph, rooms = graphs[suffix]
        graph.replay()
        return {name: with_value(value, rooms[name].clone()) for name, value in found.items()}
