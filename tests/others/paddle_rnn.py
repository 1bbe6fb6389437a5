"""paddle.nn.SimpleRNN, LSTM and GRU."""

import torch

from pytest_ecornn import Case, Implementation, Weights

from . import _bridge
from ._one_layer import one_layer


class PaddleRNN(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer("rnn_tanh", "rnn_relu", "lstm", "gru", max_layers=4, bidirectional=True, ragged=True)

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.bidirectional and case.ragged and case.has_state and case.training:
            return "its gradients are wrong there: docs/faults.md"
        is_saturated = case.contents in ("saturated", "large") or "infinite" in case.contents
        if case.cell == "gru" and case.training and is_saturated:
            return "its gradients of closed gates are NaN: docs/faults.md"
        is_nan = case.cell == "rnn_relu" and case.contents.startswith("nan")
        return "NaN does not pass relu: docs/faults.md" if is_nan else None

    def build(self, case: Case, weights: Weights):
        import paddle

        kinds = {"lstm": paddle.nn.LSTM, "gru": paddle.nn.GRU}
        options = {"activation": case.cell[4:]} if case.cell not in kinds else {}
        direction = "bidirect" if case.bidirectional else "forward"
        module = kinds.get(case.cell, paddle.nn.SimpleRNN)(
            case.input_size, case.hidden_size, case.layers, direction, not case.batch_first, **options
        )

        def run(arrays, lengths, count):
            inputs = [paddle.to_tensor(array, stop_gradient=False) for array in arrays]
            x, *state = inputs[: 1 + count]
            for name, value in zip(weights, inputs[1 + count :], strict=True):
                dict(module.named_parameters())[name].set_value(value)
            state = tuple(state) if count == 2 else state[0] if count else None
            output, final = module(x, state, None if lengths is None else paddle.to_tensor(lengths.numpy()))
            results = (output, *(final if isinstance(final, tuple) else (final,)))
            leaves = [*inputs[: 1 + count], *(dict(module.named_parameters())[name] for name in weights)]

            def pullback(gradients):
                found = paddle.grad(
                    results, leaves, [paddle.to_tensor(g) for g in gradients], retain_graph=True, allow_unused=True
                )
                return [g.numpy() for g in found]

            return [r.numpy() for r in results], pullback

        def layer(x, state, lengths):
            states = () if state is None else state if isinstance(state, tuple) else (state,)
            output, *final = _bridge.call(lambda arrays: run(arrays, lengths, len(states)), x, *states, *weights.values())
            return output, tuple(final) if len(final) > 1 else final[0]

        return layer
