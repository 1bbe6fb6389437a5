// Maths: one step of LSTM, GRU (torch.nn's gate order) or RNN after both products, and its derivative; CELL picks the cell.
//   BACKWARD picks the derivative. The states lie as EcoRNN proposes (arXiv 1805.08899): batch-minor, or, with BATCH_MINOR 0,
//   row-major as usual.
// Layout: of Params (below): element (t, b, f) of [T, B, F] lies at f * (T * B) + t * B + b batch-minor, at (t * B + b) * F + f
//   row-major. S is 4 gate planes for LSTM (i f g o) and GRU (r z n, W_hn h + b_hn), 1 for RNN. States have T + 1 steps, the
//   initial one at step 0, with `reverse` at step T: step t reads the state on one side and writes the one on the other.
//   gates [T, B, S*H] acc_t, read, with SAVE_GATES written: pre-activations from x in, activated gates out
//   recurrent [1, B, gate_features] acc_t, read: W_hh h; null for 0. bias_ih, bias_hh [G*H] scalar_t, read, null for none
//   state [T+1, B, H] acc_t: c of LSTM, h of the others. h [T+1, B, h_features] scalar_t: what the next product reads
//   lengths [B] int64, null for none. The state of a sequence that is over does not change.
//   d_output [T, B, H] acc_t, read. dh_recurrent [1, B, h_features] acc_t, read, null for 0: W_hh^T of the last d_gates_h
//   dh_carry [1, B, H] acc_t, read and written: what reaches h_(t-1) beside the product. dc_carry [1, B, H] likewise, of c
//   d_gates_x, d_gates_h [T, B, gate_features] scalar_t, written: with respect to the products' results; differ for GRU only
//   h_features >= H, gate_features >= G*H: operands of products are padded, and the padding is left alone.
//   No two may alias, but d_gates_x and d_gates_h. Alignment: of the element.
// Launch: a thread per (b, h), threads of a warp along the minor dimension; no shared memory.
// Cost: LSTM forward reads 8 H B and writes 5 H B values of acc_t and 1 of scalar_t a step, about 40 operations each.
// Limits: B * H < 2^31; offsets are 64-bit with WIDE_OFFSETS, else no array may have 2^31 elements.
// Order: a thread reads and writes its own elements only; steps are ordered by launches. No sums: bit-equal repeats.
#include "ecornn/common/dtypes.cuh"
#include "ecornn/rnn/nn_cells.cuh"

#if WIDE_OFFSETS
typedef long long index;
#else
typedef int index;
#endif
typedef long long length;

#if BACKWARD
struct Params {
    const acc_t *gates, *state, *d_output, *dh_recurrent;
    acc_t *dh_carry, *dc_carry;
    scalar_t *d_gates_x, *d_gates_h;
    const length* lengths;
    int t, steps, batch, hidden, h_features, gate_features, reverse;
};
#else
struct Params {
    acc_t* gates;
    const acc_t* recurrent;
    const scalar_t *bias_ih, *bias_hh;
    acc_t* state;
    scalar_t* h;
    const length* lengths;
    int t, steps, batch, hidden, h_features, gate_features, reverse;
};
#endif
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

__device__ inline index flat_offset(index rows, index row, index features, index feature) {
    return BATCH_MINOR ? feature * rows + row : row * features + feature;
}

__device__ inline acc_t sigmoid(acc_t x) { return (acc_t)1 / ((acc_t)1 + exp(-x)); }

struct ElementIndex {
    index b, j, batch, hidden, row, rows, row_before, row_after, state_rows;
    bool is_inside, is_active;
    __device__ index offset(int plane, index features) const { return flat_offset(rows, row, features, plane * hidden + j); }
    __device__ index offset_in_step(int plane, index features) const {
        return flat_offset(batch, b, features, plane * hidden + j);
    }
    __device__ index old_state(index features) const { return flat_offset(state_rows, row_before, features, j); }
    __device__ index new_state(index features) const { return flat_offset(state_rows, row_after, features, j); }
};

