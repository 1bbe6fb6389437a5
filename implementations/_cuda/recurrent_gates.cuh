// One step of LSTM, GRU (torch.nn's gate order) or RNN for one unit of one sequence, and back, in float32; CELL picks the cell.
// By the hardware's exponential and reciprocal, good to 2 units in the last place.
#pragma once
#include "storage.cuh"

#define RNN_TANH 0
#define RNN_RELU 1
#define LSTM 2
#define GRU 3
#define GATES (CELL == LSTM ? 4 : CELL == GRU ? 3 : 1)

#define NOT_A_NUMBER (0.0f / 0.0f)

struct State {
    float h, c;
};

#ifdef __CUDA_ARCH__
__device__ inline float power_of_two(float x) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}
__device__ inline float reciprocal(float x) {
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}
#else
__device__ inline float power_of_two(float x) { return exp2f(x); }
__device__ inline float reciprocal(float x) { return 1.0f / x; }
#endif

#if STORAGE_FLOAT32
// What rounding takes from the exponent's product is put back: it would grow with x.
__device__ inline float exponential(float x) {
    const float product = x * 1.44269504f, left = fmaf(x, 1.44269504f, -product) + x * 1.92596303e-8f;
    const float power = power_of_two(product);
    return fabsf(product) < 126.0f ? fmaf(power, left * 0.69314718f, power) : power;
}
#else
__device__ inline float exponential(float x) { return power_of_two(x * 1.44269504f); }
#endif

__device__ inline float sigmoid(float x) { return reciprocal(1.0f + exponential(-x)); }

#if STORAGE_FLOAT32
// Near 0 by a polynomial, fitted for the least relative error there.
__device__ inline float tangent(float x) {
    const float square = x * x, power = exponential(-2.0f * fabsf(x));
    const float high = fmaf(fmaf(fmaf(-0.00628246693f, square, 0.0210777540f), square, -0.0538538583f), square, 0.133326024f);
    const float series = fmaf(fmaf(high, square, -0.333333194f), square, 1.0f);
    return square < 0.3025f ? x * series : copysignf((1.0f - power) * reciprocal(1.0f + power), x);
}
#else
// Near 0, where 2 sigmoid(2 x) - 1 would lose its digits, by the first terms of its series.
__device__ inline float tangent(float x) {
    const float square = x * x;
    const float series = fmaf(fmaf(fmaf(-0.053968254f, square, 0.13333333f), square, -0.33333333f), square, 1.0f);
    return square < 0.1f ? x * series : fmaf(2.0f, sigmoid(2.0f * x), -1.0f);
}
#endif

// GRU's n as it is kept: the backward pass, which has h of storage's bits, is to find h - n as it was. Where h is not small that
// is not what n is needed for.
__device__ inline float kept_n(float n, float h) { return fabsf(h) <= 1 ? n + (widen(narrow(h)) - h) : n; }

// x: W_ih x with all biases but GRU's b_hn, which is `bias_n`. product: W_hh h. kept: what the backward pass is to have, LSTM
// i f g o, GRU r z n and W_hn h + b_hn.
__device__ inline State after(State before, const float* x, const float* product, float bias_n, float* kept) {
    const float first = x[0] + product[0];
    if (CELL == RNN_TANH) return {tangent(first), 0};
    if (CELL == RNN_RELU) return {first > 0 || first != first ? first : 0, 0};
    kept[0] = sigmoid(first), kept[1] = sigmoid(x[1 % GATES] + product[1 % GATES]);
    if (CELL == GRU) {
        kept[3] = product[2 % GATES] + bias_n;
        const float n = tangent(x[2 % GATES] + kept[0] * kept[3]);
        kept[2] = kept_n(n, before.h);
        return {fmaf(kept[1], before.h - n, n), 0};
    }
    kept[2] = tangent(x[2 % GATES] + product[2 % GATES]), kept[3] = sigmoid(x[3 % GATES] + product[3 % GATES]);
    const float c = fmaf(kept[1], before.c, kept[0] * kept[2]);
    return {kept[3] * tangent(c), c};
}

// What a step hands on of the gradients d_h and d_c of the state after it. d_c takes d_h * c_of_h first; then the gates' are d_h,
// LSTM's but o's d_c, times `gates`, that of GRU's W_hn h + b_hn d_h * product, and the state before has d_h * h and d_c * c.
struct Slopes {
    float gates[GATES], product, c_of_h, h, c;
};

// kept: of `after`. h: RNN's state after the step, GRU's before it. c, c_before: LSTM's state after the step and before it.
__device__ inline Slopes slopes_of(const float* kept, float h, float c, float c_before) {
    Slopes found = {};
    const float first = kept[0], second = kept[1], third = kept[2];
    if (CELL == RNN_TANH) found.gates[0] = 1 - h * h;
    if (CELL == RNN_RELU) found.gates[0] = h <= 0 ? 0 : 1;
    if (CELL == GRU) {
        const float of_n = (1 - second) * (1 - third * third);
        found.gates[0] = of_n * kept[3] * first * (1 - first), found.gates[1 % GATES] = (h - third) * second * (1 - second);
        found.gates[2 % GATES] = of_n, found.product = of_n * first, found.h = second;
    }
    if (CELL == LSTM) {
        const float tangent_c = tangent(c);
        found.gates[0] = third * first * (1 - first), found.gates[1 % GATES] = c_before * second * (1 - second);
        found.gates[2 % GATES] = first * (1 - third * third), found.gates[3 % GATES] = tangent_c * kept[3] * (1 - kept[3]);
        found.c_of_h = kept[3] * (1 - tangent_c * tangent_c), found.c = second;
    }
    return found;
}
