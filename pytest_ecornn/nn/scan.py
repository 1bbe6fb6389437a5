"""minGRU and minLSTM as modules, all steps at once by a parallel scan (arXiv 2410.01201).

scan_gpu runs them on a CUDA device, scan_cpu on a CPU; of a few steps these, scan_torch and a loop over time are timed. The
loop runs where the scans do not: under torch.func, in forward mode, and on other devices. `notes()` says which and why.
Whoever observes a call (a compiler, tracer, mode or subclass of Tensor) sees the scans' ops, as nothing is timed or built then.
"""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.autotune import select
from pytest_ecornn.autotune.selection import is_recomputed, no_data
from pytest_ecornn.contract import Case, Implementation, Layer, Weights, cells
from pytest_ecornn.implementations._common.autograd_ops import can_skip_dispatch, wants_gradient
from pytest_ecornn.implementations._common.input_projection import gate_products
from pytest_ecornn.implementations._common.padding import zero_padding
from pytest_ecornn.implementations._cuda.compile import skip_reason
from pytest_ecornn.implementations.auto import layer_problem, switch_when_captured
from pytest_ecornn.implementations.auto.candidates import implementations, make_choices
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.implementations.scan_cpu.ops import scan_by_op as scan_on_cpu
from pytest_ecornn.implementations.scan_gpu import ScanGpu
from pytest_ecornn.implementations.scan_gpu.ops import scan as scan_on_gpu
from pytest_ecornn.implementations.scan_torch import ScanTorch, linear_space_scan
from pytest_ecornn.nn.autocast import autocast_of
from pytest_ecornn.nn.calls import lengths_beside, missing_transform, only_vmap_is_active, run_packed, store_bounded
from pytest_ecornn.nn.tracing import LEAF_MODULE, constant_in_graphs, exports_onnx, is_recorded, outside_of_graphs, untraced
from pytest_ecornn.reference.precision import current, is_autocast

if TYPE_CHECKING:
    from pytest_ecornn.implementations.fused_cpu.stream import Stream

SCANS: Mapping[str, type[Implementation]] = {"scan_cpu": ScanCpu, "scan_gpu": ScanGpu, "scan_torch": ScanTorch}
BACKENDS = ("auto", "heuristic", *SCANS, "loop")
_MAX_BUILT = 64  # sizes that a layer remembers
_MAX_INDEX = 2**30  # of the kernels on a GPU
LayersWeights = list[list[Tensor]]  # of each layer, by `names_of`


class BuiltLayer(NamedTuple):
    """A layer, its backend as called, and what `notes` returns."""

    run: Layer
    backend: str
    notes: str


