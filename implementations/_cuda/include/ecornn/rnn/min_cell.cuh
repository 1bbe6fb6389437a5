// Gates of minGRU and minLSTM from a channel's pre-activations (arXiv 2410.01201, sections 3.1, 3.2 and appendix B).
// CELL picks the cell, POSITIVE appendix B's candidate. In 16 bits the hardware's exponential and reciprocal suffice.
#pragma once
#include "ecornn/common/dtypes.cuh"

enum Cell { MINGRU, MINLSTM };
constexpr int GATES = CELL == MINLSTM ? 3 : 2;

#if STORAGE_FLOAT64
__device__ inline acc_t exp_neg_abs(acc_t x) { return exp(-fabs(x)); }
__device__ inline acc_t rcp_approx(acc_t x) { return 1.0 / x; }
#elif STORAGE_FLOAT32
__device__ inline acc_t exp_neg_abs(acc_t x) { return expf(-fabsf(x)); }
__device__ inline acc_t rcp_approx(acc_t x) {  // of 1 to 4: one step of Newton's from the hardware's guess
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x));
    return fmaf(fmaf(-x, guess, 1.0f), guess, guess);
}
#else
__device__ inline acc_t exp_neg_abs(acc_t x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(fabsf(x) * -1.44269504f));
    return result;
}
__device__ inline acc_t rcp_approx(acc_t x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
#endif

// Factors of the state and of the candidate; neither by a subtraction from 1.
struct Gates {
    acc_t forget_gate, input_gate;
};

struct SigmoidPair {  // sigmoid(x), and 1 - sigmoid(x) as sigmoid(-x)
    acc_t sigmoid, complement;
};

__device__ inline SigmoidPair sigmoid_pair(acc_t x) {
    const acc_t e = exp_neg_abs(x), large = rcp_approx(1 + e), small = e * large;
    return {x < 0 ? small : large, x < 0 ? large : small};
}

__device__ inline acc_t clamp_finite(acc_t x) {
    return x > (acc_t)1e30 ? (acc_t)1e30 : x < (acc_t)-1e30 ? (acc_t)-1e30 : x;
}

// f / (f + i) = u / (u + v) with u = 1 / sigmoid(i), v = 1 / sigmoid(f), both divided by the larger of exp(-f), exp(-i) and 1.
__device__ inline Gates normalized_gates(acc_t f, acc_t i) {
    f = clamp_finite(f), i = clamp_finite(i);
    acc_t u = 1 + exp_neg_abs(i), v = 1 + exp_neg_abs(f);
    const acc_t difference = (i < 0 ? i : 0) - (f < 0 ? f : 0), scale = exp_neg_abs(difference);
    u *= difference < 0 ? 1 : scale;
    v *= difference < 0 ? scale : 1;
    const acc_t rcp_sum = rcp_approx(u + v);
    return {u * rcp_sum, v * rcp_sum};
}

__device__ inline Gates make_gates(const acc_t* x) {
    if (CELL == MINLSTM) return normalized_gates(x[0], x[1]);
    const SigmoidPair z = sigmoid_pair(x[0]);
    return {z.complement, z.sigmoid};
}

__device__ inline acc_t candidate(acc_t x) {
    if (!POSITIVE) return x;
    return x >= 0 ? x + (acc_t)0.5 : sigmoid_pair(x).sigmoid;
}

// The derivatives of the new state by the pre-activations.
__device__ inline void cell_local_gradients(const acc_t* x, Gates gates, acc_t h_before, acc_t* local_gradients) {
    const acc_t candidate_input = x[GATES - 1];
    const acc_t d_logit = (candidate(candidate_input) - h_before) * gates.forget_gate * gates.input_gate;
    acc_t d_candidate = 1;
    if (POSITIVE && !(candidate_input >= 0)) {
        const SigmoidPair pair = sigmoid_pair(candidate_input);
        d_candidate = pair.sigmoid * pair.complement;
    }
    local_gradients[GATES - 1] = gates.input_gate * d_candidate;
    local_gradients[0] = CELL == MINLSTM ? -d_logit * sigmoid_pair(x[0]).complement : d_logit;
    if (CELL == MINLSTM) local_gradients[1] = d_logit * sigmoid_pair(x[1]).complement;
}
