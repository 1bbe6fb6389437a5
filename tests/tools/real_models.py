"""`replace` on models of other people's packages: results, gradients, a step of Adam, state dicts, pickles and `to_torch`.

`python -m tests.tools.real_models` prints what was replaced, and exits with 1 where anything differs. It skips what is not
installed. No weights are downloaded.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from pytest_ecornn.nn import replace, to_torch
from tests.helpers.nn_modules import tensors

Case = tuple[nn.Module, Callable[[Any], Any]]  # a model, and a call of it
WAVE = torch.linspace(-1, 1, 1920).view(2, 1, 960)


def get(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def policy() -> Case:
    box, states = get("gymnasium.spaces", "Box")(-1, 1, (6,)), tuple(torch.full((2, 3, 8), 0.5) for _ in range(2))
    cls, both = get("sb3_contrib.ppo_recurrent", "MlpLstmPolicy"), get("sb3_contrib.common.recurrent.type_aliases", "RNNStates")
    model = cls(box, box, get("stable_baselines3.common.utils", "ConstantSchedule")(1e-3), lstm_hidden_size=8, n_lstm_layers=2)
    observations, starts = WAVE.view(-1)[:72].view(12, 6), torch.eye(12)[5]
    return model, lambda model: model.evaluate_actions(observations, observations, both(states, states), starts)


def deepar() -> Case:
    model = get("gluonts.torch.model.deepar.module", "DeepARModel")("h", 6, 3, hidden_size=8, lags_seq=[1, 2, 4])
    target, features = WAVE[:, 0, :13], WAVE[:, 0, :13, None]
    past = [torch.zeros(2, 1).long(), torch.ones(2, 1), features[:, :10], target[:, :10], torch.ones(2, 10)]
    return model, lambda model: model.loss(*past, features[:, 10:], target[:, 10:], torch.ones(2, 3))


def language_model() -> Case:
    model = get("speechbrain.lobes.models.RNNLM", "RNNLM")(9, embedding_dim=8, dropout=0.2, rnn_layers=2, rnn_neurons=8)
    return model, lambda model: model(torch.arange(15).view(3, 5) % 9)


def codec() -> Case:
    coders = [get("encodec.modules", name)(dimension=8, n_filters=4) for name in ("SEANetEncoder", "SEANetDecoder")]
    return nn.Sequential(*coders), lambda model: model(WAVE)


def denoiser() -> Case:
    return get("denoiser.demucs", "Demucs")(hidden=8, depth=3), lambda model: model(WAVE)


MODELS = {policy: "sb3-contrib", deepar: "gluonts", language_model: "speechbrain", codec: "encodec", denoiser: "denoiser"}


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def step(model: nn.Module, call: Callable[[Any], Any]) -> list[Tensor]:
    """Outputs of a call, gradients, and parameters after a step of Adam, then outputs in eval()."""
    torch.manual_seed(1)
    outputs = tensors(call(model.train()))
    sum((output.square().mean() for output in outputs), torch.zeros(())).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    torch.optim.Adam(model.parameters()).step()
    model.zero_grad()
    return [tensor.detach().clone() for tensor in (*outputs, *gradients, *model.parameters(), *tensors(call(model.eval())))]


def differing(make: Callable[[], Case], convert: Callable[[nn.Module], Any], steps: int) -> int:
    """How many tensors of a step differ between torch.nn's model and a replaced one, converted after other steps."""
    results = []
    for is_own in (False, True):
        torch.manual_seed(0)
        model, call = make()
        if is_own:
            replace(model)
        for _ in range(steps):
            step(model, call)
        results.append(step(convert(model) if is_own else model, call))
    return sum(not torch.equal(*pair) for pair in zip(*results, strict=True))


def main() -> int:
    """Prints a table of each model. Returns 1 where results differ."""
    converts: dict[str, Callable[[Any], Any]] = {"itself": lambda model: model, "torch.save": saved, "to_torch": to_torch}
    counts: list[int] = []
    for make, package in MODELS.items():
        try:
            (reference, _), (model, _) = make(), make()
        except ImportError as error:
            print(f"{package}: skipped, {error}")
            continue
        print(f"{package} {version(package)}, {make.__name__}", replace(model), sep="\n")
        model.load_state_dict(reference.state_dict())
        reference.load_state_dict(model.state_dict())
        for (name, convert), steps in product(converts.items(), (0, 1)):
            counts.append(differing(make, convert, steps))
            print(f"{name} after {steps} steps: {counts[-1]} tensors differ")
    return int(any(counts))


if __name__ == "__main__":
    sys.exit(main())
