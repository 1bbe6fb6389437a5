// One step of LSTM, GRU (torch.nn's gate order) or RNN for one unit of one sequence, in float32; CELL picks the cell.
// The hardware's exponential and reciprocal: exact enough for storage of 16 bits.
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
__device__ inline float sigmoid(float x) {
    float power, found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(1.0f + power));
    return found;
}
#else
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
#endif

// Near 0, where 2 sigmoid(2 x) - 1 would lose its digits, by the first terms of its series.
__device__ inline float tangent(float x) {
    const float square = x * x;
    const float series = fmaf(fmaf(fmaf(-0.053968254f, square, 0.13333333f), square, -0.33333333f), square, 1.0f);
    return square < 0.1f ? x * series : fmaf(2.0f, sigmoid(2.0f * x), -1.0f);
}

// x: W_ih x with all biases but GRU's b_hn, which is `bias_n`. product: W_hh h. kept: what the backward pass is to have, LSTM
// i f g o, GRU r z n and W_hn h + b_hn.
__device__ inline State after(State before, const float* x, const float* product, float bias_n, float* kept) {
    const float first = x[0] + product[0];
    if (CELL == RNN_TANH) return {tangent(first), 0};
    if (CELL == RNN_RELU) return {first > 0 || first != first ? first : 0, 0};
    kept[0] = sigmoid(first), kept[1] = sigmoid(x[1 % GATES] + product[1 % GATES]);
    if (CELL == GRU) {
        kept[3] = product[2 % GATES] + bias_n, kept[2] = tangent(x[2 % GATES] + kept[0] * kept[3]);
        return {fmaf(kept[1], before.h - kept[2], kept[2]), 0};
    }
    kept[2] = tangent(x[2 % GATES] + product[2 % GATES]), kept[3] = sigmoid(x[3 % GATES] + product[3 % GATES]);
    const float c = fmaf(kept[1], before.c, kept[0] * kept[2]);
    return {kept[3] * tangent(c), c};
}
