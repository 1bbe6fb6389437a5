// What a block reads ahead of its computing, in shared memory and not in registers: for each row one packed value a thread, for
// STAGES tiles at once, in dynamic shared memory.
// With ALIGNED 16 bytes are copied at once, which serve PIECE threads that have neighbouring channels of one stretch; otherwise
// each thread copies its own. A warp copies for itself alone, so it waits for no other.
#pragma once
#include "vector_dtypes.cuh"

#define THREADS (32 * WARPS)
#define PIECE (ALIGNED ? 16 / (int)sizeof(vec_t) : 1)  // threads that a copy serves; also the rows that a warp copies at once

#ifdef __CUDA_ARCH__
extern __shared__ __align__(16) unsigned char dynamic_shared[];
#else
static unsigned char dynamic_shared[DYNAMIC_BYTES];
#endif

__device__ inline void copy_ahead(vec_t* to, const scalar_t* from) {
#if __CUDA_ARCH__ >= 800
    const unsigned target = (unsigned)__cvta_generic_to_shared(to);
    if (PIECE * sizeof(vec_t) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
    else if (sizeof(vec_t) == 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(target), "l"(from) : "memory");
    else if (sizeof(vec_t) == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(from) : "memory");
    else
        *to = *(const vec_t*)from;
#else
    for (int i = 0; i < PIECE; ++i) to[i] = ((const vec_t*)from)[i];
#endif
}

// Ends a tile's copies; every warp does so for every tile, so that the tiles count.
__device__ inline void end_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all that this warp copied is there, save for the last STAGES - 1 tiles.
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#endif
    __syncwarp();
}

// What of a warp's rows this thread copies: PIECE threads' values of every PIECE-th row, from `row` on.
struct Piece {
    int thread, row;
    __device__ Piece() {
        const int across = 32 / PIECE, lane = threadIdx.x % 32;
        thread = threadIdx.x - lane + lane % across * PIECE;
        row = lane / across;
    }
};
