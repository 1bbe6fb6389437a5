"""Less precision than is declared."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid

from pytest_ecornn.contract import Case, Declared, Layer, Weights
from pytest_ecornn.contract.cells import GateTensors, positive
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.reference.precision import fp32_precision, tf32_linear
from pytest_ecornn.reference.rounding import Rounding
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, Parameters, cut, through, with_gradient, with_value
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: rounding", dtype="bfloat16")
class Accumulation16bit(Loop):
    """The recurrent product is summed up in 16 bits, four terms at a time."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        total = parameters["weight_hh"].new_zeros(h.shape[0], parameters["weight_hh"].shape[0])
        for some, weight in zip(h.split(4, -1), parameters["weight_hh"].split(4, -1), strict=True):
            total = (total + some @ weight.T).to(self.dtype).to(self.compute)
        return total + parameters.get("bias_hh", 0)


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = gradient.new_zeros(gradient.shape[-1], dtype=ctx.dtype)
        for row in gradient.to(ctx.dtype).flatten(0, -2):
            total = total + row
        return gradient, total.to(gradient.dtype), None


@mutant("equivalence: rounding", cell="mingru", dtype="float16")
class BiasGradient16bit(Loop):
    """The bias's gradient is summed over steps and sequences in 16 bits."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        product = linear(x, parameters["weight_ih"])
        if "bias_ih" not in parameters:
            return product
        result: Tensor = _Added.apply(product, parameters["bias_ih"], self.dtype)  # type: ignore[no-untyped-call]
        return result


@mutant("equivalence: rounding", dtype="bfloat16")
class BiasesAdded16bit(Loop):
    """The two biases are added in 16 bits when a call begins."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if "bias_ih" in found and "bias_hh" in found:
            both = found["bias_ih"] + found["bias_hh"]
            found["bias_hh"] = through(both, self.dtype) - found["bias_ih"]
        return found


@mutant("equivalence: rounding", cell="mingru", dtype="float16")
class CarryDeclaredFalsely(ReferenceLoop):
    """The plain loop carries its state in the storage type; the class declares float32."""

    def build(self, case: Case, weights: Weights) -> Layer:
        return ReferenceLoop(Declared("storage")).build(case, weights)


@mutant("equivalence: rounding", cell="minlstm", dtype="bfloat16")
class CarryTruncated(Loop):
    """The state crosses steps in 16 bits, as is declared, but truncated."""

    carry = "storage"

    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(map(cut, state))


@mutant("equivalence: rounding", dtype="bfloat16")
class CellState16bit(Loop):
    """The cell state alone crosses steps in 16 bits, and float32 is declared."""

    def carried(self, state: GateTensors) -> GateTensors:
        return state[0], state[1].to(self.dtype).to(self.compute)


@mutant("equivalence: rounding", cell="minlstm_positive")
class FastExponential(Loop):
    """The gates' exponential has a relative error of up to 1e-5."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        f, i = (1 / (1 + torch.exp(-x[k]) * (1 + 1e-5 * torch.sin(50 * x[k]))) for k in (0, 1))
        keep = f / (f + i)
        return (keep * state[0] + (1 - keep) * positive(x[2]),)


def _short(x: Tensor) -> Tensor:
    """x with 11 bits behind the point."""
    return torch.where(x.isfinite(), (x * 2048).round() / 2048, x)


@mutant("equivalence: rounding", cell="rnn_tanh")
class FastTanh(Loop):
    """tanh is off by 2^-11, as a GPU's approximate instruction is."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        exact = torch.tanh(x[0] + h[0])
        return (with_value(exact, _short(exact)),)


@mutant("equivalence: rounding", cell="mingru", dtype="float64")
class Float64ByFloat32(Loop):
    """A float64 layer is computed in float32 inside."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        x, state = (tuple(one.float() for one in some) for some in (x, state))
        return tuple(s.to(self.compute) for s in super().step(x, h, state, parameters))


@mutant("equivalence: rounding", cell="minlstm", dtype="float64")
class Float64ExponentialByFloat32(Loop):
    """A float64 layer computes its exponentials in float32, and all else in float64."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        keep = self._odds(x[1]) / (self._odds(x[0]) + self._odds(x[1]))
        return (keep * state[0] + (1 - keep) * x[2],)

    def _odds(self, x: Tensor) -> Tensor:
        """1 / sigmoid(x)."""
        return 1 + torch.exp(-x.clamp(-60, 60).float()).to(self.compute)


