"""The functional forms give what the modules give, with gradients through the weights that they are given."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn import nn
from pytest_ecornn.nn import functional
from tests.helpers.nn_modules import tensors

X = torch.linspace(-1, 1, 60).view(5, 3, 4)
FORMS: dict[str, tuple[Any, Any]] = {
    "rnn": (nn.RNN, functional.rnn),
    "gru": (nn.GRU, functional.gru),
    "lstm": (nn.LSTM, functional.lstm),
    "mingru": (nn.MinGRU, functional.mingru),
    "minlstm": (nn.MinLSTM, functional.minlstm),
}
of_each = pytest.mark.parametrize("form", FORMS)


def made(form: str, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = FORMS[form][0](4, 9, **options)
    return module, {name: one.detach().clone().requires_grad_() for name, one in module.named_parameters()}


@of_each
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({}, {}),
        ({"num_layers": 2, "bidirectional": True}, {}),
        ({"bias": False}, {"batch_first": True}),
    ],
)
def test_results_and_gradients_of_the_module(form: str, shape: dict[str, Any], options: dict[str, Any]) -> None:
    module, weights = made(form, **shape, **options)
    found, wanted = FORMS[form][1](X, weights, **options), module(X)
    assert all(torch.equal(*pair) for pair in zip(tensors(found), tensors(wanted), strict=True))
    pairs = (found, list(weights.values())), (wanted, list(module.parameters()))
    torch.testing.assert_close(*(torch.autograd.grad(of[0].square().sum(), leaves) for of, leaves in pairs))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_states_projections_and_resets() -> None:
    module, weights = made("lstm", proj_size=2)
    hx = torch.ones(1, 3, 2), torch.ones(1, 3, 9)
    assert torch.equal(functional.lstm(X, weights, hx)[0], module(X, hx)[0])
    module, weights = made("mingru", positive=True)
    resets = torch.arange(15).view(5, 3) % 4 == 0
    assert torch.equal(functional.mingru(X, weights, positive=True, resets=resets)[0], module(X, resets=resets)[0])


def test_dropout_is_of_training() -> None:
    _, weights = made("gru", num_layers=2)
    for has_grad, training, drops in ((False, {}, False), (False, {"training": True}, True), (True, {}, True)):
        with torch.set_grad_enabled(has_grad):
            once, again = (functional.gru(X, weights, dropout=0.5, **training)[0] for _ in range(2))
        assert torch.equal(once, again) != drops


def test_no_weights_are_held() -> None:
    weights = made("gru")[1]
    held = [weakref.ref(weight) for weight in weights.values()]
    functional.gru(X, weights)
    del weights
    gc.collect()
    assert not any(one() is not None for one in held)


@of_each
@pytest.mark.parametrize("weights", [{}, {"weight_ih_l0": torch.ones(5)}, {"weight": torch.ones(12, 4)}])
def test_weights_of_something_else(form: str, weights: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"expected the weights of a \w+, weight_ih_l0 \[\d\*H, I\] first, got "):
        FORMS[form][1](X, weights)


def test_weights_that_are_missing() -> None:
    _, weights = made("gru")
    del weights["weight_hh_l0"]
    with pytest.raises(RuntimeError, match="weight_hh_l0"):
        functional.gru(X, weights)


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="layers"):
        functional.gru(X, made("gru")[1], layers=3)


@of_each
def test_vmap_over_inputs(form: str) -> None:
    module, weights = made(form)
    x = torch.stack([X, 2 * X])
    functional._of_this_thread.__dict__.clear()
    found = torch.vmap(lambda x: FORMS[form][1](x, weights)[0])(x)
    torch.testing.assert_close(found, torch.stack([module(one)[0] for one in x]))
