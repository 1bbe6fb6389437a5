// Schedule fuzzing: random waits where threads synchronise, so that missing synchronisation is seen. Tests alone make such
// builds, by defining JITTER, a seed; otherwise there is nothing. Which warps wait, where and how long follows from the seed,
// the block, the warp, the step, the place and the time, so that no two launches are alike.
#pragma once
#include "ecornn/ptx/spin_wait.cuh"

#ifdef JITTER
// Each bit of the result depends on all bits. Source: Wellons, "Prospecting for Hash Functions", 2018 (lowbias32).
__device__ inline unsigned hash32(unsigned bits) {
    bits = (bits ^ bits >> 16) * 0x7feb352d;
    bits = (bits ^ bits >> 15) * 0x846ca68b;
    return bits ^ bits >> 16;
}

// By whole warps. place: the call's number within its kernel, below 64. It makes the waits of two calls differ, and means
// nothing else. Mostly there is no wait. A wait of a whole block is longer than one of a warp.
__device__ inline void jitter(int step, int place) {
    const unsigned time = globaltimer_ns() / 65536;
    const unsigned of_block = hash32(hash32(JITTER * 64 + place) + hash32(step * 4096 + blockIdx.x) + time);
    const unsigned of_warp = hash32(of_block + threadIdx.x / 32 + 1);
    if (of_block % 16 == 0) sleep_ns(of_block / 16 % 16384);
    if (of_warp % 8 == 0) sleep_ns(of_warp / 8 % 2048);
    __syncwarp();
}
#else
__device__ inline void jitter(int, int) {}
#endif
