"""from_torch, to_torch and replace change a module's class and nothing else, alone and in models of several kinds."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.nn import GRU, LSTM, RNN, MinGRU, from_torch, replace, to_torch
from tests.helpers.nn_modules import MODULES, tensors

of_each = pytest.mark.parametrize("cell", MODULES)


class Transducer(nn.Module):
    """An encoder with projections over frames, a predictor over labels, joined. RNN-T, Graves, 2012."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.LSTM(8, 12, proj_size=5, batch_first=True), nn.LSTM(5, 6, batch_first=True)])
        self.embedding, self.predictor = nn.Embedding(7, 4), nn.LSTM(4, 6, batch_first=True)
        self.joint = nn.Linear(6, 7)

    def forward(self, x: Tensor) -> Tensor:
        labels = self.embedding(torch.arange(3).expand(x.shape[0], 3))
        for layer in self.encoder:
            x, _ = layer(x)
        logits: Tensor = self.joint(x[:, :, None] + self.predictor(labels)[0][:, None])
        return logits


class Policy(nn.Module):
    """A policy and a value that share one recurrent memory, each under its own name."""

    def __init__(self) -> None:
        super().__init__()
        memory = nn.GRU(8, 6, batch_first=True)
        self.actor = nn.ModuleDict({"memory": memory, "head": nn.Linear(6, 2)})
        self.critic = nn.ModuleDict({"memory": memory, "head": nn.Linear(6, 1)})

    def forward(self, x: Tensor) -> Tensor:
        heads = [branch["head"](branch["memory"](x)[0]) for branch in (self.actor, self.critic)]
        return torch.cat(heads, -1)


class Forecaster(nn.Module):
    """An encoder's states are a decoder's first, and the decoder takes its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.LSTM(8, 6, 2, batch_first=True, dropout=0.3), nn.LSTM(1, 6, 2, batch_first=True)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, states = self.encoder(x)
        outputs = [x[:, -1:, :1]]
        for _ in range(3):
            hidden, states = self.decoder(outputs[-1], states)
            outputs.append(self.head(hidden))
        return torch.cat(outputs, 1)


class Tagger(nn.Module):
    """A bidirectional LSTM on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 6, bidirectional=True, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        packed, _ = self.rnn(pack_padded_sequence(x, torch.tensor([2, 5, 4]), batch_first=True, enforce_sorted=False))
        tags: Tensor = self.head(pad_packed_sequence(packed, batch_first=True)[0])
        return tags


class Denoiser(nn.Module):
    """A mask from a GRU on a batch and a relu RNN on one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRU(8, 8, batch_first=True), nn.RNN(8, 8, nonlinearity="relu", bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.first(x)
        mask: Tensor = self.second(hidden[0])[0].sigmoid()
        return x * mask


KINDS = [Transducer, Policy, Forecaster, Tagger, Denoiser]
X = torch.linspace(-1, 1, 120).view(3, 5, 8)


def step(model: nn.Module) -> list[Tensor]:
    """Outputs of a model, and its parameters after a step of Adam."""
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters())
    output = model(X)
    output.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return [output.detach(), *(parameter.detach().clone() for parameter in model.parameters())]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_models_do_the_same_after_replacement(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    reference = kind()
    model = copy.deepcopy(reference)
    done = replace(model)
    assert not done.left
    assert not any(type(module) in (nn.LSTM, nn.GRU, nn.RNN) for module in model.modules())
    assert [*model.state_dict()] == [*reference.state_dict()]
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False)]
    back = to_torch(copy.deepcopy(model))
    assert [type(module) for module in back.modules()] == [type(module) for module in reference.modules()]
    reference_state = copy.deepcopy(reference.state_dict())
    expected = step(reference)
    for one in (model, back, *copies):
        assert all(torch.equal(*pair) for pair in zip(step(one), expected, strict=True))
    model.load_state_dict(reference_state)
    reference.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(X), reference.eval()(X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_a_replacement_says_what_it_replaced_and_left_and_why() -> None:
    class Own(nn.LSTM):
        pass

    model = nn.ModuleDict(
        {"policy": Policy(), "own": Own(2, 3), "cell": nn.GRUCell(2, 3), "patched": nn.GRU(2, 3), "ours": GRU(2, 3)}
    )
    model["patched"].forward = lambda x: x
    model["scripted"] = torch.jit.script(nn.Sequential(nn.LSTM(2, 3)))
    model["int8"] = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(2, 3)), {nn.LSTM})
    types = {name: type(module) for name, module in model.named_modules() if "memory" not in name}
    done = replace(model)
    assert [(row.names, row.reason) for row in done] == [
        (("policy.actor.memory", "policy.critic.memory"), ""),
        (("own",), "a subclass of torch.nn.LSTM, whose methods may differ"),
        (("cell",), "a cell, called for each step"),
        (("patched",), "its instance has a forward of its own"),
        (("ours",), "already of pytest_ecornn.nn"),
        (("scripted.0",), "scripted"),
        (("int8.0",), "quantized"),
    ]
    assert model["policy"].actor["memory"] is model["policy"].critic["memory"]
    assert types == {name: type(module) for name, module in model.named_modules() if "memory" not in name}
    first, *_, last = str(done).splitlines()
    assert first.split("  ")[0] == "policy.actor.memory, policy.critic.memory"
    assert first.endswith("replaced")
    assert last == "1 replaced, 6 left"
    assert str(replace(nn.Linear(2, 3))) == "no recurrent modules of torch.nn"


class Streaming(nn.Module):
    """Keeps the states of its last call, the distribution that they gave, and an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 6, batch_first=True)
        self.optimizer = torch.optim.Adam(self.parameters())
        self.memory: dict[str, list[Any]] = {}

    def forward(self, x: Tensor) -> Tensor:
        output, states = self.rnn(x)
        self.memory["states"], self.distribution = [states], torch.distributions.Normal(output, 1.0)
        return output


