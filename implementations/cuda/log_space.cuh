// The affine map that a step with a positive candidate is, by logarithms: h -> e^keep h + e^take (arXiv 2410.01201, app. B).
// COMPENSATED: a logarithm is a sum of two numbers. One alone errs by half a unit in its own last place, which is a relative
// error of what it is the logarithm of: at 4 to 8 eight times that of a product. e^-FAR stands for 0, e^BEYOND for infinity,
// whose own logarithms would make NaN of each other.
#pragma once
#include "min_gates.cuh"

#if STORAGE_FLOAT64
#define LN2_HIGH 6.93147180369123816490e-01  // with so few digits that times an exponent it is exact
#define LN2_LOW 1.90821492927058770002e-10
#else
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#endif
#define HALF_ROOT (acc_t)0.70710678
#define FAR (acc_t)1e18  // sums of 2^30 of it are finite
#define BEYOND (acc_t)1e30

struct Log {
    acc_t high;
#if COMPENSATED
    acc_t low;  // at most half a unit in the last place of `high`
    __device__ acc_t rest() const { return low; }
    __device__ static Log two(acc_t a, acc_t b) {  // a + b without error (Knuth)
        const acc_t all = a + b, of_b = all - a;
        return {all, (a - (all - of_b)) + (b - of_b)};
    }
    __device__ static Log sum(acc_t a, acc_t b, acc_t small) {
        const Log both = two(a, b);
        return two(both.high, both.low + small);
    }
#else
    __device__ acc_t rest() const { return 0; }
    __device__ static Log sum(acc_t a, acc_t b, acc_t small) { return {a + b + small}; }
#endif
};

__device__ inline Log operator+(Log a, Log b) { return Log::sum(a.high, b.high, a.rest() + b.rest()); }

// log(e^a + e^b); NaN where either is.
__device__ inline Log log_add(Log a, Log b) {
    const bool is_first = a.high > b.high;
    const Log larger = is_first ? a : b, smaller = is_first ? b : a;
    const acc_t apart = (larger.high - smaller.high) + (larger.rest() - smaller.rest());
    return Log::sum(larger.high, log1p(decayed(apart)), larger.rest());
}

__device__ inline acc_t exponential(Log of) {
    const acc_t found = exp(of.high);
    return found - found == 0 ? found + found * of.rest() : found;
}

struct alignas(sizeof(Log) < 8 ? 8 : 16) Map {  // moved as one, or as two in float64
    Log keep, take;
};

__device__ inline Map unchanged() { return {Log::sum(0, 0, 0), Log::sum(-FAR, 0, 0)}; }
__device__ inline Map then(Map one, Map next) { return {one.keep + next.keep, log_add(next.keep + one.take, next.take)}; }

// What a state of `initial` comes to, of either sign. One that is infinite stays so unless nothing at all is kept.
__device__ inline acc_t state_after(Map map, acc_t initial) {
    const acc_t share = map.keep.high <= -FAR ? 0 : initial - initial == 0 ? exponential(map.keep) : 1;
    return share * initial + exponential(map.take);
}

__device__ inline acc_t within(acc_t x) { return x > FAR ? FAR : x < -FAR ? -FAR : x; }
__device__ inline acc_t softened(acc_t x) { return log1p(decayed(x)); }  // log(1 + e^-|x|)

__device__ inline Log log_candidate(acc_t x) {
    if (!(x >= 0)) return Log::sum(within(x), -softened(x), 0);
    const acc_t value = x + (acc_t)0.5;
    if (value - value != 0) return Log::sum(BEYOND, 0, 0);
#if COMPENSATED
    int exponent;
    acc_t part = frexp(value, &exponent);
    if (part < HALF_ROOT) part *= 2, --exponent;
    return Log::sum(exponent * LN2_HIGH, log(part), exponent * LN2_LOW);
#else
    return {log(value)};
#endif
}

// The logarithm of keep over take.
__device__ inline acc_t odds_of(const acc_t* x) {
    if (CELL != MINLSTM) return -within(x[0]);
    const acc_t f = within(x[0]), i = within(x[1]);
    return (f < 0 ? f : 0) - (i < 0 ? i : 0) + (softened(i) - softened(f));
}

__device__ inline Map map_of(const acc_t* x) {
    const acc_t odds = odds_of(x), soft = softened(odds);
    const Log large = Log::sum(0, -soft, 0), small = Log::sum(odds < 0 ? odds : -odds, -soft, 0);
    return {odds < 0 ? small : large, (odds < 0 ? large : small) + log_candidate(x[GATES - 1])};
}
