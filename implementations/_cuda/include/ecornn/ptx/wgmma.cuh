// Warpgroup matrix products by wgmma: operand A in registers, 64 rows, of each of four warps 16; operand B in shared memory,
// 8 * N_TILES columns; accumulated in float32. STORAGE_BFLOAT16 or STORAGE_FLOAT16, by a macro, picks the operands' type;
// else they are TF32. Registers are as mma.sync has them (mma.cuh), with 8 columns after 8 columns. B lies in core matrices
// of 8 columns by 16 bytes of K, 128 bytes each, columns one after the other. Compute capability 9.0.
#pragma once
#include "ecornn/ptx/smem.cuh"

// B from `start` on. Core matrices that are adjacent along K are k_stride bytes apart, those of adjacent columns 128.
typedef unsigned long long wgmma_descriptor_t;
__device__ inline wgmma_descriptor_t wgmma_descriptor(smem_addr_t start, unsigned k_stride) {
    return (wgmma_descriptor_t)(128 / 16) << 32 | (wgmma_descriptor_t)(k_stride / 16) << 16 | (start & 0x3ffff) / 16;
}

// Registers that were written before it may be operands of the products after it.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// All products since the last group are one group.
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the last N groups are pending.
template <int N> __device__ inline void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The compiler reads no accumulator before it, where they were not there yet, and writes none after it.
template <int N> __device__ inline void wgmma_fence_operands(float (&acc)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(acc[i])::"memory");
}

#if STORAGE_BFLOAT16
#define WGMMA_TYPES "k16.f32.bf16.bf16"
#define WGMMA_SCALES "p, 1, 1, 0"
#elif STORAGE_FLOAT16
#define WGMMA_TYPES "k16.f32.f16.f16"
#define WGMMA_SCALES "p, 1, 1, 0"
#else
#define WGMMA_TYPES "k8.f32.tf32.tf32"
#define WGMMA_SCALES "p, 1, 1"
#endif
#define WGMMA(N, D, A, B)                                                                                \
    "{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #N WGMMA_TYPES " {" D "}, {" A "}, " B \
    ", " WGMMA_SCALES "; }"
#define WGMMA_ACC4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define WGMMA_ACC16(i) WGMMA_ACC4(i), WGMMA_ACC4(i + 4), WGMMA_ACC4(i + 8), WGMMA_ACC4(i + 12)
#define WGMMA_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

// Adds the product of 32 bytes of K to acc, of 8 * N_TILES columns. a: a row's first 16 bytes of the thread, x and z, and
// that 8 rows below, y and w, of the first and the second 16 bytes.
__device__ inline void wgmma_m64(float (&acc)[8], const uint4& a, wgmma_descriptor_t b) {
    asm volatile(WGMMA(16, "%0, %1, %2, %3, %4, %5, %6, %7", "%8, %9, %10, %11", "%12")
                 : WGMMA_ACC4(0), WGMMA_ACC4(4)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
__device__ inline void wgmma_m64(float (&acc)[16], const uint4& a, wgmma_descriptor_t b) {
    asm volatile(WGMMA(32, WGMMA_NAMES_0, "%16, %17, %18, %19", "%20")
                 : WGMMA_ACC16(0)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
__device__ inline void wgmma_m64(float (&acc)[24], const uint4& a, wgmma_descriptor_t b) {
    asm volatile(WGMMA(48, WGMMA_NAMES_0 ", %16, %17, %18, %19, %20, %21, %22, %23", "%24, %25, %26, %27", "%28")
                 : WGMMA_ACC16(0), WGMMA_ACC4(16), WGMMA_ACC4(20)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
__device__ inline void wgmma_m64(float (&acc)[32], const uint4& a, wgmma_descriptor_t b) {
    asm volatile(WGMMA(64, WGMMA_NAMES_0 ", " WGMMA_NAMES_1, "%32, %33, %34, %35", "%36")
                 : WGMMA_ACC16(0), WGMMA_ACC16(16)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}
