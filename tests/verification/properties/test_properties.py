"""Each property fails the layer that was planted for it and no other, and passes a right one."""

from __future__ import annotations

import ctypes
import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification import calls
from pytest_ecornn.verification.guards import guards
from pytest_ecornn.verification.outcomes import WrongCase
from pytest_ecornn.verification.properties import properties
from pytest_ecornn.verification.properties.subject import NotApplicable, PropertyContext
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.changed_loop import Wrap, of_calls, planted

CASE = Case.parse("gru-T6-B3-H5-float32-state-training-seed1")


def broken(wrap: Wrap, case: Case) -> list[str]:
    """The properties that do not hold of the plain loop so changed, each asked on a subject of its own."""
    names = []
    for one in properties.PROPERTIES:
        try:
            one.check(PropertyContext(planted(wrap), case))
        except NotApplicable:
            pass
        except calls.WrongResult:
            names.append(one.name)
    return names


leaks = of_calls(lambda layer, x, *rest: layer(x + 1e-3 * x[-1:].detach(), *rest))
swallows_poison = of_calls(lambda layer, x, *rest: layer(x + (torch.empty(1) == 1e3), *rest))
draws_random_numbers = of_calls(lambda layer, *given: (torch.rand(1), layer(*given))[1])
first_sequence_differs = of_calls(lambda layer, x, *rest: layer(torch.cat([x[:, :1] * 1.01, x[:, 1:]], 1), *rest))
ignores_offset = of_calls(lambda layer, x, *rest: layer(x.as_strided(x.shape, x.stride(), 0), *rest))