@mutant("equivalence: rounding", cell="gru", dtype="float64")
class Float64FinalByFloat32(AroundLoop):
    """The final state of a float64 layer has been through float32."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        assert isinstance(final, Tensor)
        return output, through(final, torch.float32)


@mutant("equivalence: rounding", dtype="bfloat16")
class ForgetGate8bit(Loop):
    """The forget gate is one of 256 values."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
        forget = torch.sigmoid(f)
        c = with_value(forget, (forget * 255).round() / 255) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


@mutant("equivalence: rounding", cell="gru", dtype="bfloat16")
class GateGradients16bit(ReferenceLoop):
    """The gates' gradients lie in 16 bits between the backward steps, and float32 is declared."""

    def build(self, case: Case, weights: Weights) -> Layer:
        return ReferenceLoop(Declared("float32", gate_gradients="storage")).build(case, weights)


@mutant("equivalence: rounding", dtype="bfloat16")
class GradientOfAGate16bit(Loop):
    """The forget gate's gradient alone is rounded to 16 bits, and float32 is declared."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        forget = with_gradient(x[1], lambda gradient: through(gradient, self.dtype))
        return super().step((x[0], forget, *x[2:]), h, state, parameters)


@mutant("equivalence: rounding", cell="mingru", dtype="bfloat16")
class GradientOfXTruncated(Loop):
    """The gradient of x loses its last bits where it is stored, in place of being rounded."""

    def one_layer(
        self, weights: Weights, lengths: Tensor | None, suffix: str, x: Tensor, *arguments: Any
    ) -> tuple[Tensor, GateTensors]:
        wide = with_gradient(x.to(self.compute), cut)
        return super().one_layer(weights, lengths, suffix, wide, *arguments)


@mutant("equivalence: rounding", cell="mingru", dtype="bfloat16")
class Increment16bit(Loop):
    """What a step adds to the state is rounded to 16 bits first, and float32 is declared."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        z = torch.sigmoid(x[0])
        return ((1 - z) * state[0] + through(z * x[1], self.dtype),)


@mutant("equivalence: rounding", cell="minlstm", dtype="bfloat16")
class InputProductInFloat16(Loop):
    """The input product is summed up in float16, which has three bits more than the layer's bfloat16."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        total = x.new_zeros(*x.shape[:-1], parameters["weight_ih"].shape[0])
        for some, weight in zip(x.split(16, -1), parameters["weight_ih"].split(16, -1), strict=True):
            total = through(total + some @ weight.T, torch.float16)
        return total + parameters.get("bias_ih", 0)


@mutant("equivalence: rounding", cell="mingru_positive")
class LogSpaceCumsum(Loop):
    """The scan sums logarithms up over all of time, so that the error of long sequences is that of large sums."""

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        plain = not (case.ragged or case.bidirectional or case.has_state)
        return super().unsupported(case, device) if plain else "begins at zero, in one direction, without lengths"

    def one_layer(
        self, weights: Weights, lengths: Tensor | None, suffix: str, x: Tensor, is_projected: bool, *arguments: Any
    ) -> tuple[Tensor, GateTensors]:
        time = 1 if self.case.batch_first else 0
        gates = x.to(self.compute)
        z, candidate = (gates if is_projected else self.x_gates(gates, self.parameters(weights, suffix))).chunk(2, -1)
        keep = torch.cumsum(logsigmoid(-z), time)
        h = torch.exp(keep + torch.logcumsumexp(logsigmoid(z) + torch.log(positive(candidate)) - keep, time)).to(self.dtype)
        return h, (h.select(time, -1),)


@mutant("equivalence: rounding", cell="rnn_relu")
class OperandsInTwoParts(Loop):
    """Operands of the input product are split in two bfloat16 parts each, and the product of the small parts is left out."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        weight = parameters["weight_ih"]
        x_large, w_large = through(x, torch.bfloat16), through(weight, torch.bfloat16)
        x_small, w_small = through(x - x_large, torch.bfloat16), through(weight - w_large, torch.bfloat16)
        return x_large @ w_large.T + x_large @ w_small.T + x_small @ w_large.T + parameters.get("bias_ih", 0)


