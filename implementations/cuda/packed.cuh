// PACK elements that lie side by side (two only in 16 bits, aligned to 4 bytes), as one access to memory moves them.
// `packed`: in memory; `wide`: as computed in.
#pragma once
#include "storage.cuh"

struct wide {
    acc_t at[PACK];
};

#if PACK == 1
typedef scalar_t packed;
__device__ inline wide widen_all(packed given) { return {{widen(given)}}; }
__device__ inline packed narrow_all(const wide& given) { return narrow(given.at[0]); }
#else
typedef unsigned packed;
#if STORAGE_BFLOAT16
__device__ inline wide widen_all(packed given) { return {{__uint_as_float(given << 16), __uint_as_float(given & 0xffff0000u)}}; }
__device__ inline packed narrow_all(const wide& given) {
    packed found;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(given.at[1]), "f"(given.at[0]));
    return found;
}
#else
__device__ inline wide widen_all(packed given) {
    wide found;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(found.at[0]), "=f"(found.at[1])
        : "r"(given));
    return found;
}
__device__ inline packed narrow_all(const wide& given) {
    packed found;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(given.at[1]), "f"(given.at[0]));
    return found;
}
#endif
#endif