def test_tensors_that_a_model_keeps_of_its_last_call_are_shared_by_its_copy() -> None:
    model = Streaming()
    replace(model)
    model(X).sum().backward()
    back = to_torch(model)
    assert back.distribution.loc is model.distribution.loc
    assert back.memory["states"][0][1] is model.memory["states"][0][1]
    assert back.memory is not model.memory
    assert all(map(lambda a, b: a is b, back.optimizer.param_groups[0]["params"], model.parameters()))
    assert type(back.rnn) is nn.LSTM
    assert torch.equal(back(X), model(X))
    module = model.rnn
    module.last = model.memory
    assert module.to_torch().last["states"][0][0] is from_torch(module.to_torch()).last["states"][0][0]


@of_each
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "bias": False, "dropout": 0.5}])
def test_a_module_is_converted_there_and_back(cell: str, options: dict[str, Any]) -> None:
    theirs, ours, own = MODULES[cell]
    reference = theirs(4, 6, batch_first=True, **options, **own).eval()
    reference.weight_hh_l0.requires_grad_(False)
    calls: list[nn.Module] = []
    handle = reference.register_forward_hook(lambda module, *_: calls.append(module))
    module = from_torch(reference, backend="torch")
    back = module.to_torch()
    assert (type(module), type(back), module.backend) == (ours, theirs, "torch")
    assert module.extra_repr() == f"{reference.extra_repr()}, backend='torch'"
    assert vars(back).keys() == vars(reference).keys()
    for one in (module, back):
        assert not one.training
        assert all(map(lambda a, b: a is b, one.parameters(), reference.parameters()))
        found, expected = tensors(one(torch.ones(3, 5, 4))), tensors(reference(torch.ones(3, 5, 4)))
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert calls == [module, reference, back, reference]
    handle.remove()
    module(torch.ones(3, 5, 4))
    assert calls[-1] is module, "the copy's hook went with the handle of the other"


@of_each
def test_handles_of_hooks_hold_after_replacement(cell: str) -> None:
    model, calls = nn.Sequential(MODULES[cell][0](4, 6)), list[int]()
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))
    replace(model)
    model(torch.ones(5, 3, 4))
    handle.remove()
    model(torch.ones(5, 3, 4))
    assert calls == [1]


@of_each
def test_parametrized_modules_are_converted(cell: str) -> None:
    theirs, ours, own = MODULES[cell]
    reference = theirs(4, 6, **own)
    parametrizations.spectral_norm(reference, "weight_hh_l0")
    parametrizations.weight_norm(reference, "weight_ih_l0")
    model, x = nn.Sequential(copy.deepcopy(reference)), torch.ones(5, 3, 4)
    assert str(replace(model)).startswith(f"0  {theirs.__name__}(4, 6) parametrized")
    back = to_torch(copy.deepcopy(model))[0]
    expected = reference(x)[0]
    for module, cls in ((model[0], ours), (back, theirs)):
        assert isinstance(module, cls)
        assert type(module).__name__ == f"Parametrized{cls.__name__}"
        assert torch.equal(module(x)[0], expected)
        assert [*module.state_dict()] == [*reference.state_dict()]
        torch.nn.utils.parametrize.remove_parametrizations(module, "weight_hh_l0")
        torch.nn.utils.parametrize.remove_parametrizations(module, "weight_ih_l0")
        assert type(module) is cls
        module(x)


def test_other_modules_are_refused() -> None:
    class Own(nn.LSTM):
        pass

    with pytest.raises(TypeError, match=r"expected a torch.nn.RNN, LSTM or GRU, got Own, a subclass of torch.nn.LSTM"):
        from_torch(Own(2, 3))
    with pytest.raises(TypeError, match=r"got Linear; replace takes whole models"):
        from_torch(nn.Linear(2, 3))  # type: ignore[arg-type]
    for convert in (from_torch, replace):
        with pytest.raises(ValueError, match=r"expected backend as one of auto, .*, got 'cudnn'"):
            convert(nn.LSTM(2, 3), backend="cudnn")


def test_what_is_not_converted_back_stays() -> None:
    class Own(LSTM):
        pass

    model = nn.Sequential(Own(2, 3), MinGRU(3, 4), nn.RNN(4, 5), RNN(5, 6))
    assert [type(module) for module in to_torch(model)] == [Own, MinGRU, nn.RNN, nn.RNN]
    assert [type(module) for module in model] == [Own, MinGRU, nn.RNN, RNN]
