// What a kernel is compiled for, by macros: STORAGE (FLOAT32, FLOAT64, BFLOAT16, FLOAT16) and what it is computed in.
// `scalar_t`: an element as it is in memory. `acc_t`: float, for float64 double. widen, narrow: between the two, rounding to
// nearest even. No CUDA header is needed, so that NVRTC alone compiles this; a host compiler accepts it too, for tests.
#pragma once

// Size of a kernel's Params as the host packs them, by a macro. Where it is not given there is nothing to compare.
#ifndef PARAMS_BYTES
#define PARAMS_BYTES sizeof(Params)
#endif

#if STORAGE_FLOAT64
typedef double acc_t;
#else
typedef float acc_t;
#endif

#if STORAGE_BFLOAT16
struct scalar_t { unsigned short bits; };
__device__ inline acc_t widen(scalar_t value) {
    union { unsigned int bits; float value; } word;
    word.bits = (unsigned int)value.bits << 16;
    return word.value;
}
__device__ inline scalar_t narrow(acc_t value) {
    union { float value; unsigned int bits; } word;
    word.value = value;
    scalar_t rounded;
    rounded.bits = value != value ? 0x7fc0 : (word.bits + 0x7fff + ((word.bits >> 16) & 1)) >> 16;
    return rounded;
}
#elif STORAGE_FLOAT16 && defined(__CUDA_ARCH__)
struct scalar_t { unsigned short bits; };
__device__ inline acc_t widen(scalar_t value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
__device__ inline scalar_t narrow(acc_t value) {
    scalar_t rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
}
#else
#if STORAGE_FLOAT16
typedef _Float16 scalar_t;
#else
typedef acc_t scalar_t;
#endif
__device__ inline acc_t widen(scalar_t value) { return (acc_t)value; }
__device__ inline scalar_t narrow(acc_t value) { return (scalar_t)value; }
#endif

constexpr int ELEMENTS_PER_VECTOR = 16 / (int)sizeof(scalar_t);  // of 16 bytes

#if !STORAGE_FLOAT64
// The bits of an element, and an element of those bits, widened.
__device__ inline unsigned raw_bits(const scalar_t& value) {
#if STORAGE_FLOAT16 || STORAGE_BFLOAT16
    return *(const unsigned short*)&value;
#else
    return *(const unsigned*)&value;
#endif
}
__device__ inline acc_t widen_bits(unsigned bits) {
#if STORAGE_FLOAT16 || STORAGE_BFLOAT16
    const unsigned short half = bits;
    return widen(*(const scalar_t*)&half);
#else
    return widen(*(const scalar_t*)&bits);
#endif
}
#endif
