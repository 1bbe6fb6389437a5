// The instructions behind warpgroup.cuh: products of 64 rows of weights, in registers or shared memory, and 8 * TILES states.
#pragma once

// What was written to shared memory by now is what the products after it read.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#if STORAGE_BFLOAT16
#define TYPES ".f32.bf16.bf16 "
#else
#define TYPES ".f32.f16.f16 "
#endif
#define SUM(i) "+f"(sums[i].at[0]), "+f"(sums[i].at[1]), "+f"(sums[i].at[2]), "+f"(sums[i].at[3])

// An instruction's operands by number: the sums, the weights, where the states are, whether to add to the sums.
#if TILES == 1
#define SIZE "8"
#define ALL_SUMS SUM(0)
#define NAMES "{%0, %1, %2, %3}"
#define HELD_NAMES "{%4, %5, %6, %7}, %8"
#define SHARED_NAMES "%4, %5"
#define HELD_ADDS "%9"
#define SHARED_ADDS "%6"
#elif TILES == 2
#define SIZE "16"
#define ALL_SUMS SUM(0), SUM(1)
#define NAMES "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define HELD_NAMES "{%8, %9, %10, %11}, %12"
#define SHARED_NAMES "%8, %9"
#define HELD_ADDS "%13"
#define SHARED_ADDS "%10"
#elif TILES == 3
#define SIZE "24"
#define ALL_SUMS SUM(0), SUM(1), SUM(2)
#define NAMES "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}"
#define HELD_NAMES "{%12, %13, %14, %15}, %16"
#define SHARED_NAMES "%12, %13"
#define HELD_ADDS "%17"
#define SHARED_ADDS "%14"
#else
#define SIZE "32"
#define ALL_SUMS SUM(0), SUM(1), SUM(2), SUM(3)
#define NAMES "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define HELD_NAMES "{%16, %17, %18, %19}, %20"
#define SHARED_NAMES "%16, %17"
#define HELD_ADDS "%21"
#define SHARED_ADDS "%18"
#endif
#define WGMMA(adds, operands, transposed) \
    "{ .reg .pred adds; setp.ne.b32 adds, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" SIZE "k16" TYPES NAMES \
    ", " operands ", adds, 1, 1, " transposed "; }"

// sums = weights states^T of 16 columns, added to the sums or not: begun, to be waited for. states, weights: descriptors.
__device__ inline void multiply(Sums* sums, const Slice& weights, unsigned long long states, int adds) {
    asm volatile(WGMMA(HELD_ADDS, HELD_NAMES, "0")
                 : ALL_SUMS
                 : "r"(weights.at[0]), "r"(weights.at[1]), "r"(weights.at[2]), "r"(weights.at[3]), "l"(states), "r"(adds));
}

__device__ inline void multiply(Sums* sums, unsigned long long weights, unsigned long long states, int adds) {
    asm volatile(WGMMA(SHARED_ADDS, SHARED_NAMES, "0, 0") : ALL_SUMS : "l"(weights), "l"(states), "r"(adds));
}
