// The affine map of a step with a positive candidate, by logarithms: h -> e^log_scale h + e^log_shift (arXiv 2410.01201,
// app. B). COMPENSATED: a logarithm is a sum of two numbers. One alone errs by half a unit in its own last place, which is a
// relative error of what it is the logarithm of: at 4 to 8 eight times that of a product. e^-NEG_LOG_ZERO stands for 0,
// e^LOG_INFINITY for infinity, whose own logarithms would make NaN of each other.
#pragma once
#include "ecornn/rnn/min_cell.cuh"

#if STORAGE_FLOAT64
// LN2_HIGH has so few digits that times an exponent it is exact.
constexpr acc_t LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;
#else
constexpr acc_t LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
#endif
constexpr acc_t HALF_ROOT = (acc_t)0.70710678;
constexpr acc_t NEG_LOG_ZERO = (acc_t)1e18, LOG_INFINITY = (acc_t)1e30;  // sums of 2^30 of the former are finite

struct LogNumber {
    acc_t high;
#if COMPENSATED
    acc_t low;  // at most half a unit in the last place of `high`
    __device__ acc_t low_part() const { return low; }
    __device__ static LogNumber two_sum(acc_t a, acc_t b) {  // a + b without error (Knuth)
        const acc_t all = a + b, b_part = all - a;
        return {all, (a - (all - b_part)) + (b - b_part)};
    }
    __device__ static LogNumber sum(acc_t a, acc_t b, acc_t small) {
        const LogNumber both = two_sum(a, b);
        return two_sum(both.high, both.low + small);
    }
#else
    __device__ acc_t low_part() const { return 0; }
    __device__ static LogNumber sum(acc_t a, acc_t b, acc_t small) { return {a + b + small}; }
#endif
};

__device__ inline LogNumber operator+(LogNumber a, LogNumber b) {
    return LogNumber::sum(a.high, b.high, a.low_part() + b.low_part());
}

// log(e^a + e^b); NaN where either is.
__device__ inline LogNumber logaddexp(LogNumber a, LogNumber b) {
    const bool is_a_larger = a.high > b.high;
    const LogNumber larger = is_a_larger ? a : b, smaller = is_a_larger ? b : a;
    const acc_t gap = (larger.high - smaller.high) + (larger.low_part() - smaller.low_part());
    return LogNumber::sum(larger.high, log1p(exp_neg_abs(gap)), larger.low_part());
}

__device__ inline acc_t to_linear(LogNumber x) {
    const acc_t result = exp(x.high);
    return result - result == 0 ? result + result * x.low_part() : result;
}

struct alignas(sizeof(LogNumber) < 8 ? 8 : 16) Map {  // moved as one, or as two in float64
    LogNumber log_scale, log_shift;
};

__device__ inline Map identity_map() { return {LogNumber::sum(0, 0, 0), LogNumber::sum(-NEG_LOG_ZERO, 0, 0)}; }
__device__ inline Map compose(Map first, Map second) {
    return {first.log_scale + second.log_scale, logaddexp(second.log_scale + first.log_shift, second.log_shift)};
}

// The state after a map's steps, from an h0 of either sign. An infinite one stays so unless the scale is 0.
__device__ inline acc_t apply_map(Map map, acc_t h0) {
    const acc_t scale = map.log_scale.high <= -NEG_LOG_ZERO ? 0 : h0 - h0 == 0 ? to_linear(map.log_scale) : 1;
    return scale * h0 + to_linear(map.log_shift);
}

__device__ inline acc_t clamp_log_range(acc_t x) {
    return x > NEG_LOG_ZERO ? NEG_LOG_ZERO : x < -NEG_LOG_ZERO ? -NEG_LOG_ZERO : x;
}
__device__ inline acc_t softplus_neg_abs(acc_t x) { return log1p(exp_neg_abs(x)); }  // log(1 + e^-|x|)

__device__ inline LogNumber log_candidate(acc_t x) {
    if (!(x >= 0)) return LogNumber::sum(clamp_log_range(x), -softplus_neg_abs(x), 0);
    const acc_t value = x + (acc_t)0.5;
    if (value - value != 0) return LogNumber::sum(LOG_INFINITY, 0, 0);
#if COMPENSATED
    int exponent;
    acc_t mantissa = frexp(value, &exponent);
    if (mantissa < HALF_ROOT) mantissa *= 2, --exponent;
    return LogNumber::sum(exponent * LN2_HIGH, log(mantissa), exponent * LN2_LOW);
#else
    return {log(value)};
#endif
}

// The forget gate's logit: the logarithm of forget gate over input gate.
__device__ inline acc_t gate_logit(const acc_t* x) {
    if (CELL != MINLSTM) return -clamp_log_range(x[0]);
    const acc_t f = clamp_log_range(x[0]), i = clamp_log_range(x[1]);
    return (f < 0 ? f : 0) - (i < 0 ? i : 0) + (softplus_neg_abs(i) - softplus_neg_abs(f));
}

__device__ inline Map make_map(const acc_t* x) {
    const acc_t logit = gate_logit(x), softplus = softplus_neg_abs(logit);
    const LogNumber large = LogNumber::sum(0, -softplus, 0), small = LogNumber::sum(logit < 0 ? logit : -logit, -softplus, 0);
    return {logit < 0 ? small : large, (logit < 0 ? large : small) + log_candidate(x[GATES - 1])};
}
