// PACK elements that lie side by side (two only in 16 bits, aligned to 4 bytes), as one access to memory moves them.
// `vec_t`: in memory; `vec_acc_t`: in the accumulation type.
#pragma once
#include "ecornn/common/dtypes.cuh"

struct vec_acc_t {
    acc_t data[PACK];
};

#if PACK == 1
typedef scalar_t vec_t;
__device__ inline vec_acc_t widen_all(vec_t vector) { return {{widen(vector)}}; }
__device__ inline vec_t narrow_all(const vec_acc_t& vector) { return narrow(vector.data[0]); }
#else
typedef unsigned vec_t;
#if STORAGE_BFLOAT16
__device__ inline vec_acc_t widen_all(vec_t vector) {
    return {{__uint_as_float(vector << 16), __uint_as_float(vector & 0xffff0000u)}};
}
__device__ inline vec_t narrow_all(const vec_acc_t& vector) {
    vec_t result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(vector.data[1]), "f"(vector.data[0]));
    return result;
}
#else
__device__ inline vec_acc_t widen_all(vec_t vector) {
    vec_acc_t result;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(result.data[0]), "=f"(result.data[1])
        : "r"(vector));
    return result;
}
__device__ inline vec_t narrow_all(const vec_acc_t& vector) {
    vec_t result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(vector.data[1]), "f"(vector.data[0]));
    return result;
}
#endif
#endif