@of_calls
def stale_final_state(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    output, final = layer(x, state, lengths)
    return output, final * 0.99


def seldom_wrong(layer: Any, case: Case, weights: Weights) -> Layer:
    made: list[int] = []

    def run(x: Tensor, state: Any, lengths: Any) -> Any:
        made.append(1)
        output, final = layer(x, state, lengths)
        return output * (1.001 if len(made) % 20 == 0 else 1), final

    return run


@of_calls
def clears_padding(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    padding = (torch.arange(len(x))[:, None] >= lengths)[..., None]
    if padding.any():
        x.data.masked_fill_(padding, 0.0)
    return layer(x, state, lengths)


@of_calls
def writes_outside(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    room = torch.empty(4)
    ctypes.memset(room.data_ptr() + 16, 0, 4)  # the allocator gives out no less than 64 bytes
    return layer(x, state, lengths)


def reuses_its_output(layer: Any, case: Case, weights: Weights) -> Layer:
    kept = torch.zeros(case.steps, case.batch, case.hidden_size)

    def run(x: Tensor, state: Any, lengths: Any) -> Any:
        output, final = layer(x, state, lengths)
        return kept.copy_(output), final

    return run


def remembers_by_address(layer: Any, case: Case, weights: Weights) -> Layer:
    known: dict[Any, Any] = {}

    def run(x: Tensor, state: Any, lengths: Any) -> Any:
        key = x.data_ptr(), x._version
        if key not in known:
            known[key] = x, layer(x, state, lengths)  # x is kept, so that no other comes to lie there
        output, final = known[key][1]
        return output.clone(), final.clone()

    return run


@of_calls
def expands_one_sequence(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    output, final = layer(x, state, lengths)
    return output if x.stride(1) else output[:, :1].expand(output.shape), final


def keeps_weights(watched: str | None) -> Wrap:
    """What was derived from the first weights is derived anew only where one of them, or none, is seen to change."""

    def wrap(layer: Any, case: Case, weights: Weights) -> Layer:
        old = Weights({name: nn.Parameter(weight.detach().clone()) for name, weight in weights.items()})
        kept = ReferenceLoop().build(case, old)

        def run(x: Tensor, state: Any, lengths: Any) -> Any:
            if watched and not torch.equal(old[watched], weights[watched]):
                for name, weight in weights.items():
                    old[name].data.copy_(weight)
            output, final = layer(x, state, lengths)
            return output + (kept(x, state, lengths)[0] - output).detach(), final

        return run

    return wrap


class Disturbed(torch.autograd.Function):
    """Returns its tensors; a planted function has their incoming gradients first, and each pass's notes."""

    @staticmethod
    def forward(ctx: Any, planted: Any, *results: Tensor) -> tuple[Tensor, ...]:
        ctx.planted, ctx.notes = planted, {}
        planted.made = ctx.notes
        ctx.set_materialize_grads(False)
        return tuple(result.clone() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, *ctx.planted(ctx.notes, *gradients)


def disturbed(planted: Any) -> Wrap:
    return of_calls(lambda layer, *given: Disturbed.apply(planted, *layer(*given)))


def reads_in_memory_order(notes: Any, *gradients: Tensor | None) -> Any:
    return [None if one is None else torch.as_strided(one.clone(), one.shape, one.contiguous().stride()) for one in gradients]


def takes_the_last_call_for_its_own(notes: Any, *gradients: Tensor | None) -> Any:
    return [None if one is None else one * (1 + (notes is not takes_the_last_call_for_its_own.made)) for one in gradients]  # type: ignore[attr-defined]


def wears_out(notes: dict[str, int], *gradients: Tensor | None) -> Any:
    notes["passes"] = notes.get("passes", 0) + 1
    return [None if one is None else one * notes["passes"] for one in gradients]


@of_calls
def cuts_the_graph_without_x(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    output, final = layer(x, state, lengths)
    return output if x.requires_grad else output.detach(), final


def sets_grad(layer: Any, case: Case, weights: Weights) -> Layer:
    def accumulate(gradient: Tensor) -> None:
        weights["bias_ih_l0"].grad = torch.zeros_like(weights["bias_ih_l0"])

    def run(x: Tensor, state: Any, lengths: Any) -> Any:
        output, final = layer(x, state, lengths)
        if output.requires_grad:
            output.register_hook(accumulate)
        return output, final

    return run


def clamps_gradients(notes: Any, *gradients: Tensor | None) -> Any:
    return [None if one is None else one.clamp(-1e3, 1e3) for one in gradients]


@of_calls
def takes_states_by_address(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    h, c = state
    return layer(x, (h * (0.5 if h.data_ptr() == c.data_ptr() else 1.0), c), lengths)


@of_calls
def cuts_the_graph_at_no_leaf(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    return layer(x, state if state.is_leaf else state.detach(), lengths)


def is_told_by_the_last_call(layer: Any, case: Case, weights: Weights) -> Layer:
    """A gradient is zero where the last call was one without gradients."""
    wants = [True]

    def run(*given: Any) -> Any:
        wants[0] = torch.is_grad_enabled()
        output, final = layer(*given)
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * wants[0])
        return output, final

    return run


def counts_calls_that_end(layer: Any, case: Case, weights: Weights) -> Layer:
    """A call within a call that has not ended is scaled."""
    open_calls: list[int] = []

    def run(*given: Any) -> Any:
        open_calls.append(1)
        output, final = layer(*given)
        output = output * 0.5 ** (len(open_calls) - 1)
        open_calls.pop()
        return output, final

    return run


def keeps_its_arguments(layer: Any, case: Case, weights: Weights) -> Layer:
    """x is read again at the end of a call, where the layer has stored it."""
    kept: dict[str, Tensor] = {}

    def run(x: Tensor, *rest: Any) -> Any:
        kept["x"] = x.detach()
        output, final = layer(x, *rest)
        return output * (1 + (kept["x"] != x).any()), final

    return run


def loses_final_without_output(notes: Any, output: Tensor | None, final: Tensor | None) -> Any:
    return output, None if final is None else final * (output is not None)


def forgets_the_graph(notes: Any, *gradients: Tensor | None) -> Any:
    return [None if one is None else one.detach() for one in gradients]


_first_built: dict[Case, Any] = {}
TRAINING = "gru-T6-B3-H5-float32-state-training"
PLANTED = {
    "globals_unchanged": (draws_random_numbers, TRAINING),
    "inputs_unchanged": (clears_padding, "gru-T6-B3-H5-float32-ragged-state"),
    "repeats": (seldom_wrong, TRAINING),
    "stateless": (remembers_by_address, "gru-T6-B3-H5-float32-state"),
    "fresh_results": (reuses_its_output, "gru-T6-B3-H5-float32-state"),
    "written": (swallows_poison, TRAINING),
    "guard_bands": (writes_outside, TRAINING),
    "gradients_required": (cuts_the_graph_without_x, TRAINING),
    "unused_results": (disturbed(loses_final_without_output), TRAINING),
    "incoming_layouts": (disturbed(reads_in_memory_order), TRAINING),
    "incoming_sizes": (disturbed(clamps_gradients), TRAINING),
    "same_state": (takes_states_by_address, "lstm-T6-B3-H5-float32-state-training"),
    "layers_apart": (lambda layer, case, weights: _first_built.setdefault(case, layer), "gru-T6-B3-H5-float32-state"),
    "calls_interleaved": (disturbed(takes_the_last_call_for_its_own), TRAINING),
    "backward_twice": (disturbed(wears_out), TRAINING),
    "grad_untouched": (sets_grad, TRAINING),
    "causal": (leaks, "gru-T6-B3-H5-float32-bidirectional-state"),
    "split": (stale_final_state, TRAINING),
    "batch_order": (first_sequence_differs, TRAINING),
    "layouts": (ignores_offset, TRAINING),
    "weights_seen": (keeps_weights(None), TRAINING),
    "expanded_inputs": (expands_one_sequence, TRAINING),
    "each_weight_seen": (keeps_weights("weight_ih_l0"), TRAINING),
    "evaluations_between": (is_told_by_the_last_call, TRAINING),
    "calls_at_once": (keeps_its_arguments, TRAINING),
    "call_raises": (counts_calls_that_end, TRAINING),
    "state_handed_on": (cuts_the_graph_at_no_leaf, TRAINING),
    "second_derivatives": (disturbed(forgets_the_graph), TRAINING),
}

# Contents that differ at one address; the gradient of as_strided over memory that is read twice; weights that are all kept; a
# call that is seldom wrong, in the property of most calls; a call before another's last backward pass; x that has no version;
# settings around a call that raises; one buffer, or a count of open calls, of two threads; results that are
# wrong, as second derivatives are compared with the reference's.
ALSO_BROKEN = {
    "stateless": ["expanded_inputs", "evaluations_between"],
    "layouts": ["expanded_inputs"],
    "weights_seen": ["each_weight_seen", "evaluations_between"],
    "repeats": ["each_weight_seen"],
    "calls_interleaved": ["backward_twice", "layers_apart", "evaluations_between", "state_handed_on"],
    "globals_unchanged": ["call_raises"],
    "fresh_results": ["calls_at_once"],
    "call_raises": ["calls_at_once"],
    "backward_twice": ["second_derivatives"],
    "split": ["second_derivatives"],
    "batch_order": ["second_derivatives"],
}


@pytest.mark.test_all(keep=3)
@pytest.mark.parametrize("name", PLANTED)
def test_a_property_fails_the_layer_planted_for_it_and_no_other_does(name: str) -> None:
    wrap, text = PLANTED[name]
    found = broken(wrap, Case.parse(text))
    assert name in found
    assert {*found} - {name} == {*ALSO_BROKEN.get(name, ())}


@of_calls
def warns_in_a_new_thread(layer: Any, x: Tensor, state: Any, lengths: Any) -> Any:
    """As cuBLAS does, which finds no context there."""
    if threading.current_thread() is not threading.main_thread():
        warnings.warn("no current context", stacklevel=2)
    return layer(x, state, lengths)


@pytest.mark.filterwarnings("error")
def test_a_layer_may_warn_in_a_thread_of_its_caller() -> None:
    assert broken(warns_in_a_new_thread, Case.parse(TRAINING)) == []


@pytest.mark.parametrize(
    "text",
    [
        TRAINING,
        "lstm-T7-B4-H5-L2-bfloat16-batchfirst-ragged-state-training-strided-seed5",
        "minlstm-T9-B2-H33-float16-bidirectional-projected-offset-seed3",
        "rnn_relu-T1-B1-H1-float64-nan",
        "gru-T6-B3-H5-float32-resets-state-training",
        "lstm-T7-B4-H5-L2-bfloat16-batchfirst-ragged-resets-state-training-strided-seed5",
        "minlstm-T9-B2-H33-float16-bidirectional-projected-resets-offset-seed3",
    ],
)
def test_a_right_layer_has_every_property(text: str) -> None:
    assert broken(lambda layer, case, weights: layer, Case.parse(text)) == []


def draws_in_build(layer: Any, case: Case, weights: Weights) -> Layer:
    module = nn.LSTM(case.input_size, case.hidden_size)  # whose weights are drawn
    random.seed(len([*module.parameters()]))
    np.random.seed(7)
    return layer


def _random_states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]


def test_random_states_are_put_back_after_a_build_and_not_judged() -> None:
    before = _random_states()
    found = properties.check(PropertyContext(planted(draws_in_build), Case.parse(TRAINING)))
    Candidate.build("draws", planted(draws_in_build), Case.parse(TRAINING))
    assert found["globals_unchanged"] == ""
    assert _random_states() == before


def imprecise(bound: float) -> Wrap:
    """Wrong by a little where a weight is over a bound, whatever other layers there are."""

    def wrap(layer: Any, case: Case, weights: Weights) -> Layer:
        def run(*given: Any) -> Any:
            output, final = layer(*given)
            return output * (1 + 1e-4 * bool(weights["weight_hh_l0"][0, 0] > bound)), final

        return run

    return wrap


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_layer_that_is_wrong_by_itself_is_not_said_to_depend_on_another(mode: str) -> None:
    case = Case.parse(f"lstm-T6-B3-H5-float32-state-saturated-{mode}-seed3")
    first, second = (contents.make_weights(case, role)["weight_hh_l0"][0, 0].item() for role in ("", "second"))
    assert first < second
    subject = PropertyContext(planted(imprecise((first + second) / 2)), case)
    with pytest.raises(WrongCase, match=r"^wrong with other weights of the same kind:\n  output.* is over its limit"):
        properties.check(subject, [properties.by_name("layers_apart")])


@pytest.mark.parametrize("names", [["weight_hh_l0"], ["weight_ih_l0", "bias_ih_l0"], None])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_weights_of_the_first_layer_are_named(mode: str, names: list[str] | None) -> None:
    kept: list[Weights] = []

    def shares(layer: Any, case: Case, weights: Weights) -> Layer:
        kept.append(weights)
        mixed = {name: kept[0][name] if names is None or name in names else weights[name] for name in weights}
        return ReferenceLoop().build(case, Weights(mixed))

    case = Case.parse(f"lstm-T6-B3-H5-float32-state-{mode}")
    told = "weights" if names is None else " and ".join(names)
    with pytest.raises(calls.WrongResult, match=f"^a second layer computed with the first one's {told}: "):
        properties.by_name("layers_apart").check(PropertyContext(planted(shares), case))


@of_calls
def scanned(layer: Any, x: Tensor, *rest: Any) -> Any:
    """The layer on x as a higher-order operator copies it, step by step."""

    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return carry.clone(), torch.empty_like(row).copy_(row)

    return layer(torch.ops.higher_order.scan(step, [x[0].clone()], [x], ())[1], *rest)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_layer_of_higher_order_operators_has_every_property(mode: str) -> None:
    case = Case.parse(f"gru-T6-B3-H5-float32-state-{mode}")
    assert not [one for one in Candidate.build("scanned", planted(scanned), case).verify() if one.status == "failed"]
    on_poison = [properties.by_name(name) for name in ("written", "guard_bands")]
    properties.check(PropertyContext(planted(scanned), case), on_poison if case.training else properties.PROPERTIES)


def test_every_property_that_a_cpu_can_show_has_a_planted_fault() -> None:
    case = PropertyContext(ReferenceLoop, Case.parse("lstm-T6-B3-H5-float32-state-training-seed1"))
    found = properties.check(case)
    assert {name for name, reason in found.items() if not reason} == set(PLANTED)
    assert {found["capture"], found["current_stream"]} == {"a CPU has no streams and no CUDA graphs"}


def test_a_broken_property_says_what_must_hold_and_what_came() -> None:
    message = r"split is broken: two parts.* equal the whole; but the steps .* got"
    with pytest.raises(properties.PropertyViolation, match=message):
        properties.check(PropertyContext(planted(stale_final_state), CASE))


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_thread_that_burns_a_core_is_seen_and_one_that_rests_is_not(is_busy: bool) -> None:
    stop, started = threading.Event(), list[threading.Thread]()

    def burn() -> None:
        while not stop.is_set():
            pass

    def begin() -> None:
        if not started:
            started.append(threading.Thread(target=burn if is_busy else stop.wait, daemon=True))
            started[0].start()

    message = _globals_changed_by(begin, stop)
    assert ("a core is busy" in message) == is_busy


def _late(wrap: Wrap) -> PropertyContext:
    """A subject whose layer is changed once it is there."""
    subject = PropertyContext(ReferenceLoop, CASE)
    subject.layer = wrap(subject.layer, subject.case, subject.problem.weights)
    return subject


def _globals_changed_by(begin: Callable[[], None], stop: threading.Event) -> str:
    """What is said of a layer that calls `begin` at each call; what that began is told to stop."""
    try:
        properties.by_name("globals_unchanged").check(_late(of_calls(lambda layer, *given: (begin(), layer(*given))[1])))
    except calls.WrongResult as wrong:
        return str(wrong)
    finally:
        stop.set()
    return ""


def test_a_thread_more_for_each_call_is_seen() -> None:
    stop = threading.Event()
    message = _globals_changed_by(lambda: threading.Thread(target=stop.wait, daemon=True).start(), stop)
    assert "threads: expected no more after a call than before it" in message


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_layer_that_leaves_another_grad_mode_is_wrong(mode: Literal["training", "inference"]) -> None:
    toggles = of_calls(lambda layer, *given: (layer(*given), torch.set_grad_enabled(not torch.is_grad_enabled()))[0])
    with pytest.raises(calls.WrongResult, match=r"grad mode: expected .* as before the call, got"):
        PropertyContext(planted(toggles), replace(CASE, mode=mode))


def test_what_is_written_beside_an_input_is_seen() -> None:
    problem, bands = contents.problem(Case.parse("gru-T3-B2-H4-float32-strided-ragged")), guards.Redzones()
    around = bands.around(problem)
    assert bands.find_overwrite() == ""
    assert torch.equal(around.x, problem.x)
    around.x.as_strided((1,), (1,), around.x.storage_offset() + 4).zero_()  # in the gap after the first row
    message = "expected nothing written outside x [3, 2, 4], float32, got 4 bytes, the first 16 bytes from its start"
    assert bands.find_overwrite() == message


def test_lengths_and_signs_of_zero_count_as_written_into() -> None:
    problem = contents.problem(Case.parse("gru-T3-B2-H4-float32-ragged"))
    guard = calls.Copies(problem.tensors)
    problem.lengths[0] += 1  # type: ignore[index]
    with pytest.raises(calls.WrongResult, match="expected lengths unchanged"):
        guard.check()
    guard.check()
    assert bool(calls.bitwise_different(torch.tensor(0.0), torch.tensor(-0.0)))
    assert not bool(calls.bitwise_different(torch.tensor(float("nan")), -torch.tensor(float("nan"))))


def test_a_final_state_that_is_a_view_of_the_output_is_not_fresh() -> None:
    def views(layer: Any, *given: Any) -> Any:
        output, _ = layer(*given)
        return output, output[-1:]

    with pytest.raises(
        calls.WrongResult, match=r"^final h of call 1: expected memory of its own, got some of output of call 1$"
    ):
        properties.by_name("fresh_results").check(_late(of_calls(views)))


def test_parts_may_be_run_by_another_implementation_than_the_whole() -> None:
    class Chooses(ReferenceLoop):
        """The whole by the loop, and parts of it by one whose sigmoid and tanh are less exact, as it declares."""

        def build(self, case: Case, weights: Weights) -> Layer:
            layer, is_part = super().build(case, weights), case.steps != CASE.steps
            self.activation_error = 2.0**-16 if is_part else 0.0

            def run(x: Tensor, state: Any, lengths: Any) -> Any:
                output, final = layer(x, state, lengths)
                factor = 1 + 2.0**-17 if is_part else 1.0
                return output * factor, final * factor

            return run

    subject = PropertyContext(Chooses, CASE)
    assert properties.check(subject, [properties.by_name("split")]) == {"split": ""}
    off = {name: one if one is None else one * (1 + 2.0**-17) for name, one in subject.whole.items()}
    assert subject.agreement.allclose(subject.whole, off) == ""  # by what the parts declare
    assert properties.check(subject, [properties.by_name("current_stream")])
    assert "over its limit" in subject.agreement.allclose(subject.whole, off)  # by what the whole declares
