"""The cells: gate order, parameters, one step of each by its equations, and the float64 reference built from that step.

Sources: torch.nn.RNN, LSTM and GRU (their conventions and gate order); minGRU and minLSTM: "Were RNNs All We Needed?",
arXiv 2410.01201, sections 3.1 and 3.2 and appendix B (the positive candidate g). Third parties add a cell through the
hook `pytest_ecornn_cells`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid

from pytest_ecornn.contract import Case, Cost

GateTensors = tuple[Tensor, ...]
Step = Callable[[GateTensors, GateTensors, GateTensors, Mapping[str, Tensor]], GateTensors]


@dataclass(frozen=True)
class Cell:
    """A recurrent cell by its equations.

    `step(x_gates, h_gates, state, extra) -> state` advances one time step. x_gates: W_ih x + b_ih, one [B, H] a gate;
    h_gates: W_hh h + b_hh likewise, () where not `recurrent`; state: one [B, H] for each name in `states`, the first
    of which is the output; extra: parameters beyond torch.nn's, `name: blocks` in `extra`, each of shape [blocks * H].
    `keep` names the gates that hold the old state, with the sign of a pre-activation that opens them. `other`: the same step by
    other algebra, as right implementations have it too; what it rounds off counts as rounding. `positive`: states are
    never negative, so initial ones are drawn positive but for contents that say otherwise.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    step: Step
    recurrent: bool = True
    extra: Mapping[str, int] = field(default_factory=dict)
    keep: Mapping[str, float] = field(default_factory=dict)
    other: Step | None = None
    positive: bool = False


