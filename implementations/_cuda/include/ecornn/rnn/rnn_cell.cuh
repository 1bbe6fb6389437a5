// The cell, forward and backward: one step of LSTM, GRU (torch.nn's gate order) or RNN for one unit of one sequence, in
// float32; CELL picks the cell. By the hardware's approximate exp2 and reciprocal, good to 2 units in the last place.
#pragma once
#include "ecornn/common/dtypes.cuh"
#include "ecornn/rnn/nn_cells.cuh"

#define CUDART_NAN_F (0.0f / 0.0f)

struct CellState {
    float h, c;
};

#ifdef __CUDA_ARCH__
__device__ inline float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ inline float rcp_approx(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
#else
__device__ inline float exp2_approx(float x) { return exp2f(x); }
__device__ inline float rcp_approx(float x) { return 1.0f / x; }
#endif

#if STORAGE_FLOAT32
// The rounding error of the exponent's product is added again: it would grow with x.
__device__ inline float exp_approx(float x) {
    const float product = x * 1.44269504f, left = fmaf(x, 1.44269504f, -product) + x * 1.92596303e-8f;
    const float power = exp2_approx(product);
    return fabsf(product) < 126.0f ? fmaf(power, left * 0.69314718f, power) : power;
}
#else
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }
#endif

__device__ inline float sigmoid(float x) { return rcp_approx(1.0f + exp_approx(-x)); }

#if STORAGE_FLOAT32
// Near 0 by a polynomial, fitted for the least relative error there.
__device__ inline float tanh_approx(float x) {
    const float square = x * x, power = exp_approx(-2.0f * fabsf(x));
    const float high = fmaf(fmaf(fmaf(-0.00628246693f, square, 0.0210777540f), square, -0.0538538583f), square, 0.133326024f);
    const float series = fmaf(fmaf(high, square, -0.333333194f), square, 1.0f);
    return square < 0.3025f ? x * series : copysignf((1.0f - power) * rcp_approx(1.0f + power), x);
}
#else
// Near 0, where 2 sigmoid(2 x) - 1 would lose its digits, by the first terms of its series.
__device__ inline float tanh_approx(float x) {
    const float square = x * x;
    const float series = fmaf(fmaf(fmaf(-0.053968254f, square, 0.13333333f), square, -0.33333333f), square, 1.0f);
    return square < 0.1f ? x * series : fmaf(2.0f, sigmoid(2.0f * x), -1.0f);
}
#endif

// GRU's n as it is saved: the backward pass, which has h rounded to scalar_t, is to compute h - n as it was. Where h is not
// small that is not what n is needed for.
__device__ inline float stored_n(float n, float h) { return fabsf(h) <= 1 ? n + (widen(narrow(h)) - h) : n; }

// x: W_ih x with all biases but GRU's b_hn, which is `bias_n`. recurrent: W_hh h. saved_gates: for the backward pass, LSTM i f
// g o, GRU r z n and W_hn h + b_hn.
__device__ inline CellState cell_forward(CellState before, const float* x, const float* recurrent, float bias_n,
                                         float* saved_gates) {
    if (CELL == RNN_TANH) return {tanh_approx(x[0] + recurrent[0]), 0};
    if (CELL == RNN_RELU) {
        const float sum = x[0] + recurrent[0];
        return {sum > 0 || sum != sum ? sum : 0, 0};
    }
    if (CELL == GRU) {
        const float r = sigmoid(x[GRU_R] + recurrent[GRU_R]), z = sigmoid(x[GRU_Z] + recurrent[GRU_Z]);
        const float recurrent_n = recurrent[GRU_N] + bias_n, n = tanh_approx(x[GRU_N] + r * recurrent_n);
        saved_gates[GRU_R] = r, saved_gates[GRU_Z] = z, saved_gates[GRU_N] = stored_n(n, before.h);
        saved_gates[GRU_EXTRA] = recurrent_n;
        return {fmaf(z, before.h - n, n), 0};
    }
    const float i = sigmoid(x[LSTM_I] + recurrent[LSTM_I]), f = sigmoid(x[LSTM_F] + recurrent[LSTM_F]);
    const float g = tanh_approx(x[LSTM_G] + recurrent[LSTM_G]), o = sigmoid(x[LSTM_O] + recurrent[LSTM_O]);
    saved_gates[LSTM_I] = i, saved_gates[LSTM_F] = f, saved_gates[LSTM_G] = g, saved_gates[LSTM_O] = o;
    const float c = fmaf(f, before.c, i * g);
    return {o * tanh_approx(c), c};
}

// Local gradients of a step. d_c takes d_h * dc_dh first; then the gates' gradients are d_h, LSTM's but o's d_c, times `gates`,
// that of GRU's W_hn h + b_hn is d_h * recurrent, and the state before has d_h * h and d_c * c.
struct LocalGradients {
    float gates[GATES], recurrent, dc_dh, h, c;
};

// saved_gates: of cell_forward. h: RNN's state after the step, GRU's before it. c, c_before: LSTM's state after the step and
// before it.
__device__ inline LocalGradients cell_local_gradients(const float* saved_gates, float h, float c, float c_before) {
    LocalGradients result = {};
    if (CELL == RNN_TANH) result.gates[0] = 1 - h * h;
    if (CELL == RNN_RELU) result.gates[0] = h <= 0 ? 0 : 1;
    if (CELL == GRU) {
        const float r = saved_gates[GRU_R], z = saved_gates[GRU_Z], n = saved_gates[GRU_N];
        const float of_n = (1 - z) * (1 - n * n);
        result.gates[GRU_R] = of_n * saved_gates[GRU_EXTRA] * r * (1 - r), result.gates[GRU_Z] = (h - n) * z * (1 - z);
        result.gates[GRU_N] = of_n, result.recurrent = of_n * r, result.h = z;
    }
    if (CELL == LSTM) {
        const float i = saved_gates[LSTM_I], f = saved_gates[LSTM_F], g = saved_gates[LSTM_G], o = saved_gates[LSTM_O];
        const float tanh_c = tanh_approx(c);
        result.gates[LSTM_I] = g * i * (1 - i), result.gates[LSTM_F] = c_before * f * (1 - f);
        result.gates[LSTM_G] = i * (1 - g * g), result.gates[LSTM_O] = tanh_c * o * (1 - o);
        result.dc_dh = o * (1 - tanh_c * tanh_c), result.c = f;
    }
    return result;
}
