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

#define RNN_TANH 0
#define RNN_RELU 1
#define LSTM 2
#define GRU 3

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

#if CELL == LSTM || CELL == GRU
#define GATE_PLANES 4
#define GATES (CELL == LSTM ? 4 : 3)
#else
#define GATE_PLANES 1
#define GATES 1
#endif

__device__ inline acc_t load_bias(const scalar_t* bias, const ElementIndex& element, int gate) {
    return bias ? widen(bias[gate * element.hidden + element.j]) : (acc_t)0;
}

__device__ inline acc_t load_saved_gate(const acc_t* gates, const ElementIndex& element, int plane) {
    return gates[element.offset(plane, GATE_PLANES * element.hidden)];
}

#if !BACKWARD
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
#if CELL == LSTM
    const acc_t i = sigmoid(from_x[0] + from_h[0]), f = sigmoid(from_x[1] + from_h[1]);
    const acc_t g = tanh(from_x[2] + from_h[2]), o = sigmoid(from_x[3] + from_h[3]);
    const acc_t saved_gates[] = {i, f, g, o};
    const acc_t state_after = f * state_before + i * g, out = o * tanh(state_after);
#elif CELL == GRU
    const acc_t r = sigmoid(from_x[0] + from_h[0]), z = sigmoid(from_x[1] + from_h[1]);
    const acc_t n = tanh(from_x[2] + r * from_h[2]);
    const acc_t saved_gates[] = {r, z, n, from_h[2]};
    const acc_t state_after = ((acc_t)1 - z) * n + z * state_before, out = state_after;
#else
    const acc_t sum = from_x[0] + from_h[0];
    const acc_t state_after = CELL == RNN_TANH ? tanh(sum) : (sum > 0 || sum != sum ? sum : (acc_t)0), out = state_after;
#endif
#if SAVE_GATES && (CELL == LSTM || CELL == GRU)
    for (int plane = 0; plane < GATE_PLANES; ++plane)
        params.gates[element.offset(plane, GATE_PLANES * hidden)] = saved_gates[plane];
#endif
    params.state[element.new_state(hidden)] = state_after;
    params.h[element.new_state(params.h_features)] = narrow(out);
}

#else
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
    const acc_t one = 1;
#if CELL == LSTM
    const acc_t i = load_saved_gate(params.gates, element, 0), f = load_saved_gate(params.gates, element, 1);
    const acc_t g = load_saved_gate(params.gates, element, 2), o = load_saved_gate(params.gates, element, 3);
    const acc_t c = tanh(state_after), d_c = params.dc_carry[carry_index] + dh * o * (one - c * c);
    params.dc_carry[carry_index] = d_c * f;
    params.dh_carry[carry_index] = 0;
    const acc_t from_x[GATES] = {
        d_c * g * i * (one - i), d_c * state_before * f * (one - f), d_c * i * (one - g * g), dh * c * o * (one - o)};
    const acc_t* from_h = from_x;
#elif CELL == GRU
    const acc_t r = load_saved_gate(params.gates, element, 0), z = load_saved_gate(params.gates, element, 1);
    const acc_t n = load_saved_gate(params.gates, element, 2), q = load_saved_gate(params.gates, element, 3);
    const acc_t d_n = dh * (one - z) * (one - n * n), d_r = d_n * q * r * (one - r);
    const acc_t d_z = dh * (state_before - n) * z * (one - z);
    params.dh_carry[carry_index] = dh * z;
    const acc_t from_x[GATES] = {d_r, d_z, d_n}, from_h[GATES] = {d_r, d_z, d_n * r};
#else
    params.dh_carry[carry_index] = 0;
    const acc_t from_x[GATES] = {
        CELL == RNN_TANH ? dh * (one - state_after * state_after) : (state_after > 0 ? dh : (acc_t)0)};
    const acc_t* from_h = from_x;
#endif
    for (int gate = 0; gate < GATES; ++gate) {
        params.d_gates_x[element.offset(gate, params.gate_features)] = narrow(from_x[gate]);
        params.d_gates_h[element.offset(gate, params.gate_features)] = narrow(from_h[gate]);
    }
}
#endif
