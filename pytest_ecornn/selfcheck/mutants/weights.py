"""Changes of weights that are not seen."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: each_weight_seen", device="cuda")
class AddressesCapturedCuda(Loop):
    """A CUDA graph copies the weights to where the loop reads them: it was captured with the addresses of the first call."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        graphs: dict[str, tuple[torch.cuda.CUDAGraph, Parameters]] = vars(self).setdefault("_graphs", {})
        if suffix not in graphs:
            rooms = {name: value.detach().clone() for name, value in found.items()}
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for name, buffer in rooms.items():
                    buffer.copy_(weights[name + suffix].detach())
            graphs[suffix] = graph, rooms
        graph, rooms = graphs[suffix]
        graph.replay()
        return {name: with_value(value, rooms[name].clone()) for name, value in found.items()}


@mutant("property: each_weight_seen", cell="rnn_tanh")
class AddressesKept(Loop):
    """The addresses of the weights are taken when the layer is built: what is put in a weight's place later is not seen."""

    def build(self, case: Case, weights: Weights) -> Layer:
        self._addresses = {name: weight.detach() for name, weight in weights.items()}
        return super().build(case, weights)

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {name: with_value(value, self._addresses[name + suffix].to(self.compute)) for name, value in found.items()}


@mutant("property: each_weight_seen")
class BiasSumKept(Loop):
    """The sum of the biases is laid out anew with W_hh alone: a bias that changes by itself is not seen."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        known: dict[str, tuple[Tensor, Parameters]] = vars(self).setdefault("_known", {})
        if suffix not in known or not known[suffix][0].equal(found["weight_hh"]):
            biases = {name: value.detach().clone() for name, value in found.items() if "bias" in name}
            known[suffix] = found["weight_hh"].detach().clone(), biases
        return {name: with_value(value, known[suffix][1].get(name, value)) for name, value in found.items()}


_packed: dict[tuple[Case, str], Tensor] = {}


@mutant("property: layers_apart")
class CachedByCase(Loop):
    """For inference the recurrent weights are packed once a case: a second layer of the same sizes gets the first one's."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if not self.case.training and "weight_hh" in found:
            found["weight_hh"] = _packed.setdefault((self.case, suffix), found["weight_hh"].detach().clone())
        return found


@mutant("property: each_weight_seen")
class KeptByVersionWhenEvaluated(Loop):
    """Under no_grad the recurrent weights are kept by address and version, which `weight.data.mul_()` leaves as they are."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if torch.is_grad_enabled() or "weight_hh" not in found:
            return found
        kept: dict[object, Tensor] = vars(self).setdefault("_kept", {})
        weight = weights["weight_hh" + suffix]
        found["weight_hh"] = kept.setdefault((suffix, weight.data_ptr(), weight._version), found["weight_hh"].detach().clone())
        return found


@mutant("property: each_weight_seen", cell="rnn_tanh")
class ReadFromTheirStorage(Loop):
    """Recurrent weights are read from the start of their storage: wrong where they are a part of a flat buffer."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        weight = weights["weight_hh" + suffix].detach()
        read = torch.as_strided(weight, weight.shape, weight.stride(), 0).to(self.compute)
        found["weight_hh"] = with_value(found["weight_hh"], read)
        return found


@mutant("property: each_weight_seen")
class SummedToTellAChange(Loop):
    """Biases are laid out anew where their sum has changed, which it has not where values change places."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        known: dict[str, tuple[float, Parameters]] = vars(self).setdefault("_known", {})
        digest = round(sum(float(value.detach().double().sum()) for name, value in found.items() if "bias" in name), 4)
        if suffix not in known or known[suffix][0] != digest:
            known[suffix] = digest, {name: value.detach().clone() for name, value in found.items()}
        shown = known[suffix][1]
        return {name: with_value(value, shown[name]) if "bias" in name else value for name, value in found.items()}


@mutant("property: each_weight_seen", cell="gru")
class WatchedByTheFirst(Loop):
    """Weights are laid out anew where the first one's values have changed; of the others no change is looked for."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        kept: dict[str, Parameters] = vars(self).setdefault("_kept", {})
        known: dict[str, Tensor] = vars(self).setdefault("_first", {})
        name, first = next(iter(weights.items()))
        if name not in known or not known[name].equal(first):
            known[name] = first.detach().clone()
            kept.clear()
        found = super().parameters(weights, suffix)
        shown = kept.setdefault(suffix, {name: value.detach().clone() for name, value in found.items()})
        return {name: with_value(value, shown[name]) for name, value in found.items()}
