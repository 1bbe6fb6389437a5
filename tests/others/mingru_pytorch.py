"""minGRU-pytorch's minGRU and minLSTM, which scan in logarithms."""

import torch
from torch.func import functional_call

from pytest_ecornn import Case, Implementation, Weights

from ._one_layer import one_layer

ORDERS = {"mingru_positive": (1, 0), "minlstm_positive": (2, 0, 1)}  # its gates, of ours


class MinGRUPytorch(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer(*ORDERS, modes=("inference",), nobias="only", batchfirst="only", negative_state=False)

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell == "minlstm_positive" and case.has_state:
            return "a state that is handed on is wrong: docs/faults.md"
        if case.contents in ("saturated", "large", "near_one") or "infinite" in case.contents:
            return "logarithms of such contents are too far off"
        return "the error of logarithms grows with T" if case.steps > 4 else None

    def build(self, case: Case, weights: Weights):
        from minGRU_pytorch.minGRU import minGRU
        from minGRU_pytorch.minLSTM import minLSTM

        kind = minGRU if case.cell == "mingru_positive" else minLSTM
        module = kind(case.input_size, case.hidden_size / case.input_size, proj_out=False)
        (name,) = dict(module.named_parameters())

        def layer(x, state, lengths):
            gates = weights["weight_ih_l0"].chunk(len(ORDERS[case.cell]))
            weight = torch.cat([gates[place] for place in ORDERS[case.cell]])
            state = None if state is None else state.transpose(0, 1)
            output, final = functional_call(module, {name: weight}, (x, state, True))
            return output, final.transpose(0, 1).clone()

        return layer