__device__ inline ElementIndex make_index(const Params& params) {
    const int batch = params.batch, hidden = params.hidden;
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, minor = BATCH_MINOR ? batch : hidden;
    ElementIndex element;
    element.is_inside = thread < (unsigned)batch * hidden;
    element.b = BATCH_MINOR ? thread % minor : thread / minor;
    element.j = BATCH_MINOR ? thread / minor : thread % minor;
    element.batch = batch, element.hidden = hidden;
    element.row = (index)params.t * batch + element.b, element.rows = (index)params.steps * batch;
    element.row_before = element.row + (params.reverse ? batch : 0);
    element.row_after = element.row + (params.reverse ? 0 : batch);
    element.state_rows = element.rows + batch;
    element.is_active = element.is_inside && (!params.lengths || params.t < params.lengths[element.b]);
    return element;
}

constexpr int GATE_PLANES = GATES > 1 ? 4 : 1;

__device__ inline acc_t load_bias(const scalar_t* bias, const ElementIndex& element, int gate) {
    return bias ? widen(bias[gate * element.hidden + element.j]) : (acc_t)0;
}

__device__ inline acc_t load_saved_gate(const acc_t* gates, const ElementIndex& element, int plane) {
    return gates[element.offset(plane, GATE_PLANES * element.hidden)];
}

#if !BACKWARD
// state: c of LSTM, h of the others. saved_gates: LSTM i f g o, GRU r z n and W_hn h + b_hn.
struct StepResult {
    acc_t state, h, saved_gates[4];
};

__device__ inline StepResult cell_forward(acc_t state_before, const acc_t* from_x, const acc_t* from_h) {
    if (CELL == LSTM) {
        const acc_t i = sigmoid(from_x[LSTM_I] + from_h[LSTM_I]), f = sigmoid(from_x[LSTM_F] + from_h[LSTM_F]);
        const acc_t g = tanh(from_x[LSTM_G] + from_h[LSTM_G]), o = sigmoid(from_x[LSTM_O] + from_h[LSTM_O]);
        const acc_t c = f * state_before + i * g;
        return {c, o * tanh(c), {i, f, g, o}};
    }
    if (CELL == GRU) {
        const acc_t r = sigmoid(from_x[GRU_R] + from_h[GRU_R]), z = sigmoid(from_x[GRU_Z] + from_h[GRU_Z]);
        const acc_t n = tanh(from_x[GRU_N] + r * from_h[GRU_N]), h = ((acc_t)1 - z) * n + z * state_before;
        return {h, h, {r, z, n, from_h[GRU_N]}};
    }
    const acc_t sum = from_x[0] + from_h[0], h = CELL == RNN_TANH ? tanh(sum) : (sum > 0 || sum != sum ? sum : (acc_t)0);
    return {h, h, {}};
}

extern "C" __global__ void step_forward(const __grid_constant__ Params params) {
    const ElementIndex element = make_index(params);
    if (!element.is_inside) return;
    const int hidden = params.hidden;
    const acc_t state_before = params.state[element.old_state(hidden)];
    if (!element.is_active) {
        params.state[element.new_state(hidden)] = state_before;
        params.h[element.new_state(params.h_features)] = params.h[element.old_state(params.h_features)];
        return;
    }
    acc_t from_x[GATES], from_h[GATES];
    for (int gate = 0; gate < GATES; ++gate) {
        from_x[gate] = params.gates[element.offset(gate, GATE_PLANES * hidden)] + load_bias(params.bias_ih, element, gate);
        from_h[gate] = (params.recurrent ? params.recurrent[element.offset_in_step(gate, params.gate_features)] : (acc_t)0)
                       + load_bias(params.bias_hh, element, gate);
    }
    const StepResult result = cell_forward(state_before, from_x, from_h);
    if (SAVE_GATES && GATES > 1)
        for (int plane = 0; plane < GATE_PLANES; ++plane)
            params.gates[element.offset(plane, GATE_PLANES * hidden)] = result.saved_gates[plane];
    params.state[element.new_state(hidden)] = result.state;
    params.h[element.new_state(params.h_features)] = narrow(result.h);
}

