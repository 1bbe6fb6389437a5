"""The float64 reference, against torch.nn where torch.nn has the cell and against the papers' formulas where not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.verification import calls, verification

TORCH = {"rnn_tanh": torch.nn.RNN, "rnn_relu": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
BASE = Case(cell="lstm", steps=7, batch=3, hidden_size=5, input_size=4, dtype="float64", mode="training")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"layers": 2, "has_state": True},
    {"bidirectional": True, "layers": 2, "batch_first": True},
    {"bias": False, "has_state": True, "ragged": True},
    {"bidirectional": True, "ragged": True, "layers": 2, "has_state": True, "batch_first": True},
)


@pytest.mark.parametrize(("cell", "options"), list(product(TORCH, OPTIONS)))
def test_reference_and_gradients_equal_torch(cell: str, options: dict[str, Any]) -> None:
    case = replace(BASE, cell=cell, **options)
    problem = contents.problem(case)
    extra = {"nonlinearity": cell.removeprefix("rnn_")} if cell.startswith("rnn") else {}
    module: Any = TORCH[cell](
        case.input_size, case.hidden_size, case.layers, bias=case.bias, batch_first=case.batch_first,
        bidirectional=case.bidirectional, dtype=torch.float64, **extra,
    )  # fmt: skip
    for name, parameter in problem.weights.items():
        setattr(module, name, parameter)
    assert list(module.state_dict()) == list(problem.weights)

    def layer(x: Any, state: Any, lengths: Any) -> Any:
        if lengths is None:
            return module(x, state)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, case.batch_first, enforce_sorted=False)
        output, final = module(packed, state)
        return torch.nn.utils.rnn.pad_packed_sequence(output, case.batch_first, total_length=case.steps)[0], final

    ours = calls.run(verification.reference_layer(problem), problem)
    torch.testing.assert_close(ours, calls.run(layer, problem), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cell", ["mingru", "mingru_positive", "minlstm", "minlstm_positive"])
def test_minimal_cells_follow_the_paper_step_by_step(cell: str) -> None:
    case = replace(BASE, cell=cell, mode="inference", has_state=True)
    problem = contents.problem(case)
    w, b = problem.weights["weight_ih_l0"], problem.weights["bias_ih_l0"]
    h = problem.state[0][0]
    expected = []
    for x in problem.x:
        gates = (x @ w.T + b).chunk(len(cells.get(cell).gates), -1)
        candidate = gates[-1]
        if cell.endswith("positive"):
            candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.exp() / (1 + candidate.exp()))
        if cell.startswith("mingru"):
            z = 1 / (1 + (-gates[0]).exp())
            h = (1 - z) * h + z * candidate
        else:
            f, i = (1 / (1 + (-gate).exp()) for gate in gates[:2])
            h = f / (f + i) * h + i / (f + i) * candidate
        expected.append(h)
    output, final = verification.reference_layer(problem)(problem.x, problem.state_argument, None)
    torch.testing.assert_close(output, torch.stack(expected), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(final, h[None], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("cell", cells.names())
def test_projected_is_what_is_left_after_the_input_product(cell: str) -> None:
    case = replace(BASE, cell=cell, mode="inference", bidirectional=True, input_size=5)
    problem = contents.problem(case)
    whole, _ = verification.reference_layer(problem)(problem.x, None, None)
    given = torch.cat(
        [
            problem.x @ problem.weights["weight_ih" + suffix].T + problem.weights["bias_ih" + suffix]
            for _, _, suffix in cells.parameter_suffixes(case)
        ],
        -1,
    )
    projected = replace(case, projected=True)
    recurrent = {name: problem.weights[name] for name in cells.parameter_shapes(projected)}
    part, _ = cells.reference(projected, recurrent, given, None, None)
    torch.testing.assert_close(part, whole, rtol=1e-12, atol=1e-14)


def test_one_layer_in_one_direction_is_given_its_inputs_themselves_and_gives_a_state_of_its_own() -> None:
    case = replace(BASE, cell="mingru", projected=True, input_size=5)
    given, state, seen = torch.randn(7, 3, 10), torch.randn(3, 5), []
    _, final = run_layers(case, given, None, lambda suffix, x, *rest: seen.append(x) or (x[..., :5], (state,)))
    assert seen[0] is given  # the gradient of a piece would be a copy
    assert isinstance(final, Tensor)
    assert final.shape == (1, 3, 5)
    assert not final._is_view()  # which could not be detached in place
    assert final.data_ptr() != state.data_ptr()


def test_gates_that_both_underflow_keep_their_ratio() -> None:
    x = [torch.tensor([[value]], dtype=torch.float64) for value in (-800.0, -801.0, 1.0)]
    (h,) = cells.get("minlstm").step(tuple(x), (), (torch.zeros(1, 1, dtype=torch.float64),), {})
    assert h.item() == pytest.approx(1 / (1 + torch.e))


def test_pruned_weights_have_no_gradient() -> None:
    case = replace(BASE, density=0.5)
    problem = contents.problem(case)
    mask = problem.weights.masks["weight_hh_l0"]
    assert 0 < mask.sum() < mask.numel()
    grad: Any = calls.run(verification.reference_layer(problem), problem)["grad weight_hh_l0"]
    assert torch.all(grad[~mask] == 0)
    assert torch.any(grad[mask] != 0)


def test_a_cell_of_a_taken_name_is_refused() -> None:
    with pytest.raises(ValueError, match="a cell named 'lstm' exists already"):
        cells.register(replace(cells.get("lstm"), gates=("i",)))


def test_the_floor_counts_each_tensor_once() -> None:
    case = Case(cell="mingru", steps=10, batch=2, hidden_size=4, projected=True)
    cost = cells.minimum_cost(case)
    assert cost.bytes == 4 * (10 * 2 * 8 + 10 * 2 * 4 + 2 * 4)
    assert cells.minimum_cost(case, valid_steps=5).bytes < cost.bytes
