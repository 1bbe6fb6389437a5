"""torch.nn.RNN, LSTM and GRU on a CUDA device, which is cuDNN: what most programs run, and what a kernel has to beat.

Weights lie in one buffer in cuDNN's order, or each call would copy them there. In training mode the given parameters are
moved into it, as torch.nn moves its own: the leaves stay the same, and updates in place are seen. Inference has a copy.
Version 9.19 is wrong in float16 for some shapes of LSTM, GRU and RNN, which are refused (docs/notes/cudnn.md).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, Unsupported, Weights
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations.cudnn.known_issues import defect
from pytest_ecornn.reference.precision import cudnn_precision, fp32_precision, hold_in_node, tf32_refusal

_MOST_NAMES = 4
_TRIAL_STEPS = 64  # torch's choice of an algorithm depends on the length below 40 only
# Both name the cell: kernels of matrix products may be persistent, and of anything elementwise.
_PERSISTENT = re.compile("(?=.*persist).*(rnn|lstm|gru)", re.IGNORECASE)
_STANDARD = re.compile("(?=.*elem(ent)?wise).*(rnn|lstm|gru)", re.IGNORECASE)


class Cudnn(Implementation):
    carry = "storage"
    gate_gradients = "storage"
    saved_gates = "storage"
    products = "storage"
    weight_gradients = "storage"
    activation_error = 2.0**-16  # its float32 sigmoid and tanh are that far off
    deterministic = False  # torch documents that cuDNN's RNN functions are not, on some versions of cuDNN and CUDA

    def __init__(self) -> None:
        self._describe: Callable[[], str] | None = None

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "cuDNN runs on a CUDA device"
        return tf32_refusal(case) or torch_nn.skip_reason(case) or defect(case, torch.backends.cudnn.version() or 0)

    def build(self, case: Case, weights: Weights) -> Layer:
        module = torch_nn.build_module(case, weights if case.training else _copies(weights)).train(case.training)
        precision, plain = cudnn_precision(case), torch_nn.make_layer(case, module)
        is_flat = True
        if case.device != "cpu":
            with fp32_precision("rnn", precision):
                is_flat = _flatten(case, module)
            self._describe = partial(_notes, case, module, is_flat)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            with fp32_precision("rnn", precision), nullcontext() if is_flat else _suppress_weight_warning():
                output, final = plain(x, _contiguous(state), lengths)
            if precision and (node := _cudnn_node(output)) is not None:
                hold_in_node(node, "rnn", precision)
            return output, final

        return layer

    def cost(self, case: Case) -> Cost:
        return torch_nn.cost(case)

    def notes(self) -> str:
        """The library and the algorithm, seen by running the layer once more."""
        return self._describe() if self._describe else ""


def _copies(weights: Weights) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(weight.detach().clone(), requires_grad=False) for name, weight in weights.items()}


def _contiguous(state: State) -> State:
    """cuDNN takes no strided states."""
    if state is None:
        return None
    return state.contiguous() if isinstance(state, Tensor) else tuple(one.contiguous() for one in state)


def _flatten(case: Case, module: nn.RNNBase) -> bool:
    """Lays the weights out for cuDNN; whether they are. Raises Unsupported where torch does not take cuDNN for the case."""
    with torch_nn.OperatorRecorder() as operators, _suppress_weight_warning():
        torch_nn.probe(case, module, most_steps=2)  # which flattens, but not in bfloat16
    if not any("_cudnn_rnn" in name for name in operators.names):
        raise Unsupported(f"torch {torch.__version__} runs {case.cell} in {case.dtype} by its own kernels, not by cuDNN")
    weights: list[Any] = module._flat_weights
    if case.dtype == "bfloat16":
        mode = torch.backends.cudnn.rnn.get_cudnn_mode(module.mode)
        with torch.no_grad():
            torch._cudnn_rnn_flatten_weight(
                weights, 4 if case.bias else 2, case.input_size, mode, case.hidden_size, 0, case.layers,
                case.batch_first, case.bidirectional,
            )  # fmt: skip
    return len({weight.untyped_storage().data_ptr() for weight in weights}) == 1


@contextmanager
def _suppress_weight_warning() -> Iterator[None]:
    """Without the warning that weights are copied at every call; the notes say it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk", UserWarning)
        yield


def _cudnn_node(output: Tensor) -> torch.autograd.graph.Node | None:
    """cuDNN's node in the graph that made `output`: at most a few nodes of unpacking lie before it."""
    todo = [output.grad_fn]
    for node in todo:
        if node is not None and node.name().startswith("CudnnRnnBackward"):
            return node
        todo += [parent for parent, _ in node.next_functions if parent not in todo] if node is not None else []
    return None


def _notes(case: Case, module: nn.RNNBase, is_flat: bool) -> str:
    def run() -> None:
        output = torch_nn.probe(case, module, _TRIAL_STEPS)
        if case.training:
            torch.autograd.grad(output.sum(), list(module.parameters()))
        torch.cuda.synchronize(case.device)

    with fp32_precision("rnn", cudnn_precision(case)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
        found = _algorithm(_kernel_names(run))
    version = _version(torch.backends.cudnn.version() or 0)
    return f"cuDNN {version}, {found}" + ("" if is_flat else ", copies weights each call")


def _kernel_names(run: Callable[[], None]) -> list[str]:
    """Names of the kernels that `run` launches; empty where the profiler fails, which must not fail a build."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                run()
            return [event.key for event in profiler.key_averages()]
    except Exception:
        return []


def _algorithm(kernel_names: Iterable[str]) -> str:
    """cuDNN's algorithm by the kernels that only it launches: persistent, standard (one or more a step), or both.

    Forward and backward may differ. The kernels follow in brackets, without template arguments.
    """
    names = list(dict.fromkeys(_strip_signature(name) for name in kernel_names))
    persistent = [name for name in names if _PERSISTENT.match(name)]
    stepwise = [name for name in names if _STANDARD.match(name)]
    found = " and ".join(word for word, some in (("persistent", persistent), ("standard", stepwise)) if some)
    if not names:
        return "algorithm unknown: the profiler saw no kernels"
    return f"{found or 'algorithm unknown'} ({', '.join((persistent + stepwise or names)[:_MOST_NAMES])})"


def _strip_signature(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters."""
    head = re.split(r"[<(]", name.replace("(anonymous namespace)::", ""))[0].split()
    return head[-1].rpartition("::")[2] if head else name


def _version(number: int) -> str:
    """91900 is 9.19; before 9 the thousands were the major version."""
    return f"{number // 10_000}.{number // 100 % 100}" if number >= 90_000 else f"{number // 1000}.{number // 100 % 10}"