#else
// Gradients of the gates, and what reaches h and c before the step beside the product.
struct StepGradients {
    acc_t gates_x[GATES], gates_h[GATES], dh, d_c;
};

// dh: the gradient of h after the step. d_c: that of c, but for what passes through h.
__device__ inline StepGradients cell_backward(const acc_t* saved_gates, acc_t state_before, acc_t state_after, acc_t dh,
                                              acc_t d_c) {
    const acc_t one = 1;
    StepGradients result = {};
    if (CELL == LSTM) {
        const acc_t i = saved_gates[LSTM_I], f = saved_gates[LSTM_F], g = saved_gates[LSTM_G], o = saved_gates[LSTM_O];
        const acc_t tanh_c = tanh(state_after);
        d_c += dh * o * (one - tanh_c * tanh_c);
        result.d_c = d_c * f;
        result.gates_x[LSTM_I] = d_c * g * i * (one - i), result.gates_x[LSTM_F] = d_c * state_before * f * (one - f);
        result.gates_x[LSTM_G] = d_c * i * (one - g * g), result.gates_x[LSTM_O] = dh * tanh_c * o * (one - o);
    }
    if (CELL == GRU) {
        const acc_t r = saved_gates[GRU_R], z = saved_gates[GRU_Z], n = saved_gates[GRU_N];
        const acc_t d_n = dh * (one - z) * (one - n * n);
        result.dh = dh * z;
        result.gates_x[GRU_R] = d_n * saved_gates[GRU_EXTRA % GATE_PLANES] * r * (one - r);
        result.gates_x[GRU_Z] = dh * (state_before - n) * z * (one - z);
        result.gates_x[GRU_N] = d_n;
    }
    if (CELL == RNN_TANH) result.gates_x[0] = dh * (one - state_after * state_after);
    if (CELL == RNN_RELU) result.gates_x[0] = state_after > 0 ? dh : (acc_t)0;
    for (int gate = 0; gate < GATES; ++gate) result.gates_h[gate] = result.gates_x[gate];
    if (CELL == GRU) result.gates_h[GRU_N] = result.gates_x[GRU_N] * saved_gates[GRU_R];
    return result;
}

extern "C" __global__ void step_backward(const __grid_constant__ Params params) {
    const ElementIndex element = make_index(params);
    if (!element.is_inside) return;
    const int hidden = params.hidden;
    const index carry_index = element.offset_in_step(0, hidden);
    acc_t dh = params.dh_carry[carry_index]
               + (params.dh_recurrent ? params.dh_recurrent[element.offset_in_step(0, params.h_features)] : (acc_t)0);
    if (!element.is_active) {
        for (int gate = 0; gate < GATES; ++gate) {
            params.d_gates_x[element.offset(gate, params.gate_features)] = narrow((acc_t)0);
            params.d_gates_h[element.offset(gate, params.gate_features)] = narrow((acc_t)0);
        }
        params.dh_carry[carry_index] = dh;
        return;
    }
    dh += params.d_output[element.offset(0, hidden)];
    const acc_t state_after = params.state[element.new_state(hidden)], state_before = params.state[element.old_state(hidden)];
    acc_t saved_gates[GATE_PLANES];
    for (int plane = 0; plane < GATE_PLANES && GATES > 1; ++plane)
        saved_gates[plane] = load_saved_gate(params.gates, element, plane);
    const acc_t d_c = CELL == LSTM ? params.dc_carry[carry_index] : (acc_t)0;
    const StepGradients gradients = cell_backward(saved_gates, state_before, state_after, dh, d_c);
    params.dh_carry[carry_index] = gradients.dh;
    if (CELL == LSTM) params.dc_carry[carry_index] = gradients.d_c;
    for (int gate = 0; gate < GATES; ++gate) {
        params.d_gates_x[element.offset(gate, params.gate_features)] = narrow(gradients.gates_x[gate]);
        params.d_gates_h[element.offset(gate, params.gate_features)] = narrow(gradients.gates_h[gate]);
    }
}
#endif
