// The instructions behind warp_mma.cuh. STORAGE_BFLOAT16 or STORAGE_FLOAT16, by a macro, picks the operands'
// type; else they are TF32.
#pragma once

#if STORAGE_BFLOAT16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#elif STORAGE_FLOAT16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#endif

__device__ inline void mma_m16n8(float (&acc)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                 unsigned b1) {
    asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The compiler moves no instruction across it, as it does not know that a pointer to 16 bytes is never 1. To move one would
// take more registers than there are.
__device__ inline void scheduling_fence(const uint4* ptr) {
    asm volatile("{ .reg .pred p; setp.eq.u64 p, %0, 1; @p trap; }" ::"l"(ptr));
}
