"""torch.fx, torch.ao.quantization and torch.jit take LSTM, GRU and RNN as they take torch.nn's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import (
    QConfigMapping,
    convert,
    default_dynamic_qconfig,
    get_default_qconfig,
    get_default_qconfig_mapping,
    prepare,
    quantize_dynamic,
)
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn.utils import parametrizations

import pytest_ecornn.nn
from pytest_ecornn.nn import GRU, LSTM, MinGRU, MinLSTM, to_torch

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor", "ignore:Please use quant_min", "ignore:To copy construct"
)
X = torch.linspace(-1, 1, 60).view(5, 3, 4)
INT8 = {nn.LSTM: "DynamicQuantizedLSTM", nn.GRU: "DynamicQuantizedGRU"}


class Net(nn.Module):
    def __init__(self, of: Any) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn, self.head = of.LSTM(4, 6), of.GRU(6, 5), of.RNN(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lstm(x)[0]
        x = self.gru(x)[0]
        output: Tensor = self.head(self.rnn(x)[0])
        return output


def nets() -> tuple[Net, Net]:
    """One of torch.nn's modules, and one of this project's of the same weights."""
    torch.manual_seed(0)
    reference, net = Net(nn).eval(), Net(pytest_ecornn.nn).eval()
    net.load_state_dict(reference.state_dict())
    return reference, net


def test_modules_are_leaves_of_fx() -> None:
    reference, net = nets()
    graphs = [torch.fx.symbolic_trace(model) for model in (reference, net)]
    assert graphs[0].code == graphs[1].code
    assert torch.equal(graphs[1](X), reference(X))
    assert type(copy.deepcopy(graphs[1]).lstm) is LSTM
    for cls in (MinGRU, MinLSTM):
        traced = torch.fx.symbolic_trace(nn.Sequential(cls(4, 6), nn.Identity()))
        assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]


def test_fx_quantizes_a_model_around_them() -> None:
    reference, net = nets()
    mapping, results = get_default_qconfig_mapping("fbgemm"), []
    for model in (reference, net):
        prepared = prepare_fx(model, mapping, (X,))
        prepared(X)
        results.append(convert_fx(prepared))
    assert type(results[1].lstm) is LSTM
    assert type(results[1].head) is type(results[0].head) is torch.ao.nn.quantized.Linear
    assert torch.equal(results[0](X), results[1](X))


def test_fx_quantizes_what_to_torch_gives() -> None:
    mapping = QConfigMapping().set_object_type(nn.LSTM, default_dynamic_qconfig)
    quantized = convert_fx(prepare_fx(to_torch(nets()[1]), mapping, (X,)))
    assert quantized.lstm._get_name() == INT8[nn.LSTM]
    torch.testing.assert_close(quantized(X), nets()[0](X), atol=0.02, rtol=0)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize(
    "what", [None, {nn.LSTM, nn.GRU, nn.Linear}, {nn.LSTM}, {"gru"}, {nn.Linear}, {"": default_dynamic_qconfig}]
)
def test_dynamic_quantization_is_torchs(what: Any, dtype: torch.dtype) -> None:
    models = [quantize_dynamic(model, what, dtype=dtype) for model in nets()]
    names, expected = ([layer._get_name() for layer in model.children()] for model in reversed(models))
    assert names == expected
    assert torch.equal(models[0](X), models[1](X))


def test_own_classes_name_what_is_quantized() -> None:
    net = nets()[1]
    net.gru.register_forward_hook(lambda module, *_: calls.append(module._get_name()))
    calls: list[str] = []
    quantized = quantize_dynamic(net, {LSTM: default_dynamic_qconfig, GRU: default_dynamic_qconfig, "lstm": None})
    assert [layer._get_name() for layer in quantized.children()] == ["LSTM", INT8[nn.GRU], "RNN", "Linear"]
    quantized(X)
    assert calls == [INT8[nn.GRU]]
    assert type(net.gru) is GRU
    net.gru.qconfig = None
    assert type(quantize_dynamic(net, {nn.GRU}).gru) is GRU
    whole = nn.ModuleDict({"encoder": nets()[1]})
    with pytest.warns(UserWarning, match=r"RNN 'encoder.rnn' stays in float"):
        quantized = quantize_dynamic(whole, {"encoder"})
    assert [layer._get_name() for layer in quantized["encoder"].children()][:2] == [INT8[nn.LSTM], INT8[nn.GRU]]


def test_static_quantization_says_that_it_leaves_them() -> None:
    model = nn.Sequential(LSTM(4, 6)).eval()
    model.qconfig = get_default_qconfig("fbgemm")
    with pytest.warns(UserWarning, match=r"LSTM '0' stays in float: torch.ao quantizes no LSTM but torch.nn's .*to_torch"):
        prepared = prepare(model)
    assert torch.equal(convert(prepared)(X)[0], model(X)[0])
    prepared = prepare(to_torch(model))
    prepared(X)
    assert convert(prepared)[0]._get_name() == "QuantizedLSTM"


def test_subclasses_stay_as_torchs_subclasses_do() -> None:
    class Own(LSTM):
        pass

    model = nn.Sequential(Own(4, 6))
    assert type(quantize_dynamic(model, {nn.LSTM})[0]) is Own


def test_what_stays_in_float_is_said() -> None:
    net = nets()[1]
    with pytest.warns(UserWarning, match="RNN 'rnn' stays in float: torch.ao quantizes LSTM and GRU alone"):
        quantize_dynamic(net, {nn.RNN})
    with pytest.warns(UserWarning, match="LSTM '0' stays in float: torch.ao quantizes no LSTM with proj_size"):
        quantize_dynamic(nn.Sequential(LSTM(4, 6, proj_size=2)), {nn.LSTM})
    parametrizations.weight_norm(net.gru, "weight_hh_l0")
    with pytest.warns(UserWarning, match="GRU 'gru' stays in float: torch.ao quantizes no parametrized module"):
        quantize_dynamic(net, {GRU})


def test_torch_jit_scripts_torchs_modules() -> None:
    reference, net = nets()
    scripted = torch.jit.script(copy.deepcopy(net))
    assert torch.equal(scripted(X), reference(X))
    assert torch.equal(scripted(X[:2, :1]), reference(X[:2, :1]))
    assert scripted.lstm.weight_hh_l0.shape == net.lstm.weight_hh_l0.shape


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_torch_jit_traces_them_for_other_sizes() -> None:
    reference, net = nets()
    for _ in range(3):
        net(X)
    traced = torch.jit.trace(net, X)
    assert torch.equal(traced(X[:2, :1]), reference(X[:2, :1]))
