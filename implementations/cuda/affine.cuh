// Affine maps of a state, h -> product h + sum: one for each step of a linear recurrence, and what several come to.
// A product of -0 forgets the state whatever it was, NaN and infinity too. MASKED: whether there are such.
#pragma once
#include "storage.cuh"

#if STORAGE_FLOAT64
typedef unsigned long long word;
__device__ inline word bits_of(acc_t value) { return __double_as_longlong(value); }
__device__ inline acc_t value_of(word bits) { return __longlong_as_double(bits); }
#define SMALLEST 4.94065645841246544e-324
#define QUIET_NAN 0x7ff8000000000000ull
#define INFINITE 0x7ff0000000000000ull
#else
typedef unsigned word;
__device__ inline word bits_of(acc_t value) { return __float_as_uint(value); }
__device__ inline acc_t value_of(word bits) { return __uint_as_float(bits); }
#define SMALLEST 1.40129846e-45f
#define QUIET_NAN 0x7fc00000u
#define INFINITE 0x7f800000u
#endif

struct Affine {
    acc_t product, sum;
};

__device__ inline bool forgets(acc_t product) { return MASKED && product == 0 && bits_of(product) != 0; }
__device__ inline acc_t apply(Affine map, acc_t state) {
    return forgets(map.product) ? map.sum : map.product * state + map.sum;
}
// One map after another. A product that underflows must not turn an infinite state into NaN, unless a factor was 0.
__device__ inline Affine then(Affine one, Affine next) {
    const acc_t least = fmin(fmin(one.product, next.product), (acc_t)SMALLEST);
    const acc_t product = fmax(one.product * next.product, least);
    return {forgets(one.product) || forgets(next.product) ? -(acc_t)0 : product, apply(next, one.sum)};
}

// A map that other blocks read lies in two words, each never 0, so that 0 says it is not there yet.
__device__ inline word sealed(acc_t value) { return ~(value == value ? bits_of(value) : (word)QUIET_NAN); }
__device__ inline void publish(word* target, Affine map) {
    volatile word* words = target;
    words[0] = sealed(map.product);
    words[1] = sealed(map.sum);
}
// The words of a map as they are at the moment.
struct Peek {
    word product, sum;
    __device__ static Peek at(const word* source) {
#if STORAGE_FLOAT64
        return {((const volatile word*)source)[0], ((const volatile word*)source)[1]};
#else
        const unsigned long long both = *(const volatile unsigned long long*)source;
        return {(word)both, (word)(both >> 32)};
#endif
    }
    __device__ static Peek identity() { return {sealed(1), sealed(0)}; }
    __device__ bool is_there() const { return product != 0 && sum != 0; }
    __device__ Affine map() const { return {value_of(~product), value_of(~sum)}; }
};

// What published maps come to, those that `place` gives for `from` to `to`, the earliest first; waits until all are there.
template <typename Place>
__device__ inline Affine folded(int from, int to, Place place) {
    const int AT_ONCE = 6;  // of more, registers would make some wait for others
    Affine all = {1, 0};
    for (; from < to; from += AT_ONCE) {
        Peek found[AT_ONCE];
        bool is_there;
        do {
            is_there = true;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) found[i] = from + i < to ? Peek::at(place(from + i)) : Peek::identity();
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) is_there &= found[i].is_there();
        } while (!is_there);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) all = then(all, found[i].map());
    }
    return all;
}
