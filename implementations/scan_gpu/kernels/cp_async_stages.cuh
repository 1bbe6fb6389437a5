// Prefetched inputs of STAGES tiles in dynamic shared memory: for each row one packed value a thread.
// With ALIGNED a copy has 16 bytes, for THREADS_PER_COPY threads with neighbouring channels of one segment. Otherwise each
// thread copies its own value. A warp copies for itself alone, so it waits for no other.
#pragma once
#include "vector_dtypes.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int THREADS_PER_COPY = ALIGNED ? 16 / (int)sizeof(vec_t) : 1;  // also the rows that a warp copies at once

#ifdef __CUDA_ARCH__
extern __shared__ __align__(16) unsigned char dynamic_shared[];
#else
static unsigned char dynamic_shared[DYNAMIC_BYTES];
#endif

__device__ inline void cp_async(vec_t* to, const scalar_t* from) {
#if __CUDA_ARCH__ >= 800
    const unsigned target = (unsigned)__cvta_generic_to_shared(to);
    if (THREADS_PER_COPY * sizeof(vec_t) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
    else if (sizeof(vec_t) == 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(target), "l"(from) : "memory");
    else if (sizeof(vec_t) == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(from) : "memory");
    else
        *to = *(const vec_t*)from;
#else
    for (int i = 0; i < THREADS_PER_COPY; ++i) to[i] = ((const vec_t*)from)[i];
#endif
}

// Commits a tile's copies as one group. Every warp does so for every tile, so that groups count tiles.
__device__ inline void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most the last STAGES - 1 tiles of this warp's copies are pending.
__device__ inline void cp_async_wait_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#endif
    __syncwarp();
}

// A thread's part of its warp's copies: values of THREADS_PER_COPY threads, of every THREADS_PER_COPY-th row from `row` on.
struct CopyLane {
    int thread, row;
    __device__ CopyLane() {
        const int across = 32 / THREADS_PER_COPY, lane = threadIdx.x % 32;
        thread = threadIdx.x - lane + lane % across * THREADS_PER_COPY;
        row = lane / across;
    }
};
