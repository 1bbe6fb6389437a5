// Gates of minGRU and minLSTM from a channel's pre-activations (arXiv 2410.01201, sections 3.1, 3.2 and appendix B).
// CELL picks the cell, POSITIVE appendix B's candidate. In 16 bits the hardware's exponential and reciprocal suffice.
#pragma once
#include "storage.cuh"

#define MINGRU 0
#define MINLSTM 1
#define GATES (CELL == MINLSTM ? 3 : 2)

#if STORAGE_FLOAT64
__device__ inline acc_t decayed(acc_t x) { return exp(-fabs(x)); }
__device__ inline acc_t inverse(acc_t x) { return 1.0 / x; }
#elif STORAGE_FLOAT32
__device__ inline acc_t decayed(acc_t x) { return expf(-fabsf(x)); }
__device__ inline acc_t inverse(acc_t x) {  // of 1 to 4: one step of Newton's from the hardware's guess
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x));
    return fmaf(fmaf(-x, guess, 1.0f), guess, guess);
}
#else
__device__ inline acc_t decayed(acc_t x) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(fabsf(x) * -1.44269504f));
    return found;
}
__device__ inline acc_t inverse(acc_t x) {
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}
#endif

// What is kept of the state, what is taken of the candidate; neither by a subtraction from 1.
struct Gates {
    acc_t keep, take;
};

__device__ inline Gates sigmoid_pair(acc_t x) {  // of x and -x
    const acc_t e = decayed(x), large = inverse(1 + e), small = e * large;
    return {x < 0 ? small : large, x < 0 ? large : small};
}

__device__ inline acc_t bounded(acc_t x) { return x > (acc_t)1e30 ? (acc_t)1e30 : x < (acc_t)-1e30 ? (acc_t)-1e30 : x; }

// f / (f + i) = u / (u + v) with u = 1 / sigmoid(i), v = 1 / sigmoid(f), both divided by the larger of exp(-f), exp(-i) and 1.
__device__ inline Gates shares(acc_t f, acc_t i) {
    f = bounded(f), i = bounded(i);
    acc_t u = 1 + decayed(i), v = 1 + decayed(f);
    const acc_t difference = (i < 0 ? i : 0) - (f < 0 ? f : 0), scale = decayed(difference);
    u *= difference < 0 ? 1 : scale;
    v *= difference < 0 ? scale : 1;
    const acc_t both = inverse(u + v);
    return {u * both, v * both};
}

__device__ inline Gates gates_of(const acc_t* x) {
    if (CELL == MINLSTM) return shares(x[0], x[1]);
    const Gates open = sigmoid_pair(x[0]);
    return {open.take, open.keep};
}

__device__ inline acc_t candidate(acc_t x) {
    if (!POSITIVE) return x;
    return x >= 0 ? x + (acc_t)0.5 : sigmoid_pair(x).keep;
}

// The derivatives of the new state by the pre-activations.
__device__ inline void slopes_of(const acc_t* x, Gates now, acc_t before, acc_t* slopes) {
    const acc_t last = x[GATES - 1], push = (candidate(last) - before) * now.keep * now.take;
    acc_t slope = 1;
    if (POSITIVE && !(last >= 0)) {
        const Gates open = sigmoid_pair(last);
        slope = open.keep * open.take;
    }
    slopes[GATES - 1] = now.take * slope;
    slopes[0] = CELL == MINLSTM ? -push * sigmoid_pair(x[0]).take : push;
    if (CELL == MINLSTM) slopes[1] = push * sigmoid_pair(x[1]).take;
}
