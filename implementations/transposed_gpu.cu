// Maths: one step of LSTM, GRU (torch.nn's gate order) or RNN after both products, and its derivative; CELL picks the cell.
//   The states lie as EcoRNN proposes (arXiv 1805.08899): batch-minor, or, with BATCH_MINOR 0, row-major as usual.
// Layout: element (t, b, f) of [T, B, F] lies at f * (T * B) + t * B + b batch-minor, at (t * B + b) * F + f row-major. S is 4
//   blocks for LSTM (i f g o) and GRU (r z n, W_hn h + b_hn), 1 for RNN. States have T + 1 steps, the initial one at step 0,
//   with `reverse` at step T: step t reads the state on one of its sides and writes the one on the other.
//   gates [T, B, S*H] acc_t, read, with KEEP_GATES written: pre-activations from x in, activated gates out
//   product [1, B, gate_features] acc_t, read: W_hh h; null for 0. bias_ih, bias_hh [G*H] scalar_t, read, null for none
//   state [T+1, B, H] acc_t: c of LSTM, h of the others. h [T+1, B, h_features] scalar_t: what the next product reads
//   lengths [B] int64, null for none. A sequence that is over keeps its state.
//   d_output [T, B, H] acc_t, read. product_grad [1, B, h_features] acc_t, read, null for 0: W_hh^T of the last d_gates_h
//   passed [1, B, H] acc_t, read and written: what reaches h_(t-1) beside the product. d_cell [1, B, H] likewise, of c
//   d_gates_x, d_gates_h [T, B, gate_features] scalar_t, written: with respect to the products' results; differ for GRU only
//   h_features >= H, gate_features >= G*H: operands of products are padded, and the padding is left alone.
//   No two may alias, but d_gates_x and d_gates_h. Alignment: of the element.
// Launch: a thread per (b, h), threads of a warp along the minor dimension; no shared memory.
// Cost: LSTM forward reads 8 H B and writes 5 H B values of acc_t and 1 of scalar_t a step, about 40 operations each.
// Limits: B * H < 2^31; offsets are 64-bit with WIDE_OFFSETS, else no array may have 2^31 elements.
// Order: a thread reads and writes its own elements only; steps are ordered by launches. No sums: bit-equal repeats.
#include "storage.cuh"

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

__device__ inline index place(index rows, index row, index features, index feature) {
    return BATCH_MINOR ? feature * rows + row : row * features + feature;
}

__device__ inline acc_t sigmoid(acc_t x) { return (acc_t)1 / ((acc_t)1 + exp(-x)); }

struct Where {
    index b, j, batch, hidden, row, rows, before, after, all;
    bool is_inside, is_alive;
    __device__ index of(int block, index features) const { return place(rows, row, features, block * hidden + j); }
    __device__ index in_step(int block, index features) const { return place(batch, b, features, block * hidden + j); }
    __device__ index old_state(index features) const { return place(all, before, features, j); }
    __device__ index new_state(index features) const { return place(all, after, features, j); }
};

__device__ inline Where locate(const length* lengths, int t, int steps, int batch, int hidden, int reverse) {
    const unsigned element = blockIdx.x * blockDim.x + threadIdx.x, minor = BATCH_MINOR ? batch : hidden;
    Where at;
    at.is_inside = element < (unsigned)batch * hidden;
    at.b = BATCH_MINOR ? element % minor : element / minor;
    at.j = BATCH_MINOR ? element / minor : element % minor;
    at.batch = batch, at.hidden = hidden;
    at.row = (index)t * batch + at.b, at.rows = (index)steps * batch;
    at.before = at.row + (reverse ? batch : 0), at.after = at.row + (reverse ? 0 : batch), at.all = at.rows + batch;
    at.is_alive = at.is_inside && (!lengths || t < lengths[at.b]);
    return at;
}

#if CELL == LSTM || CELL == GRU
#define BLOCKS 4
#define GATES (CELL == LSTM ? 4 : 3)
#else
#define BLOCKS 1
#define GATES 1
#endif

__device__ inline acc_t bias_of(const scalar_t* bias, const Where& at, int gate) {
    return bias ? widen(bias[gate * at.hidden + at.j]) : (acc_t)0;
}

__device__ inline acc_t saved(const acc_t* gates, const Where& at, int block) {
    return gates[at.of(block, BLOCKS * at.hidden)];
}