@mutant("equivalence: rounding", cell="gru", dtype="bfloat16")
class OutputDithered(Loop):
    """Outputs are rounded up or down by a fixed pattern, as stochastic rounding does."""

    def narrowed(self, state: Tensor) -> Tensor:
        pattern = torch.arange(state.numel(), device=state.device).view(state.shape) * 40503 % 65536
        return cut(state * (1 + pattern * 2.0**-24)).to(self.dtype)


@mutant("equivalence: rounding", dtype="bfloat16")
class OutputTruncated(Loop):
    """Outputs and final states lose their last bits where they are stored, in place of being rounded."""

    def narrowed(self, state: Tensor) -> Tensor:
        return cut(state).to(self.dtype)


@mutant("equivalence: rounding", cell="gru", dtype="bfloat16")
class PartialSums16bit(Loop):
    """Each 32 columns' part of the recurrent product waits in 16 bits to be added, and float32 is declared."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        pairs = zip(h.split(32, -1), parameters["weight_hh"].split(32, -1), strict=True)
        parts = [through(some @ weight.T, self.dtype) for some, weight in pairs]
        return torch.stack(parts).sum(0) + parameters.get("bias_hh", 0)


@mutant("equivalence: rounding", dtype="bfloat16")
class Products16bit(ReferenceLoop):
    """Products are rounded to 16 bits before they are added, and float32 is declared."""

    def build(self, case: Case, weights: Weights) -> Layer:
        return ReferenceLoop(Declared("float32", products="storage")).build(case, weights)


@mutant("equivalence: rounding", cell="gru", dtype="float16", device="cuda")
class ProductsByHalfGemmCuda(Loop):
    """Recurrent products are a 16-bit GEMM's, whose result is rounded to 16 bits, and float32 is declared."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        product = h.to(self.dtype) @ parameters["weight_hh"].to(self.dtype).T
        return product.to(self.compute) + parameters.get("bias_hh", 0)


@mutant("equivalence: rounding", cell="mingru_positive", dtype="float16")
class RequantisedEvery8Steps(Loop):
    """The state is rounded to 16 bits after every eighth step, as where a chunk hands it on; float32 is declared."""

    def advance(self, t: int, *arguments: Any) -> tuple[GateTensors, Tensor]:
        new, output = super().advance(t, *arguments)
        return (tuple(through(s, self.dtype) for s in new) if t % 8 == 7 else new), output


@mutant("equivalence: rounding", cell="gru", dtype="bfloat16")
class ResetProduct16bit(Loop):
    """The reset gate's product with W_hn h is rounded to 16 bits, and float32 is declared."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = (torch.sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
        n = torch.tanh(x[2] + through(r * h[2], self.dtype))
        return (n + z * (state[0] - n),)


@mutant("equivalence: rounding", dtype="float16")
class SavedGates16bit(ReferenceLoop):
    """Gates wait for the backward pass in 16 bits, and float32 is declared."""

    def build(self, case: Case, weights: Weights) -> Layer:
        return ReferenceLoop(Declared("float32", saved_gates="storage")).build(case, weights)


@mutant("equivalence: rounding", cell="mingru", dtype="bfloat16")
class SequencesProducts16bit(Loop):
    """W_ih's gradient is a product a sequence, rounded to 16 bits before they are added."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        def one(sequence: Tensor) -> Tensor:
            weight = with_gradient(parameters["weight_ih"], lambda gradient: through(gradient, self.dtype))
            return linear(sequence, weight, parameters.get("bias_ih"))

        return torch.stack([one(sequence) for sequence in x.unbind(1)], 1)


def _by_segments(x: Tensor) -> Tensor:
    ends = torch.linspace(-4, 4, 17, dtype=x.dtype, device=x.device)
    left = ((x.nan_to_num() + 4) * 2).floor().clamp(0, 15).long()
    low, high = torch.sigmoid(ends[left]), torch.sigmoid(ends[left + 1])
    return torch.where(x.abs() < 4, low + (x - ends[left]) * 2 * (high - low), torch.sigmoid(x))


