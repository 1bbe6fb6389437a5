"""keras.layers.LSTM on Keras's torch backend, with lengths as a mask."""

import os

from pytest_ecornn import Case, Implementation, Weights

from ._one_layer import one_layer


class KerasLSTM(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer("lstm", batchfirst="only")

    def build(self, case: Case, weights: Weights):
        os.environ["KERAS_BACKEND"] = "torch"
        import keras

        module = keras.layers.LSTM(case.hidden_size, return_sequences=True, return_state=True)
        module.build((case.batch, case.steps, case.input_size))

        def layer(x, state, lengths):
            w_ih, w_hh, b_ih, b_hh = weights.values()
            h, c = state or [x.new_zeros(1, case.batch, case.hidden_size)] * 2
            (output, h, c), _ = module.stateless_call(
                [w_ih.T, w_hh.T, b_ih + b_hh], [*module.non_trainable_variables], x, initial_state=[h[0], c[0]]
            )
            return output, (h[None], c[None])

        return layer
