// What a block sets to 0 before it begins.
#pragma once

// Bytes of shared memory, by all its threads.
__device__ inline void clear(void* shared, int bytes) {
#pragma unroll 1
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) ((unsigned*)shared)[i] = 0;
}
