// What a kernel is compiled for, by macros: STORAGE (FLOAT32, FLOAT64, BFLOAT16, FLOAT16) and what it is computed in.
// `storage`: an element as it is in memory. `compute`: float, for float64 double. widen, narrow: between the two, rounding to
// nearest even. No CUDA header is needed, so that NVRTC alone compiles this; a host compiler accepts it too, for tests.
#pragma once

#if STORAGE_FLOAT64
typedef double compute;
#else
typedef float compute;
#endif

#if STORAGE_BFLOAT16
struct storage { unsigned short bits; };
__device__ inline compute widen(storage value) {
    union { unsigned int bits; float value; } word;
    word.bits = (unsigned int)value.bits << 16;
    return word.value;
}
__device__ inline storage narrow(compute value) {
    union { float value; unsigned int bits; } word;
    word.value = value;
    storage rounded;
    rounded.bits = value != value ? 0x7fc0 : (word.bits + 0x7fff + ((word.bits >> 16) & 1)) >> 16;
    return rounded;
}
#elif STORAGE_FLOAT16 && defined(__CUDA_ARCH__)
struct storage { unsigned short bits; };
__device__ inline compute widen(storage value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
__device__ inline storage narrow(compute value) {
    storage rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
}
#else
#if STORAGE_FLOAT16
typedef _Float16 storage;
#else
typedef compute storage;
#endif
__device__ inline compute widen(storage value) { return (compute)value; }
__device__ inline storage narrow(compute value) { return (storage)value; }
#endif

#if !STORAGE_FLOAT64
// The bits of an element, and an element of those bits, widened.
__device__ inline unsigned raw_bits(const storage& value) {
#if STORAGE_FLOAT16 || STORAGE_BFLOAT16
    return *(const unsigned short*)&value;
#else
    return *(const unsigned*)&value;
#endif
}
__device__ inline compute widen_bits(unsigned bits) {
#if STORAGE_FLOAT16 || STORAGE_BFLOAT16
    const unsigned short half = bits;
    return widen(*(const storage*)&half);
#else
    return widen(*(const storage*)&bits);
#endif
}
#endif
