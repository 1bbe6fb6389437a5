"""torch.nn's modules on packed sequences, called with the given weights by torch.func.functional_call."""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck.correct._right import RECURRENT_CELLS, Right

_MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}


class PackedModules(Right):
    cells = RECURRENT_CELLS
    dtypes = ("float32", "float64")
    refused = {"projected": True}

    def build(self, case: Case, weights: Weights) -> Layer:
        options = {"nonlinearity": case.cell[4:]} if case.cell.startswith("rnn") else {}
        module = _MODULES[case.cell](
            case.input_size,
            case.hidden_size,
            case.layers,
            bias=case.bias,
            batch_first=case.batch_first,
            bidirectional=case.bidirectional,
            device="meta",
            **options,
        )

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            given = {name: weights.masked(name) for name in weights}
            if lengths is None:
                return functional_call(module, given, (x, state))  # type: ignore[no-any-return]
            packed = pack_padded_sequence(x, lengths, case.batch_first, enforce_sorted=False)
            output, final = functional_call(module, given, (packed, state))
            padded, _ = pad_packed_sequence(output, case.batch_first, total_length=case.steps)
            return padded, final

        return layer