def _rnn_tanh(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
    return (torch.tanh(x[0] + h[0]),)


def _rnn_relu(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
    return (torch.relu(x[0] + h[0]),)


def _lstm(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
    i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
    r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
    n = torch.tanh(x[2] + r * h[2])
    return (n + z * (state[0] - n),)


def positive(x: Tensor) -> Tensor:
    """g of arXiv 2410.01201, appendix B: x + 0.5 where x >= 0, sigmoid(x) elsewhere."""
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


def _gru_mixed(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
    r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
    return ((1 - z) * torch.tanh(x[2] + r * h[2]) + z * state[0],)


def _mingru(candidate: Callable[[Tensor], Tensor]) -> Step:
    def step(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
        z = torch.sigmoid(x[0])
        return ((1 - z) * state[0] + z * candidate(x[1]),)

    return step


def _mingru_kept(candidate: Callable[[Tensor], Tensor]) -> Step:
    def step(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
        return (torch.sigmoid(-x[0]) * state[0] + torch.sigmoid(x[0]) * candidate(x[1]),)

    return step


def _minlstm(candidate: Callable[[Tensor], Tensor]) -> Step:
    def step(x: GateTensors, h: GateTensors, state: GateTensors, extra: Mapping[str, Tensor]) -> GateTensors:
        # f / (f + i) by logarithms: both gates may underflow, their ratio does not.
        log_keep = logsigmoid(x[0]) - logsigmoid(x[1])
        return (torch.sigmoid(log_keep) * state[0] + torch.sigmoid(-log_keep) * candidate(x[2]),)

    return step


def _as_is(x: Tensor) -> Tensor:
    return x


BUILT_IN = (
    Cell("rnn_tanh", ("h",), ("h",), _rnn_tanh),
    Cell("rnn_relu", ("h",), ("h",), _rnn_relu),
    Cell("lstm", ("i", "f", "g", "o"), ("h", "c"), _lstm, keep={"f": 1.0}),
    Cell("gru", ("r", "z", "n"), ("h",), _gru, keep={"z": 1.0}, other=_gru_mixed),
    Cell("mingru", ("z", "candidate"), ("h",), _mingru(_as_is), False, keep={"z": -1.0}, other=_mingru_kept(_as_is)),
    Cell(
        "mingru_positive",
        ("z", "candidate"),
        ("h",),
        _mingru(positive),
        False,
        keep={"z": -1.0},
        other=_mingru_kept(positive),
        positive=True,
    ),
    Cell("minlstm", ("f", "i", "candidate"), ("h",), _minlstm(_as_is), False, keep={"f": 1.0}),
    Cell("minlstm_positive", ("f", "i", "candidate"), ("h",), _minlstm(positive), False, keep={"f": 1.0}, positive=True),
)
_cells: dict[str, Cell] = {cell.name: cell for cell in BUILT_IN}


def register(cell: Cell) -> None:
    """Makes `cell` known. Raises ValueError where another cell has its name, or a name could not stand in a case's."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", cell.name):
        raise ValueError(f"a cell's name is of letters, digits and _, got {cell.name!r}")
    if bad := [name for name in cell.extra if not name.isidentifier() or "_l" in name]:
        raise ValueError(
            f"cell {cell.name}: a parameter's name is an identifier without _l (the layer's suffix), got {bad[0]!r}"
        )
    if _cells.setdefault(cell.name, cell) is not cell:
        raise ValueError(f"a cell named {cell.name!r} exists already: choose another name")


def names() -> list[str]:
    return list(_cells)


def get(name: str) -> Cell:
    """The cell of that name. Raises ValueError naming those that exist."""
    if name not in _cells:
        raise ValueError(f"unknown cell {name!r}: expected one of {', '.join(_cells)}")
    return _cells[name]


def check(case: Case) -> None:
    """Raises ValueError where the case asks for what its cell does not have."""
    cell = get(case.cell)
    if case.density < 1 and not cell.recurrent:
        raise ValueError(f"{case}: {cell.name} has no recurrent weights, so density must be 1")


def x_width(case: Case) -> int:
    """The size of x's last dimension: I, or D*G*H with `projected`."""
    return case.directions * len(get(case.cell).gates) * case.hidden_size if case.projected else case.input_size


def parameter_suffixes(case: Case) -> Iterator[tuple[int, int, str]]:
    """(layer, direction, torch.nn's suffix of the parameters' names), in the order of the states."""
    for layer in range(case.layers):
        for direction in range(case.directions):
            yield layer, direction, f"_l{layer}" + ("_reverse" if direction else "")


def parameter_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape, in torch.nn's order."""
    cell, hidden = get(case.cell), case.hidden_size
    gates = len(cell.gates) * hidden
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, _, suffix in parameter_suffixes(case):
        given = layer == 0 and case.projected
        if not given:
            shapes["weight_ih" + suffix] = (gates, case.directions * hidden if layer else case.input_size)
        if cell.recurrent:
            shapes["weight_hh" + suffix] = (gates, hidden)
        if case.bias and not given:
            shapes["bias_ih" + suffix] = (gates,)
        if case.bias and cell.recurrent:
            shapes["bias_hh" + suffix] = (gates,)
        for name, blocks in cell.extra.items():
            shapes[name + suffix] = (blocks * hidden,)
    return shapes


def layer_parameters(weights: Mapping[str, Tensor], suffix: str) -> dict[str, Tensor]:
    """One layer and direction's parameters under their names without the suffix."""
    return {name.removesuffix(suffix): weights[name] for name in weights if name.partition("_l")[2] == suffix[2:]}


def pack_state(cell: Cell, per_layer: list[GateTensors]) -> Tensor | GateTensors:
    """torch.nn's form of the final state: [L*D, B, H] for each state, a tuple only where there are several."""
    stacked = tuple(torch.stack(tensors) for tensors in zip(*per_layer, strict=True))
    return stacked if len(cell.states) > 1 else stacked[0]


def unpack_state(state: Tensor | GateTensors | None) -> GateTensors:
    """The states as a tuple, () for none."""
    return () if state is None else (state,) if isinstance(state, Tensor) else tuple(state)


def apply_reset(state: GateTensors, resets: Tensor) -> GateTensors:
    """Returns `state`, with zeros where `resets` [B] is true. Masks instead of multiplying, since 0 times NaN is NaN."""
    return tuple(s.masked_fill(resets[:, None], 0.0) for s in state)


def reference(
    case: Case,
    weights: Mapping[str, Tensor],
    x: Tensor,
    state: Tensor | GateTensors | None,
    lengths: Tensor | None,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor | GateTensors]:
    """Output and final state by the cell's equations, one step after the other, differentiable.

    All values in float64, shaped as `Implementation.build` says. The weights are used as they are: apply masks before.
    """
    cell = get(case.cell)
    sequence = x.transpose(0, 1) if case.batch_first else x  # [T, B, I]
    marks = resets.T if resets is not None and case.batch_first else resets  # [T, B]
    initial = unpack_state(state)
    finals: list[GateTensors] = []
    outputs: list[Tensor] = []
    for layer, direction, suffix in parameter_suffixes(case):
        if direction == 0:
            sequence, outputs = (torch.cat(outputs, -1) if layer else sequence), []
        parameters = layer_parameters(weights, suffix)
        x_gates = sequence
        if case.projected and layer == 0:
            x_gates = sequence.chunk(case.directions, -1)[direction]
        else:
            x_gates = linear(sequence, parameters["weight_ih"], parameters.get("bias_ih"))
        index = layer * case.directions + direction
        first = tuple(s[index] for s in initial) or (x.new_zeros(case.batch, case.hidden_size),) * len(cell.states)
        output, final = reference_layer(cell, x_gates, first, parameters, lengths, marks, reverse=bool(direction))
        outputs.append(output)
        finals.append(final)
    output = torch.cat(outputs, -1)
    return (output.transpose(0, 1) if case.batch_first else output), pack_state(cell, finals)


def reference_layer(
    cell: Cell,
    x_gates: Tensor,
    state: GateTensors,
    parameters: Mapping[str, Tensor],
    lengths: Tensor | None,
    resets: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, GateTensors]:
    """One layer in one direction: x_gates [T, B, G*H] -> output [T, B, H] and the final states [B, H]."""
    outputs: list[Tensor] = []
    steps = list(enumerate(x_gates.unbind(0)))
    for t, x_t in reversed(steps) if reverse else steps:
        before = state if resets is None else apply_reset(state, resets[t])
        h_gates: GateTensors = ()
        if cell.recurrent:
            h_gates = linear(before[0], parameters["weight_hh"], parameters.get("bias_hh")).chunk(len(cell.gates), -1)
        new = cell.step(x_t.chunk(len(cell.gates), -1), h_gates, before, parameters)
        if lengths is None:
            state, output = new, new[0]
        else:
            alive = (lengths > t).to(x_t.device).unsqueeze(-1)  # [B, 1]
            state = tuple(torch.where(alive, a, b) for a, b in zip(new, state, strict=True))
            output = torch.where(alive, new[0], 0)
        outputs.append(output)
    return torch.stack(outputs[::-1] if reverse else outputs), state


def minimum_cost(case: Case, valid_steps: int | None = None) -> Cost:
    """The fewest bytes and operations of any algorithm: each tensor crosses memory once, only needed products are made.

    `valid_steps` is the sum of the sequences' lengths (T*B unless given). Training reads and writes every gradient once
    and makes each product three times (forward, with respect to its input, with respect to its weight).
    """
    cell, size = get(case.cell), torch.empty((), dtype=getattr(torch, case.dtype)).element_size()
    rows = case.steps * case.batch if valid_steps is None else valid_steps
    shapes = parameter_shapes(case)
    counts = {
        name: torch.Size(shape).numel() * (case.density if name.startswith("weight_hh") else 1)
        for name, shape in shapes.items()
    }
    parameters = sum(counts.values())
    products = sum(count for name, count in counts.items() if len(shapes[name]) == 2)
    states = case.layers * case.directions * case.batch * case.hidden_size * len(cell.states)
    elements = rows * (x_width(case) + case.directions * case.hidden_size) + parameters
    elements += states * (2 if case.has_state else 1)
    steps = rows * case.layers * case.directions * case.hidden_size * len(cell.states)
    times = (2, 3) if case.training else (1, 1)
    return Cost(int(elements * size * times[0]), int(2 * rows * products + 2 * steps) * times[1])
