"""Wrong in the text of a kernel that runs all steps: fused_cpu's, in Numba."""

from __future__ import annotations

from pytest_ecornn.selfcheck._changed_source import ChangedFusedCpu
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: output")
class BiasScaled(ChangedFusedCpu):
    """A sum of int8 weights starts from the bias, which is scaled with it and then added once more."""

    weight_rounding = "int8"
    file = "panels.py"
    text = "builder.store(zeros if is_scaled else load_first(row), parts[0])"
    replacement = "builder.store(load_first(row), parts[0])"


@mutant("equivalence: output")
class BiasTwiceInTheSecondPanel(ChangedFusedCpu):
    """Outputs 32 to 63 of the recurrent product have their bias twice."""

    file = "layout.py"
    text = "else pad(bias, (0, width - bias.shape[0]))"
    replacement = f"{text} + pad(bias[PANEL : 2 * PANEL], (PANEL, width - PANEL - bias[PANEL : 2 * PANEL].shape[0]))"


@mutant("equivalence: output", cell="gru")
class FinishedSequenceGoesOn(ChangedFusedCpu):
    """After its length a sequence's state takes further steps, by its last sums. The output is right."""

    file = "numba_kernels.py"
    text = "                    fill(out_row, hidden)\n"
    replacement = (
        "                    sums_row, h, c = at(every_sum, b * width), at(every_h, b * depth), at(every_c, b * hidden)\n"
        f"                    step((sums_row, sums_row, h, c, out_row, saved_row, old_row), hidden)\n{text}"
    )


@mutant("equivalence: grad x")
class ForgetAndInputGradientsSwapped(ChangedFusedCpu):
    """The backward pass stores the gradients of f and i in each other's place."""

    file = "cell_steps.py"
    text = "d_c * g * (i * (1.0 - i)), d_c * before * (f * (1.0 - f))"
    replacement = "d_c * before * (f * (1.0 - f)), d_c * g * (i * (1.0 - i))"


@mutant("equivalence: grad x or grad initial h", cell="gru")
class GradientPassesAReset(ChangedFusedCpu):
    """The backward pass hands the state's gradient to the step before a reset."""

    file = "numba_kernels.py"
    text = "if s < end and is_reset(raw, time_of(raw, s, end), b):"
    replacement = "if s < 0 and is_reset(raw, time_of(raw, s, end), b):"


@mutant("equivalence: grad x", cell="gru")
class IncomingGradientAtTheLastStep(ChangedFusedCpu):
    """The final state's gradient enters at the last step of all rather than at a sequence's own."""

    file = "numba_kernels.py"
    text = "if s == end - 1:"
    replacement = "if s == raw[STEPS] - 1:"


@mutant("equivalence: output", cell="rnn_tanh")
class InputsByTheScalesOfStates(ChangedFusedCpu):
    """The product with W_ih in int8 has the scales of W_hh."""

    weight_rounding = "int8"
    file = "numba_kernels.py"
    text = "multiply(w_ih, ih_scales,"
    replacement = "multiply(w_ih, hh_scales,"


@mutant("equivalence: output", cell="rnn_tanh")
class LastOddInputLeftOut(ChangedFusedCpu):
    """The last of an odd number of inputs of a product has a weight of zero."""

    file = "layout.py"
    text = "matrix = pad(matrix, (0, missing[1],"
    replacement = "matrix = pad(matrix[:, : inputs // DEPTH * DEPTH], (0, inputs % DEPTH + missing[1],"


@mutant("equivalence: output", cell="rnn_tanh")
class OddInputsOfASingleRow(ChangedFusedCpu):
    """Of a row that is multiplied alone, the sum over odd inputs is not added to that over even ones."""

    file = "panels.py"
    text = "total = builder.fadd(total, builder.load(other))"
    replacement = "total = builder.fadd(total, ir.Constant(vector, [0.0] * lanes))"


@mutant("poison", cell="gru")
class PaddingOfTheStateUnwritten(ChangedFusedCpu):
    """The element that makes an odd number of units even holds what the memory held."""

    file = "numba_kernels.py"
    text = "fill(at(every_h, b * depth + hidden), depth - hidden)"
    replacement = "pass"