@mutant("equivalence: rounding", cell="mingru", dtype="bfloat16")
class SigmoidBySegments(Loop):
    """Sigmoids are of eight straight segments on each side, as on small chips."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        z = with_value(torch.sigmoid(x[0]), _by_segments(x[0].detach()))
        return ((1 - z) * state[0] + z * x[1],)


@mutant("equivalence: rounding", cell="gru", dtype="float16")
class SigmoidByTanh16bit(Loop):
    """Sigmoids are made of a tanh in 16 bits, as a GPU's packed instruction has it."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = (self._sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
        n = torch.tanh(x[2] + r * h[2])
        return (n + z * (state[0] - n),)

    def _sigmoid(self, x: Tensor) -> Tensor:
        return 0.5 + 0.5 * through(torch.tanh(0.5 * x), self.dtype)


@mutant("equivalence: rounding", cell="gru", dtype="bfloat16")
class State16bit(Loop):
    """The state crosses steps in 16 bits, and float32 is declared."""

    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(s.to(self.dtype).to(self.compute) for s in state)


@mutant("equivalence: rounding", cell="mingru", dtype="bfloat16")
class StateGradient16bit(Loop):
    """The gradient of the state crosses backward steps in 16 bits, and float32 is declared."""

    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(with_gradient(s, lambda gradient: through(gradient, self.dtype)) for s in state)


_INSTRUCTION = 'asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));'


def _approximate(x: Tensor) -> Tensor:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return torch.utils.dlpack.from_dlpack(_kernel()(cupy.from_dlpack(x.contiguous())))


@cache
def _kernel() -> Any:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return cupy.ElementwiseKernel("float32 x", "float32 y", _INSTRUCTION, "tanh_approx")


@mutant("equivalence: rounding", cell="gru", device="cuda")
class TanhByInstructionCuda(Loop):
    """The candidate is a GPU's approximate tanh."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = (torch.sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
        exact = torch.tanh(x[2] + r * h[2])
        n = with_value(exact, _approximate(x[2].detach() + r.detach() * h[2].detach()))
        return (n + z * (state[0] - n),)


_ENDS, _INTERVALS = 4.0, 64


def _by_table(x: Tensor) -> Tensor:
    table = torch.tanh(torch.linspace(-_ENDS, _ENDS, _INTERVALS + 1, dtype=x.dtype, device=x.device))
    position = (x + _ENDS) * (_INTERVALS / (2 * _ENDS))
    left = position.nan_to_num().floor().clamp(0, _INTERVALS - 1).long()
    line = table[left] + (position - left) * (table[left + 1] - table[left])
    return torch.where(x.abs() < _ENDS, line, torch.tanh(x))


@mutant("equivalence: rounding", dtype="bfloat16")
class TanhByTable(Loop):
    """The output's tanh is read from a table of 64 intervals, between whose ends it is a straight line."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        i, f, g, o = (a + b for a, b in zip(x, h, strict=True))
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        exact = torch.tanh(c)
        return torch.sigmoid(o) * with_value(exact, _by_table(c.detach())), c


@mutant("equivalence: rounding")
class Tf32(Loop):
    """Operands of the recurrent product are cut to TF32 where IEEE was asked for."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        return tf32_linear(Rounding())(h, parameters["weight_hh"], parameters.get("bias_hh"))


@mutant("equivalence: rounding", device="cuda")
class Tf32ByHardware(Loop):
    """TF32 is switched on for products where IEEE was asked for; on a CPU: precision_tf32."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        with fp32_precision("matmul", "tf32"):
            return super().h_gates(h, parameters)


@mutant("equivalence: rounding", cell="rnn_tanh", dtype="bfloat16")
class WeightGradient16bit(Loop):
    """The gradient of W_hh is summed step by step in 16 bits, and float32 is declared."""

    def advance(self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, *arguments: Any) -> Any:
        summed = with_gradient(parameters["weight_hh"], lambda gradient: through(gradient, self.dtype))
        parameters["weight_hh"] = summed  # the next step's, so that each adds its own to a rounded sum
        return super().advance(t, x, state, parameters, *arguments)