class _Scan(nn.Module):
    """Common base of MinGRU and MinLSTM."""

    _cells: ClassVar[tuple[str, str]]  # with a candidate as it is, and with a positive one

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        positive: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.__module__ = LEAF_MODULE
        if backend not in BACKENDS:
            raise ValueError(f"expected backend as one of {', '.join(BACKENDS)}, got {backend!r}")
        _check_options(dropout, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        _check_switches(bias=bias, batch_first=batch_first, positive=positive)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, float(dropout), bool(bidirectional)
        self.cell, self._backend, self._notes = self._cells[positive], backend, "not called yet"
        self._built: OrderedDict[tuple[object, ...], BuiltLayer] = OrderedDict()  # by all on which a layer depends
        self._recent: dict[tuple[object, ...], str] = {}  # backend of a size's last call outside of a backward pass
        whole = Case(
            cell=self.cell, steps=1, batch=1, input_size=input_size, hidden_size=hidden_size, layers=num_layers, bias=bias,
            bidirectional=self.bidirectional,
        )  # fmt: skip
        for name, shape in cells.parameter_shapes(whole).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, as torch.nn's modules have them."""
        count = 1 + self.bias
        names = [name for layer in range(self.num_layers) for name in names_of(self, layer)]
        return [[getattr(self, name) for name in names[at : at + count]] for at in range(0, len(names), count)]

    def flatten_parameters(self) -> None:
        """Does nothing: the scans read parameters where they are. torch.nn's modules have it."""

    def reset_parameters(self) -> None:
        """Draws all parameters uniformly from -1 / sqrt(H) to 1 / sqrt(H), as torch.nn's recurrent modules do."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))

    def forward(self, input: Any, hx: Tensor | None = None, resets: Tensor | None = None, lengths: Any = None) -> Any:
        """output, final states: T time steps, B sequences, D directions, L layers.

        input: [T, B, I], with `batch_first` [B, T, I], of one sequence [T, I], or a PackedSequence, which output is then too.
        hx: None for zeros, or [L*D, B, H], of one sequence [L*D, H]. B may be 0. resets: bool, None for none, [T, B], with
        `batch_first` [B, T], of one sequence [T]: where it is true a step starts from a state of zeros, in either direction.
        lengths: as LSTM's. Under autocast all is cast to its dtype. The scans support first-order gradients only; backend
        "loop" also supports double backward. torch.compile, torch.export, torch.jit.trace and make_fx trace the scans' ops;
        with backend "loop" or "scan_torch" torch.compile's graph breaks at each layer, and others hold the loop of one T. Both
        ONNX exporters get operations of torch in their place.

        Raises ValueError for other shapes, and where the backend was named and does not run the call; TypeError for what is no
        tensor.
        """
        if not isinstance(input, (Tensor, PackedSequence)):
            raise TypeError(f"expected input as a tensor [T, B, I] or a PackedSequence, got {type(input).__name__}")
        for name, shape, given in (("hx", "[L*D, B, H]", hx), ("resets", "[T, B]", resets)):
            if given is not None and not isinstance(given, Tensor):
                raise TypeError(f"expected {name} as a tensor {shape} or None, got {type(given).__name__}")
        if lengths is not None:
            lengths = lengths_beside(input, lengths, self.batch_first)
        with parametrize.cached() if "parametrizations" in self._modules else nullcontext():  # each is computed once in a call
            weights = [[getattr(self, name) for name in names_of(self, layer)] for layer in range(self.num_layers)]
            if not isinstance(input, PackedSequence):
                return self._run_padded(weights, input, hx, lengths, resets)
            if resets is not None:
                raise ValueError("expected no resets beside a PackedSequence, whose steps have no place of their own")
            return run_packed(
                lambda x, state, lengths: self._run(weights, x, state, lengths, None), input, hx, self.batch_first,
                check=lambda x: self._check(weights, x, hx, None),
            )  # fmt: skip

    def _run_padded(
        self, weights: LayersWeights, x: Tensor, hx: Tensor | None, lengths: Tensor | None, resets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        self._check(weights, x, hx, resets)
        if lengths is not None and (torch.is_grad_enabled() or is_recorded()):  # else it would be in the weights' gradients
            x = zero_padding(x, lengths, self.batch_first)
        if x.dim() == 3:
            return self._run(weights, x, hx, lengths, resets)
        batch = 0 if self.batch_first else 1
        state, marks = None if hx is None else hx.unsqueeze(1), None if resets is None else resets.unsqueeze(batch)
        output, final = self._run(weights, x.unsqueeze(batch), state, None, marks)
        return output.squeeze(batch), final.squeeze(1)

    @property
    def backend(self) -> str:
        return self._backend

    def notes(self) -> str:
        """Returns what ran the last call, and why: the times that decided, or what the scans do not run."""
        return self._notes

    def stream(self, batch: int = 1, weight_dtype: torch.dtype | None = None) -> Stream:
        """Steps of this module on a CPU, as LSTM's `stream`. Raises ValueError for both directions, and as that does."""
        if self.bidirectional:
            raise ValueError("expected one direction without projections, got bidirectional")
        from pytest_ecornn.implementations.fused_cpu.stream import make_stream

        names = [name for layer in range(self.num_layers) for name in names_of(self, layer)]
        return make_stream(self, self.cell, names, batch, weight_dtype)

    def extra_repr(self) -> str:
        options = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        other = [f"{name}={getattr(self, name)}" for name, usual in options.items() if getattr(self, name) != usual]
        other += ["positive=True"] * (self.cell == self._cells[True])
        other += [f"backend={self._backend!r}"] * (self._backend != "auto")
        return ", ".join([str(self.input_size), str(self.hidden_size), *other])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_built": OrderedDict(), "_recent": {}}  # functions, made anew where they are needed

    def _replicate_for_data_parallel(self) -> _Scan:
        replica: _Scan = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._built, replica._recent = OrderedDict(), {}  # layers that read the replica's weights
        return replica

    def _check(self, weights: LayersWeights, input: Tensor, hx: Tensor | None, resets: Tensor | None) -> None:
        with untraced():
            self._check_sizes(input, hx, resets)
        weight = weights[0][0]
        for name, given in (("hx", hx), ("resets", resets), ("weights", weight)):
            if given is not None and given.device != input.device:
                raise ValueError(f"expected {name} on the input's device, {input.device}, got {given.device}")
        casts = is_autocast(input.device)
        for name, given in (("hx", hx), ("weights", weight)):
            if given is not None and given.dtype != input.dtype and not casts:
                raise ValueError(f"expected {name} of the input's dtype, {input.dtype}, got {given.dtype}")

    def _check_sizes(self, input: Tensor, hx: Tensor | None, resets: Tensor | None) -> None:
        time = 1 if self.batch_first and input.dim() == 3 else 0
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size or not input.shape[time]:
            raise ValueError(
                f"expected input as [T, B, {self.input_size}], with batch_first [B, T, {self.input_size}], or [T, "
                f"{self.input_size}], T not 0, got {tuple(input.shape)}"
            )
        batch = () if input.dim() == 2 else (input.shape[0 if self.batch_first else 1],)
        expected = (self.num_layers * (1 + self.bidirectional), *batch, self.hidden_size)
        if hx is not None and hx.shape != expected:
            raise ValueError(f"expected hx as {expected}, got {tuple(hx.shape)}")
        if resets is not None and (resets.shape != input.shape[:-1] or resets.dtype != torch.bool):
            raise ValueError(
                f"expected resets as {tuple(input.shape[:-1])} of torch.bool, got {tuple(resets.shape)} of {resets.dtype}"
            )

    def _run(
        self, weights: LayersWeights, x: Tensor, hx: Tensor | None, lengths: Tensor | None, resets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A layer after the other, between which elements are dropped in training."""
        x = autocast_of(x.device)(x)
        directions, finals = 1 + self.bidirectional, []
        for layer, of_layer in enumerate(weights):
            if layer and self.training and self.dropout:
                x = dropout(x, self.dropout)
            state = None if hx is None else hx[layer * directions : (layer + 1) * directions].to(x.dtype)
            given = x, state, lengths, resets
            if can_skip_dispatch((*given, *of_layer)) and x.shape[0 if self.batch_first else 1]:
                x, final = self._run_built_layer(layer, of_layer, x.shape, *given)
            else:
                x, final = self._run_observed_layer(layer, of_layer, *given)
            finals.append(final)
        return x, torch.cat(finals) if len(finals) > 1 else finals[0]

    def _run_observed_layer(
        self, layer: int, weights: list[Tensor], x: Tensor, state: Tensor | None, lengths: Tensor | None, resets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A layer of a call that a compiler, tracer, transform, mode or subclass observes, or of one without sequences."""
        given = x, state, lengths, resets
        with untraced():
            sizes = x.shape
        if exports_onnx() or not sizes[0 if self.batch_first else 1]:
            self._notes = "torch's operations, as " + ("ONNX has no scan's op" if exports_onnx() else "there are no sequences")
            return run_observed_layer(self, _one_by_torch, weights, *given)
        if backend := traced_backend(self, sizes, x.device, weights[0]):
            observer = "torch.compile traced" if torch.compiler.is_compiling() else "a tracer, mode or subclass of Tensor sees"
            self._notes = f"{backend}; chosen without timing, as {observer} the call"
            return run_observed_layer(self, _one_on_gpu if x.is_cuda else _one_on_cpu, weights, *given)
        if torch.compiler.is_compiling():
            return _run_outside_of_graphs(self, layer, weights, sizes, *given)
        return self._run_built_layer(layer, weights, torch.Size(map(int, sizes)), *given)

    def _run_built_layer(
        self, layer: int, weights: list[Tensor], sizes: torch.Size, x: Tensor, state: Tensor | None, lengths: Tensor | None,
        resets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        trains = wants_gradient((x, state, *weights))
        is_tf32 = x.is_cuda and x.dtype == torch.float32 and current("matmul") == "tf32"
        deterministic = torch.are_deterministic_algorithms_enabled()
        options = (state is not None, lengths is not None, resets is not None, is_tf32, trains)
        key = (layer, sizes, x.dtype, x.device, options, torch.get_num_threads(), missing_transform(), deterministic)
        kind = key[:4]
        first_pass = self._recent.get(kind) if is_recomputed() else None  # of torch.utils.checkpoint
        built = self._built.get(key)
        if built is None or (first_pass and built.backend != first_pass):
            built, is_final = self._build(layer, self._case(sizes, x, *options), x, first_pass)
            if is_final:
                store_bounded(self._built, _MAX_BUILT * self.num_layers, key, built)
        else:
            self._built.move_to_end(key)
        if not first_pass:
            store_bounded(self._recent, _MAX_BUILT * self.num_layers, kind, built.backend)
        self.__dict__["_notes"] = built.notes  # not by Module's __setattr__, which takes the host longer
        output, final = built.run(x, state, lengths) if resets is None else built.run(x, state, lengths, resets.contiguous())
        assert isinstance(final, Tensor)
        return output, final

    def _build(self, layer: int, case: Case, x: Tensor, first_pass: str | None) -> tuple[BuiltLayer, bool]:
        """The layer of a case, and whether later calls run by it too."""
        weights = LayerWeights(self, layer, x.dtype)
        backend, reason = self._named_or_loop(case, x.device)
        if backend in SCANS or backend == "loop":
            note = f"loop: {reason}" if backend == "loop" else backend
            return BuiltLayer(_build_by(backend, case, weights), backend, note), True
        mode = "heuristic" if backend == "heuristic" else ""
        decision, is_final = select(
            layer_problem(case), x.device, partial(make_choices, case, weights), implementations(), mode, obstacle=no_data(x)
        )
        if first_pass is not None:
            return BuiltLayer(_build_by(first_pass, case, weights), first_pass, first_pass), False
        runs = [_build_by(name, case, weights) for name in dict.fromkeys((decision.called, decision.device))]
        run = runs[0] if len(runs) == 1 else switch_when_captured(*runs)
        return BuiltLayer(run, decision.called, decision.notes()), is_final

    def _case(
        self, sizes: torch.Size, x: Tensor, has_state: bool, ragged: bool, resets: bool, is_tf32: bool, trains: bool
    ) -> Case:
        outer, inner, width = sizes
        steps, batch = (inner, outer) if self.batch_first else (outer, inner)
        return Case(
            cell=self.cell, steps=steps, batch=batch, input_size=width, hidden_size=self.hidden_size, bias=self.bias,
            bidirectional=self.bidirectional, dtype=str(x.dtype).removeprefix("torch."), device=_name_of(x.device),
            precision="tf32" if is_tf32 else "ieee", batch_first=self.batch_first, ragged=ragged, resets=resets,
            has_state=has_state, mode="training" if trains else "inference",
        )  # fmt: skip

    def _named_or_loop(self, case: Case, device: torch.device) -> tuple[str, str]:
        """The module's backend, or the loop where no scan runs, and why. Raises ValueError where a named scan does not run."""
        if self._backend == "loop":
            return "loop", "backend is loop"
        is_named = self._backend in SCANS
        name = self._backend if is_named else f"scan_{'gpu' if device.type == 'cuda' else 'cpu'}"
        missing = missing_transform()
        reason = f"has {missing}" if missing else SCANS[name]().unsupported(case, device)
        if reason and is_named:
            raise ValueError(f"{name} does not run {case}: {reason}")
        return ("loop", f"{name} {reason}") if reason else (self._backend, "")


def _check_options(dropout: Any, **sizes: Any) -> None:
    """Raises what torch.nn's modules raise for a dropout and sizes, and warns where they do."""
    for name, size in sizes.items():
        if not isinstance(size, int):
            raise TypeError(f"expected {name} as an int, got {type(size).__name__}")
        if size < 1:
            raise ValueError(f"expected {name} of at least 1, got {size}")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float, Real)) or not 0 <= float(dropout) <= 1:
        raise ValueError(f"expected dropout from 0 to 1, got {dropout!r}")
    if dropout and sizes["num_layers"] == 1:
        warnings.warn(f"dropout {dropout} is between layers, of which there is one: nothing is dropped", stacklevel=3)


def _check_switches(**switches: Any) -> None:
    for name, switch in switches.items():
        if not isinstance(switch, bool):
            raise TypeError(f"expected {name} as a bool, got {type(switch).__name__}")


def _build_by(backend: str, case: Case, weights: LayerWeights) -> Layer:
    return SCANS[backend]().build(case, weights) if backend in SCANS else loop_layer(case, weights)


@outside_of_graphs  # a layer is built for the sizes of a call
def _run_outside_of_graphs(module: _Scan, *given: Any) -> tuple[Tensor, Tensor]:
    return module._run_built_layer(*given)


def _name_of(device: torch.device) -> str:
    """A device's name as a case has it; the loop, which runs on any, is given a CPU's."""
    return str(device) if device.type == "cuda" else "cpu"


class MinGRU(_Scan):
    """minGRU: h_t = (1 - z_t) h_(t-1) + z_t g(W_h x_t + b_h), z_t = sigmoid(W_z x_t + b_z), of layers and directions.

    Its arguments are torch.nn.GRU's, and positive: g is that of appendix B, which is positive; else g(x) = x. Parameters
    weight_ih_l0 [2*H, I] and bias_ih_l0 [2*H], z first, and so on. backend: "auto", "heuristic", or a scan or "loop" alone.
    Raises ValueError for sizes below 1, a dropout that is no probability, and another backend.
    """

    _cells = ("mingru", "mingru_positive")


class MinLSTM(_Scan):
    """minLSTM: h_t = f_t h_(t-1) + i_t g(W_h x_t + b_h), f_t and i_t sigmoids of W x_t + b divided by their sum.

    As MinGRU, but for parameters weight_ih_l0 [3*H, I] and bias_ih_l0 [3*H]: f, i, then the candidate.
    """

    _cells = ("minlstm", "minlstm_positive")


class LayerWeights(Weights):
    """The parameters of one layer of a module, under the names of a first layer, read anew in each call."""

    def __init__(self, module: Any, layer: int, dtype: torch.dtype):
        super().__init__({})
        self._module, self._dtype = weakref.ref(module), dtype
        self._names = {name.replace(f"_l{layer}", "_l0"): name for name in names_of(module, layer)}

    def __getitem__(self, name: str) -> Any:
        parameter = getattr(self._module(), self._names[name])
        return parameter if parameter.dtype == self._dtype else parameter.to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


_names: dict[tuple[int, bool, bool], list[str]] = {}  # no lru_cache, into which torch.compile looks with a warning


def names_of(module: Any, layer: int) -> list[str]:
    """Names of a layer's parameters."""
    key = layer, module.bias, module.bidirectional
    names = _names.get(key)
    if names is None:
        kinds = ("weight_ih", "bias_ih")[: 1 + module.bias]
        names = [f"{kind}_l{layer}{end}" for end in ("", "_reverse")[: 1 + module.bidirectional] for kind in kinds]
        _names[key] = names
    return names


def loop_layer(case: Case, weights: Weights) -> Layer:
    """The layer by a loop over time, in float32 or wider."""
    compute = torch.promote_types(getattr(torch, case.dtype), torch.float32)

    def layer(x: Tensor, state: Tensor | None, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        parameters = {name: weight.to(compute) for name, weight in weights.items()}
        first = None if state is None else state.to(compute)
        with torch.autocast(x.device.type, enabled=False) if is_autocast(x.device) else nullcontext():
            output, final = cells.reference(case, parameters, x.to(compute), first, lengths, resets)
        assert isinstance(final, Tensor)
        return output.to(x.dtype), final.to(x.dtype)

    return layer


def traced_backend(module: Any, sizes: torch.Size, device: torch.device, weight: Tensor) -> str | None:
    """The scan whose op runs an observed layer, or None for none. sizes: of x, [T, B, I] or [B, T, I]."""
    if device.type not in ("cpu", "cuda") or (missing_transform() and not only_vmap_is_active()):
        return None
    batch, steps = sizes[:2] if module.batch_first else (sizes[1], sizes[0])
    if device.type == "cuda" and (steps >= _MAX_INDEX or batch * weight.shape[0] >= _MAX_INDEX):
        return None
    return _usable(module._backend, device)


@constant_in_graphs
def _usable(backend: str, device: torch.device) -> str | None:
    own = "scan_gpu" if device.type == "cuda" else "scan_cpu"
    forced = os.environ.get("ECORNN_AUTO") or "measure"
    if backend not in ("auto", "heuristic", own) or (backend == "auto" and forced not in ("measure", "heuristic", own)):
        return None
    return own if device.type == "cpu" or skip_reason(device) is None else None


@constant_in_graphs
def _multiplies_in_tf32() -> bool:
    return current("matmul") == "tf32"


def run_observed_layer(
    module: Any, run: Callable[..., tuple[Tensor, Tensor]], weights: list[Tensor], x: Tensor, state: Tensor | None,
    lengths: Tensor | None, resets: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [.., D*H] and final states [D, B, H] of one layer in D directions, each by `run`. lengths: on any device."""
    outputs, finals, count = [], [], 1 + module.bias
    for direction in range(1 + module.bidirectional):
        weight, bias = [*weights[direction * count : (direction + 1) * count], None][:2]
        first = None if state is None else state[direction]
        marks = None if resets is None else resets.contiguous()
        options = module.cell, module.batch_first, bool(direction)
        output, final = run(x, weight, bias, first, None if lengths is None else lengths.to(x.device), marks, options)
        outputs.append(output)
        finals.append(final)
    return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0], torch.stack(finals)


Options = tuple[str, bool, bool]  # cell, batch_first, reverse


def _one_on_gpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tf32 = x.dtype == torch.float32 and _multiplies_in_tf32()
    gates = gate_products(x, weight.to(x.dtype), tf32)
    marks = None if resets is None else resets.view(torch.uint8)
    return scan_on_gpu(gates, None if bias is None else bias.to(x.dtype), first, lengths, marks, *options)


def _one_on_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    cell, *order = options
    return scan_on_cpu(_wide_gates(x, weight, bias), first, lengths, resets, cell, x.dtype, *order)


def _one_by_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None, resets: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    gates = _wide_gates(x, weight, bias)
    output, final = linear_space_scan(gates, None if first is None else first.to(gates.dtype), lengths, resets, *options)
    return output.to(x.dtype), final.to(x.dtype)


def _wide_gates(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Pre-activations in float32 or wider, of parameters in x's dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return linear(x.to(wide), weight.to(x.dtype).to(wide), None if bias is None else bias.to(x.dtype).to(wide))