extern "C" __global__ void step_forward(
    acc_t* gates, const acc_t* product, const scalar_t* bias_ih, const scalar_t* bias_hh, acc_t* state, scalar_t* h,
    const length* lengths, int t, int steps, int batch, int hidden, int h_features, int gate_features, int reverse) {
    const Where at = locate(lengths, t, steps, batch, hidden, reverse);
    if (!at.is_inside) return;
    const acc_t old = state[at.old_state(hidden)];
    if (!at.is_alive) {
        state[at.new_state(hidden)] = old;
        h[at.new_state(h_features)] = h[at.old_state(h_features)];
        return;
    }
    acc_t from_x[GATES], from_h[GATES];
    for (int gate = 0; gate < GATES; ++gate) {
        from_x[gate] = gates[at.of(gate, BLOCKS * hidden)] + bias_of(bias_ih, at, gate);
        from_h[gate] = (product ? product[at.in_step(gate, gate_features)] : (acc_t)0) + bias_of(bias_hh, at, gate);
    }
#if CELL == LSTM
    const acc_t i = sigmoid(from_x[0] + from_h[0]), f = sigmoid(from_x[1] + from_h[1]);
    const acc_t g = tanh(from_x[2] + from_h[2]), o = sigmoid(from_x[3] + from_h[3]);
    const acc_t kept[] = {i, f, g, o};
    const acc_t next = f * old + i * g, out = o * tanh(next);
#elif CELL == GRU
    const acc_t r = sigmoid(from_x[0] + from_h[0]), z = sigmoid(from_x[1] + from_h[1]);
    const acc_t n = tanh(from_x[2] + r * from_h[2]);
    const acc_t kept[] = {r, z, n, from_h[2]};
    const acc_t next = ((acc_t)1 - z) * n + z * old, out = next;
#else
    const acc_t sum = from_x[0] + from_h[0];
    const acc_t next = CELL == RNN_TANH ? tanh(sum) : (sum > 0 || sum != sum ? sum : (acc_t)0), out = next;
#endif
#if KEEP_GATES && (CELL == LSTM || CELL == GRU)
    for (int block = 0; block < BLOCKS; ++block) gates[at.of(block, BLOCKS * hidden)] = kept[block];
#endif
    state[at.new_state(hidden)] = next;
    h[at.new_state(h_features)] = narrow(out);
}

extern "C" __global__ void step_backward(
    const acc_t* gates, const acc_t* state, const acc_t* d_output, const acc_t* product_grad, acc_t* passed,
    acc_t* d_cell, scalar_t* d_gates_x, scalar_t* d_gates_h, const length* lengths, int t, int steps, int batch, int hidden,
    int h_features, int gate_features, int reverse) {
    const Where at = locate(lengths, t, steps, batch, hidden, reverse);
    if (!at.is_inside) return;
    const index here = at.in_step(0, hidden);
    acc_t total = passed[here] + (product_grad ? product_grad[at.in_step(0, h_features)] : (acc_t)0);
    if (!at.is_alive) {
        for (int gate = 0; gate < GATES; ++gate) {
            d_gates_x[at.of(gate, gate_features)] = narrow((acc_t)0);
            d_gates_h[at.of(gate, gate_features)] = narrow((acc_t)0);
        }
        passed[here] = total;
        return;
    }
    total += d_output[at.of(0, hidden)];
    const acc_t one = 1, now = state[at.new_state(hidden)], old = state[at.old_state(hidden)];
#if CELL == LSTM
    const acc_t i = saved(gates, at, 0), f = saved(gates, at, 1), g = saved(gates, at, 2), o = saved(gates, at, 3);
    const acc_t c = tanh(now), d_c = d_cell[here] + total * o * (one - c * c);
    d_cell[here] = d_c * f;
    passed[here] = 0;
    const acc_t from_x[GATES] = {
        d_c * g * i * (one - i), d_c * old * f * (one - f), d_c * i * (one - g * g), total * c * o * (one - o)};
    const acc_t* from_h = from_x;
#elif CELL == GRU
    const acc_t r = saved(gates, at, 0), z = saved(gates, at, 1), n = saved(gates, at, 2), q = saved(gates, at, 3);
    const acc_t d_n = total * (one - z) * (one - n * n), d_r = d_n * q * r * (one - r);
    const acc_t d_z = total * (old - n) * z * (one - z);
    passed[here] = total * z;
    const acc_t from_x[GATES] = {d_r, d_z, d_n}, from_h[GATES] = {d_r, d_z, d_n * r};
#else
    passed[here] = 0;
    const acc_t from_x[GATES] = {CELL == RNN_TANH ? total * (one - now * now) : (now > 0 ? total : (acc_t)0)};
    const acc_t* from_h = from_x;
#endif
    for (int gate = 0; gate < GATES; ++gate) {
        d_gates_x[at.of(gate, gate_features)] = narrow(from_x[gate]);
        d_gates_h[at.of(gate, gate_features)] = narrow(from_h[gate]);
    }
}
