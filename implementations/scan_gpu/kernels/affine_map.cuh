// Affine maps of a state, h -> scale h + shift: one for each step of a linear recurrence, and their compositions.
// A scale of -0 resets the state whatever it was, NaN and infinity too. MASKED: whether there are such.
#pragma once
#include "ecornn/common/dtypes.cuh"

#if STORAGE_FLOAT64
typedef unsigned long long status_word;
__device__ inline status_word acc_bits(acc_t value) { return __double_as_longlong(value); }
__device__ inline acc_t acc_from_bits(status_word bits) { return __longlong_as_double(bits); }
constexpr acc_t DENORM_MIN = 4.94065645841246544e-324;
constexpr status_word NAN_BITS = 0x7ff8000000000000ull, INF_BITS = 0x7ff0000000000000ull;
#else
typedef unsigned status_word;
__device__ inline status_word acc_bits(acc_t value) { return __float_as_uint(value); }
__device__ inline acc_t acc_from_bits(status_word bits) { return __uint_as_float(bits); }
constexpr acc_t DENORM_MIN = 1.40129846e-45f;
constexpr status_word NAN_BITS = 0x7fc00000u, INF_BITS = 0x7f800000u;
#endif

struct Affine {
    acc_t scale, shift;
};

__device__ inline bool is_reset(acc_t scale) { return MASKED && scale == 0 && acc_bits(scale) != 0; }
__device__ inline acc_t apply(Affine map, acc_t state) {
    return is_reset(map.scale) ? map.shift : map.scale * state + map.shift;
}
// The composition of two maps. A scale that underflows must not turn an infinite state into NaN, unless a factor was 0.
__device__ inline Affine compose(Affine first, Affine second) {
    const acc_t min_scale = fmin(fmin(first.scale, second.scale), DENORM_MIN);
    const acc_t scale = fmax(first.scale * second.scale, min_scale);
    return {is_reset(first.scale) || is_reset(second.scale) ? -(acc_t)0 : scale, apply(second, first.shift)};
}

// A published map is two status words, each never 0: 0 marks a map that is not valid yet.
__device__ inline status_word encode_nonzero(acc_t value) {
    return ~(value == value ? acc_bits(value) : NAN_BITS);
}
__device__ inline void store_relaxed(status_word* target, Affine map) {
    volatile status_word* words = target;
    words[0] = encode_nonzero(map.scale);
    words[1] = encode_nonzero(map.shift);
}
// The status words of a map as they are at the moment.
struct TileStatus {
    status_word scale, shift;
    __device__ static TileStatus load(const status_word* source) {
#if STORAGE_FLOAT64
        return {((const volatile status_word*)source)[0], ((const volatile status_word*)source)[1]};
#else
        const unsigned long long words = *(const volatile unsigned long long*)source;
        return {(status_word)words, (status_word)(words >> 32)};
#endif
    }
    __device__ static TileStatus identity() { return {encode_nonzero(1), encode_nonzero(0)}; }
    __device__ bool is_valid() const { return scale != 0 && shift != 0; }
    __device__ Affine map() const { return {acc_from_bits(~scale), acc_from_bits(~shift)}; }
};

// The composition of the published maps at the addresses of `from` to before `to`, the earliest first; waits until all are
// valid (decoupled look-back: Merrill and Garland, "Single-pass parallel prefix scan", 2016).
template <typename Address>
__device__ inline Affine look_back(int from, int to, Address address) {
    const int IN_FLIGHT = 6;  // with more, registers would make some wait for others
    Affine map = {1, 0};
    for (; from < to; from += IN_FLIGHT) {
        TileStatus statuses[IN_FLIGHT];
        bool are_valid;
        do {
            are_valid = true;
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i)
                statuses[i] = from + i < to ? TileStatus::load(address(from + i)) : TileStatus::identity();
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i) are_valid &= statuses[i].is_valid();
        } while (!are_valid);
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) map = compose(map, statuses[i].map());
    }
    return map;
}