@mutant("equivalence: grad weight_hh or grad bias_hh", cell="gru")
class ResetGateLeftOutOfTheWeights(ChangedFusedCpu):
    """The gradient of W_hh has dn where r * dn belongs. All others are right."""

    file = "numba_kernels.py"
    text = "k, load(sums, k))"
    replacement = "k, load(d_row, k))"


@mutant("equivalence: output")
class ResetLeavesTheCell(ChangedFusedCpu):
    """A reset clears h and not c."""

    file = "numba_kernels.py"
    text = "fill(at(every_h, b * depth), hidden)\n                    fill(at(every_c, b * hidden), hidden)"
    replacement = "fill(at(every_h, b * depth), hidden)"


@mutant("equivalence: output", cell="gru")
class ReverseFromTheLastStep(ChangedFusedCpu):
    """The reverse direction starts at the last step of all rather than at a sequence's own."""

    file = "numba_kernels.py"
    text = "end - 1 - s if raw[REVERSE] != 0 and s < end else s"
    replacement = "raw[STEPS] - 1 - s if raw[REVERSE] != 0 else s"


@mutant("equivalence: output", cell="rnn_tanh")
class RowOfFourReadsTheNext(ChangedFusedCpu):
    """Of four rows that are multiplied at once, each has the next one's product."""

    file = "panels.py"
    text = "builder.mul(ir.Constant(word, row), x_stride)"
    replacement = "builder.mul(ir.Constant(word, (row + 1) % 4 if rows == 4 else row), x_stride)"


@mutant("equivalence: grad weight_hh", cell="rnn_tanh")
class SavedStateAfterTheStep(ChangedFusedCpu):
    """The state that a step ends with is saved in place of that which it starts from."""

    file = "cell_steps.py"
    text = 'row.store(row.load("h"), "old")\n        row.store(h, "saved")'
    replacement = 'row.store(h, "old")\n        row.store(h, "saved")'


@mutant("equivalence: output")
class ScaleOfTheMatrix(ChangedFusedCpu):
    """Packed int8 weights have the scale of their matrix rather than of their row."""

    weight_rounding = "int8"
    file = "layout.py"
    text = "values, scales = quantize(weight)"
    replacement = (
        "values, scales = quantize(weight.reshape(1, -1))\n"
        "        values, scales = values.view(weight.shape), scales.expand(weight.shape[0])"
    )


@mutant("equivalence: output", cell="gru")
class ScalesOfTheFirstOutputs(ChangedFusedCpu):
    """Each panel has the scales of the first."""

    weight_rounding = "int8"
    file = "panels.py"
    text = "own_scales = at(scales, panel * PANEL)"
    replacement = "own_scales = at(scales, 0)"


@mutant("equivalence: output", cell="gru")
class SecondTaskFromTheFirstsState(ChangedFusedCpu):
    """Each task starts from the initial states of the first one's sequences."""

    file = "numba_kernels.py"
    text = "copy_row(out, raw[H0], b * hidden,"
    replacement = "copy_row(out, raw[H0], (b - first) * hidden,"


@mutant("equivalence: output")
class TailTakesTheGateBefore(ChangedFusedCpu):
    """Units that fill no vector take the pre-activations of the gate before, from the second gate on."""

    file = "cell_steps.py"
    text = "return self._elements.load(*self._pointers[name], self._blocks[block])"
    replacement = (
        "is_tail = self._elements.count == 1\n"
        "        return self._elements.load(*self._pointers[name], self._blocks[max(block - is_tail, 0)])"
    )


@mutant("equivalence: output", dtype="bfloat16")
class TanhOfTheRoundedCell(ChangedFusedCpu):
    """h is o tanh(c) of c in 16 bits. The next step's c is not rounded."""

    file = "cell_steps.py"
    text = "h = o * c.tanh()"
    replacement = 'row.store(c, "out")\n    h = o * row.load("out").tanh()'


@mutant("equivalence: output", cell="gru")
class WeightsTowardZero(ChangedFusedCpu):
    """Packed weights are rounded to bfloat16 toward zero."""

    weight_rounding = "bfloat16"
    file = "layout.py"
    text = "return pack(weight.to(dtype)), own_bias, None"
    replacement = "return pack((weight.view(torch.int32) & -(2**16)).view(torch.float32).to(dtype)), own_bias, None"
